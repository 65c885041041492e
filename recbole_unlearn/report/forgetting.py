"""The table of all measures of forgetting, each beside the retrained model's value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from recbole_unlearn.measures import measures
from recbole_unlearn.report import figures, page
from recbole_unlearn.report.account import is_few
from recbole_unlearn.report.columns import heading, side_by_side
from recbole_unlearn.report.histories import histories
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.values import decimal, difference, signed
from recbole_unlearn.results import RETRAINED, SECOND, PhaseResult, RunResult


class _Line(NamedTuple):
    """A row of the table of measures: one figure of a measure."""

    path: tuple[str, ...]  # under `forgetting`
    title: str
    below: tuple[str, ...]  # what the measure means, at its first figure
    is_distance: bool  # measured against the retrained model to begin with


def _measures(phases: figures.Phases) -> Iterator[_Line]:
    """The figures of all measures that are there, in the order of the registry."""
    entries = dict.fromkeys(key for phase in phases.values() for key in phase.forgetting)
    for one in measures():
        if one.is_distance and RETRAINED not in phases:
            continue
        below: tuple[str, ...] = (one.meaning, f"Good: {one.good}")
        for path, title in one.figures(entries):
            if any(phase.figure(*path) is not None for phase in phases.values()):
                yield _Line(path, title, below, one.is_distance)
                below = ()


def _is_attack(line: _Line) -> bool:
    """Whether a figure has no better side at all, and only a goal."""
    return line.path[0].startswith("attack")


def forgetting(result: RunResult, phases: figures.Phases) -> Html:
    """A row per measure; with retraining, each value has value − retrained's value below it.

    An attack's figures are the other way round, because people take a small AUC for a good one: the distance comes
    first, and the value is below it.

    The floor is what a second retraining with another seed gets: |its value − retrained's|, or its value where
    the measure is a distance already. No method can be asked to come nearer than that. Below it are the histories of
    a sequential model. Nothing of it is shown for fewer users than could be recognised.
    """
    if is_few(result):
        return Html("")
    columns = [name for name in side_by_side(phases) if name != SECOND]
    rows: list[list[str]] = []
    for line in _measures(phases):
        values = {name: phase.figure(*line.path) for name, phase in phases.items()}
        goal = None if line.is_distance else values.get(RETRAINED)
        cells = [_cell(phases[name], line, goal if name != RETRAINED else None) for name in columns]
        if SECOND in phases:
            floor = values[SECOND] if line.is_distance else difference(values[SECOND], goal)
            cells.append(decimal(None if floor is None else abs(floor)))
        rows.append([line.title, *cells])
        if line.below:
            rows.append([page.lines("", *line.below, *_goal_of(line, goal))])
    if not rows:
        return Html("")
    caption = "Every value is to be held against the retrained model's"
    caption += "; below it, the distance." if RETRAINED in phases else ", which this run does not have."
    if SECOND in phases:
        caption += " The floor is how far a second retraining, with another seed, is from the first."
    head = [
        "Measure",
        *(heading(name, phases) for name in columns),
        *(["floor"] if SECOND in phases else []),
    ]
    table = page.section("Forgetting", page.table(caption, head, {"": rows}))
    return page.join(table, histories(phases))


def _goal_of(line: _Line, goal: float | None) -> list[str]:
    """What to hold an attack's figure against."""
    if goal is None or not _is_attack(line) or not line.below:
        return []
    return [
        f"Goal here: {decimal(goal)}, which an attacker gets from a model that never saw the pairs. Closer to it is "
        "better; smaller or larger is not."
    ]


def _cell(phase: PhaseResult, line: _Line, goal: float | None) -> str:
    value = phase.figure(*line.path)
    away = difference(value, goal)
    between = []
    if line.path[-1] == "auc":  # it comes with its confidence interval
        low, high = (phase.figure(*line.path[:-1], end) for end in ("low", "high"))
        if low is not None and high is not None:
            between = [f"{decimal(low)} to {decimal(high)}"]
    if away is None:
        return page.lines(decimal(value), *between)
    if _is_attack(line):
        return page.lines(signed(away), f"is {decimal(value)}", *between)
    return page.lines(decimal(value), *between, signed(away))
