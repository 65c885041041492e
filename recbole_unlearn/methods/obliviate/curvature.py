"""Curvature for the downdate: a second moment of the gradients, per parameter.

Free of charge when the optimizer that trained the model kept one (Adam, AdamW, RMSprop, Adagrad): it is read from
the checkpoint or the trainer, of the same epoch as the weights, and matched to parameters by order and shape.
Otherwise (SGD, a stripped checkpoint) the diagonal Fisher information is computed in one pass over the retain set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.rows import Moments, fisher

LARGEST_MOMENT = 1e12  # no gradient of a usable model is larger than its root

logger = logging.getLogger(__name__)


Reader = Callable[[Mapping[str, Any], Mapping[str, Any]], torch.Tensor]
_READERS: dict[str, Reader] = {}
_NAMES: dict[str, str] = {}


def curvature(key: str, name: str) -> Callable[[Reader], Reader]:
    """Decorator: read the second moment of optimizers whose state has ``key``, from the state and its group."""

    def add(reader: Reader) -> Reader:
        if key in _READERS and _READERS[key].__qualname__ != reader.__qualname__:
            raise ValueError(f"There is a reader of {key!r} already.")
        _READERS[key], _NAMES[key] = reader, name
        return reader

    return add


@curvature("exp_avg_sq", "Adam")
def adam(state: Mapping[str, Any], group: Mapping[str, Any]) -> torch.Tensor:
    """v̂ = v / (1 − β₂ᵗ), Adam's bias-corrected second moment."""
    beta = group.get("betas", (0.9, 0.999))[1]
    return state["exp_avg_sq"] / (1.0 - beta ** float(state["step"]))


@curvature("square_avg", "RMSprop")
def rmsprop(state: Mapping[str, Any], group: Mapping[str, Any]) -> torch.Tensor:
    """RMSprop's running mean of squared gradients."""
    return state["square_avg"]


@curvature("sum", "Adagrad")
def adagrad(state: Mapping[str, Any], group: Mapping[str, Any]) -> torch.Tensor:
    """Adagrad's sum of squared gradients, as a mean over its steps."""
    return state["sum"] / max(1.0, float(state["step"]))


class UnusableStateError(Exception):
    """Why an optimizer's state cannot serve as curvature; the message completes "is not used: ..."."""


def from_optimizer(model: AbstractRecommender, optimizer: Mapping[str, Any] | None) -> Moments:
    """Second moments by parameter name, of the same order and shape as the model's parameters.

    Raises:
        UnusableStateError: there are none, or they cannot be what an optimizer that trained this model left.

    """
    if not optimizer or not optimizer.get("state"):
        raise UnusableStateError("there is none")
    try:
        groups = {index: group for group in optimizer["param_groups"] for index in group["params"]}
        states = {index: optimizer["state"].get(index) for index in sorted(groups)}
    except (LookupError, TypeError, AttributeError) as error:
        raise UnusableStateError("it is damaged") from error
    named = list(model.named_parameters())
    if len(groups) != len(named):
        raise UnusableStateError(f"it is of {len(groups)} parameters, and the model has {len(named)}")
    moments = {}
    for (name, parameter), index in zip(named, states, strict=True):
        state = states[index]
        if state is None:
            continue  # a parameter that never had a gradient
        moments[name] = _moment(name, parameter, state, groups[index]).to(parameter.device)
    if not any(moment.any() for moment in moments.values()):
        raise UnusableStateError("all moments are zero")
    return moments


def _moment(
    name: str, parameter: torch.Tensor, state: Mapping[str, Any], group: Mapping[str, Any]
) -> torch.Tensor:
    """The second moment of one parameter, checked."""
    if not isinstance(state, Mapping):
        raise UnusableStateError(f"the moments of {name} are damaged")
    reader = next((_READERS[key] for key in _READERS if key in state), None)
    if reader is None:
        raise UnusableStateError("the optimizer keeps no second moments")
    try:
        moment = reader(state, group)
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError) as error:
        raise UnusableStateError(f"the moments of {name} are damaged") from error
    if not isinstance(moment, torch.Tensor) or moment.shape != parameter.shape:
        raise UnusableStateError(f"the moments of {name} have another shape than the weights")
    if not torch.isfinite(moment).all() or (moment < 0).any() or (moment > LARGEST_MOMENT).any():
        raise UnusableStateError(f"the moments of {name} are not squares of gradients")
    return moment


class Curvature(NamedTuple):
    """Second moments by parameter, and in words what they were read from."""

    moments: Moments
    read: str


def read_state(
    model: AbstractRecommender, optimizer: Mapping[str, Any] | None, epoch: int
) -> Curvature | None:
    """The second moments in an optimizer's state of ``epoch``, or None; says in one line which, or why not."""
    try:
        found = from_optimizer(model, optimizer)
    except UnusableStateError as error:
        logger.warning(
            "The optimizer's state is not used: %s. Curvature is the Fisher information of retained interactions.",
            error,
        )
        return None
    read = f"{_kind(optimizer)}'s state of epoch {epoch + 1}"
    logger.info("LUA reads %s: second moments of %d parameters are its curvature.", read, len(found))
    return Curvature(found, read)


def from_retained(model: AbstractRecommender, batches: Sequence[Interaction]) -> Curvature:
    """Fisher information of batches of retained interactions."""
    return Curvature(fisher(model, batches), "Fisher information of retained interactions")


def _kind(optimizer: Mapping[str, Any] | None) -> str:
    """The name of the optimizer that left a state that could be read."""
    assert optimizer is not None
    keys = {key for state in optimizer["state"].values() if isinstance(state, Mapping) for key in state}
    return next(name for key, name in _NAMES.items() if key in keys)
