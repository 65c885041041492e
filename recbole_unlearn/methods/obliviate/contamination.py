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
else on dense data; a request of every fifth user reaches most rows, each as much as it has to do with it. One user with
a long history has a little to do with everybody: of those who follow, the most contaminated come first, and all
together have no more interactions than the rows that S touches (or than `LEAST_LINKS`), so that the size of a request
decides what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from recbole_unlearn.rows import OTHER, Members, Region, RetainedIndex, Side, TrainIndex

GAIN = 5.0  # an item that lost a fifth of its interactions starts again altogether
HOPS = 2
LEAST_LINKS = 30_000  # interactions that rows which follow may have in any case


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
    for side, members in touched.items():
        level[side] = torch.zeros(index.sizes[side])
        level[side][members.ids] = degree(side, members.share.float())
    for _ in range(HOPS):
        found = {OTHER[side]: _mean_level(retained, side, level[side]) for side in level}
        for side, (near, mean) in found.items():
            more = (mean >= reach) & (mean > level[side][near])
            level[side][near[more]] = mean[more]
    return _most_contaminated(touched, level, index, reach)


def _most_contaminated(
    touched: Region, level: Mapping[Side, torch.Tensor], index: TrainIndex, reach: float
) -> Region:
    """The rows of ``touched``, and of all others with c ≥ ``reach`` those with the largest, within their limit."""
    room = max(LEAST_LINKS, sum(int(index.counts(side, members.ids).sum()) for side, members in touched.items()))
    others = {}
    for side, values in level.items():
        follows = values >= reach
        follows[touched[side].ids] = False
        others[side] = follows.nonzero().flatten()
    links = torch.cat([index.counts(side, ids) for side, ids in others.items()])
    least = reach
    if int(links.sum()) > room:
        found, order = torch.cat([level[side][ids] for side, ids in others.items()]).sort(descending=True, stable=True)
        within = links[order].cumsum(0) <= room
        least = float(found[within][-1]) if bool(within.any()) else float("inf")
    region = Region()
    for side, ids in others.items():
        ids = torch.cat([touched[side].ids, ids[level[side][ids] >= least]]).sort().values
        region[side] = Members(ids, level[side][ids])
    return region


def _mean_level(retained: RetainedIndex, side: Side, level: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of the other side who share retained interactions with a ``side`` of some ``level``, and their means of it.

    The sums are taken from where the level is not 0, which are few where a request is small.
    """
    index, other = retained.index, OTHER[side]
    numbers = retained.only(index.of(side, level.nonzero().flatten()))
    near, place = torch.unique(index.ids[other][numbers], return_inverse=True)
    total = torch.zeros(len(near)).index_add_(0, place, level[index.ids[side][numbers]])
    return near, total / retained.counts(other, near).clamp(min=1)
