r"""How much of S there is in each row: graded, and never a matter of inside or outside.

Three ways lead from a deleted interaction into a row, and each leaves less than the one before:

* its own. A row that lost a share ρ of its interactions starts again to the degree

      w = 1 for a user,    w = min(1, 5ρ) for an item

  Users ask to be forgotten, so theirs is a new start however little they delete; an item is held by all who keep it.
* its neighbours'. A row was fitted beside those it shares interactions with. With N the retained ones,

      c = max(w, mean of c over N)

  taken from hop to hop: a row all of whose neighbours start again has nothing clean to stand on, and one of a
  hundred is nothing to speak of. Rows with c ≥ `lua_reach` follow their neighbours (`restart.py`).
* the graph's, in models that have one: it is rebuilt without S before anything else is done.

A request of one user so reaches their items on sparse data, where an item has a handful of interactions, and nobody
else on dense data; a request of every fifth user reaches most rows, each as much as it has to do with it.
"""

from __future__ import annotations

import torch

from recbole_unlearn.rows import OTHER, Members, Region, RetainedIndex, Side

GAIN = 5.0  # an item that lost a fifth of its interactions starts again altogether
HOPS = 2


def degree(side: Side, share: torch.Tensor) -> torch.Tensor:
    """w: how far rows start again that lost a ``share`` of their interactions (n,)."""
    return torch.ones_like(share) if side == "user" else (GAIN * share).clamp(max=1.0)


def started_again(touched: Region) -> Region:
    """Those of ``touched`` of which at least half starts again: they are downdated and calibrated as well.

    What they lost is settled with that. Losses of all others are counted until a later request brings them here
    (`data/fitted.py`, whose steps of a tenth are the share from which on an item is among them).
    """
    return Region(
        {side: members.part(degree(side, members.share.float()) >= 0.5) for side, members in touched.items()}
    )


def spread(touched: Region, retained: RetainedIndex, reach: float) -> Region:
    """All rows with c ≥ ``reach``, and those in ``touched`` whatever their c; their share is c."""
    index = retained.index
    level: dict[Side, torch.Tensor] = {}
    frontier: dict[Side, torch.Tensor] = {}
    for side, members in touched.items():
        level[side] = torch.zeros(index.sizes[side])
        level[side][members.ids] = degree(side, members.share.float())
        frontier[side] = members.ids
    for _ in range(HOPS):
        reached: dict[Side, torch.Tensor] = {}
        found = {}
        for side, ids in frontier.items():
            other = OTHER[side]
            numbers = retained.only(index.of(side, ids))
            near = torch.unique(index.ids[other][numbers])
            found[other] = near, _mean_level(retained, other, near, level[side])
        for side, (near, mean) in found.items():
            more = (mean >= reach) & (mean > level[side][near])
            level[side][near[more]] = mean[more]
            reached[side] = near[more]
        frontier = reached
    region = Region()
    for side, values in level.items():
        inside = values >= reach
        inside[touched[side].ids] = True
        ids = inside.nonzero().flatten()
        region[side] = Members(ids, values[ids])
    return region


def _mean_level(retained: RetainedIndex, side: Side, ids: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    """The mean of the other side's ``level`` over the retained interactions of ``ids`` (n,)."""
    places, others = retained.neighbours(side, ids)
    total = torch.zeros(len(ids)).index_add_(0, places, level[others])
    return total / torch.bincount(places, minlength=len(ids)).clamp(min=1)
