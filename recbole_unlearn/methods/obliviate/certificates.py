"""What can be proved about an unlearned model; it is in result.json under `certificates`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from recbole_unlearn.methods.obliviate import losses
from recbole_unlearn.methods.obliviate.adapters import AdapterSet
from recbole_unlearn.recbole_compat import clear_caches

PAIRS = 8192  # retained pairs that are looked at


def margin_bound(loss: float) -> float:
    """The least margin that a loss allows: log(1 + e^−m) ≤ ε gives m ≥ −log(e^ε − 1).

    The paper prints the negative of it. The loss is convex in m, so a mean loss of ε gives the same bound for the
    mean margin.
    """
    if loss <= 0.0:
        return math.inf
    return -math.log(math.expm1(loss)) if loss < 500 else -loss


def drift_bound(start: float, weight: float) -> float:
    """‖Δθ‖² ≤ L(φ₀)/λ for every φ with L(φ) ≤ L(φ₀), since all other losses are at least 0."""
    return start / weight


def _round(value: float) -> float:
    return round(value, 6) if math.isfinite(value) else math.copysign(1e9, value)


def margin(own: torch.Tensor, other: torch.Tensor) -> dict[str, Any]:
    """How far deleted items score (m,) below negatives: the mean reverse ranking loss, its bound, and the mean."""
    if len(own) == 0:
        return {}
    loss = float(losses.reverse_ranking(own, other))
    return {
        "loss": _round(loss),
        "bound": _round(margin_bound(loss)),
        "mean": _round(float((other - own).mean())),
        "pairs": len(own),
    }


def retained_change(adapters: AdapterSet, scores: Callable[[], torch.Tensor]) -> dict[str, Any]:
    """How much ``scores()`` of retained pairs moved from those at θ₀ on the same data: the largest and the mean."""
    after = scores()
    # The rows as they are, which need not be W + A Bᵀ: those of orphans were reset after the calibration.
    final = [adapters.rows(adapter)[adapter.rows].clone() for adapter in adapters.adapters]
    adapters.detach()
    try:
        before = scores()
    finally:
        for adapter, rows in zip(adapters.adapters, final, strict=True):
            adapters.rows(adapter)[adapter.rows] = rows
        clear_caches(adapters.model)
    change = (after - before).abs()
    largest, mean = (_round(float(value)) for value in (change.max(), change.mean()))
    return {"largest": largest, "mean": mean, "pairs": len(change)}
