r"""Curvature for the downdate: a second moment v of the gradients, per parameter.

Free of charge when the optimizer that trained the model kept one (Adam, AdamW, RMSprop, Adagrad): it is read from the
checkpoint or the trainer, of the same epoch as the weights, and matched to parameters by order and shape. Otherwise
(SGD, a stripped checkpoint) the diagonal Fisher information is computed in one pass over the retain set.

**After a request** (:func:`refresh`). An optimizer's moments were gathered while the model saw the deleted
interactions, so a request must not leave those of its rows to the next one. Adam's v̂ estimates the mean over batches
of the squared gradient of a batch's mean loss. For a row in N of the |D| interactions, and so in λ = N b / |D| of a
batch of b drawn one by one,

    v = (λ E[g²] + (1 − 1/b) (λ E[g])²) / b²

with g the gradient of one interaction's loss, over a sample of the retained interactions. An item is also drawn as a
negative, λ⁻ = b / items times in a batch, and both kinds add up. Three ways: written out for BPR; by autograd where
rows have a gradient only from their own interactions, with E[g] taken as 0 since a trained row is at rest; and where
gradients pass on to neighbours (a graph), the mean over a few batches as training draws them.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.methods.obliviate.adapters import AdapterSet
from recbole_unlearn.methods.obliviate.fast_gradients import BPRGradients, LightGCNGradients, bpr_slopes, written_out
from recbole_unlearn.rows import SIDES, Moments, Region, Table, Triples, Witness, as_rows, fisher, loss_gradients

LARGEST_MOMENT = 1e12  # no gradient of a usable model is larger than its root
SAMPLED = 32  # interactions of a row, at most
BATCHES = 2  # of a model that passes gradients on

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
    moments, learner = {}, ""
    for (name, parameter), (index, state) in zip(named, states.items(), strict=True):
        if state is None:  # a parameter that never had a gradient
            continue
        try:
            key = next((key for key in READERS if key in state), None)
            if key is None:
                raise UnusableStateError("the optimizer keeps no second moments")
            learner, read = READERS[key]
            moment = read(state, groups[index])
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError) as error:
            raise UnusableStateError(f"the moments of {name} are damaged") from error
        if not isinstance(moment, torch.Tensor) or moment.shape != parameter.shape:
            raise UnusableStateError(f"the moments of {name} have another shape than the weights")
        if not torch.isfinite(moment).all() or (moment < 0).any() or (moment > LARGEST_MOMENT).any():
            raise UnusableStateError(f"the moments of {name} are not squares of gradients")
        moments[name] = moment.to(parameter.device)
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
    moments: Moments, model: AbstractRecommender, tables: Sequence[Table], touched: Region, witness: Witness,
    batch_size: int,
) -> None:  # fmt: skip
    """Replace the moments of the rows of ``touched``, in place; the request is removed from the witness's index."""
    kind = written_out(type(model))
    way = _of_bpr if kind is BPRGradients else _of_lightgcn if kind is LightGCNGradients else _by_autograd
    found = way(model, tables, touched, witness, batch_size)
    for table in tables:
        if table.parameter in moments and len(touched[table.side]):
            rows = as_rows(moments[table.parameter], table.axis)
            rows[(touched[table.side].ids + table.offset).to(rows.device)] = found[table].to(rows)


def _moment_of(kinds: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], batch_size: int) -> torch.Tensor:
    """The moments v (n, d) by kinds of interaction: λ (n,), gradients g (m, d), and the row of each (m,)."""
    squares = mean = torch.zeros(())
    for rate, values, place in kinds:
        number = torch.bincount(place, minlength=len(rate)).clamp(min=1).to(values)[:, None]
        rate, place = rate.to(values), place.to(values.device)
        zero = values.new_zeros(len(rate), values.shape[1])
        mean = mean + rate[:, None] * (zero.index_add(0, place, values) / number)
        squares = squares + rate[:, None] * (zero.index_add(0, place, values.square()) / number)
    return (squares + (1.0 - 1.0 / batch_size) * mean.square()) / batch_size**2


def _of_bpr(
    model: AbstractRecommender, tables: Sequence[Table], touched: Region, witness: Witness, batch_size: int
) -> dict[Table, torch.Tensor]:
    """With the gradients of single interactions, g_u, g_i and g_j = −g_i of :func:`bpr_slopes`."""
    p, q = model.user_embedding.weight.detach(), model.item_embedding.weight.detach()
    per_batch = batch_size / max(1, witness.retained.size)

    def slopes(triples: Triples) -> tuple[float, torch.Tensor, torch.Tensor]:
        return bpr_slopes(p[triples.users], q[triples.items] - q[triples.negatives], len(triples.users))

    index, (users, items) = witness.index, (touched[side].ids for side in SIDES)
    numbers, place = index.sample("user", users, SAMPLED, witness.generator)
    _, of_user, _ = slopes(witness.triples(numbers))
    kinds = [(index.counts("user", users) * per_batch, of_user, place)]
    found = {Table("user_embedding.weight", "user"): _moment_of(kinds, batch_size)}
    numbers, place = index.sample("item", items, SAMPLED, witness.generator)
    *_, of_item = slopes(witness.triples(numbers))
    kinds = [(index.counts("item", items) * per_batch, of_item, place)]
    place = torch.arange(len(items)).repeat_interleave(SAMPLED)  # each item as the negative of any interaction
    numbers = witness.uniform(len(place))
    drawn = Triples(numbers, index.ids["user"][numbers], index.ids["item"][numbers], items[place])
    fits = ~witness.retained.are_known(drawn.users, drawn.negatives)
    *_, of_negative = slopes(drawn.part(fits))
    kinds.append((torch.full((len(items),), batch_size / index.sizes["item"]), -of_negative, place[fits]))
    return found | {Table("item_embedding.weight", "item"): _moment_of(kinds, batch_size)}


def _of_lightgcn(
    model: AbstractRecommender, tables: Sequence[Table], touched: Region, witness: Witness, batch_size: int
) -> dict[Table, torch.Tensor]:
    """The mean of squared gradients over batches; with adapters that change nothing the forward pass is done once."""
    gradients = LightGCNGradients(AdapterSet.on_region(model, tables, touched), witness)
    size = min(batch_size, witness.retained.size)
    total = [torch.zeros_like(adapter.base) for adapter in gradients.chosen]
    for _ in range(BATCHES):
        gradients.own(witness.triples(witness.uniform(size)))
        for squares, gradient in zip(total, gradients.take(), strict=True):
            squares += gradient.square() / BATCHES
    return dict(zip([table for table in tables if len(touched[table.side])], total, strict=True))


def _by_autograd(
    model: AbstractRecommender, tables: Sequence[Table], touched: Region, witness: Witness, batch_size: int
) -> dict[Table, torch.Tensor]:
    model.train()
    size = min(batch_size, witness.retained.size)
    total: dict[Table, torch.Tensor] = {}
    for number in range(BATCHES):
        triples = witness.triples(witness.uniform(size))
        gradients = loss_gradients(model, witness.batch(triples))[1]
        if number == 0 and not _passes_on(gradients, tables, triples):
            return _from_own(model, tables, touched, witness, batch_size)
        for table in tables:
            squares = _rows(model, gradients, table, touched[table.side].ids).square() / BATCHES
            total[table] = total[table] + squares if table in total else squares
    return total


def _rows(model: AbstractRecommender, gradients: Moments, table: Table, ids: torch.Tensor) -> torch.Tensor:
    """The gradient of the rows of ``ids`` in a table (n, d); zero where the loss does not depend on it."""
    zeros = torch.zeros_like(model.get_parameter(table.parameter))
    rows = as_rows(gradients.get(table.parameter, zeros), table.axis)
    return rows[(ids + table.offset).to(rows.device)]


def _passes_on(gradients: Mapping[str, torch.Tensor], tables: Sequence[Table], triples: Triples) -> bool:
    """Whether rows have a gradient from a batch that does not name them."""
    named = {"user": triples.users, "item": torch.cat([triples.items, triples.negatives])}
    for table in tables:
        if table.parameter in gradients:
            moved = as_rows(gradients[table.parameter], table.axis).any(dim=1).cpu()
            moved[named[table.side] + table.offset] = False
            if bool(moved.any()):
                return True
    return False


def _from_own(
    model: AbstractRecommender, tables: Sequence[Table], touched: Region, witness: Witness, batch_size: int
) -> dict[Table, torch.Tensor]:
    """v_x = λ E[g²] / b², from sums over the row's own interactions: E[(Σ g)²] = k E[g²] for k of them."""
    per_batch = batch_size / max(1, witness.retained.size)
    found: dict[Table, torch.Tensor] = {}
    for side in SIDES:
        ids = touched[side].ids
        squares = {table: _rows(model, {}, table, ids) for table in tables if table.side == side}
        numbers, place = witness.index.sample(side, ids, SAMPLED, witness.generator)
        rank = torch.arange(len(place)) - torch.searchsorted(place, place)  # place is sorted
        for turn in torch.unique(rank):
            now = place[rank == turn]  # one interaction a row, so that a row's gradient is that of one interaction
            gradients = loss_gradients(model, witness.batch(witness.triples(numbers[rank == turn])))[1]
            for table, total in squares.items():
                one = (_rows(model, gradients, table, ids[now]) * len(now)).square()
                total.index_add_(0, now.to(total.device), one)
        times = torch.bincount(place, minlength=len(ids)).clamp(min=1)[:, None]
        rate = (witness.index.counts(side, ids) * per_batch)[:, None]
        for table, total in squares.items():
            found[table] = rate.to(total) * (total / times.to(total)) / batch_size**2
    return found
