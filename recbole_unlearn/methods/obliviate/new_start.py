r"""LUA's new start: contaminated rows are computed again from their retained neighbours, clean rows first.

**The map.** A trained model gives users with similar items similar rows. Over all users u with n interactions,

    p_u ≈ T · [√n m, log(n) m, m, √n, log n, 1],    m = mean of (q_i − q̄) over the interactions (u, i),

with T by least squares; the same for items, from users. T depends on the model and D alone, so it is learned once and
serves any number of requests (:func:`learn`). The mean q̄ is subtracted because a ranking loss does not see what all
items share. Models of sequences have other neighbours (`windows.py`) and the same map.

**Contamination.** By its own deleted interactions, a share ρ, a row starts again to the degree

    w = 1 for a user, who asks to be forgotten,    w = min(1, 5ρ) for an item, which keeps its other users

and its neighbours, with which it was fitted, pass S on: with N the retained ones, c = max(w, mean of c over N) from
hop to hop. Rows with c ≥ .02 follow their neighbours, the most contaminated first, as long as all of them
together have at most 50 interactions for each deleted one (or `LEAST_LINKS`): the size of a request decides its cost.

**The new start.** Let a and b be the map's values for a row with S (on D, at θ₀) and without it (on D\S, with the
neighbours as they are now). The row θ₀ of degree w goes to

    θ₀ + (b − a) − w (θ₀ − a)      for models of pairs
    θ₀ + w (b − θ₀)                for models of sequences, in which following cost more ranking than it forgot

Both are b for w = 1: nothing of the old row is left. For w = 0 the first is the old row moved as its neighbours
moved, keeping the part that the map does not explain. Users first, then items and users in turn, five times:
each turn uses the result of the one before, and about halves what neighbours still remember of each other.

**Limit.** Changes of rows with w < 1 are limited in every direction of the space to the median over the directions:
memory of a pair has no preferred one, and a change common to all rows is the map amplifying itself (docs/method.md).

**Scatter.** A trained row does not lie on the map; one that did would say who asked. So a row with w = 1 goes to

    α b + β z,    ‖α b + β z‖ = l,    ‖α b + β z − b‖ = e,    z at a right angle to b

with l and e about the length of a trained row with as many interactions and its distance from the map. z of a user
is a random mixture of what such rows have beside the map. The calibration then moves the rows, l and e are set again,
and those of items for the first time: z is what a row has beside the map by then.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from recbole.data.dataset import Dataset
from recbole.model.abstract_recommender import AbstractRecommender
from torch.nn.functional import embedding_bag

from recbole_unlearn.methods.obliviate.adapters import spectrum
from recbole_unlearn.rows import OTHER, Members, Region, RetainedIndex, Side, Table, TrainIndex, rarest, side_tables

GAIN = 5.0  # an item that lost a fifth of its interactions starts again entirely
HOPS, REACH = 2, 0.02  # rows follow when so much of their neighbours starts again
LINKS, LEAST_LINKS = 50, 30_000  # interactions of all rows that follow: for each deleted one, and at least
SAMPLE = 4096  # rows that a map is fitted to, at most
RIDGE = 2e-2  # relative to the mean of the Gram matrix's diagonal
DONORS, APART = 8, 0.05  # trained rows that a row's scatter is mixed from, and how far its lengths are from theirs
TINY = 1e-20

Tables = Mapping[Side, torch.Tensor]  # (n, d) by side, with row k for id k


def joined_tables(model: AbstractRecommender, tables: Sequence[Table], index: TrainIndex) -> dict[Side, torch.Tensor]:
    """The rows of each side that has any: a view of the weights, or a copy where a side has several tables."""
    found = side_tables(model, [table for table in tables if table.axis == 0], index.train)
    return {side: own[0] if len(own) == 1 else torch.cat(own, dim=1) for side, own in found.items() if own}


# Contamination


def degree(side: Side, share: torch.Tensor) -> torch.Tensor:
    """W of rows that lost a ``share`` ρ of their interactions (n,)."""
    return torch.ones_like(share) if side == "user" else (GAIN * share).clamp(max=1.0)


def started_again(touched: Region) -> Region:
    """The rows of ``touched`` with w ≥ ½, which are also downdated and calibrated.

    Losses of all other rows are counted until a later request brings them here (`data/item_counts.py`).
    """
    half = {side: degree(side, members.share.float()) >= 0.5 for side, members in touched.items()}
    return Region({side: members.part(half[side]) for side, members in touched.items()})


def spread(touched: Region, retained: RetainedIndex, reach: float = REACH) -> Region:
    """All rows with c ≥ ``reach`` within the limit, and all rows of ``touched``; their share is c."""
    index = retained.index
    room = max(LEAST_LINKS, LINKS * len(retained.asked))
    level: dict[Side, torch.Tensor] = {}
    for side, members in touched.items():
        level[side] = torch.zeros(index.sizes[side])
        level[side][members.ids] = degree(side, members.share.float())
    total = {side: torch.zeros(n) for side, n in index.sizes.items()}  # Σ of c over the retained neighbours
    known = {side: torch.zeros(n) for side, n in index.sizes.items()}  # the c that are in these sums
    for _ in range(HOPS):
        for side, values in level.items():  # only changes are added: few, where a request is small
            change = values - known[side]
            ids = change.nonzero().flatten()
            left = ~retained.deleted[index.of(side, ids)]
            each = torch.repeat_interleave(change[ids], index.counts(side, ids))
            total[OTHER[side]].index_add_(0, index.ends(side, ids)[left], each[left])
            known[side] = values.clone()
        for side in [OTHER[side] for side in level]:
            ids = total[side].nonzero().flatten()
            mean = total[side][ids] / retained.counts(side, ids).clamp(min=1)
            level[side][ids] = torch.maximum(level[side][ids], torch.where(mean >= reach, mean, 0.0))
        _limit(touched, level, index, room)
    region = Region()
    for side, values in level.items():
        inside = values > 0
        inside[touched[side].ids] = True
        ids = inside.nonzero().flatten()
        region[side] = Members(ids, values[ids])
    return region


def _limit(touched: Region, level: dict[Side, torch.Tensor], index: TrainIndex, room: int) -> None:
    """Set ``level`` to 0 for the least contaminated rows outside ``touched``, until ``room`` links are left."""
    others = {}
    for side, values in level.items():
        follows = values > 0
        follows[touched[side].ids] = False
        others[side] = follows.nonzero().flatten()
    links = torch.cat([index.counts(side, ids) for side, ids in others.items()])
    if int(links.sum()) <= room:
        return
    levels = torch.cat([level[side][ids] for side, ids in others.items()])
    found, order = levels.sort(descending=True, stable=True)
    within = links[order].cumsum(0) <= room
    least = float(found[within][-1]) if bool(within.any()) else float("inf")
    for side, ids in others.items():
        level[side][ids[level[side][ids] < least]] = 0.0


# Neighbours


class Links(Protocol):
    """The neighbours of some rows (n) of one side: by interactions, or by windows of sequences."""

    number: torch.Tensor  # (n,), the links of each row

    def mean(self, tables: Tables, centre: Tables) -> torch.Tensor:
        """m: the mean row of the neighbours (n, d'), less the centre."""


# The rows that start again, a function that finds their links, and D\S where rows follow their neighbours.
Neighbours = tuple[Region, Callable[[Side, torch.Tensor], Links], RetainedIndex | None]


class PairLinks:
    """The other ends of interactions of ``ids`` (n,): their sum, computed once, and moves of contaminated ones."""

    def __init__(self, index: TrainIndex, tables: Tables, side: Side, ids: torch.Tensor) -> None:
        self.index, self.side, self.ids, other = index, side, ids, tables[OTHER[side]]
        self.number = index.counts(side, ids)
        ends, starts = index.ends(side, ids), self.number.cumsum(0) - self.number
        self._sum = embedding_bag(ends.to(other.device), other, starts.to(other.device), mode="sum")
        self._moving: torch.Tensor | None = None

    def mean(self, tables: Tables, centre: Tables) -> torch.Tensor:
        """As :meth:`Links.mean`."""
        total, other = self._sum, OTHER[self.side]
        if self._moving is not None:
            moves = tables[other][self._moving] - self._first
            total = total + embedding_bag(self._far, moves, self._starts, mode="sum")
        return total / self.number.clamp(min=1).to(total)[:, None] - centre[other]

    def delete(self, retained: RetainedIndex, region: Region, tables: Tables) -> None:
        """Take the deleted interactions out, and follow the moves of the rows of ``region`` from now on."""
        index, side, other = self.index, self.side, OTHER[self.side]
        table = tables[other]
        whole, far = self.number, region[other].place(index.ends(side, self.ids))
        inside = (far >= 0).nonzero().flatten()
        inside = inside[~retained.deleted[index.of(side, self.ids)[inside]]]
        near = torch.repeat_interleave(torch.arange(len(self.ids)), whole)[inside]
        count = torch.bincount(near, minlength=len(self.ids))
        self._starts = (count.cumsum(0) - count).to(table.device)
        self._far = far[inside].to(table.device)
        self._moving = region[other].ids.to(table.device)
        self._first = table[self._moving].clone()
        place = region[side].place(index.ids[side][retained.asked])
        deleted = index.ids[other][retained.asked[place >= 0]].to(table.device)
        place = place[place >= 0]
        self._sum = self._sum.index_add(0, place.to(table.device), table[deleted], alpha=-1.0)
        self.number = whole - torch.bincount(place, minlength=len(self.ids))


# The map


class Scatter(NamedTuple):
    """Trained rows and what they have beside the map, by rising number of links."""

    ids: torch.Tensor  # (m,)
    number: torch.Tensor  # (m,), of links
    length: torch.Tensor  # (m,), l
    rest: torch.Tensor  # (m, d), the row less its map, of length e

    def like(self, number: torch.Tensor, apart: Members, generator: torch.Generator) -> torch.Tensor:
        """For each row, with ``number`` (n,) links, some trained ones with about as many (n, k), none of ``apart``.

        There are none (k = 0) where too few are left.
        """
        others = (~apart.contains(self.ids)).nonzero().flatten()
        if len(others) < 4 * DONORS:
            return torch.empty(len(number), 0, dtype=torch.long)
        place = torch.searchsorted(self.number[others], number)[:, None]
        near = torch.randint(-2 * DONORS, 2 * DONORS, (len(number), DONORS), generator=generator)
        return others[(place + near).clamp(0, len(others) - 1)]

    def lengths(self, chosen: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """L and e (2, n, 1), about those of the first ``chosen`` row (n, k): equal ones could be found."""
        one = chosen[:, 0].to(self.rest.device)
        own = torch.stack([self.length[one], self.rest[one].norm(dim=1)])[:, :, None]
        return own * (1.0 + APART * torch.randn(own.shape, generator=generator)).to(own)

    def mixture(self, chosen: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Z (n, d) up to its length: a random mixture of what the ``chosen`` rows (n, k) have beside the map."""
        rest = self.rest[chosen.to(self.rest.device)]
        return (torch.randn(*chosen.shape, 1, generator=generator).to(rest) * rest).sum(dim=1)


def placed(told: torch.Tensor, beside: torch.Tensor, length: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
    """α b + β z (n, d): b is ``told`` (n, d), z is what ``beside`` (n, d) has at a right angle to it.

    With ``length`` and ``far`` (n, 1) for l and e, l² − e² = (2α − 1) ‖b‖² gives α, and β² = l² − α² ‖b‖².
    """
    square = told.square().sum(dim=1, keepdim=True).clamp(min=TINY)
    across = beside - (beside * told).sum(dim=1, keepdim=True) / square * told
    alpha = 0.5 * (1.0 + (length.square() - far.square()) / square)
    beta = (length.square() - alpha.square() * square).clamp(min=0.0).sqrt()
    return alpha * told + beta * across / across.norm(dim=1, keepdim=True).clamp(min=TINY)


class Maps(NamedTuple):
    """The map of a model, learned before any request."""

    transform: dict[Side, torch.Tensor]  # T (3 d' + 3, d) for the rows of each side
    centre: dict[Side, torch.Tensor]  # p̄ and q̄ at θ₀
    weight: dict[Side, float]  # the number of rows in each of these means; empty where they are held fixed
    rare: torch.Tensor  # (d,), the row of an item without interactions: the mean of the rarest
    scatter: dict[Side, Scatter]


def drawn_by(rows: Sequence[torch.Tensor]) -> torch.Generator:
    """A generator that starts from the bits of old ``rows``, which who has the new model does not have."""
    old = hashlib.sha256(b"".join(part.cpu().numpy().tobytes() for part in rows))
    return torch.Generator().manual_seed(int.from_bytes(old.digest()[:7], "big"))


def features(mean: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """[√n m, log(n) m, m, √n, log n, 1] (n, 3d + 3), with m (n, d) the centred mean of the rows at n (n,) links.

    A row grows with its number of interactions: like the root while they are few, like the logarithm later.
    """
    number = number.to(mean)[:, None]
    mean = torch.where(number > 0, mean, 0.0)
    count = number.clamp(min=1.0)
    root, log = count.sqrt(), count.log()
    return torch.cat([root * mean, log * mean, mean, root, log, torch.ones_like(count)], dim=1)


def learn(
    tables: Tables, known: Mapping[Side, torch.Tensor], width: Mapping[Side, int],
    links_of: Callable[[Side, torch.Tensor], Links], centre: dict[Side, torch.Tensor], weight: dict[Side, float],
    train: Dataset, generator: torch.Generator,
) -> Maps | None:  # fmt: skip
    """The map fitted to a sample of ``known`` ids; None if a side has under four for each ``width`` column."""
    transform: dict[Side, torch.Tensor] = {}
    scatter: dict[Side, Scatter] = {}
    for side, table in tables.items():
        ids = known[side][torch.randperm(len(known[side]), generator=generator)[:SAMPLE]].sort().values
        links = links_of(side, ids)
        x = features(links.mean(tables, centre), links.number).double()
        if len(ids) < 4 * width[side]:
            return None
        gram = x.T @ x
        gram.diagonal().add_(RIDGE * gram.diagonal().mean())
        rows = table[ids.to(table.device)]
        transform[side] = torch.linalg.solve(gram, x.T @ rows.double()).to(table.dtype)
        order = links.number.argsort(stable=True)
        rest = rows - x.to(table.dtype) @ transform[side]
        here = order.to(rest.device)
        scatter[side] = Scatter(ids[order], links.number[order], rows[here].norm(dim=1), rest[here])
    items = tables["item"]
    return Maps(transform, centre, weight, items[rarest(train).to(items.device)].mean(dim=0), scatter)


def learn_pairs(tables: Tables, index: TrainIndex, generator: torch.Generator) -> Maps | None:
    """The map by interactions, centred on the mean interaction's user and the mean item."""
    number = {side: index.counts(side, torch.arange(size)) for side, size in index.sizes.items()}
    known = {side: (counts > 0).nonzero().flatten() for side, counts in number.items()}
    users, items = tables["user"], tables["item"]
    middle = number["user"].to(users) @ users / len(index)
    mean = items[known["item"].to(items.device)].mean(dim=0)
    centre: dict[Side, torch.Tensor] = {"user": middle, "item": mean}
    weight: dict[Side, float] = {"user": float(len(index)), "item": float(len(known["item"]))}
    width: dict[Side, int] = {"user": items.shape[1], "item": users.shape[1]}
    links_of = functools.partial(PairLinks, index, tables)
    return learn(tables, known, width, links_of, centre, weight, index.train, generator)


# The new start


def even(moves: torch.Tensor, sources: int) -> torch.Tensor:
    """``moves`` (m, d) with no direction of the space larger than the median: singular values σ → min(σ, median σ).

    By the eigenvalues σ² of the Gram matrix. With fewer ``sources`` (rows that started again) or moves than
    directions nothing is limited: the move that one user causes has one direction, and a median says nothing.
    """
    if min(len(moves), sources) < moves.shape[1]:
        return moves
    squares, basis = spectrum(moves)
    factor = (squares.median() / squares.clamp(min=1e-30)).clamp(max=1.0).sqrt()
    return moves @ ((basis * factor) @ basis.T).to(moves.dtype)


class _Turn:
    """The contaminated rows of one side while they start again."""

    def __init__(self, side: Side, tables: Tables, maps: Maps, touched: Region, neighbours: Neighbours) -> None:
        region, links_of, retained = neighbours
        ids, table = region[side].ids, tables[side]
        self.side, self.table, self.maps, self.links = side, table, maps, links_of(side, ids)
        self.rows, self.touched = ids.to(table.device), touched[side]
        self.first = table[self.rows].clone()  # θ₀
        place = touched[side].place(ids)
        share = torch.zeros(len(ids))
        share[place >= 0] = touched[side].share[place[place >= 0]].float()
        self.degree = torch.where(place >= 0, degree(side, share), 0.0).to(table)[:, None]  # w
        self.old: torch.Tensor | None = None  # a; None where rows do not follow their neighbours
        if retained is not None:
            assert isinstance(self.links, PairLinks)
            self.old = self._told(tables, maps.centre)
            count = self.links.number if side == "user" else torch.ones(len(ids))
            self.weight = (count / maps.weight[side]).to(table)
            self.links.delete(retained, region, tables)

    def _told(self, tables: Tables, centre: Tables) -> torch.Tensor:
        """The map's values (n, d) by the neighbours as they are now."""
        return features(self.links.mean(tables, centre), self.links.number) @ self.maps.transform[self.side]

    def scatter(self, tables: Tables, centre: Tables, generator: torch.Generator | None) -> torch.Tensor:
        """The change (n, d) to α b + β z of rows with w = 1; 0 for others.

        With a generator trained rows are drawn, and z of users; without, z is what a row has beside the map now.
        """
        told, now, scatter = self._told(tables, centre), tables[self.side][self.rows], self.maps.scatter[self.side]
        beside = now
        if generator is not None:
            self.like = scatter.like(self.links.number.cpu(), self.touched, generator)
            if self.like.shape[1]:
                self.lengths = scatter.lengths(self.like, generator)
                beside = scatter.mixture(self.like, generator)
        if self.like.shape[1] == 0 or (generator is not None and self.side == "item"):
            return torch.zeros_like(now)
        again = (self.degree >= 1.0) & (self.links.number > 0).to(now.device)[:, None]
        return torch.where(again, placed(told, beside, *self.lengths) - now, 0.0)

    def move(self, tables: Tables, centre: dict[Side, torch.Tensor], sources: int) -> float:
        """Move the rows once, and the centre with them where they follow; returns how far those with w < 1 went."""
        told = self._told(tables, centre)  # b
        alone = (self.links.number == 0).to(self.table.device)
        if self.old is None:
            goal = self.first + self.degree * (told - self.first)
        else:
            move = told - self.old
            follows = (self.degree[:, 0] < 1.0) & ~alone
            move[follows] = even(move[follows], sources)
            goal = self.first + move - self.degree * (self.first - self.old)
        # Rows without a link left: an item is like the rarest ones, a user has nothing to start from.
        if self.side == "item":
            goal[alone & (self.degree[:, 0] > 0)] = self.maps.rare
        else:
            goal[alone] = self.first[alone]
        step = goal - self.table[self.rows]
        if self.old is not None:
            centre[self.side] = centre[self.side] + self.weight @ step
        self.table[self.rows] = goal
        return float(step[self.degree[:, 0] < 1.0].square().sum())


class NewStart:
    """The new start of the rows that one request contaminates; ``tables`` stay as they are."""

    def __init__(self, tables: Tables, maps: Maps, touched: Region, found: Neighbours) -> None:
        """``touched`` are the rows that the request names, ``found`` all contaminated ones with their neighbours."""
        self.region = found[0]
        self._tables, self._turns = tables, {side: _Turn(side, tables, maps, touched, found) for side in tables}
        self._centre = dict(maps.centre)

    def moves(self, rounds: int) -> dict[Side, torch.Tensor]:
        """The change (n, d) by side that gives the rows their new start, after ``rounds`` at most."""
        turns, kept, first = self._turns, {}, math.inf
        sources = sum(int((turn.degree >= 1.0).sum()) for turn in turns.values())
        for number in range(rounds):
            went = 0.0
            for side in ("user", "item", "user") if number == 0 else ("item", "user"):
                if side in turns:
                    went += turns[side].move(self._tables, self._centre, sources)
            if went > first:  # the map feeds on itself
                break
            first = went if number == 0 else first
            kept = {side: turn.table[turn.rows] for side, turn in turns.items()}
        for turn in turns.values():
            turn.table[turn.rows] = turn.first
        return {side: rows - turns[side].first for side, rows in kept.items()}

    def scatter(self, tables: Tables, again: bool = False) -> dict[Side, torch.Tensor]:
        """The change (n, d) by side that gives rows the place of trained ones beside the map.

        ``again``: with the same lengths as before, and z by what the rows are now. The generator starts from the old
        rows, which a holder of the new model does not have: with a known seed z could be drawn again, and taken off.
        """
        generator = None if again else drawn_by([turn.first for turn in self._turns.values()])
        return {side: turn.scatter(tables, self._centre, generator) for side, turn in self._turns.items()}
