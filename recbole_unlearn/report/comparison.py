"""Runs next to each other: the page that compares methods, averaged over seeds, and the tables of the paper.

A row of a table is a method, averaged over its runs (mean ± standard deviation), with their number,
the worst of them, and the paper's own figures (`properties/paper.yaml`) where it has some for that dataset, model and
ratio. A method starts from its own original where it has one. The templates have the headings.
"""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any, NamedTuple

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import make_directory, write_bytes
from recbole_unlearn.measures import SHORT
from recbole_unlearn.report import entries, page
from recbole_unlearn.report.entries import AFTER, BEFORE, GOAL, FigureOf, Runs, affected_ndcg, ratio_of_sums
from recbole_unlearn.report.page import MISSING, decimal, signed, spread
from recbole_unlearn.results import ORIGINAL, RETRAINED, UNLEARNED, RunResult
from recbole_unlearn.results.table import asked_metrics
from recbole_unlearn.settings import properties_dir, read_yaml

TABLES = ("tables.md", "tables.tex")  # templates, and names of the files
_IN_PAPER = [f"{metric}@{cut}" for metric in ("recall", "ndcg") for cut in (10, 20, 50)]  # in its lists' order
_rate: FigureOf = attrgetter("demotion_rate")
_seconds: FigureOf = attrgetter("seconds")
_auc: FigureOf = methodcaller("figure", "attack", "auc")
_overlap: FigureOf = methodcaller("figure", "overlap@20", "affected")
# A kind of table is a function that makes the row of a method, by column.
Row = Callable[[Runs], dict[str, str]]


def write_comparison(directories: Sequence[Path], target: Path, grids: Sequence[Path] = ()) -> Path:
    """Read `result.json` of each directory, write one page about them to ``target``, and return its path.

    The tables of the paper go to the same directory. ``grids`` say which results should be there.
    """
    if not directories:
        raise UnlearnError("Nothing to compare. Name the output directories of one or more runs.")
    results = [entries.read_result(Path(directory) / "result.json") for directory in directories]
    contents = rendered(results, entries.read_plan(grids))
    # Made after all refusals, so that no empty directory stays.
    target = make_directory(Path(target).parent) / Path(target).name
    for path, content in zip((target, *map(target.with_name, TABLES)), contents, strict=True):
        write_bytes(path, content)
    return target


def rendered(results: Sequence[RunResult], plan: entries.GridPlan = entries.NO_PLAN) -> list[bytes]:
    """The page about ``results``, and their tables as Markdown and as LaTeX."""
    tables = tables_of(results, plan)
    dates = sorted(str(result.date) for result in results if page.day(result.date))
    ends = " to ".join(dict.fromkeys(str(page.day(date)) for date in (dates[:1] + dates[-1:])))
    values = {
        "title": "Unlearning methods compared",
        "subject": " · ".join(filter(None, [page.counted(len(results), "run"), ends])),
        "has_noise": any(map(entries.is_noise, results)),
        "tables": tables,
        "by_title": {one.title: [table for table in tables if table.title == one.title] for one in tables},
        "note": _note(tables),
        "missing": plan.missing,
    }
    return [page.render(template, **values) for template in ("comparison.html", *TABLES)]


def _verdicts(runs: Runs) -> str:
    """The levels of the runs' verdicts: near, or how many have which where they differ."""
    levels = Counter(SHORT[entry.level] for entry in runs.entries if entry.level in SHORT).most_common()
    return ", ".join(f"{said} {amount}×" if len(levels) > 1 else said for said, amount in levels) or MISSING


class Table(NamedTuple):
    """One table about one dataset and kind of request, with a body for each model."""

    title: str
    subject: str
    caption: str
    head: list[str]
    bodies: dict[str, list[list[str]]]


@functools.cache
def published() -> dict[str, Any]:
    """The paper's figures."""
    return read_yaml(properties_dir() / "paper.yaml")


@functools.cache
def words() -> dict[str, Any]:
    """The captions of the tables by their titles, the one of all tables of utility, and the note above all."""
    return read_yaml(properties_dir() / "tables.yaml")


def tables_of(results: Sequence[RunResult], plan: entries.GridPlan = entries.NO_PLAN) -> list[Table]:
    """All tables that ``results`` have figures for."""
    everything = entries.grouped(results, plan)
    subjects = dict.fromkeys((place.dataset, place.request) for place in everything)
    asked = dict.fromkeys(key for result in results for key in asked_metrics(result))
    utility = {page.metric_title(key): _utility(key) for key in asked}
    captions, made = dict.fromkeys(utility, words()["utility"]) | words()["captions"], []
    for title, row in ({"Overview": _overview} | utility | _KINDS).items():
        for dataset, request in subjects:
            bodies = {
                place.model: [
                    {"Method": page.phase_title(runs.name), **row(runs), "Runs": str(len(runs.entries))}
                    for runs in (_ablated(methods) if row is _ablation else methods)
                    if runs.name != ORIGINAL  # the others start from it, so it is in their rows
                ]
                for place, methods in everything.items()
                if (place.dataset, place.request) == (dataset, request)
            }
            every = [row for body in bodies.values() for row in body]
            head, rows = page.without_gaps([*every[0]] if every else [], [[*row.values()] for row in every])
            if len(head) > 2:  # not only names and counts
                left = iter(rows)
                shown = {model: [next(left) for _ in body] for model, body in bodies.items() if body}
                made.append(Table(title, f"{dataset} · {request}", captions[title], head, shown))
    return made


def _note(tables: Sequence[Table]) -> str:
    """What is said above all tables: of the paper's figures, and of its data, only where there are such."""
    parts = {"note": True, "paper": any("Paper" in table.head for table in tables)}
    parts["amazon"] = parts["paper"] and any(table.subject.startswith("amazon-music") for table in tables)
    return " ".join(words()[part] for part, is_there in parts.items() if is_there)


def _printed(runs: Runs, part: str, name: str | None = None) -> Any:
    """The paper's figures of a method under ``part``; None where it has none."""
    figures, place = published(), runs.place
    if place.ratio != figures["ratio"]:
        return None
    name = name or runs.name
    return figures[part].get(place.dataset, {}).get(place.model, {}).get(figures["same_as"].get(name, name))


def _change(pairs: Sequence[tuple[float, float]]) -> str:
    """Σ first / Σ second − 1."""
    ratio = ratio_of_sums(pairs)
    return MISSING if ratio is None else f"{signed(100 * (ratio - 1), 1)}%"


def _arrow(first: float, second: float, change: bool) -> str:
    written = f"{decimal(first, 4)} → {decimal(second, 4)}"
    return written + (f" ({_change([(second, first)])})" if change and first else "")


def _metric(key: str) -> FigureOf:
    return lambda phase: phase.metrics.get(key)


def _utility(key: str) -> Row:
    of = _metric(key)
    place = _IN_PAPER.index(key) if key in _IN_PAPER else None

    def row(runs: Runs) -> dict[str, str]:
        held = runs.pairs(AFTER, GOAL, of)
        name, phase = (published()["reference"], RETRAINED) if runs.name == RETRAINED else (None, UNLEARNED)
        printed = _printed(runs, "utility", name) or {}
        has_both = place is not None and phase in printed and ORIGINAL in printed
        worst = min((pair for pair in held if pair[1]), key=lambda pair: pair[0] / pair[1], default=(0, 0))
        return {
            "Before": runs.spread(BEFORE, of),
            "After": runs.spread(AFTER, of),
            "Change": _change(runs.pairs(AFTER, BEFORE, of)),
            "Paper": _arrow(printed[ORIGINAL][place], printed[phase][place], True) if has_both else MISSING,
            "Gap": _change(held),
            "Gap, worst": _change([worst]),
        }

    return row


def _affected(runs: Runs) -> dict[str, str]:
    shares = [share for entry in runs.entries if (share := entries.recovered([entry])) is not None]
    is_goal = runs.name == RETRAINED
    return {
        "Before": runs.spread(BEFORE, affected_ndcg),
        "After": runs.spread(AFTER, affected_ndcg),
        "Recovered": page.percent(None if is_goal else entries.recovered(runs.entries)),
        "Recovered, worst": page.percent(None if is_goal else min(shares, default=None)),
    }


def _gaps(runs: Runs, of: FigureOf) -> dict[str, str]:
    away = [a - b for a, b in runs.pairs(AFTER, GOAL, of)]
    return {
        "Before": runs.spread(BEFORE, of, digits=3),
        "After": runs.spread(AFTER, of, digits=3),
        "Gap": spread(away, 3, signed),
        "Gap, worst": signed(max(away, key=abs, default=None)),
    }


def _demotion(runs: Runs) -> dict[str, str]:
    printed = _printed(runs, "demotion")
    return {**_gaps(runs, _rate), "Paper": _arrow(printed[0], printed[1], change=False) if printed else MISSING}


def _attack(runs: Runs) -> dict[str, str]:
    return {**_gaps(runs, _auc), "Verdict": _verdicts(runs)}


def _overview(runs: Runs) -> dict[str, str]:
    attack, time = _attack(runs), _time(runs)
    return {
        "Verdict": attack["Verdict"],
        "Demotion rate, gap": _demotion(runs)["Gap"],
        "Attack AUC, gap": attack["Gap"],
        "Recovered": _affected(runs)["Recovered"],
        "Top-20 overlap": runs.spread(AFTER, _overlap, digits=3),
        "Seconds": time["Seconds"],
        "Speed-up": time["Speed-up"],
    }


def _time(runs: Runs) -> dict[str, str]:
    known, both = runs.known(AFTER, _seconds), runs.pairs(GOAL, AFTER, _seconds)
    cached = any(entry.phase.seconds_from_cache for entry in runs.entries)
    slow, fast = _printed(runs, "time") or (None, None)
    return {
        "Seconds": spread(known, 2 if min(known, default=0.0) < 10 else 1) + "*" * bool(cached and known),
        "Speed-up": page.times(ratio_of_sums(both)),
        "Speed-up, worst": page.times(min((slow / fast for slow, fast in both if fast), default=None)),
        "Paper": MISSING if slow is None else f"{fast:.2f} of {slow:.2f} ({page.times(slow / fast)})",
    }


def _ablation(runs: Runs) -> dict[str, str]:
    printed = _printed(runs, "ablations")
    whole = (_printed(runs, "utility") or {}).get(UNLEARNED)
    if printed is None and whole is not None:
        printed = [whole[_IN_PAPER.index(key)] for key in ("recall@20", "ndcg@20")]
    recall, ndcg = (decimal(value, 4) for value in printed or (None, None))
    return {
        "R@20": runs.spread(AFTER, _metric("recall@20")),
        "R@20 paper": recall,
        "N@20": runs.spread(AFTER, _metric("ndcg@20")),
        "N@20 paper": ndcg,
        "N@20 affected": runs.spread(AFTER, affected_ndcg),
        "Demotion rate": runs.spread(AFTER, _rate, digits=3),
    }


def _ablated(methods: list[Runs]) -> list[Runs]:
    """The ablations, and the methods they are ablations of; none where no ablation ran."""
    parts = {name for models in published()["ablations"].values() for own in models.values() for name in own}
    whole = {RETRAINED, *published()["same_as"], *published()["same_as"].values()}
    has_any = any(runs.name in parts for runs in methods)
    return [runs for runs in methods if runs.name in parts | whole] if has_any else []


_KINDS: dict[str, Row] = {
    "NDCG@20, affected users": _affected, "Demotion rate": _demotion, "Attack AUC, and verdict": _attack,
    "Time": _time, "Ablations": _ablation,
}  # fmt: skip
