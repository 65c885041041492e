"""The page that compares runs: methods by dataset, model and kind of request, averaged over seeds.

`templates/comparison.html` has the headings and captions. With the page go the tables of the paper, as Markdown and
LaTeX.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from recbole_unlearn.data import INJECTED
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import make_directory, write_bytes
from recbole_unlearn.measures import SHORT
from recbole_unlearn.report import figures, page, paper_tables
from recbole_unlearn.report.entries import (
    NO_PLAN,
    REFERENCES,
    Entry,
    FigureOf,
    GridPlan,
    affected_ndcg,
    grouped,
    ratio_of_sums,
    read_plan,
    read_result,
    recovered,
)
from recbole_unlearn.report.page import MISSING
from recbole_unlearn.results import RETRAINED, RunResult

TABLES = ("tables.md", "tables.tex")  # templates, and names of the files


def write_comparison(directories: Sequence[Path], target: Path, grids: Sequence[Path] = ()) -> Path:
    """Read `result.json` of each directory, write one page about them to ``target``, and return its path.

    `tables.md` and `tables.tex`, the tables of the paper from the same results, go to the same directory. Directories
    of ``grids`` say which results should be there, so that missing ones are shown as missing.
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
    groups = grouped(results)
    names = list(dict.fromkeys(entry.name for entries in groups.values() for entry in entries))
    looks = figures.looks(names)
    rows = {}
    for place, entries in groups.items():
        runs = {name: [entry for entry in entries if entry.name == name] for name in names}
        rows[place.title] = [_row(name, own, looks[name].color) for name, own in runs.items() if own]
    datasets, models = ({getattr(place, side) for place in groups} for side in ("dataset", "model"))
    methods = [name for name in names if name not in REFERENCES]
    amounts = {"method": len(methods), "dataset": len(datasets), "model": len(models)}
    counts = ", ".join(page.counted(amount, noun) for noun, amount in amounts.items())
    dates = sorted(str(result.date) for result in results if page.day(result.date))
    ends = " to ".join(dict.fromkeys(str(page.day(date)) for date in (dates[:1] + dates[-1:])))
    tables = paper_tables.tables(results, plan)
    values = {
        "title": "Unlearning methods compared",
        "subject": " · ".join(filter(None, [f"{page.counted(len(results), 'run')}: {counts}", ends])),
        "has_noise": any(place.request.startswith(INJECTED) for place in groups),
        "rows": rows,
        "figures": {
            place.title: [
                _trade_off(entries, looks, "demotion_rate", "demotion rate"),
                _trade_off(entries, looks, "seconds", "seconds"),
            ]
            for place, entries in groups.items()
        },
        "tables": tables,
        "by_title": {one.title: [table for table in tables if table.title == one.title] for one in tables},
        "note": paper_tables.NOTE,
        "missing": plan.missing,
    }
    return [page.render(template, **values) for template in ("comparison.html", *TABLES)]


def _row(name: str, entries: list[Entry], color: str) -> list[str]:
    is_reference = name in REFERENCES
    seconds = _average(entry.phase.seconds for entry in entries)
    faster = ratio_of_sums((entry.retrained.seconds, entry.phase.seconds) for entry in entries)
    return [
        page.chip(page.phase_title(name), color),
        "" if is_reference else _level(entries),
        _mean(entries, affected_ndcg, digits=4),
        "" if is_reference else page.percent(recovered(entries)),
        _mean(entries, lambda phase: phase.demotion_rate),
        _mean(entries, lambda phase: phase.figure("attack", "auc"), distance_first=True),
        _mean(entries, lambda phase: phase.figure("overlap@20", "affected")),
        "loaded" if seconds is None else page.duration(seconds),
        "" if is_reference else page.times(faster),
        str(len(entries)),
    ]


def _average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _level(entries: list[Entry]) -> str:
    """The levels of the runs' verdicts: near, or how many have which where they differ."""
    found = Counter(SHORT[entry.level] for entry in entries if entry.level in SHORT)
    if len(found) < 2:
        return next(iter(found), MISSING)
    return ", ".join(f"{words} {amount}×" for words, amount in found.most_common())


def _mean(entries: list[Entry], of: FigureOf, digits: int = 3, distance_first: bool = False) -> str:
    """Mean ± deviation, and below it the mean of value − retrained's value in the same run."""
    known = [value for entry in entries if (value := of(entry.phase)) is not None]
    if not known:
        return MISSING
    written = paper_tables.spread(known, digits)
    away = _average(page.difference(of(entry.phase), of(entry.retrained)) for entry in entries)
    if away is None or entries[0].name == RETRAINED:
        return written
    distance = page.signed(away, digits)
    return page.lines(distance, f"is {written}") if distance_first else page.lines(written, distance)


def _trade_off(entries: list[Entry], looks: dict[str, figures.Look], x: str, title: str) -> figures.Figure | None:
    """Utility against the attribute ``x`` of phases."""
    known = [(entry.name, getattr(entry.phase, x), affected_ndcg(entry.phase)) for entry in entries]
    points = [(name, x, y) for name, x, y in known if x is not None and y is not None]
    return figures.trade_off(points, looks, title, "NDCG@20, affected users", logarithmic=x == "seconds")
