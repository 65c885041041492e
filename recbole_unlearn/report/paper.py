"""The tables of the paper, made from results: utility, affected users, demotion rate, time and ablations.

A row is a method, averaged over the runs that are there (mean ± standard deviation), with how many they are, the
worst of them, and the paper's own figures (`properties/paper.yaml`) where it has some for that dataset, model and
ratio. What a method starts from is its own original where it has one. `writers.py` writes the tables.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from recbole_unlearn.report.entries import (
    NO_PLAN,
    Entry,
    FigureOf,
    GridPlan,
    Place,
    affected_ndcg,
    grouped,
    ratio_of_sums,
    recovered,
)
from recbole_unlearn.report.figures import metric_title
from recbole_unlearn.report.values import MISSING, decimal, percent, phase_title, signed, times
from recbole_unlearn.results import ORIGINAL, RETRAINED, UNLEARNED, PhaseResult, RunResult
from recbole_unlearn.settings import properties_dir, read_yaml

CUTS = (10, 20, 50)
_METRICS = ("recall", "ndcg")
NOTE = (
    "Test interactions. Means over the runs that are there, ± standard deviation over seeds; “worst” is the worst "
    "single run. The paper's figures are no one-to-one comparison: its splits, dimensions, epochs and machines are "
    "others, and its Amazon set is Amazon Fashion, in place of which amazon-music is used."
)

Phase = Callable[[Entry], PhaseResult]  # takes one of the phases of an entry
Cells = list[str]
Row = Callable[["Runs"], Cells]


class Table(NamedTuple):
    """One table about one dataset and kind of request, with a body for each model."""

    title: str
    subject: str
    caption: str
    head: Cells
    bodies: dict[str, list[Cells]]


class Runs(NamedTuple):
    """All runs of one method at one place, and how many there should be."""

    place: Place
    name: str
    entries: list[Entry]
    planned: int

    def known(self, phase: Phase, of: FigureOf) -> list[float]:
        """A figure, of the runs that have it."""
        return [value for entry in self.entries if (value := of(phase(entry))) is not None]

    def spread(self, phase: Phase, of: FigureOf, digits: int = 4) -> str:
        """Mean ± standard deviation of a figure."""
        return _spread(self.known(phase, of), digits)

    def pairs(self, one: Phase, other: Phase, of: FigureOf) -> list[tuple[float, float]]:
        """A figure of two phases, in the runs that have both."""
        both = ((of(one(entry)), of(other(entry))) for entry in self.entries)
        return [(a, b) for a, b in both if a is not None and b is not None]

    def counted(self) -> str:
        """How many runs there are, and of how many where some are missing."""
        found = len(self.entries)
        return str(found) if found >= self.planned else f"{found} of {self.planned}"

    def printed(self, part: str, name: str | None = None) -> Any:
        """What the paper prints of the method under ``part``; None where it has nothing."""
        figures = published()
        if self.place.ratio != figures["ratio"]:
            return None
        name = name or self.name
        own = figures[part].get(self.place.dataset, {}).get(self.place.model, {})
        return own.get(figures["same_as"].get(name, name))


@functools.cache
def published() -> dict[str, Any]:
    """The paper's figures."""
    return read_yaml(properties_dir() / "paper.yaml")


def tables(results: Sequence[RunResult], plan: GridPlan = NO_PLAN) -> list[Table]:
    """All tables that ``results`` have figures for; rows and runs of the ``plan`` that are missing are shown so."""
    everything = _runs(results, plan)
    subjects = dict.fromkeys((place.dataset, place.request) for place in everything)
    utility = [_utility(metric, cut) for metric in _METRICS for cut in CUTS]
    kinds = [*utility, _AFFECTED, _DEMOTION, _TIME, _ABLATIONS]
    made: list[Table] = []
    for kind in kinds:
        for dataset, request in subjects:
            bodies = {
                place.model: [
                    [phase_title(runs.name), *kind.row(runs), runs.counted()] for runs in kind.chosen(methods)
                ]
                for place, methods in everything.items()
                if (place.dataset, place.request) == (dataset, request)
            }
            table = Table(
                kind.title, f"{dataset} · {request}", kind.caption, ["Method", *kind.head, "Runs"], bodies
            )
            made += _without_gaps(table)
    return made


def _runs(results: Sequence[RunResult], plan: GridPlan) -> dict[Place, list[Runs]]:
    """By place, the runs of every method that is there or should be; retraining first."""
    groups = grouped(results)
    found = {}
    for place in dict.fromkeys([*groups, *plan.seeds]):
        entries, planned = groups.get(place, []), plan.seeds.get(place, {})
        names = dict.fromkeys([*(entry.name for entry in entries), *planned])
        found[place] = [
            Runs(place, name, own, len(planned.get(name, set()) | {entry.seed for entry in own}))
            for name in sorted(names, key=lambda name: name != RETRAINED)
            for own in [[entry for entry in entries if entry.name == name]]
            if name != ORIGINAL  # it is what the others start from, and is in their rows
        ]
    return found


def _without_gaps(table: Table) -> Iterable[Table]:
    """The table without columns that say nothing, and not at all when only names and counts are left."""
    bodies = {model: rows for model, rows in table.bodies.items() if rows}
    rows = [row for body in bodies.values() for row in body]
    kept = [place for place in range(len(table.head)) if any(row[place] not in ("", MISSING) for row in rows)]
    if len(kept) > 2:  # the first and the last always are
        chosen = {model: [[row[place] for place in kept] for row in body] for model, body in bodies.items()}
        yield table._replace(head=[table.head[place] for place in kept], bodies=chosen)


def _spread(known: Sequence[float], digits: int, written: Callable[[float, int], str] = decimal) -> str:
    """Mean ± standard deviation, the latter where there are several."""
    if not known:
        return MISSING
    deviation = f" ± {decimal(statistics.stdev(known), digits)}" if len(known) > 1 else ""
    return written(statistics.fmean(known), digits) + deviation


def _change(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Σ first / Σ second − 1."""
    ratio = ratio_of_sums(pairs)
    return None if ratio is None else ratio - 1


def _signed_percent(value: float | None) -> str:
    return MISSING if value is None else f"{signed(100 * value, 1)}%"


def _before(entry: Entry) -> PhaseResult:
    return entry.before


def _after(entry: Entry) -> PhaseResult:
    return entry.phase


def _goal(entry: Entry) -> PhaseResult:
    return entry.retrained


def _demotion(phase: PhaseResult) -> float | None:
    return phase.demotion_rate


def _seconds(phase: PhaseResult) -> float | None:
    return phase.seconds


def _metric(key: str) -> FigureOf:
    """``key`` of all users."""
    return lambda phase: phase.metrics.get(key)


def _arrow(first: float, second: float, change: bool) -> str:
    written = f"{decimal(first, 4)} → {decimal(second, 4)}"
    return written + (f" ({_signed_percent(second / first - 1)})" if change and first else "")


class _Kind(NamedTuple):
    """A kind of table: its columns, how a row of them is made, and which of the methods at a place have one."""

    title: str
    caption: str
    head: Cells
    row: Row
    chosen: Callable[[list[Runs]], list[Runs]] = lambda methods: methods


def _utility(metric: str, cut: int) -> _Kind:
    """One metric of all users, before and after."""
    of = _metric(f"{metric}@{cut}")
    place = _METRICS.index(metric) * len(CUTS) + CUTS.index(cut)  # in the paper's lists

    def printed(runs: Runs) -> str:
        name, phase = (
            (runs.name, UNLEARNED) if runs.name != RETRAINED else (published()["reference"], RETRAINED)
        )
        figures = runs.printed("utility", name) or {}
        if phase not in figures or ORIGINAL not in figures:
            return MISSING
        return _arrow(figures[ORIGINAL][place], figures[phase][place], change=True)

    def row(runs: Runs) -> Cells:
        held = runs.pairs(_after, _goal, of) if runs.name != RETRAINED else []
        return [
            runs.spread(_before, of),
            runs.spread(_after, of),
            _signed_percent(_change(runs.pairs(_after, _before, of))),
            printed(runs),
            _signed_percent(_change(held)),
            _signed_percent(min((a / b - 1 for a, b in held if b), default=None)),
        ]

    return _Kind(
        f"{metric_title(metric)}@{cut}",
        "All users, before and after unlearning. Gap: against the retrained model of the same run.",
        ["Before", "After", "Change", "Paper", "Gap", "Gap, worst"],
        row,
    )


def _affected_row(runs: Runs) -> Cells:
    cells = [runs.spread(_before, affected_ndcg), runs.spread(_after, affected_ndcg)]
    if runs.name == RETRAINED:
        return [*cells, MISSING, MISSING]
    shares = [recovered([entry]) for entry in runs.entries]
    worst = min((share for share in shares if share is not None), default=None)
    return [*cells, percent(recovered(runs.entries)), percent(worst)]


_AFFECTED = _Kind(
    "NDCG@20, affected users",
    "Users with a deleted interaction. Recovered: the share of what retraining changes for them; a dash where "
    "that is no more than two retrained models differ. The paper has no such figures.",
    ["Before", "After", "Recovered", "Recovered, worst"],
    _affected_row,
)


def _demotion_row(runs: Runs) -> Cells:
    printed = runs.printed("demotion")
    away = [a - b for a, b in runs.pairs(_after, _goal, _demotion)] if runs.name != RETRAINED else []
    return [
        runs.spread(_before, _demotion, digits=3),
        runs.spread(_after, _demotion, digits=3),
        _spread(away, 3, signed),
        signed(max(away, key=abs, default=None)),
        _arrow(printed[0], printed[1], change=False) if printed else MISSING,
    ]


_DEMOTION = _Kind(
    "Demotion rate",
    "How often a deleted item scores below one its user never touched. The goal is the retrained model's rate, not "
    "1. Gap: the rate less the retrained model's of the same run.",
    ["Before", "After", "Gap", "Gap, worst", "Paper"],
    _demotion_row,
)


def _time_row(runs: Runs) -> Cells:
    known = runs.known(_after, _seconds)
    cached = any(entry.phase.seconds_from_cache for entry in runs.entries)
    both = runs.pairs(_goal, _after, _seconds) if runs.name != RETRAINED else []
    printed = runs.printed("time")
    return [
        _spread(known, 2 if min(known, default=0.0) < 10 else 1) + ("*" if cached and known else ""),
        times(ratio_of_sums(both)),
        times(min((slow / fast for slow, fast in both if fast), default=None)),
        f"{printed[1]:.2f} of {printed[0]:.2f} ({times(printed[0] / printed[1])})" if printed else MISSING,
    ]


_TIME = _Kind(
    "Time",
    "Seconds of a method's own work; retrained: of training again. Speed-up: the retrained model's seconds over the "
    "method's, of the same runs. * in part of an earlier run, from the cache. Paper: unlearning of retraining.",
    ["Seconds", "Speed-up", "Speed-up, worst", "Paper"],
    _time_row,
)


def _ablated(methods: list[Runs]) -> list[Runs]:
    """The ablations, and what they are ablations of; nothing where none of them ran."""
    parts = {name for models in published()["ablations"].values() for own in models.values() for name in own}
    whole = {RETRAINED, *published()["same_as"], *published()["same_as"].values()}
    if not any(runs.name in parts for runs in methods):
        return []
    return [runs for runs in methods if runs.name in parts | whole]


def _ablation_row(runs: Runs) -> Cells:
    printed = runs.printed("ablations")
    whole = (runs.printed("utility") or {}).get(UNLEARNED)
    if printed is None and whole is not None:
        printed = [whole[CUTS.index(20)], whole[len(CUTS) + CUTS.index(20)]]
    return [
        runs.spread(_after, _metric("recall@20")),
        decimal(printed[0], 4) if printed else MISSING,
        runs.spread(_after, _metric("ndcg@20")),
        decimal(printed[1], 4) if printed else MISSING,
        runs.spread(_after, affected_ndcg),
        runs.spread(_after, _demotion, digits=3),
    ]


_ABLATIONS = _Kind(
    "Ablations",
    "After unlearning. no_lua, no_lac and no_distill leave out a part of obliviate_paper, the method as printed; "
    "obliviate is this project's own.",
    ["R@20", "R@20 paper", "N@20", "N@20 paper", "N@20 affected", "Demotion rate"],
    _ablation_row,
    _ablated,
)
