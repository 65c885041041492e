"""The region of a request: the users and items it touches, and how much of each it takes away.

The *deleted share* of a user or item is the part of its training rows that is in the forget set,
ρ = |S_row| / |D_row|. It says how far its embedding is from what it would be without S: a first-order downdate
is right for a small share, and has little left to start from at a large one.
"""

from __future__ import annotations

import dataclasses
import functools

import torch

from recbole_unlearn.rows.index import RetainedIndex, TrainIndex
from recbole_unlearn.rows.tables import OTHER, Side

PLACES = 2**17  # up to this id, a table of positions is quicker than a search


@dataclasses.dataclass(frozen=True)
class Members:
    """Users or items of the region."""

    ids: torch.Tensor  # (n,), sorted
    share: torch.Tensor  # (n,), of their rows that are deleted

    def place(self, ids: torch.Tensor) -> torch.Tensor:
        """The position of each of ``ids`` among the members, -1 for those outside."""
        if len(self.ids) == 0:
            return torch.full(ids.shape, -1)
        if self._places is not None:
            return self._places[ids.clamp(max=len(self._places) - 1)]
        place = torch.searchsorted(self.ids, ids).clamp_(max=len(self.ids) - 1)
        return torch.where(self.ids[place] == ids, place, -1)

    @functools.cached_property
    def _places(self) -> torch.Tensor | None:
        """Positions by id, where the ids are small enough for that; the last entry stands for all larger ones."""
        if int(self.ids[-1]) > PLACES:
            return None
        places = torch.full((int(self.ids[-1]) + 2,), -1)
        places[self.ids] = torch.arange(len(self.ids))
        return places

    def contains(self, ids: torch.Tensor) -> torch.Tensor:
        """Which of ``ids`` are members (a mask)."""
        return self.place(ids) >= 0

    def __len__(self) -> int:
        return len(self.ids)


class Region(dict[Side, Members]):
    """The members on both sides."""


def find_region(index: TrainIndex, users: torch.Tensor, items: torch.Tensor, threshold: float) -> Region:
    """The region of the deleted rows (``users``, ``items``).

    Every user with a deleted row is inside, or a small request would change nothing. An item is inside when its
    share reaches ``threshold``: a popular one is hardly moved by a few rows, and many users depend on it.
    """
    members = Region()
    asked: list[tuple[Side, torch.Tensor, float]] = [("user", users, 0.0), ("item", items, threshold)]
    for side, ids, least in asked:
        ids, gone = torch.unique(ids, return_counts=True)
        share = gone / index.counts(side, ids)
        inside = share >= least
        members[side] = Members(ids[inside], share[inside])
    return members


def with_neighbours(
    region: Region, retained: RetainedIndex, hops: int, decay: float, least: float, cap: int
) -> Region:
    """The region and those its members share retained rows with, up to ``hops`` away.

    One hop from a user leads to the items of its retained rows, and back. A neighbour's share is that of the member
    times ``decay`` for each hop, weighted by how much of the neighbour's rows lead to the region:

        ρ(b) = decay · Σ over rows (a, b) of ρ(a) / |D_b|

    Those whose share reaches ``least`` join, and of them the ``cap`` largest of a side.
    """
    grown = Region(region)
    frontier = dict(region)
    index = retained.index
    for _ in range(hops):
        reached: dict[Side, Members] = {}
        for side, members in frontier.items():
            other = OTHER[side]
            rows = retained.only(index.of(side, members.ids))
            weight = members.share[members.place(index.ids[side][rows])]
            ids, position = torch.unique(index.ids[other][rows], return_inverse=True)
            share = torch.zeros(len(ids)).index_add_(0, position, weight.float())
            share = decay * share / index.counts(other, ids).clamp(min=1)
            new = ~grown[other].contains(ids) & (share >= least)
            ids, share = ids[new], share[new]
            best = share.topk(min(cap, len(share))).indices.sort().values
            reached[other] = Members(ids[best], share[best])
        for side, members in reached.items():
            ids, order = torch.cat([grown[side].ids, members.ids]).sort()
            grown[side] = Members(ids, torch.cat([grown[side].share, members.share])[order])
        frontier = reached
    return grown
