r"""LUA's new start: where contaminated rows belong by their neighbours, clean rows first.

**The map.** A trained model gives users with similar items similar rows. Over all users u with n interactions,

    p_u ≈ T · [√n m, log(n) m, m, √n, log n, 1],    m = mean of (q_i − q̄) over the interactions (u, i),

with T by least squares; the same for items, from users. It explains about nine tenths of the rows of a trained model,
and it is a formula of the model and D alone, so it is learned once and serves any number of requests (:func:`learn`).
The mean q̄ is taken off since a ranking loss does not see what all items share.

**The new start.** Let a and b be what the map says of a row with S (on D, at θ₀) and without it (on D\S, by the
neighbours as they are now). The row θ₀ of degree w (`contamination.py`) goes to

    θ₀ + (b − a) − w (θ₀ − a)

With w = 1 that is b: nothing of the old row is left. With w = 0 it is the old row, moved as its neighbours moved:
what the map does not explain of it stays. Users first, then items and users in turn, `rounds` times: each turn
carries on what came of the one before, and halves what neighbours still remember of each other.

**What is kept from running away.** Changes of rows with w < 1 are limited in every direction of the space to the
median over the directions. Memory of a pair has no preferred direction, and so it passes; what all rows would have
in common is the map feeding on itself (on ml-1m 90 % of the change of untouched users lay in one direction, and cost
them a tenth of their NDCG). After the first round a row with more than 30 retained interactions follows less: they
hold it where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch.nn.functional import embedding_bag

from recbole_unlearn.methods.obliviate.contamination import degree
from recbole_unlearn.methods.obliviate.lua import spectrum
from recbole_unlearn.rows import OTHER, Region, RetainedIndex, Side, TrainIndex

SAMPLE = 4096  # rows that a map is fitted to, at most
RIDGE = 2e-2  # relative to the mean of the Gram matrix's diagonal
RAREST = 10  # items, at least, whose mean row an item without neighbours gets
FIRM = 30.0  # retained interactions from which on a row follows less after the first round

Tables = Mapping[Side, torch.Tensor]  # (n, d) each, with row k for id k


class Maps(NamedTuple):
    """What a model has learned about rows and their neighbours; it knows nothing of a request."""

    transform: dict[Side, torch.Tensor]  # T (3 d' + 3, d) for the rows of each side
    centre: dict[Side, torch.Tensor]  # p̄ and q̄ at θ₀: the mean interaction's user, the mean item
    weight: dict[Side, float]  # how many interactions, how many items those are means of
    rare: torch.Tensor  # (d,), the row of an item that is nobody's


def features(mean: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """[√n m, log(n) m, m, √n, log n, 1] (n, 3d + 3), with m (n, d) the centred mean of the rows at n (n,) links.

    A row grows with its number of interactions: like the root while they are few, like the logarithm later.
    """
    number = number.to(mean)[:, None]
    mean = torch.where(number > 0, mean, 0.0)
    count = number.clamp(min=1.0)
    root, log = count.sqrt(), count.log()
    return torch.cat([root * mean, log * mean, mean, root, log, torch.ones_like(count)], dim=1)


def linked(index: TrainIndex, side: Side, ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Σ of the rows of ``table`` at the other ends of the interactions of ``ids`` in D (n, d)."""
    number = index.counts(side, ids)
    others, starts = index.ends(side, ids), number.cumsum(0) - number
    return embedding_bag(others.to(table.device), table, starts.to(table.device), mode="sum")


def learn(tables: Tables, index: TrainIndex, generator: torch.Generator) -> Maps | None:
    """The maps of a model's tables; None when there are too few rows to learn them from."""
    numbers = {side: _counts(index, side) for side in tables}
    centre: dict[Side, torch.Tensor] = {
        "user": numbers["user"].to(tables["user"]) @ tables["user"] / len(index),
        "item": tables["item"][(numbers["item"] > 0).to(tables["item"].device)].mean(dim=0),
    }
    transform = {}
    for side, table in tables.items():
        other = tables[OTHER[side]]
        known = (numbers[side] > 0).nonzero().flatten()
        known = known[torch.randperm(len(known), generator=generator)[:SAMPLE]].sort().values
        if len(known) < 4 * other.shape[1]:
            return None
        number = numbers[side][known]
        mean = linked(index, side, known, other) / number.to(other)[:, None] - centre[OTHER[side]]
        x = features(mean, number).double()
        gram = x.T @ x
        gram.diagonal().add_(RIDGE * gram.diagonal().mean())
        y = table[known.to(table.device)].double()
        transform[side] = torch.linalg.solve(gram, x.T @ y).to(table.dtype)
    items = (numbers["item"] > 0).nonzero().flatten()
    rarest = items[numbers["item"][items].argsort(stable=True)[: max(RAREST, len(items) // 50)]]
    rare = tables["item"][rarest.to(tables["item"].device)].mean(dim=0)
    return Maps(transform, centre, {"user": float(len(index)), "item": float(len(items))}, rare)


def _counts(index: TrainIndex, side: Side) -> torch.Tensor:
    """How many interactions each user or item has in D (n,)."""
    return index.counts(side, torch.arange(index.sizes[side]))


def even(moves: torch.Tensor, sources: int) -> torch.Tensor:
    """``moves`` (m, d) with no direction of the space larger than the median: singular values σ → min(σ, median σ).

    By the eigenvalues σ² of the Gram matrix. With fewer ``sources`` (rows that started again) than directions, or
    fewer moves, there is no median to speak of and nothing is limited: what one user moved has one direction.
    """
    if min(len(moves), sources) < moves.shape[1]:
        return moves
    squares, basis = spectrum(moves)
    factor = (squares.median() / squares.clamp(min=1e-30)).clamp(max=1.0).sqrt()
    return moves @ ((basis * factor) @ basis.T).to(moves.dtype)


class _Side:
    """The contaminated rows of one side while they start again.

    Of the rows at the other ends of their links only those that are contaminated too move, so the sum over all links
    is taken once, and what moves is added to it.
    """

    def __init__(
        self, side: Side, table: torch.Tensor, other: torch.Tensor, maps: Maps,
        touched: Region, region: Region, retained: RetainedIndex,
    ) -> None:  # fmt: skip
        self.side, self.table, self.ids = side, table, region[side].ids
        self.rows = self.ids.to(table.device)
        self.first = table[self.rows].clone()
        index = retained.index
        self._join(index, region, retained)
        whole, centre = index.counts(side, self.ids), maps.centre[OTHER[side]]
        total = linked(index, side, self.ids, other)
        self.transform = maps.transform[side]
        mean = total / whole.clamp(min=1).to(total)[:, None] - centre
        self.old = features(mean, whole) @ self.transform
        gone = region[side].place(index.ids[side][retained.asked])
        deleted = index.ids[OTHER[side]][retained.asked[gone >= 0]].to(other.device)
        gone = gone[gone >= 0]
        self.sum = total.index_add(0, gone.to(total.device), other[deleted], alpha=-1.0)
        self.number = whole - torch.bincount(gone, minlength=len(self.ids))
        share = torch.zeros(len(self.ids))
        place = touched[side].place(self.ids)
        share[place >= 0] = touched[side].share[place[place >= 0]].float()
        start = torch.where(place >= 0, degree(side, share), 0.0)
        self.degree = start.to(table)[:, None]
        # Rows without a link left: an item is like one that is nobody's; a user has nothing to start from.
        number = self.number.to(table.device)
        self.alone = number == 0
        self.hold = (FIRM / number.clamp(min=1)).clamp(max=1.0).to(table.dtype)[:, None]
        self.rare = maps.rare if side == "item" else None
        count = whole if side == "user" else torch.ones(len(self.ids))
        self.weight = (count / maps.weight[side]).to(table)

    def _join(self, index: TrainIndex, region: Region, retained: RetainedIndex) -> None:
        """Find the retained links between contaminated rows: where each row's begin, and where their far ends are."""
        far = region[OTHER[self.side]].place(index.ends(self.side, self.ids))
        inside = (far >= 0).nonzero().flatten()
        inside = inside[~retained.deleted[index.of(self.side, self.ids)[inside]]]
        near = torch.repeat_interleave(torch.arange(len(self.ids)), index.counts(self.side, self.ids))[inside]
        number = torch.bincount(near, minlength=len(self.ids))
        self.starts = (number.cumsum(0) - number).to(self.table.device)
        self.far = far[inside].to(self.table.device)

    def moved(self) -> torch.Tensor:
        """By how much the rows have moved so far (n, d)."""
        return self.table[self.rows] - self.first

    def turn(self, other: torch.Tensor, centre: torch.Tensor, later: bool, sources: int) -> torch.Tensor:
        """Move the rows once, by how the other side's have moved (n', d); returns by how much the centre moved."""
        total = self.sum + embedding_bag(self.far, other, self.starts, mode="sum")
        mean = total / self.number.clamp(min=1).to(total)[:, None] - centre
        told = features(mean, self.number) @ self.transform
        move = told - self.old
        follow = (self.degree[:, 0] < 1.0) & ~self.alone
        move[follow] = even(move[follow], sources)
        goal = self.first + move - self.degree * (self.first - self.old)
        if self.rare is None:
            goal[self.alone] = self.first[self.alone]
        else:
            lost = self.alone & (self.degree[:, 0] > 0)
            goal[lost] = self.rare
        now = self.table[self.rows]
        step = (self.hold if later else 1.0) * (goal - now)
        self.table[self.rows] = now + step
        return self.weight @ step


def restart(
    tables: Tables, maps: Maps, touched: Region, region: Region, retained: RetainedIndex, rounds: int
) -> dict[Side, torch.Tensor]:
    """The new start of the rows of ``region``, minus what they are now, by side (n, d).

    ``tables`` are left as they are. ``touched`` has the rows with deleted interactions and their shares, ``region``
    all that are contaminated.
    """
    sides: dict[Side, _Side] = {}
    for side, table in tables.items():
        sides[side] = _Side(side, table, tables[OTHER[side]], maps, touched, region, retained)
    centre = {side: value.clone() for side, value in maps.centre.items()}
    sources = sum(int((state.degree >= 1.0).sum()) for state in sides.values())
    first: list[Side] = ["user"]
    again: list[Side] = ["item", "user"]
    for turn, moving in enumerate(first + again * rounds):
        other = OTHER[moving]
        centre[moving] += sides[moving].turn(sides[other].moved(), centre[other], turn > 2, sources)
    found = {}
    for side, state in sides.items():
        found[side] = state.moved()
        state.table[state.rows] = state.first
    return found
