"""The region of a request: the users and items it touches, and how much of each it takes away.

The *deleted share* of a user or item is the part of its training rows that is in the forget set,
ρ = |S_row| / |D_row|. It says how far its embedding is from what it would be without S: a first-order downdate
is right for a small share, and has little left to start from at a large one.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from recbole.data.dataset import Dataset

from recbole_unlearn.data import UnlearnData

Side = Literal["user", "item"]


@dataclasses.dataclass(frozen=True)
class Region:
    """Deleted shares of all users and items, and which of them are to be changed.

    Every user with a deleted row is inside, or a small request would change nothing. An item is inside when its
    share reaches the threshold: a popular one is hardly moved by a few rows, and many users depend on it.
    """

    user_share: torch.Tensor  # (users,)
    item_share: torch.Tensor  # (items,)
    threshold: float

    def share(self, side: Side) -> torch.Tensor:
        """The deleted share of every user or item."""
        return self.user_share if side == "user" else self.item_share

    def inside(self, side: Side) -> torch.Tensor:
        """Which users or items belong to the region (a mask)."""
        share = self.share(side)
        return (share > 0) & (share >= (self.threshold if side == "item" else 0.0))

    def ids(self, side: Side) -> torch.Tensor:
        """Their ids, sorted."""
        return self.inside(side).nonzero().flatten()


def find_region(data: UnlearnData, threshold: float) -> Region:
    """The region of ``data.forget`` in ``data.full``."""
    train = data.full.train

    def share(field: str, size: int) -> torch.Tensor:
        deleted, total = (_count(part, field, size) for part in (data.forget, train))
        return deleted / total.clamp(min=1)

    return Region(share(train.uid_field, train.user_num), share(train.iid_field, train.item_num), threshold)


def _count(dataset: Dataset, field: str, size: int) -> torch.Tensor:
    return torch.bincount(dataset.inter_feat[field], minlength=size).float()
