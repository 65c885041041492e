"""The page that sets runs beside each other: methods by dataset, model and kind of request.

Runs of one dataset, model and kind of request belong together; over their seeds, values are averaged.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from recbole_unlearn.data import INJECTED
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import make_directory, write_bytes
from recbole_unlearn.report import figures, page, paper, writers
from recbole_unlearn.report.entries import (
    NO_PLAN,
    REFERENCES,
    Entry,
    FigureOf,
    GridPlan,
    Groups,
    affected_ndcg,
    grouped,
    ratio_of_sums,
    read_plan,
    read_result,
    recovered,
)
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.values import (
    MISSING,
    SHORT,
    counted,
    day,
    decimal,
    difference,
    duration,
    percent,
    phase_title,
    signed,
    times,
)
from recbole_unlearn.results import RETRAINED, RunResult

_HEAD = (
    "Method",
    "Forgets",
    "NDCG@20, affected",
    "Recovered",
    "Demotion rate",
    "Attack AUC, off by",
    "Top-20 overlap",
    "Time",
    "Speed-up",
    "Runs",
)


def write_comparison(directories: Sequence[Path], target: Path, grids: Sequence[Path] = ()) -> Path:
    """Read `result.json` of each directory, write one page about them to ``target``, and return its path.

    Beside it go `tables.md` and `tables.tex`, the tables of the paper from the same results. Directories of ``grids``
    say which results should be there, so that those that are missing are shown as missing.
    """
    if not directories:
        raise UnlearnError("Nothing to compare. Name the output directories of one or more runs.")
    results = [read_result(Path(directory) / "result.json") for directory in directories]
    plan = read_plan(grids)
    tables = paper.tables(results, plan)
    target = (
        make_directory(Path(target).parent) / Path(target).name
    )  # after what may be refused: none stays empty
    write_bytes(target, page_of(results, plan))
    write_bytes(target.with_name("tables.md"), writers.markdown(tables, plan).encode())
    write_bytes(target.with_name("tables.tex"), writers.latex(tables, plan).encode())
    return target


def page_of(results: Sequence[RunResult], plan: GridPlan = NO_PLAN) -> bytes:
    """The page about ``results``."""
    groups = grouped(results)
    names = dict.fromkeys(entry.name for entries in groups.values() for entry in entries)
    looks = figures.looks(names)
    return page.document(
        "Unlearning methods compared",
        _header(results, groups, names),
        _table(groups, looks),
        (_drawings(place.title, entries, looks) for place, entries in groups.items()),
        writers.sections(paper.tables(results, plan), plan),
    )


def _header(results: Sequence[RunResult], groups: Groups, names: Iterable[str]) -> Html:
    methods = [name for name in names if name not in REFERENCES]
    datasets, models = {place.dataset for place in groups}, {place.model for place in groups}
    parts = [
        counted(len(part), noun)
        for part, noun in ((methods, "method"), (datasets, "dataset"), (models, "model"))
    ]
    made_up = any(place.request.startswith(INJECTED) for place in groups)
    noise = (
        "Artificial noise: where a request is called injected, its interactions were made up; nobody asked to have "
        "them forgotten."
    )
    return page.element(
        "header",
        page.element(
            "p", f"{counted(len(results), 'run')}: {', '.join(parts)}{_dates(results)}", class_="quiet"
        ),
        page.element("h1", "How near each method comes to retraining, and how fast"),
        page.element(
            "p",
            "The goal is the retrained model's value in every column but time: closer to it is better, smaller or "
            "larger by itself is not.",
        ),
        page.element("p", noise) if made_up else "",
        class_="verdict",
    )


def _dates(results: Sequence[RunResult]) -> str:
    """When the runs were made: the first and the last of them."""
    known = sorted(str(result.date) for result in results if day(result.date))
    ends = list(dict.fromkeys(str(day(date)) for date in (known[:1] + known[-1:])))
    return f" · {' to '.join(ends)}" if ends else ""


def _table(groups: Groups, looks: dict[str, figures.Look]) -> Html:
    bodies = {}
    for place, entries in groups.items():
        names = dict.fromkeys(entry.name for entry in entries)
        bodies[place.title] = [
            _row(name, [entry for entry in entries if entry.name == name], looks[name].color)
            for name in names
        ]
    caption = (
        "Means over runs, ± standard deviation. Small below: the distance to the same run's retrained model. "
        "An attack's AUC is the other way round: first its distance, and its value below. "
        "Recovered is a dash where retraining changes no more than two retrained models differ."
    )
    return page.section("All figures", page.table(caption, _HEAD, bodies))


def _row(name: str, entries: list[Entry], color: str) -> list[str]:
    reference = name in REFERENCES
    return [
        page.chip(color, phase_title(name)),
        "" if reference else _level(entries),
        _mean(entries, affected_ndcg, digits=4),
        "" if reference else percent(recovered(entries)),
        _mean(entries, lambda phase: phase.demotion_rate),
        _mean(entries, lambda phase: phase.figure("attack", "auc"), distance_first=True),
        _mean(entries, lambda phase: phase.figure("overlap@20", "affected")),
        _time(entries),
        "" if reference else times(_speedup(entries)),
        str(len(entries)),
    ]


def _average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _time(entries: list[Entry]) -> str:
    """Mean seconds; a model that was loaded in all runs has none."""
    seconds = _average(entry.phase.seconds for entry in entries)
    return "loaded" if seconds is None else duration(seconds)


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
    written = decimal(statistics.fmean(known), digits)
    if len(known) > 1:
        written += f" ± {decimal(statistics.stdev(known), digits)}"
    away = _average(difference(of(entry.phase), of(entry.retrained)) for entry in entries)
    if away is None or entries[0].name == RETRAINED:
        return written
    if distance_first:
        return page.lines(signed(away, digits), f"is {written}")
    return page.lines(written, signed(away, digits))


def _speedup(entries: list[Entry]) -> float | None:
    """Σ retrained seconds / Σ seconds, over runs that have both."""
    return ratio_of_sums((entry.retrained.seconds, entry.phase.seconds) for entry in entries)


def _drawings(place: str, entries: list[Entry], looks: dict[str, figures.Look]) -> Html:
    """Utility against forgetting, and utility against time."""
    utility = "NDCG@20, affected users"
    views: tuple[tuple[FigureOf, str, str, str, bool], ...] = (
        (
            lambda phase: phase.demotion_rate,
            "demotion rate",
            "Utility against forgetting.",
            "Retraining is the goal.",
            False,
        ),
        (lambda phase: phase.seconds, "seconds", "Utility against time.", "Further left is faster.", True),
    )
    drawn = []
    for of, x_title, title, caption, logarithmic in views:
        points = [
            figures.Point(entry.name, x, y)
            for entry in entries
            if (x := of(entry.phase)) is not None and (y := affected_ndcg(entry.phase)) is not None
        ]
        figure = figures.trade_off(points, looks, x_title, utility, logarithmic)
        if figure:
            drawn.append(page.drawing(figure, title, caption))
    return page.section(place, page.element("div", drawn, class_="figures") if drawn else "")
