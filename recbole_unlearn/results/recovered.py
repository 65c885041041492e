"""The share of retraining's effect on affected users that unlearning recovered, where that effect is more than noise.

    share = (unlearned − original) / (retrained − original)

Two models with other seeds differ as well, and a share of such a difference says nothing: it was once −1414 %. So a
metric is left out where retraining moves it no further than two retrained models differ,

    |retrained − original| ≤ max(|retrained − retrained_2|, 2 · error)

where the error is the standard error of the paired differences retrained − original over affected users. It is there
beside the second retraining because two seeds may agree by luck. A run with one retraining has the error alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from recbole_unlearn.results.schema import (
    ORIGINAL,
    RETRAINED,
    SECOND,
    UNLEARNED,
    LeftOut,
    Metrics,
    PhaseResult,
)

_WHY = (
    "Retraining moves affected users by no more in these metrics than two retrained models differ, so a share of it "
    "would be noise"
)
_ESTIMATED = "estimated from the users of this run; --compare=retrain,retrain also measures it"
_MEASURED = "measured with a second retrained model, and estimated from the users of this run"


def recovered(phases: Mapping[str, PhaseResult], errors: Mapping[str, float]) -> Metrics:
    """The shares of those metrics that retraining moves by more than noise; see the formulas of this file.

    ``errors`` are standard errors of retrained − original. A metric without one is no mean over users, and needs a
    second retraining.
    """
    before, after, target = _affected(phases)
    return {
        metric: round((after[metric] - before[metric]) / (target[metric] - before[metric]), 4)
        for metric in target
        if metric in before and metric in after and _is_moved(metric, phases, errors)
    }


def left_out(phases: Mapping[str, PhaseResult], shares: Mapping[str, float]) -> LeftOut | None:
    """The metrics without a share and why; None where all have one."""
    metrics = [metric for metric in _affected(phases)[2] if metric not in shares]
    if not metrics:
        return None
    return LeftOut(metrics, f"{_WHY} ({_MEASURED if SECOND in phases else _ESTIMATED}).")


def _affected(phases: Mapping[str, PhaseResult]) -> list[Metrics]:
    return [phases.get(name, PhaseResult()).affected for name in (ORIGINAL, UNLEARNED, RETRAINED)]


def _is_moved(metric: str, phases: Mapping[str, PhaseResult], errors: Mapping[str, float]) -> bool:
    """Whether retraining moves a metric by more than noise."""
    before, _, target = (figures[metric] for figures in _affected(phases))
    again = phases.get(SECOND, PhaseResult()).affected.get(metric)
    noise = [] if again is None else [abs(target - again)]
    if metric in errors:
        noise.append(2 * errors[metric])
    return bool(noise) and abs(target - before) > max(noise)
