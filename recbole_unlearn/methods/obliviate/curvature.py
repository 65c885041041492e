"""Curvature for the downdate: a second moment of the gradients, per parameter.

Free of charge when the optimizer that trained the model kept one (Adam, AdamW, RMSprop, Adagrad): it is read from
the checkpoint or the trainer, of the same epoch as the weights, and matched to parameters by order and shape.
Otherwise (SGD, a stripped checkpoint) the diagonal Fisher information is computed in one pass over the retain set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.rows import Moments, fisher

logger = logging.getLogger(__name__)


Reader = Callable[[Mapping[str, Any], Mapping[str, Any]], torch.Tensor]
_READERS: dict[str, Reader] = {}


def curvature(key: str) -> Callable[[Reader], Reader]:
    """Decorator: read the second moment of optimizers whose state has ``key``, from the state and its group."""

    def add(reader: Reader) -> Reader:
        if key in _READERS and _READERS[key].__qualname__ != reader.__qualname__:
            raise ValueError(f"There is a reader of {key!r} already.")
        _READERS[key] = reader
        return reader

    return add


@curvature("exp_avg_sq")
def adam(state: Mapping[str, Any], group: Mapping[str, Any]) -> torch.Tensor:
    """v̂ = v / (1 − β₂ᵗ), Adam's bias-corrected second moment."""
    beta = group.get("betas", (0.9, 0.999))[1]
    return state["exp_avg_sq"] / (1.0 - beta ** float(state["step"]))


@curvature("square_avg")
def rmsprop(state: Mapping[str, Any], group: Mapping[str, Any]) -> torch.Tensor:
    """RMSprop's running mean of squared gradients."""
    return state["square_avg"]


@curvature("sum")
def adagrad(state: Mapping[str, Any], group: Mapping[str, Any]) -> torch.Tensor:
    """Adagrad's sum of squared gradients, as a mean over its steps."""
    return state["sum"] / max(1.0, float(state["step"]))


def from_optimizer(model: AbstractRecommender, optimizer: Mapping[str, Any] | None) -> Moments | None:
    """Second moments by parameter name, or None when the optimizer's state has none that fit."""
    if not optimizer or not optimizer.get("state"):
        return None
    groups = {index: group for group in optimizer["param_groups"] for index in group["params"]}
    named = list(model.named_parameters())
    if len(groups) != len(named):
        return None
    moments = {}
    for (name, parameter), index in zip(named, sorted(groups), strict=True):
        state = optimizer["state"].get(index)
        if state is None:
            continue  # a parameter that never had a gradient
        reader = next((_READERS[key] for key in _READERS if key in state), None)
        if reader is None:
            return None
        moment = reader(state, groups[index])
        if moment.shape != parameter.shape or not torch.isfinite(moment).all():
            return None
        moments[name] = moment.to(parameter.device)
    return moments or None


def second_moments(
    model: AbstractRecommender, optimizer: Mapping[str, Any] | None, batches: Iterable[Interaction]
) -> Moments:
    """The optimizer's second moments when it has them, Fisher information otherwise (and logs that)."""
    moments = from_optimizer(model, optimizer)
    if moments is not None:
        return moments
    logger.info("The optimizer's state has no second moments; curvature is Fisher information.")
    return fisher(model, batches)
