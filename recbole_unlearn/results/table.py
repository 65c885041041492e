"""A result for people: text tables (utility, forgetting, methods against retraining), and a data frame."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from recbole_unlearn.measures import SHORT, measures
from recbole_unlearn.measures.base import Measure
from recbole_unlearn.results.schema import SECOND, UNLEARNED, PhaseResult, RunResult, flat, number
from recbole_unlearn.text import MISSING, counted, decimal, drawn, percent, signed, speed, times, wrapped

# RecBole's ranking metrics: the head of a column, and its name in the line below the table.
_HEADS = {
    "recall": ("R", "Recall"), "ndcg": ("N", "NDCG"), "hit": ("H", "Hit"), "precision": ("P", "Precision"),
    "mrr": ("MRR", "MRR"), "map": ("MAP", "MAP"), "gauc": ("GAUC", "GAUC"), "itemcoverage": ("Cov", "ItemCoverage"),
    "averagepopularity": ("Pop", "AveragePopularity"), "shannonentropy": ("Ent", "ShannonEntropy"),
    "giniindex": ("Gini", "GiniIndex"), "tailpercentage": ("Tail", "TailPercentage"),
}  # fmt: skip
_DIFFERENCES = {"demotion": "demotion rate", "attack": "attack AUC", "ks": "KS"}
Block = tuple[list[str], list[list[str]], int]  # head, rows, and how many columns at the left are names


def table(result: RunResult) -> str:
    """The tables of a run, and the lines below them; as wide as the screen."""
    tables = "\n\n".join(drawn(*block) for block in blocks(result))
    return "\n".join([tables, *map(wrapped, closing_lines(result))])


def frame(result: RunResult) -> pd.DataFrame:
    """All figures of all phases, with the columns phase, group, metric and value.

    Groups are *all*, *affected* and *unaffected* users, parts of users (*core_edge: core*), *forgetting* (the
    measures, such as `attack.auc`), *recovered* (the share of retraining's effect) and *time* (seconds, speedup). The
    own original of a phase is *NAME before*.
    """
    rows = [
        (name, *figure)
        for label, phase in result.phases.items()
        for name, own in ((f"{label} before", phase.before), (label, phase))
        if own is not None
        for figure in _figures(own)
    ]
    return pd.DataFrame(rows, columns=["phase", "group", "metric", "value"]).astype({"value": float})


def _figures(phase: PhaseResult) -> Iterator[tuple[str, str, float]]:
    groups: dict[str, Mapping[str, Any]] = {
        "all": phase.metrics, "affected": phase.affected, "unaffected": phase.unaffected,
        **{f"{name}: {part}": own for name, parts in phase.groups.items() for part, own in parts.items()},
        "recovered": phase.recovered or {}, "forgetting": dict(flat(phase.forgetting, ".")),
        "time": {"seconds": phase.seconds, "speedup": phase.speedup},
    }  # fmt: skip
    for group, figures in groups.items():
        yield from ((group, metric, value) for metric, value in figures.items() if number(value) is not None)


def blocks(result: RunResult) -> list[Block]:
    """Utility, forgetting and, where there are several methods, these against retraining."""
    found = (_utility(result), None if result.few else _forgetting(result), against_retraining(result))
    return [block for block in found if block]


def _decimal(result: RunResult, value: float | None, digits: int = 4) -> str:
    """0.1234; a value that was rounded so that it discloses nothing as ~0.1, without digits that it does not have."""
    return decimal(value, digits) if result.withheld is None or value is None else f"~{value:z.{digits}g}"


def asked_metrics(result: RunResult) -> list[str]:
    """The measured metrics that the run's settings ask for; all where the settings do not say."""

    def chosen(key: str) -> set[str]:
        value = result.settings.get(key)
        return {str(one).lower() for one in (value if isinstance(value, (list, tuple)) else [value])}

    measured = list(dict.fromkeys(key for phase in result.phases.values() for key in phase.metrics))
    names, cuts = chosen("metrics"), chosen("topk")
    parts = ((key, *key.partition("@")) for key in measured)
    return [key for key, name, at, k in parts if name in names and (not at or k in cuts)] or measured


def _head(metric: str) -> str:
    name, at, k = metric.partition("@")
    return f"{_HEADS.get(name, (name,))[0]}{at}{k}"


def _utility(result: RunResult) -> Block:
    """A row per phase and group of users; an original of a method's own comes before it."""
    metrics = asked_metrics(result)
    shown: dict[str, PhaseResult] = {}
    for name, phase in result.phases.items():
        if phase.before is not None and phase.before not in shown.values():
            shown[f"{name} before"] = phase.before
        shown[name] = phase
    rows = []
    for name, phase in shown.items():
        time = "loaded" if phase.seconds is None else f"{phase.seconds:.1f}{'*' * phase.seconds_from_cache}"
        groups = {"all": phase.metrics} if result.few else {"all": phase.metrics, "affected": phase.affected}
        for users, own in groups.items():
            rows.append([name, users, *(_decimal(result, own.get(metric)) for metric in metrics)])
            # Of few users it is 0, 0.5 or 1, which reads as a failure.
            rate = [] if result.few else [_decimal(result, phase.demotion_rate, 3)]
            rows[-1] += [*rate, time] if own is phase.metrics else ["" for _ in rate] + [""]
            name = ""
    rate = [] if result.few else ["demotion"]
    return ["phase", "users", *map(_head, metrics), *rate, "seconds"], rows, 2


def measured_figures(phases: Mapping[str, PhaseResult]) -> Iterator[tuple[Measure, tuple[str, ...], str]]:
    """Every figure under `forgetting` that any of ``phases`` has: its measure, its path, and its title."""
    entries = {key: None for phase in phases.values() for key in phase.forgetting}
    for one in measures():
        for path, title in one.figures(entries):
            if any(phase.figure(*path) is not None for phase in phases.values()):
                yield one, path, title


def _forgetting(result: RunResult) -> Block:
    phases = result.phases
    rows = [
        [title, *(_decimal(result, phase.figure(*path), 3) for phase in phases.values())]
        for _, path, title in measured_figures(phases)
    ]
    names = ["retrained 2" if name == SECOND else name for name in phases]
    return ["forgetting", *names], rows, 1


def against_retraining(result: RunResult, least: int = 2) -> Block | None:
    """A row per method with its gaps to retraining and its verdict, where there are ``least`` methods."""
    judged = [(name, phase, phase.verdict) for name, phase in result.phases.items() if phase.verdict is not None]
    if len(judged) < least:
        return None
    target = result.retrained or PhaseResult()
    goal = target.demotion_rate, target.figure("attack", "auc"), target.affected.get("ndcg@20")
    rows = []
    for name, phase, verdict in judged:
        mine = phase.demotion_rate, phase.figure("attack", "auc"), phase.affected.get("ndcg@20")
        gaps = [None if one is None or other is None else one - other for one, other in zip(mine, goal, strict=True)]
        title = f"{name} ({result.method})" if name == UNLEARNED and result.method else name
        share, faster = percent((phase.recovered or {}).get("ndcg@20")), times(phase.speedup)
        rows.append([title, SHORT.get(verdict.level, verdict.level), *map(signed, gaps), share, faster])
    return ["against retraining", "verdict", "demotion", "attack AUC", "N@20", "recovered", "speed-up"], rows, 2


def line_states(result: RunResult) -> str:
    """What became of every line of the request; "" of a request without lines."""
    held = {state: result.forget.counts.get(f"lines_{state}") for state in ("training", "held_out", "unknown")}
    if None in held.values() or result.forget.interactions is None:
        return ""
    about = "" if result.withheld is None else "up to " if result.few else "about "
    said = {"training": "in the training data", "held_out": "held out (not trained on)", "unknown": "unknown"}
    parts = [f"{about if number else ''}{number} {said[state]}" for state, number in held.items()]
    return f"Its lines: {', '.join(parts)}."


def closing_lines(result: RunResult) -> Iterator[str]:
    """The lines below the tables: verdict, request, meaning of the heads, metrics without a column, and notices."""
    forget, shown = result.forget, asked_metrics(result)
    measured = dict.fromkeys(key for phase in result.phases.values() for key in phase.metrics)
    if result.verdict is not None:
        yield result.verdict.text
    if result.done_earlier is not None:
        said = f"The request was carried out on {result.done_earlier}."
    elif forget.interactions == 0:
        said = f"Forgotten: held-out interactions only, which left the data ({forget.source or MISSING})."
    else:
        said = (
            f"Forgotten: {counted(forget.interactions, 'interaction')} of {counted(forget.users, 'user')} and "
            f"{counted(forget.items, 'item')} ({forget.source or MISSING})."
        )
    names = dict.fromkeys(metric.split("@")[0] for metric in [*shown, *measured])
    known = [_HEADS[name] for name in names if name in _HEADS]
    legend = ", ".join(f"{short} {title}" for short, title in known if short != title)
    yield f"{legend}. {said}" if legend else said
    if told := line_states(result):
        yield told
    more = [_head(key) for key in measured if key not in shown]
    if more:
        yield f"Also measured, in result.json: {', '.join(more)}."
    if against_retraining(result) is not None:
        yield (
            "Against retraining: the method's figure minus the retrained model's (N@20: NDCG@20 of affected users); "
            "recovered: the share of what retraining does for affected users, by NDCG@20; speed-up: retraining's "
            "seconds over the method's."
        )
    share = (result.recovered or {}).get("ndcg@20")
    if share is not None:
        yield f"Share of retraining recovered (NDCG@20, affected users): {percent(share)}."
    if result.left_out is not None:
        without = ", ".join(result.left_out.metrics)
        yield f"Share of retraining recovered, left out for {without}: {result.left_out.why}"
    if result.placebo is not None and result.placebo.memory:
        memory, mark = (
            ", ".join(f"{_DIFFERENCES.get(key, key)} {signed(value)}" for key, value in part.items())
            for part in (result.placebo.memory, result.placebo.mark)
        )
        yield f"Memory, by the placebo: {memory}. The method's own mark: {mark}."
    if result.control is not None and result.control.verdict is not None:
        level = result.control.verdict.level
        yield f"Control, a model that only reset rows without interactions: {SHORT.get(level, level)}."
    if result.speedup is not None and result.unlearned != result.retrained:
        yield f"Speed: {speed(result.speedup)}."
    if result.withheld is not None:
        yield result.withheld.why
    if any(phase.seconds_from_cache for phase in result.phases.values()):
        yield "* trained in an earlier run; the time is that run's."
