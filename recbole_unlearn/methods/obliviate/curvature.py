r"""Curvature for the downdate: a second moment v of the gradients, per parameter.

Free of charge when the optimizer that trained the model kept one (Adam, AdamW, RMSprop, Adagrad): it is read from the
checkpoint or the trainer, of the same epoch as the weights, and matched to parameters by order and shape. Otherwise
(SGD, a stripped checkpoint) the diagonal Fisher information is computed in one pass over the retain set.

**After a request** (:func:`refresh`). An optimizer's moments were gathered while the model saw the deleted
interactions, so a request must not leave those of its rows to the next one. A moment grows with how often a row is in
a batch, so the row gets the mean of the moments of rows with about as many interactions, which did not ask.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.rows import Earlier, Moments, Region, Table, TrainIndex, as_rows, fisher, write_rows

LARGEST_MOMENT = 1e12  # no gradient of a usable model is larger than its root
SAMPLE, LIKE = 4096, 8  # rows that are looked at, and those with fewer and with more interactions that are taken

logger = logging.getLogger(__name__)


def adam(state: Mapping[str, Any], group: Mapping[str, Any]) -> torch.Tensor:
    """v̂ = v / (1 − β₂ᵗ), Adam's bias-corrected second moment."""
    return state["exp_avg_sq"] / (1.0 - group.get("betas", (0.9, 0.999))[1] ** float(state["step"]))


# By the key that an optimizer's state has: its name, and the second moment from the state and its group. RMSprop
# keeps a running mean of squared gradients; Adagrad their sum, of which the mean over its steps is taken.
READERS: dict[str, tuple[str, Callable[[Mapping[str, Any], Mapping[str, Any]], torch.Tensor]]] = {
    "exp_avg_sq": ("Adam", adam),
    "square_avg": ("RMSprop", lambda state, group: state["square_avg"]),
    "sum": ("Adagrad", lambda state, group: state["sum"] / max(1.0, float(state["step"]))),
}


class UnusableStateError(Exception):
    """An optimizer's state cannot serve as curvature; the message completes "is not used: ..."."""


def from_optimizer(model: AbstractRecommender, optimizer: Mapping[str, Any] | None) -> tuple[Moments, str]:
    """Second moments by parameter name, and the optimizer's name; UnusableStateError unless they fit the model."""
    if not isinstance(optimizer, Mapping) or not optimizer.get("state"):
        raise UnusableStateError("there is none")
    moments, learner, named = {}, "", list(model.named_parameters())
    try:
        groups = {index: group for group in optimizer["param_groups"] for index in group["params"]}
        if len(groups) != len(named):
            raise UnusableStateError(f"it is of {len(groups)} parameters, and the model has {len(named)}")
        for (name, parameter), index in zip(named, sorted(groups), strict=True):
            state = optimizer["state"].get(index)
            if state is None:  # a parameter that never had a gradient
                continue
            key = next((key for key in READERS if key in state), None)
            if key is None:
                raise UnusableStateError("the optimizer keeps no second moments")
            learner, read = READERS[key]
            moment = read(state, groups[index])
            if not isinstance(moment, torch.Tensor) or moment.shape != parameter.shape:
                raise UnusableStateError(f"the moments of {name} have another shape than the weights")
            if not torch.isfinite(moment).all() or (moment < 0).any() or (moment > LARGEST_MOMENT).any():
                raise UnusableStateError(f"the moments of {name} are not squares of gradients")
            moments[name] = moment.to(parameter.device)
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError) as error:
        raise UnusableStateError("it is damaged") from error
    if not any(moment.any() for moment in moments.values()):
        raise UnusableStateError("all moments are zero")
    return moments, learner


class Curvature(NamedTuple):
    """Second moments by parameter, and their source in words."""

    moments: Moments
    read: str


def read_state(model: AbstractRecommender, optimizer: Mapping[str, Any] | None, epoch: int) -> Curvature | None:
    """The second moments in an optimizer's state of ``epoch``, or None; logs which they are, or why not."""
    try:
        found, learner = from_optimizer(model, optimizer)
    except UnusableStateError as error:
        logger.warning(
            "The optimizer's state is not used: %s. Curvature is the Fisher information of retained interactions.",
            error,
        )
        return None
    read = f"{learner}'s state of epoch {epoch + 1}"
    logger.info("LUA reads %s: second moments of %d parameters are its curvature.", read, len(found))
    return Curvature(found, read)


def from_retained(model: AbstractRecommender, batches: Sequence[Interaction]) -> Curvature:
    """Fisher information of batches of retained interactions."""
    return Curvature(fisher(model, batches), "Fisher information of retained interactions")


def refresh(
    moments: Moments, tables: Sequence[Table], touched: Region, index: TrainIndex, generator: torch.Generator
) -> list[Earlier]:  # fmt: skip
    """Replace the moments of the rows of ``touched``, in place; the request is removed from ``index``.

    Rows drawn by a known seed could be drawn again and would tell which were touched: see `new_start.drawn_by`.
    """
    written = []
    for side, members in touched.items():
        drawn = torch.unique(torch.randint(1, index.sizes[side], (SAMPLE,), generator=generator))
        others = drawn[~members.contains(drawn) & (index.counts(side, drawn) > 0)]
        number, order = index.counts(side, others).sort(stable=True)
        place = torch.searchsorted(number, index.counts(side, members.ids))[:, None] + torch.arange(-LIKE, LIKE)
        known = (index.counts(side, members.ids) > 0) & (len(others) > 0)
        like = others[order[place[known].clamp(max=len(others) - 1).clamp(min=0)]]
        for name, own, offset, axis in tables:
            if own == side and name in moments:
                rows = as_rows(moments[name], axis)
                values = rows.new_zeros(len(members), rows.shape[1])
                values[known.to(rows.device)] = rows[(like + offset).to(rows.device)].mean(dim=1)
                written.append(write_rows(name, moments[name], members.ids + offset, values, axis))
    return written
