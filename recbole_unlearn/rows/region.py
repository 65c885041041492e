"""The region of a request: its users and items, and the share of their interactions that it deletes.

The *deleted share* of a user or item x is the part of its training interactions that is in the forget set,
ρ = |S_x| / |D_x|. A first-order downdate of the row of x is right for a small share; at a large one little is left to
start from. Interactions that earlier requests deleted count too, or fifteen requests of one interaction would never
move an item that one request of fifteen moves. With L_x interactions deleted since the row was fitted,

    ρ = (L_x + |S_x|) / (L_x + |D_x|)

L is counted for items only: the rows of a user are fitted again at every request of that user.
"""

import dataclasses
import functools
from typing import Self

import torch
from recbole.data.dataset import Dataset
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.rows.index import OTHER, RetainedIndex, Side, TrainIndex
from recbole_unlearn.rows.tables import Earlier, as_rows, find_tables, write_rows

PLACES = 2**17  # up to this id, a table of positions is quicker than a search
LEAST_RARE, RARE_SHARE = 10, 50  # the rarest items: at least ten, otherwise one item of fifty


@dataclasses.dataclass(frozen=True)
class Members:
    """Users or items of the region."""

    ids: torch.Tensor  # (n,), sorted
    share: torch.Tensor  # (n,), the share of their interactions that is deleted, ρ

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
        """Positions by id, where the ids are small enough for that; the last entry is for all larger ones."""
        if int(self.ids[-1]) > PLACES:
            return None
        places = torch.full((int(self.ids[-1]) + 2,), -1)
        places[self.ids] = torch.arange(len(self.ids))
        return places

    def contains(self, ids: torch.Tensor) -> torch.Tensor:
        """Which of ``ids`` are members (a mask)."""
        return self.place(ids) >= 0

    def part(self, which: torch.Tensor) -> Self:
        """Some of them, by a mask."""
        return dataclasses.replace(self, ids=self.ids[which], share=self.share[which])

    def __len__(self) -> int:
        return len(self.ids)


class Region(dict[Side, Members]):
    """The members on both sides."""


def find_region(
    index: TrainIndex, users: torch.Tensor, items: torch.Tensor, lost: torch.Tensor | None = None
) -> Region:
    """The ``users`` and ``items`` of S with their deleted shares; ``lost`` (items,) is L above."""
    members = Region()
    asked: dict[Side, torch.Tensor] = {"user": users, "item": items}
    for side, ids in asked.items():
        ids, gone = torch.unique(ids, return_counts=True)
        before = lost[ids] if lost is not None and side == "item" else torch.zeros_like(ids)
        members[side] = Members(ids, (before + gone) / (before + index.counts(side, ids)))
    return members


def with_neighbours(region: Region, retained: RetainedIndex, decay: float, cap: int) -> Region:
    """The region and the items of its users' retained interactions, and the users of its items'.

    A neighbour's share is that of the member times ``decay``, weighted by how many of the neighbour's interactions
    lead to the region:

        ρ(b) = decay · Σ over interactions (a, b) of ρ(a) / |D_b|

    Those with the ``cap`` largest shares of a side join.
    """
    grown, index = Region(), retained.index
    for side, members in region.items():
        own = region[other := OTHER[side]]
        numbers = retained.only(index.of(side, members.ids))
        weight = members.share[members.place(index.ids[side][numbers])]
        ids, position = torch.unique(index.ids[other][numbers], return_inverse=True)
        share = torch.zeros(len(ids)).index_add_(0, position, weight.float())
        share = decay * share / index.counts(other, ids).clamp(min=1)
        new = ~own.contains(ids)
        ids, share = ids[new], share[new]
        best = share.topk(min(cap, len(share))).indices
        ids, order = torch.cat([own.ids, ids[best]]).sort()
        grown[other] = Members(ids, torch.cat([own.share, share[best]])[order])
    return Region({side: grown[side] for side in region})


def rarest(train: Dataset) -> torch.Tensor:
    """The items (n,) with the fewest training interactions: what a loss over all items makes of one without any."""
    number = torch.bincount(train.inter_feat[train.iid_field], minlength=train.item_num)
    items = (number > 0).nonzero().flatten()
    return items[number[items].argsort(stable=True)[: max(LEAST_RARE, len(items) // RARE_SHARE)]]


@torch.no_grad()
def reset_to_rarest(model: AbstractRecommender, train: Dataset, items: torch.Tensor) -> list[Earlier]:
    """Give the rows of ``items`` (m,) in ``model`` the mean of the rows of the rarest items."""
    if len(items) == 0:
        return []
    others, written = rarest(train), []
    for name, side, offset, axis in find_tables(model, train):
        if side == "item":
            weights = model.get_parameter(name)
            mean = as_rows(weights, axis)[(others + offset).to(weights.device)].mean(dim=0)
            written.append(write_rows(name, weights, items + offset, mean, axis))
    return written
