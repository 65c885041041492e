"""The tables of the paper, made from results: utility, affected users, demotion rate, time and ablations.

A row is a method, averaged over the runs that are there (mean ± standard deviation), with their number, the worst of
them, and the paper's own figures (`properties/paper.yaml`) where it has some for that dataset, model and ratio. A
method starts from its own original where it has one. `templates/tables.md` and `templates/tables.tex` write them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from recbole_unlearn.report import entries, page
from recbole_unlearn.report.entries import (
    AFTER,
    BEFORE,
    GOAL,
    FigureOf,
    Runs,
    affected_ndcg,
    ratio_of_sums,
    recovered,
)
from recbole_unlearn.report.page import MISSING, decimal, signed, spread
from recbole_unlearn.results import ORIGINAL, RETRAINED, UNLEARNED, RunResult
from recbole_unlearn.settings import properties_dir, read_yaml

CUTS = (10, 20, 50)
_METRICS = ("recall", "ndcg")
NOTE = (
    "Test interactions. Means over the runs that are there, ± standard deviation over seeds; “worst” is the worst "
    "single run. The paper's figures are no one-to-one comparison: its splits, dimensions, epochs and machines are "
    "others, and its Amazon set is Amazon Fashion, in place of which amazon-music is used."
)


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


def tables(results: Sequence[RunResult], plan: entries.GridPlan = entries.NO_PLAN) -> list[Table]:
    """All tables that ``results`` have figures for; rows and runs of the ``plan`` that are missing are shown so."""
    everything = entries.grouped(results, plan)
    subjects = dict.fromkeys((place.dataset, place.request) for place in everything)
    kinds = {
        f"{page.metric_title(metric)}@{cut}": (_UTILITY, _utility(metric, cut)) for metric in _METRICS for cut in CUTS
    }
    made = []
    for title, (caption, row) in (kinds | _KINDS).items():
        for dataset, request in subjects:
            bodies = {
                place.model: [
                    {"Method": page.phase_title(runs.name), **row(runs), "Runs": runs.counted}
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
                made.append(Table(title, f"{dataset} · {request}", caption, head, shown))
    return made


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


_rate: FigureOf = attrgetter("demotion_rate")
_seconds: FigureOf = attrgetter("seconds")


def _metric(key: str) -> FigureOf:
    return lambda phase: phase.metrics.get(key)


# A kind of table is a caption and a function that makes the row of a method, by column.
Row = Callable[[Runs], dict[str, str]]
_UTILITY = "All users, before and after unlearning. Gap: against the retrained model of the same run."


def _utility(metric: str, cut: int) -> Row:
    """One metric of all users, before and after."""
    of = _metric(f"{metric}@{cut}")
    place = _METRICS.index(metric) * len(CUTS) + CUTS.index(cut)  # in the paper's lists

    def row(runs: Runs) -> dict[str, str]:
        held = runs.pairs(AFTER, GOAL, of)
        name, phase = (published()["reference"], RETRAINED) if runs.name == RETRAINED else (None, UNLEARNED)
        printed = _printed(runs, "utility", name) or {}
        has_both = phase in printed and ORIGINAL in printed
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


def _demotion(runs: Runs) -> dict[str, str]:
    printed = _printed(runs, "demotion")
    away = [a - b for a, b in runs.pairs(AFTER, GOAL, _rate)]
    return {
        "Before": runs.spread(BEFORE, _rate, digits=3),
        "After": runs.spread(AFTER, _rate, digits=3),
        "Gap": spread(away, 3, signed),
        "Gap, worst": signed(max(away, key=abs, default=None)),
        "Paper": _arrow(printed[0], printed[1], change=False) if printed else MISSING,
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
        printed = [whole[CUTS.index(20)], whole[len(CUTS) + CUTS.index(20)]]
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


_KINDS: dict[str, tuple[str, Row]] = {
    "NDCG@20, affected users": (
        "Users with a deleted interaction. Recovered: the share of retraining's effect on them; a dash where that is "
        "no more than two retrained models differ. The paper has no such figures.", _affected),
    "Demotion rate": (
        "How often a deleted item scores below one its user never touched. The goal is the retrained model's rate, "
        "not 1. Gap: the rate less the retrained model's of the same run.", _demotion),
    "Time": (
        "Seconds of a method's own work; retrained: of training again. Speed-up: the retrained model's seconds over "
        "the method's, of the same runs. * in part of an earlier run, from the cache. Paper: unlearning of "
        "retraining.", _time),
    "Ablations": (
        "After unlearning. no_lua, no_lac and no_distill leave out a part of obliviate_paper, the method as printed; "
        "obliviate is this project's own.", _ablation),
}  # fmt: skip
