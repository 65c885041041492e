r"""Second moments of single rows from their retained interactions: what takes the place of the optimizer's.

An optimizer's second moments were gathered while the model saw what is now deleted, so a request must not leave those
of the rows it touched to the next one. What Adam's v̂ estimates is the mean over batches of the squared gradient of a
batch's mean loss. For a row x that is in N of the |D| interactions, and so in λ = N b / |D| of a batch of b,

    v_x = (λ E[g²] + (1 − 1/b) (λ E[g])²) / b²

with g the gradient of one interaction's loss, the b being drawn one by one. An item is also drawn as a negative,
λ⁻ = b / items of them in a batch, and both kinds add up. E is over what is retained, from a sample of it.

Three ways: written out for BPR; by autograd for models whose rows have a gradient only from interactions that name
them, with E[g] taken as 0 since a trained row is at rest; and for models that pass gradients on to neighbours (a
graph), the mean over a few batches as training draws them, in which all rows have one (written out for LightGCN).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.methods.obliviate.adapters import Adapter, AdapterSet
from recbole_unlearn.methods.obliviate.gradients import BPRGradients, LightGCNGradients, written_out
from recbole_unlearn.rows import (
    Moments,
    Region,
    Side,
    Table,
    Triples,
    Witness,
    as_rows,
    loss_gradients,
)

SAMPLED = 32  # interactions of a row, at most
BATCHES = 2  # of a model that passes gradients on


def refresh(
    moments: Moments,
    model: AbstractRecommender,
    tables: Sequence[Table],
    touched: Region,
    witness: Witness,
    batch_size: int,
) -> None:
    """Replace the second moments of the rows of ``touched`` in ``moments``, in place.

    ``witness`` is over an index from which the request is removed; the model is as the request left it.
    """
    if written_out(type(model)) is BPRGradients:
        found = _of_bpr(model, touched, witness, batch_size)
    elif written_out(type(model)) is LightGCNGradients:
        found = _of_lightgcn(model, tables, touched, witness, batch_size)
    else:
        found = _by_autograd(model, tables, touched, witness, batch_size)
    for table in tables:
        if table.parameter in moments and len(touched[table.side]):
            rows = as_rows(moments[table.parameter], table.axis)
            ids = (touched[table.side].ids + table.offset).to(rows.device)
            rows[ids] = found[table].to(rows)


def _picked(
    witness: Witness, side: Side, ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Up to SAMPLED interactions of each of ``ids``: their numbers, whose they are, and how many each has."""
    numbers, place = witness.index.sample(side, ids, SAMPLED, witness.generator)
    return numbers, place, witness.index.counts(side, ids)


def _moment(
    parts: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], batch_size: int
) -> torch.Tensor:
    """The moments v (n, d) from (λ, E[g], E[g²]) of every kind of interaction."""
    squares = sum(rate[:, None] * square for rate, _, square in parts)
    mean = sum(rate[:, None] * first for rate, first, _ in parts)
    assert isinstance(squares, torch.Tensor)
    assert isinstance(mean, torch.Tensor)
    return (squares + (1.0 - 1.0 / batch_size) * mean.square()) / batch_size**2


def _means(values: torch.Tensor, place: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The means of ``values`` (m, d) and of their squares by ``place`` (m,), each (size, d)."""
    number = torch.bincount(place, minlength=size).clamp(min=1).to(values)[:, None]
    zero = values.new_zeros(size, values.shape[1])
    return zero.index_add(0, place, values) / number, zero.index_add(0, place, values.square()) / number


def _of_bpr(
    model: AbstractRecommender, touched: Region, witness: Witness, batch_size: int
) -> dict[Table, torch.Tensor]:
    """With x = q_i − q_j and c = σ(p_u·x) − 1: g_u = c x, g_i = c p_u, g_j = −c p_u."""
    p, q = model.user_embedding.weight.detach(), model.item_embedding.weight.detach()
    per_batch = batch_size / max(1, witness.retained.size)

    def slopes(triples: Triples) -> tuple[torch.Tensor, torch.Tensor]:
        users, x = p[triples.users], q[triples.items] - q[triples.negatives]
        c = (torch.sigmoid((users * x).sum(dim=1)) - 1.0)[:, None]
        return c * x, c * users

    found = {}
    users, items = touched["user"].ids, touched["item"].ids
    numbers, place, count = _picked(witness, "user", users)
    of_user, _ = slopes(witness.triples(numbers))
    found[Table("user_embedding.weight", "user")] = _moment(
        [(count * per_batch, *_means(of_user, place, len(users)))], batch_size
    )
    numbers, place, count = _picked(witness, "item", items)
    _, of_item = slopes(witness.triples(numbers))
    drawn, against = _as_negatives(witness, items)
    _, of_negative = slopes(drawn)
    rate = torch.full((len(items),), batch_size / witness.index.sizes["item"])
    found[Table("item_embedding.weight", "item")] = _moment(
        [
            (count * per_batch, *_means(of_item, place, len(items))),
            (rate, *_means(-of_negative, against, len(items))),
        ],
        batch_size,
    )
    return found


def _as_negatives(witness: Witness, items: torch.Tensor) -> tuple[Triples, torch.Tensor]:
    """Retained interactions with each of ``items`` as the negative, and whose they are."""
    place = torch.arange(len(items)).repeat_interleave(SAMPLED)
    numbers = witness.uniform(len(place))
    users = witness.index.ids["user"][numbers]
    fits = ~witness.retained.are_known(users, items[place])
    triples = Triples(numbers, users, witness.index.ids["item"][numbers], items[place])
    return triples.part(fits), place[fits]


def _of_lightgcn(
    model: AbstractRecommender, tables: Sequence[Table], touched: Region, witness: Witness, batch_size: int
) -> dict[Table, torch.Tensor]:
    """The mean of squared gradients over batches, by adapters that change nothing: the forward pass is done once."""
    named = dict(model.named_parameters())
    chosen = []
    for table in tables:
        rows = (touched[table.side].ids + table.offset).to(named[table.parameter].device)
        base = named[table.parameter].detach()[rows]
        eye = torch.eye(base.shape[1], dtype=base.dtype, device=base.device)
        chosen.append(Adapter(table.parameter, rows, torch.zeros_like(base), eye, base, side=table.side))
    gradients = LightGCNGradients(AdapterSet(model, chosen), chosen, witness)
    size = min(batch_size, witness.retained.size)
    total = [torch.zeros_like(adapter.base) for adapter in chosen]
    for _ in range(BATCHES):
        gradients.own(witness.triples(witness.uniform(size)))
        for squares, gradient in zip(total, gradients.take(), strict=True):
            squares += gradient.square() / BATCHES
    return dict(zip(tables, total, strict=True))


def _by_autograd(
    model: AbstractRecommender, tables: Sequence[Table], touched: Region, witness: Witness, batch_size: int
) -> dict[Table, torch.Tensor]:
    """The same by autograd, for tables of any model."""
    model.train()
    size = min(batch_size, witness.retained.size)
    total: dict[Table, torch.Tensor] = {}
    for number in range(BATCHES):
        triples = witness.triples(witness.uniform(size))
        gradients = loss_gradients(model, witness.batch(triples))[1]
        if number == 0 and not _passes_on(gradients, tables, triples):
            return _from_own(model, tables, touched, witness, batch_size)
        for table in tables:
            squares = _rows(gradients, table, touched).square() / BATCHES
            total[table] = total[table] + squares if table in total else squares
    return total


def _rows(gradients: Mapping[str, torch.Tensor], table: Table, touched: Region) -> torch.Tensor:
    """The gradient of the touched rows of a table (n, d); zero where the loss does not depend on it."""
    ids = touched[table.side].ids + table.offset
    if table.parameter not in gradients:
        return torch.zeros(len(ids), 1)
    rows = as_rows(gradients[table.parameter], table.axis)
    return rows[ids.to(rows.device)]


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
    for side in ("user", "item"):
        ids = touched[side].ids
        mine = [table for table in tables if table.side == side]
        numbers, place, count = _picked(witness, side, ids)
        rank = torch.arange(len(place)) - torch.searchsorted(place, place)  # place is sorted
        squares = {table: torch.zeros(len(ids), 1) for table in mine}
        times = torch.zeros(len(ids))
        for turn in range(SAMPLED):
            now = rank == turn  # one interaction a row, so that a row's gradient is that of one interaction
            if not bool(now.any()):
                break
            gradients = loss_gradients(model, witness.batch(witness.triples(numbers[now])))[1]
            times[place[now]] += 1
            for table in mine:
                rows = _rows(gradients, table, touched)
                here = torch.zeros(len(ids), dtype=torch.bool)
                here[place[now]] = True
                one = (rows * int(now.sum())).square() * here[:, None].to(rows)
                squares[table] = squares[table].to(one) + one
        for table in mine:
            mean = squares[table] / times.clamp(min=1)[:, None].to(squares[table])
            rate = (count * per_batch).to(mean)[:, None]
            found[table] = rate * mean / batch_size**2
    return found
