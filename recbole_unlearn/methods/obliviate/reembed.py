r"""Where a row belongs by its retained neighbours: the map from neighbours to rows that the model itself learned.

A trained model gives users with similar items similar rows. So the row a user would have without S can be read off
users that S does not touch: fit, by least squares over such users u,

    p_u ≈ T · [√n m, log(n) m, √n, log n, 1],    m = mean of q_i over the n interactions (u, i) of D\S,

and apply T to the retained interactions of the users in the region; the same for items, from users outside the
region. It takes a fraction of a second, reads no deleted interaction and no weight of the region's users, and is
nearer to a retrained model than the initial value or the old row. Closed form, so no step count and no learning rate.
Rows outside the region were still trained together with S: popular items that lost a few interactions are among them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from recbole_unlearn.rows import OTHER, Region, RetainedIndex, Side

SAMPLE = 3000  # untouched users or items the map is fitted to, at least, if there are so many
RAREST = 10  # untouched items, at least, whose mean row an item without neighbours gets
RIDGE = 1e-3  # relative to the mean of the Gram matrix's diagonal


class Neighbours(NamedTuple):
    """The mean of each row's neighbours (n, d), and their number (n,)."""

    mean: torch.Tensor
    number: torch.Tensor


def neighbours(
    retained: RetainedIndex, region: Region, side: Side, ids: torch.Tensor, others: torch.Tensor
) -> Neighbours:
    """The means of rows of the other side's table ``others`` over the retained interactions of ``ids``.

    For items, users of the region are left out: their rows have seen S.
    """
    index = retained.index
    interactions = retained.only(index.of(side, ids))
    own, other = index.ids[side][interactions], index.ids[OTHER[side]][interactions]
    if side == "item":
        outside = ~region["user"].contains(other)
        own, other = own[outside], other[outside]
    place = torch.searchsorted(ids, own).to(others.device)
    count = torch.bincount(place, minlength=len(ids)).to(others.dtype)
    total = torch.zeros(len(ids), others.shape[1], dtype=others.dtype, device=others.device)
    total.index_add_(0, place, others[other.to(others.device)])
    return Neighbours(total / count.clamp(min=1)[:, None], count)


def untouched(
    retained: RetainedIndex, region: Region, side: Side, most: int, generator: torch.Generator
) -> torch.Tensor:
    """A sample of up to ``most`` users or items outside the region that have interactions, sorted."""
    size = retained.index.sizes[side]
    if size <= 4 * most:
        ids = torch.randperm(size - 1, generator=generator) + 1
    else:
        ids = torch.randint(1, size, (2 * most,), generator=generator).unique()
        ids = ids[torch.randperm(len(ids), generator=generator)]
    ids = ids[(retained.index.counts(side, ids) > 0) & ~region[side].contains(ids)]
    return ids[:most].sort().values


def predict(
    retained: RetainedIndex,
    region: Region,
    side: Side,
    own: torch.Tensor,
    others: torch.Tensor,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows for the region's members of ``side`` by their neighbours (n, d), and for which of them that is possible.

    ``own`` and ``others`` are the tables of this side and of the other, with row k for id k.
    """
    width = others.shape[1]
    known = untouched(retained, region, side, max(SAMPLE, 16 * width), generator)
    members = region[side].ids
    if len(known) < 4 * width:
        return own[members], torch.zeros(len(members), dtype=torch.bool, device=own.device)
    seen = neighbours(retained, region, side, known, others)
    linked = seen.number > 0
    x, y = features(seen)[linked].double(), own[known][linked].double()
    gram = x.T @ x
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    transform = torch.linalg.solve(gram, x.T @ y).to(own.dtype)
    asked = neighbours(retained, region, side, members, others)
    rows, sure = features(asked) @ transform, asked.number > 0
    if side == "item":
        # An item without neighbours is nothing but a negative in training, like the rarest of the others.
        counts = retained.index.counts(side, known)
        rare = known[counts.argsort(stable=True)[: max(RAREST, len(known) // 50)]]
        rows = torch.where(sure[:, None], rows, own[rare].mean(dim=0))
        sure = torch.ones_like(sure)
    return rows, sure


def features(near: Neighbours) -> torch.Tensor:
    """[√n m, log(n) m, √n, log n, 1] (k, 2d + 3) with m the mean of n neighbours.

    A row grows with its number of interactions: like the square root while they are few, like the logarithm later.
    """
    count = near.number.clamp(min=1)[:, None]
    root, log = count.sqrt(), count.log()
    return torch.cat([root * near.mean, log * near.mean, root, log, torch.ones_like(count)], dim=1)
