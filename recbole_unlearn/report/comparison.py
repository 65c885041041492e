"""The page that compares runs: methods by dataset, model and kind of request, averaged over seeds.

`templates/comparison.html` has the headings and captions. With the page go the tables of the paper, as Markdown and
LaTeX.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import make_directory, write_bytes
from recbole_unlearn.measures import SHORT
from recbole_unlearn.report import entries, figures, page, paper_tables
from recbole_unlearn.results import RunResult

TABLES = ("tables.md", "tables.tex")  # templates, and names of the files


def write_comparison(directories: Sequence[Path], target: Path, grids: Sequence[Path] = ()) -> Path:
    """Read `result.json` of each directory, write one page about them to ``target``, and return its path.

    `tables.md` and `tables.tex`, the tables of the paper from the same results, go to the same directory. Directories
    of ``grids`` say which results should be there, so that missing ones are shown as missing.
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
    groups = {place: {runs.name: runs for runs in methods} for place, methods in entries.grouped(results).items()}
    names = list(dict.fromkeys(name for methods in groups.values() for name in methods))
    looks = figures.looks(names)
    amounts = {
        "method": len([name for name in names if name not in entries.REFERENCES]),
        "dataset": len({place.dataset for place in groups}),
        "model": len({place.model for place in groups}),
    }
    counts = ", ".join(page.counted(amount, noun) for noun, amount in amounts.items())
    dates = sorted(str(result.date) for result in results if page.day(result.date))
    ends = " to ".join(dict.fromkeys(str(page.day(date)) for date in (dates[:1] + dates[-1:])))
    tables = paper_tables.tables(results, plan)
    values = {
        "title": "Unlearning methods compared",
        "subject": " · ".join(filter(None, [f"{page.counted(len(results), 'run')}: {counts}", ends])),
        "has_noise": any(map(entries.is_noise, results)),
        "rows": {
            place.title: [_row(methods[name], looks[name].color) for name in names if name in methods]
            for place, methods in groups.items()
        },
        "figures": {
            place.title: [
                _trade_off(methods, looks, "demotion_rate", "demotion rate"),
                _trade_off(methods, looks, "seconds", "seconds"),
            ]
            for place, methods in groups.items()
        },
        "tables": tables,
        "by_title": {one.title: [table for table in tables if table.title == one.title] for one in tables},
        "note": paper_tables.NOTE,
        "missing": plan.missing,
    }
    return [page.render(template, **values) for template in ("comparison.html", *TABLES)]


def _row(runs: entries.Runs, color: str) -> list[str]:
    is_reference, seconds = runs.name in entries.REFERENCES, runs.known(entries.AFTER, attrgetter("seconds"))
    # The levels of the runs' verdicts: near, or how many have which where they differ.
    levels = Counter(SHORT[entry.level] for entry in runs.entries if entry.level in SHORT).most_common()
    forgets = [f"{words} {amount}×" if len(levels) > 1 else words for words, amount in levels]
    faster = entries.ratio_of_sums(runs.pairs(entries.GOAL, entries.AFTER, attrgetter("seconds")))
    return [
        page.chip(page.phase_title(runs.name), color),
        "" if is_reference else ", ".join(forgets) or page.MISSING,
        _mean(runs, entries.affected_ndcg, digits=4),
        "" if is_reference else page.percent(entries.recovered(runs.entries)),
        _mean(runs, attrgetter("demotion_rate")),
        _mean(runs, lambda phase: phase.figure("attack", "auc"), distance_first=True),
        _mean(runs, lambda phase: phase.figure("overlap@20", "affected")),
        page.duration(statistics.fmean(seconds)) if seconds else "loaded",
        "" if is_reference else page.times(faster),
        str(len(runs.entries)),
    ]


def _mean(runs: entries.Runs, of: entries.FigureOf, digits: int = 3, distance_first: bool = False) -> str:
    """Mean ± deviation, and below it the mean of value − retrained's value in the same run."""
    written, pairs = runs.spread(entries.AFTER, of, digits), runs.pairs(entries.AFTER, entries.GOAL, of)
    if not pairs:
        return written
    distance = page.signed(statistics.fmean(value - goal for value, goal in pairs), digits)
    return page.lines(distance, f"is {written}") if distance_first else page.lines(written, distance)


def _trade_off(
    methods: Mapping[str, entries.Runs], looks: Mapping[str, figures.Look], x: str, title: str
) -> figures.Figure | None:
    """Utility against the attribute ``x`` of phases."""
    phases = [(name, entry.phase) for name, runs in methods.items() for entry in runs.entries]
    known = [(name, getattr(phase, x), entries.affected_ndcg(phase)) for name, phase in phases]
    points = [(name, x, y) for name, x, y in known if x is not None and y is not None]
    return figures.trade_off(points, looks, title, "NDCG@20, affected users", logarithmic=x == "seconds")
