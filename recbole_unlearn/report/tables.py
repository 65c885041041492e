"""The tables of a report: utility of every phase, and the methods beside retraining."""

from __future__ import annotations

from collections.abc import Callable

from recbole_unlearn.report import figures, page
from recbole_unlearn.report.account import is_few
from recbole_unlearn.report.columns import heading, side_by_side
from recbole_unlearn.report.entries import levels_of
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.values import (
    MISSING,
    SHORT,
    decimal,
    difference,
    duration,
    percent,
    phase_title,
    signed,
    times,
)
from recbole_unlearn.results import ORIGINAL, RETRAINED, SECOND, UNLEARNED, Metrics, PhaseResult, RunResult

_ALL = "All users"
_GROUPS: dict[str, Callable[[PhaseResult], Metrics]] = {
    _ALL: lambda phase: phase.metrics,
    "Affected users (with a deleted interaction)": lambda phase: phase.affected,
    "Unaffected users": lambda phase: phase.unaffected,
    "All users, deleted items masked": lambda phase: phase.masked,
}


def methods(result: RunResult, phases: figures.Phases) -> Html:
    """A row per method: its verdict, what it recovers, how far it is from the retrained model, and its time."""
    names = [name for name in side_by_side(phases) if name not in (ORIGINAL, RETRAINED, SECOND)]
    if len(names) < 2 or RETRAINED not in phases:
        return Html("")
    levels = levels_of(result)
    goal = phases[RETRAINED]
    rows = []
    for name in names:
        phase = phases[name]
        shares = result.recovered if name == UNLEARNED else phase.recovered
        faster = result.speedup if name == UNLEARNED else phase.speedup
        title = f"{result.method} (unlearned)" if name == UNLEARNED and result.method else phase_title(name)
        rows.append(
            [
                page.chip(figures.looks(phases)[name].color, title),
                SHORT[levels[name]] if name in levels else MISSING,
                percent((shares or {}).get("ndcg@20")),
                signed(difference(phase.demotion_rate, goal.demotion_rate)),
                signed(difference(phase.figure("attack", "auc"), goal.figure("attack", "auc"))),
                _seconds(phase),
                times(faster),
            ]
        )
    head = ["Method", "Forgets", "Recovered", "Demotion rate", "Attack AUC", "Time", "Speed-up"]
    kept = [place for place in range(len(head)) if any(row[place] != MISSING for row in rows)]
    caption = (
        "Demotion rate and attack AUC are shown as the distance from the retrained model's: 0 is the goal, and "
        "closer to it is better, whichever the sign. Recovered is the share of what retraining does to "
        "NDCG@20 of affected users."
    )
    table = page.table(caption, [head[k] for k in kept], {"": [[row[k] for k in kept] for row in rows]})
    return page.section("The methods beside retraining", table)


def results(result: RunResult, phases: figures.Phases) -> Html:
    """A row per phase for each group of users, then the originals that some have of their own."""
    digits = 1 if is_few(result) else 4
    order = side_by_side(phases)
    shown = [(heading(name, phases), phases[name]) for name in order]
    shown += [
        (page.lines(heading(name, phases), "before: its own original"), before)
        for name in order
        if (before := phases[name].before) is not None
    ]
    metrics = list(dict.fromkeys(m for _, phase in shown for of in _GROUPS.values() for m in of(phase)))
    if not metrics:
        return Html("")
    bodies = {
        title: [
            [
                head,
                *(decimal(of(phase).get(m), digits) for m in metrics),
                _seconds(phase) if title == _ALL else "",
            ]
            for head, phase in shown
            if of(phase)
        ]
        for title, of in _GROUPS.items()
    }
    caption = (
        "All phases on the same test interactions, with the same masks. "
        "Time is a phase's own work, without evaluation."
    )
    if SECOND in phases:
        caption += " Retrained 2 is a second retraining, with another seed."
    table = page.table(
        caption,
        ["Phase", *map(figures.metric_title, metrics), "Time"],
        {title: rows for title, rows in bodies.items() if rows},
    )
    cached = any(phase.seconds_from_cache for _, phase in shown)
    note = page.element("p", "* trained in an earlier run; the time is that run's.", class_="quiet")
    return page.section("Results", table, note if cached else "")


def _seconds(phase: PhaseResult) -> str:
    if phase.seconds is None:
        return "loaded"
    return duration(phase.seconds) + ("*" if phase.seconds_from_cache else "")
