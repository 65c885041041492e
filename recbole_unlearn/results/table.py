"""A result as tables for people: utility by phase and group of users, and the measures of forgetting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tabulate import tabulate

from recbole_unlearn.measures.base import measures
from recbole_unlearn.results.schema import SECOND, PhaseResult, RunResult

_SHOWN = ("recall", "ndcg")


def table(result: RunResult) -> str:
    """The tables of a run, and the lines below them."""
    return "\n".join([_utility(result.phases), "", _forgetting(result.phases), *_closing_lines(result)])


def _utility(phases: Mapping[str, PhaseResult]) -> str:
    """A row per phase and group of users."""
    metrics = [m for m in next(iter(phases.values())).metrics if m.split("@")[0] in _SHOWN]
    rows = []
    for name, phase in _with_befores(phases):
        figures = [decimal(phase.metrics.get(metric)) for metric in metrics]
        rows.append([name, "all", *figures, decimal(phase.demotion_rate, 3), _seconds(phase)])
        rows.append(["", "affected", *(decimal(phase.affected.get(metric)) for metric in metrics), "", ""])
    short = [m.replace("recall", "R").replace("ndcg", "N") for m in metrics]
    return _drawn(["phase", "users", *short, "demotion", "seconds"], rows, left=2)


def _forgetting(phases: Mapping[str, PhaseResult]) -> str:
    """A row per measure, a column per phase."""
    rows = []
    for one in measures():
        entries = {key: None for phase in phases.values() for key in phase.forgetting}
        for path, title in one.figures(entries):
            values = [phase.figure(*path) for phase in phases.values()]
            if any(value is not None for value in values):
                rows.append([title, *(decimal(value, 3) for value in values)])
    names = ["retrained 2" if name == SECOND else name for name in phases]
    return _drawn(["forgetting", *names], rows, left=1)


def _drawn(head: list[str], rows: list[list[str]], left: int) -> str:
    sides = ["left"] * left + ["right"] * (len(head) - left)
    return tabulate(rows, headers=head, disable_numparse=True, colalign=sides if rows else None)


def _with_befores(phases: Mapping[str, PhaseResult]) -> Iterator[tuple[str, PhaseResult]]:
    """All phases; one that has an original of its own comes after it."""
    shown: list[PhaseResult] = []
    for name, phase in phases.items():
        if phase.before is not None and phase.before not in shown:
            shown.append(phase.before)
            yield f"{name} before", phase.before
        yield name, phase


def decimal(value: float | None, digits: int = 4) -> str:
    """0.1234, or a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def _seconds(phase: PhaseResult) -> str:
    if phase.seconds is None:
        return "loaded"
    return f"{phase.seconds:.1f}" + ("*" if phase.seconds_from_cache else "")


def _listed(figures: Mapping[str, float]) -> str:
    words = {"demotion": "demotion rate", "attack": "attack AUC", "ks": "KS"}
    return ", ".join(f"{words.get(key, key)} {value:+.3f}" for key, value in figures.items())


def _closing_lines(result: RunResult) -> Iterator[str]:
    forget = result.forget
    if result.verdict is not None:
        yield result.verdict.text
    if result.done_earlier is not None:
        yield f"R recall, N NDCG. The request was carried out on {result.done_earlier}."
    elif forget.interactions == 0:
        yield f"R recall, N NDCG. Forgotten: held-out interactions only, which left the data ({forget.source})."
    else:
        yield (
            f"R recall, N NDCG. Forgotten: {forget.interactions} interactions of {forget.users} users "
            f"and {forget.items} items ({forget.source})."
        )
    share = (result.recovered or {}).get("ndcg@20")
    if share is not None:
        yield f"Share of retraining recovered (NDCG@20, affected users): {share:.0%}."
    if result.left_out is not None:
        names = ", ".join(result.left_out.metrics)
        yield f"Share of retraining recovered, left out for {names}: {result.left_out.why}"
    if result.placebo is not None and result.placebo.memory:
        memory, mark = (_listed(part) for part in (result.placebo.memory, result.placebo.mark))
        yield f"Memory, by the placebo: {memory}. The method's own mark: {mark}."
    if result.speedup is not None:
        yield f"Speed-up over retraining: {result.speedup:.1f}x."
    if result.withheld is not None:
        yield result.withheld.why
    if any(phase.seconds_from_cache for phase in result.phases.values()):
        yield "* trained in an earlier run; the time is that run's."
