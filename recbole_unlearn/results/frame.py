"""A result as a tidy data frame: one row for each figure."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from recbole_unlearn.results.schema import PhaseResult, RunResult

COLUMNS = ["phase", "group", "metric", "value"]


def frame(result: RunResult) -> pd.DataFrame:
    """All figures of all phases, with the columns phase, group, metric and value.

    Groups are *all*, *affected* and *unaffected* users, *masked* (all users, deleted items masked), parts of users
    and test interactions (*user_activity: low*), *forgetting* (the measures, such as `attack.auc`), *recovered* (the
    share of what retraining does) and *time* (seconds, speedup). What a phase with an original of its own started
    from is the phase *NAME before*.
    """
    rows = [
        (name, *figure)
        for label, phase in result.phases.items()
        for name, own in ((f"{label} before", phase.before), (label, phase))
        if own is not None
        for figure in _figures(own)
    ]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"value": float})


def _figures(phase: PhaseResult) -> Iterator[tuple[str, str, float]]:
    """Group, metric and value of each figure that is known."""
    groups = {
        "all": phase.metrics,
        "affected": phase.affected,
        "unaffected": phase.unaffected,
        "masked": phase.masked,
        **{f"{name}: {part}": own for name, parts in phase.groups.items() for part, own in parts.items()},
        "recovered": phase.recovered or {},
    }
    for group, figures in groups.items():
        yield from ((group, metric, value) for metric, value in figures.items())
    for key, figure in phase.forgetting.items():
        if isinstance(figure, dict):
            yield from (("forgetting", f"{key}.{part}", value) for part, value in figure.items())
        elif figure is not None:
            yield "forgetting", key, figure
    for metric, time in (("seconds", phase.seconds), ("speedup", phase.speedup)):
        if time is not None:
            yield "time", metric, time
