"""Runs next to each other: the page that compares methods, averaged over seeds, and the tables of the paper.

Results are grouped by data, model and request. The original and the retrained model come again in every run, so
phases with the same figures, name and seed are one entry. A grid also has a plan, which says what should be there, so
that missing cells can be named.

A row of a table is a method, averaged over its runs (mean ± standard deviation), with their number,
the worst of them, and the paper's own figures (`properties/paper.yaml`) where it has some for that dataset, model and
ratio. A method starts from its own original where it has one. The templates have the headings.
"""

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any, NamedTuple

from recbole_unlearn.data import DRAWN, INJECTED
from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.files import make_directory, write_bytes
from recbole_unlearn.measures import SHORT
from recbole_unlearn.report import page
from recbole_unlearn.report.page import MISSING, decimal, difference, signed, spread
from recbole_unlearn.results import ORIGINAL, RETRAINED, SECOND, UNLEARNED, PhaseResult, RunResult
from recbole_unlearn.results.schema import SCHEMA, mapping, number
from recbole_unlearn.results.table import asked_metrics
from recbole_unlearn.settings import properties_dir, read_json, read_yaml

PLAN_FILE, FAILED_FILE = "grid.json", "failed.json"
REFERENCES = (ORIGINAL, RETRAINED, SECOND)
BEFORE, AFTER, GOAL = "before", "phase", "retrained"  # attributes of an entry

FigureOf = Callable[[PhaseResult], float | None]  # takes a figure from a phase
TABLES = ("tables.md", "tables.tex")  # templates, and names of the files
_IN_PAPER = [f"{metric}@{cut}" for metric in ("recall", "ndcg") for cut in (10, 20, 50)]  # in its lists' order
_rate: FigureOf = attrgetter("demotion_rate")
_seconds: FigureOf = attrgetter("seconds")
_auc: FigureOf = methodcaller("figure", "attack", "auc")
_overlap: FigureOf = methodcaller("figure", "overlap@20", "affected")
# A kind of table is a function that makes the row of a method, by column.
Row = Callable[["Runs"], dict[str, str]]


class Place(NamedTuple):
    """Data, model and request of runs that can be averaged; ``ratio`` is the share of users with injected noise."""

    dataset: str
    model: str
    request: str
    ratio: float | None


class Entry(NamedTuple):
    """One phase of one run, with the original and the retrained model of the same run."""

    name: str
    seed: str | None
    phase: PhaseResult
    original: PhaseResult  # without figures where the run has none, like the next one
    retrained: PhaseResult
    is_moved: bool = True  # whether retraining moves NDCG@20 of affected users by more than noise
    level: str | None = None  # of its verdict, where it has one

    @property
    def before(self) -> PhaseResult:
        """The original of the phase: the run's, or one of its own."""
        return self.phase.before or self.original


class Runs(NamedTuple):
    """All runs of one method at one place; a phase is named as :class:`Entry` does."""

    place: Place
    name: str
    entries: list[Entry]

    def known(self, phase: str, of: FigureOf) -> list[float]:
        """A figure, of the runs that have it."""
        return [value for entry in self.entries if (value := of(getattr(entry, phase))) is not None]

    def spread(self, phase: str, of: FigureOf, digits: int = 4) -> str:
        """Mean ± standard deviation of a figure."""
        return spread(self.known(phase, of), digits)

    def pairs(self, one: str, other: str, of: FigureOf) -> list[tuple[float, float]]:
        """A figure of two phases, in the runs that have both; none of retraining and itself."""
        if self.name == RETRAINED and GOAL in (one, other):
            return []
        both = ((of(getattr(entry, one)), of(getattr(entry, other))) for entry in self.entries)
        return [(a, b) for a, b in both if a is not None and b is not None]


class GridPlan(NamedTuple):
    """The cells that grids should have and have not, each with the reason, and the names of their requests."""

    missing: Mapping[str, str]
    requests: Set[str]


NO_PLAN = GridPlan({}, frozenset())


def results_in(directory: Path) -> list[Path]:
    """``directory`` when it has a result, else the directories in it that have one (or itself, to be refused)."""
    # Names with a dot are of directories that a killed process has not finished.
    below = sorted(path.parent for path in directory.glob("[!.]*/result.json"))
    return [directory] if (directory / "result.json").exists() or not below else below


def affected_ndcg(phase: PhaseResult) -> float | None:
    """NDCG@20 of affected users."""
    return phase.affected.get("ndcg@20")


def read_result(path: Path) -> RunResult:
    """The result in a `result.json`; refuses a file that is none."""
    try:
        result = RunResult.from_json(tree := read_json(path))
        is_one = mapping(tree).get("schema") == SCHEMA
        if is_one and result.phases:
            return result
        why = "it has no phases" if is_one else f"it is not a result of schema {SCHEMA}"
    except UnlearnError as error:
        raise UnlearnError(f"Cannot compare {shown(path.parent)}: {error}") from error
    except ValueError:
        why = "it is not JSON"
    raise UnlearnError(
        f"Cannot compare {shown(path)}: {why}. Name output directories of finished runs, or run that one again."
    )


def read_mapping(path: Path) -> dict[str, Any]:
    """A mapping that the plugin wrote; empty when there is none, or none that can be read."""
    try:
        return mapping(read_json(path))
    except (ValueError, UnlearnError):
        return {}


def read_plan(directories: Iterable[Path]) -> GridPlan:
    """The plans of those directories that hold a grid, as one."""
    requests: set[str] = set()
    missing: dict[str, str] = {}
    for directory in map(Path, directories):
        failed = read_mapping(directory / FAILED_FILE)
        cells = mapping(read_mapping(directory / PLAN_FILE).get("cells"))
        requests |= {str(request) for request in cells.values() if request is not None}
        left = (name for name in cells if not (directory / name / "result.json").exists())
        missing |= {name: _text(failed.get(name)) or "not done yet" for name in left}
    return GridPlan(missing, requests)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def is_noise(result: RunResult) -> bool:
    """Whether the plugin made the request up itself: its figures must not be taken for a user's request."""
    return (result.forget.source or "").startswith((INJECTED, DRAWN))


def grouped(results: Sequence[RunResult], plan: GridPlan = NO_PLAN) -> dict[Place, list[Runs]]:
    """By place, the runs of every phase; the original and the retrained model first."""
    found: dict[Place, dict[str, dict[tuple[str | None, str], Entry]]] = {}  # by place and name, each model once
    for result in results:
        is_injected = (result.forget.source or "").startswith(INJECTED)
        ratio = number(result.settings.get("inject_users")) if is_injected else None
        request = (result.forget.source or MISSING) + ("" if ratio is None else f", {100 * ratio:.6g}% of users")
        if result.request in plan.requests:
            request = f"{result.forget.source} {result.request}"
        place = Place(result.dataset or MISSING, result.model or MISSING, request, ratio)
        for entry in _entries(result):
            own = found.setdefault(place, {}).setdefault(entry.name, {})
            own.setdefault((entry.seed, _figures(entry.phase)), entry)
    return {
        place: [
            Runs(place, name, list(there[name].values()))
            for name in dict.fromkeys([*REFERENCES, *there])
            if name in there
        ]
        for place, there in found.items()
    }


def _entries(result: RunResult) -> Iterable[Entry]:
    original, retrained = (result.phases.get(name, PhaseResult()) for name in (ORIGINAL, RETRAINED))
    levels = levels_of(result)
    is_moved = result.left_out is None or "ndcg@20" not in result.left_out.metrics
    for name, phase in result.phases.items():
        # An exact method is retraining: its own row would say the same twice.
        if name == UNLEARNED and RETRAINED in result.phases and _figures(phase) == _figures(retrained):
            continue
        title = result.method or name if name == UNLEARNED else name
        yield Entry(title, _text(result.seed), phase, original, retrained, is_moved, levels.get(name))


def levels_of(result: RunResult) -> dict[str, str]:
    """The level of every phase that has a verdict; the run's own is that of the unlearned model."""
    found = {name: phase.verdict for name, phase in result.phases.items()} | {UNLEARNED: result.verdict}
    return {name: one.level for name, one in found.items() if one is not None and one.level in SHORT}


def _figures(phase: PhaseResult) -> str:
    return json.dumps([phase.metrics, phase.affected, phase.forgetting], sort_keys=True)


def recovered(entries: Sequence[Entry]) -> float | None:
    """Σ(phase − before) / Σ(retrained − before) of affected NDCG@20; None if half of the runs moved by noise."""
    if 2 * sum(entry.is_moved for entry in entries) <= len(entries):
        return None
    starts = [affected_ndcg(entry.before) for entry in entries]
    return ratio_of_sums(
        (difference(affected_ndcg(entry.phase), start), difference(affected_ndcg(entry.retrained), start))
        for entry, start in zip(entries, starts, strict=True)
    )


def ratio_of_sums(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Σ first / Σ second over pairs that have both; not ruled, as a mean of ratios is, by the smallest of them."""
    known = [(first, second) for first, second in pairs if first is not None and second is not None]
    below = sum(second for _, second in known)
    return sum(first for first, _ in known) / below if below else None


def write_comparison(directories: Sequence[Path], target: Path, grids: Sequence[Path] = ()) -> Path:
    """Read `result.json` of each directory, write one page about them to ``target``, and return its path.

    The tables of the paper go to the same directory. ``grids`` say which results should be there.
    """
    if not directories:
        raise UnlearnError("Nothing to compare. Name the output directories of one or more runs.")
    results = [read_result(Path(directory) / "result.json") for directory in directories]
    contents = rendered(results, read_plan(grids))
    # Made after all refusals, so that no empty directory stays.
    target = make_directory(Path(target).parent) / Path(target).name
    for path, content in zip((target, *map(target.with_name, TABLES)), contents, strict=True):
        write_bytes(path, content)
    return target


def rendered(results: Sequence[RunResult], plan: GridPlan = NO_PLAN) -> list[bytes]:
    """The page about ``results``, and their tables as Markdown and as LaTeX."""
    tables = tables_of(results, plan)
    dates = sorted(str(result.date) for result in results if page.day(result.date))
    ends = " to ".join(dict.fromkeys(str(page.day(date)) for date in (dates[:1] + dates[-1:])))
    values = {
        "title": "Unlearning methods compared",
        "subject": " · ".join(filter(None, [page.counted(len(results), "run"), ends])),
        "has_noise": any(map(is_noise, results)),
        "tables": tables,
        "by_title": {one.title: [table for table in tables if table.title == one.title] for one in tables},
        "note": _note(tables),
        "missing": plan.missing,
    }
    return [page.render(template, **values) for template in ("comparison.html", *TABLES)]


class Table(NamedTuple):
    """One table about one dataset and kind of request, with a body for each model."""

    title: str
    subject: str
    caption: str
    head: list[str]
    bodies: dict[str, list[list[str]]]


@functools.cache
def shipped(name: str) -> dict[str, Any]:
    """The figures of the `paper`, or the words of the `tables`: captions by title, and the note above all."""
    return read_yaml(properties_dir() / f"{name}.yaml")


def tables_of(results: Sequence[RunResult], plan: GridPlan = NO_PLAN) -> list[Table]:
    """All tables that ``results`` have figures for."""
    everything = grouped(results, plan)
    subjects = dict.fromkeys((place.dataset, place.request) for place in everything)
    asked = dict.fromkeys(key for result in results for key in asked_metrics(result))
    utility = {page.metric_title(key): _utility(key) for key in asked}
    captions, made = dict.fromkeys(utility, shipped("tables")["utility"]) | shipped("tables")["captions"], []
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
    return " ".join(shipped("tables")[part] for part, is_there in parts.items() if is_there)


def _printed(runs: Runs, part: str, name: str | None = None) -> Any:
    """The paper's figures of a method under ``part``; None where it has none."""
    figures, place = shipped("paper"), runs.place
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
        name, phase = (shipped("paper")["reference"], RETRAINED) if runs.name == RETRAINED else (None, UNLEARNED)
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
    shares = [share for entry in runs.entries if (share := recovered([entry])) is not None]
    is_goal = runs.name == RETRAINED
    return {
        "Before": runs.spread(BEFORE, affected_ndcg),
        "After": runs.spread(AFTER, affected_ndcg),
        "Recovered": page.percent(None if is_goal else recovered(runs.entries)),
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
    levels = Counter(SHORT[entry.level] for entry in runs.entries if entry.level in SHORT).most_common()
    said = ", ".join(f"{said} {amount}×" if len(levels) > 1 else said for said, amount in levels)  # where they differ
    return {**_gaps(runs, _auc), "Verdict": said or MISSING}


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
    parts = {name for models in shipped("paper")["ablations"].values() for own in models.values() for name in own}
    whole = {RETRAINED, *shipped("paper")["same_as"], *shipped("paper")["same_as"].values()}
    has_any = any(runs.name in parts for runs in methods)
    return [runs for runs in methods if runs.name in parts | whole] if has_any else []


_KINDS: dict[str, Row] = {
    "NDCG@20, affected users": _affected, "Demotion rate": _demotion, "Attack AUC, and verdict": _attack,
    "Time": _time, "Ablations": _ablation,
}  # fmt: skip
