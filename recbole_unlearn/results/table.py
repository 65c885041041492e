"""A result as tables for people: utility by phase and group of users, forgetting, and methods against retraining."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from recbole_unlearn.measures import SHORT, measures
from recbole_unlearn.results.schema import SECOND, UNLEARNED, PhaseResult, RunResult
from recbole_unlearn.text import MISSING, counted, decimal, drawn, percent, signed, speed, times, wrapped

# RecBole's ranking metrics: the head of a column, and what the line below the table calls it.
_HEADS = {
    "recall": ("R", "Recall"),
    "ndcg": ("N", "NDCG"),
    "hit": ("H", "Hit"),
    "precision": ("P", "Precision"),
    "mrr": ("MRR", "MRR"),
    "map": ("MAP", "MAP"),
    "gauc": ("GAUC", "GAUC"),
    "itemcoverage": ("Cov", "ItemCoverage"),
    "averagepopularity": ("Pop", "AveragePopularity"),
    "shannonentropy": ("Ent", "ShannonEntropy"),
    "giniindex": ("Gini", "GiniIndex"),
    "tailpercentage": ("Tail", "TailPercentage"),
}


class Block(NamedTuple):
    """One table: its head, its rows, and how many columns at the left are names."""

    head: list[str]
    rows: list[list[str]]
    left: int


def table(result: RunResult) -> str:
    """The tables of a run, and the lines below them; as wide as the screen."""
    tables = "\n\n".join(drawn(*block) for block in blocks(result))
    return "\n".join([tables, *map(wrapped, closing_lines(result))])


def blocks(result: RunResult) -> list[Block]:
    """Utility, forgetting and, where there are several methods, these against retraining."""
    found = [_utility(result), _forgetting(result.phases), _methods(result)]
    return [block for block in found if block is not None]


def asked_metrics(result: RunResult) -> list[str]:
    """Those of the measured metrics that the run's settings ask for; all where they do not say."""
    measured = list(dict.fromkeys(key for phase in result.phases.values() for key in phase.metrics))
    names, cuts = (_as_set(result.settings.get(key)) for key in ("metrics", "topk"))
    found = [key for key in measured if _is_asked(key, names, cuts)]
    return found or measured


def _as_set(value: object) -> set[str]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return {str(one).lower() for one in values}


def _is_asked(key: str, names: set[str], cuts: set[str]) -> bool:
    name, at, k = key.partition("@")
    return name in names and (not at or k in cuts)


def _head(metric: str) -> str:
    name, at, k = metric.partition("@")
    return f"{_HEADS.get(name, (name,))[0]}{at}{k}"


def _utility(result: RunResult) -> Block:
    """A row per phase and group of users."""
    metrics = asked_metrics(result)
    rows = []
    for name, phase in _with_befores(result.phases):
        figures = [decimal(phase.metrics.get(metric)) for metric in metrics]
        rows.append([name, "all", *figures, decimal(phase.demotion_rate, 3), _seconds(phase)])
        rows.append(["", "affected", *(decimal(phase.affected.get(metric)) for metric in metrics), "", ""])
    return Block(["phase", "users", *map(_head, metrics), "demotion", "seconds"], rows, 2)


def _forgetting(phases: Mapping[str, PhaseResult]) -> Block:
    """A row per measure, a column per phase."""
    rows = []
    for one in measures():
        entries = {key: None for phase in phases.values() for key in phase.forgetting}
        for path, title in one.figures(entries):
            values = [phase.figure(*path) for phase in phases.values()]
            if any(value is not None for value in values):
                rows.append([title, *(decimal(value, 3) for value in values)])
    names = ["retrained 2" if name == SECOND else name for name in phases]
    return Block(["forgetting", *names], rows, 1)


def _methods(result: RunResult) -> Block | None:
    """A row per method with its gaps to retraining and its verdict, where there are several methods."""
    judged = {name: phase for name, phase in result.phases.items() if phase.verdict is not None}
    if len(judged) < 2:
        return None
    target = result.retrained or PhaseResult()
    goal = target.demotion_rate, target.figure("attack", "auc"), target.affected.get("ndcg@20")
    rows = []
    for name, phase in judged.items():
        mine = phase.demotion_rate, phase.figure("attack", "auc"), phase.affected.get("ndcg@20")
        gaps = [
            None if one is None or other is None else one - other
            for one, other in zip(mine, goal, strict=True)
        ]
        assert phase.verdict is not None
        rows.append(
            [
                f"{name} ({result.method})" if name == UNLEARNED and result.method else name,
                SHORT.get(phase.verdict.level, phase.verdict.level),
                *map(signed, gaps),
                percent((phase.recovered or {}).get("ndcg@20")),
                times(phase.speedup),
            ]
        )
    head = ["against retraining", "verdict", "demotion", "attack AUC", "N@20", "recovered", "speed-up"]
    return Block(head, rows, 2)


def _with_befores(phases: Mapping[str, PhaseResult]) -> Iterator[tuple[str, PhaseResult]]:
    """All phases; one that has an original of its own comes after it."""
    shown: list[PhaseResult] = []
    for name, phase in phases.items():
        if phase.before is not None and phase.before not in shown:
            shown.append(phase.before)
            yield f"{name} before", phase.before
        yield name, phase


def _seconds(phase: PhaseResult) -> str:
    if phase.seconds is None:
        return "loaded"
    return f"{phase.seconds:.1f}" + ("*" if phase.seconds_from_cache else "")


def _listed(figures: Mapping[str, float]) -> str:
    words = {"demotion": "demotion rate", "attack": "attack AUC", "ks": "KS"}
    return ", ".join(f"{words.get(key, key)} {signed(value)}" for key, value in figures.items())


def _legend(metrics: Iterable[str]) -> str:
    """What the heads of the columns mean."""
    known = [_HEADS[name] for name in dict.fromkeys(m.split("@")[0] for m in metrics) if name in _HEADS]
    words = [f"{short} {title}" for short, title in known if short != title]
    return f"{', '.join(words)}. " if words else ""


def closing_lines(result: RunResult) -> Iterator[str]:
    """What is said below the tables."""
    if result.verdict is not None:
        yield result.verdict.text
    yield from _about_columns(result)
    share = (result.recovered or {}).get("ndcg@20")
    if share is not None:
        yield f"Share of retraining recovered (NDCG@20, affected users): {percent(share)}."
    if result.left_out is not None:
        names = ", ".join(result.left_out.metrics)
        yield f"Share of retraining recovered, left out for {names}: {result.left_out.why}"
    if result.placebo is not None and result.placebo.memory:
        memory, mark = (_listed(part) for part in (result.placebo.memory, result.placebo.mark))
        yield f"Memory, by the placebo: {memory}. The method's own mark: {mark}."
    if result.speedup is not None:
        yield f"Speed: {speed(result.speedup)}."
    if result.withheld is not None:
        yield result.withheld.why
    if any(phase.seconds_from_cache for phase in result.phases.values()):
        yield "* trained in an earlier run; the time is that run's."


def _about_columns(result: RunResult) -> Iterator[str]:
    """What was forgotten, what heads of columns mean, and where the metrics are that have none."""
    forget, shown = result.forget, asked_metrics(result)
    measured = dict.fromkeys(key for phase in result.phases.values() for key in phase.metrics)
    if result.done_earlier is not None:
        said = f"The request was carried out on {result.done_earlier}."
    elif forget.interactions == 0:
        said = f"Forgotten: held-out interactions only, which left the data ({forget.source or MISSING})."
    else:
        said = (
            f"Forgotten: {counted(forget.interactions, 'interaction')} of {counted(forget.users, 'user')} and "
            f"{counted(forget.items, 'item')} ({forget.source or MISSING})."
        )
    yield f"{_legend([*shown, *measured])}{said}"
    more = [_head(key) for key in measured if key not in shown]
    if more:
        yield f"Also measured, in result.json: {', '.join(more)}."
    if _methods(result) is not None:
        yield (
            "Against retraining: the method's figure minus the retrained model's (N@20: NDCG@20 of affected users); "
            "recovered: the share of what retraining does for affected users, by NDCG@20; speed-up: retraining's "
            "seconds over the method's."
        )
