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

A request of one user so reaches their items on sparse data, where an item has a handful of interactions, and users
who share rare items on dense data; a request of every fifth user reaches most rows, each as much as it has to do with
it. One user with a long history has a little to do with everybody: of those who follow, the most contaminated come
first, and all together have at most 50 interactions for each deleted one (or `LEAST_LINKS`), so that the size of a
request decides what it costs. A request of more than 4 % of D does not notice.
"""

from __future__ import annotations

import torch

from recbole_unlearn.rows import OTHER, Members, Region, RetainedIndex, Side, TrainIndex

GAIN = 5.0  # an item that lost a fifth of its interactions starts again altogether
HOPS = 2
LINKS, LEAST_LINKS = (
    50,
    30_000,
)  # interactions that rows which follow may have, for each deleted one and at least


def degree(side: Side, share: torch.Tensor) -> torch.Tensor:
    """w: how far rows start again that lost a ``share`` of their interactions (n,)."""
    return torch.ones_like(share) if side == "user" else (GAIN * share).clamp(max=1.0)


def started_again(touched: Region) -> Region:
    """Those of ``touched`` of which at least half starts again: they are downdated and calibrated as well.

    What they lost is settled with that. Losses of all others are counted until a later request brings them here
    (`data/item_counts.py`, whose steps of a tenth are the share from which on an item is among them).
    """
    return Region(
        {side: members.part(degree(side, members.share.float()) >= 0.5) for side, members in touched.items()}
    )


def spread(touched: Region, retained: RetainedIndex, reach: float) -> Region:
    """All rows with c ≥ ``reach`` within their limit, and those in ``touched`` whatever their c; their share is c."""
    index = retained.index
    room = max(LEAST_LINKS, LINKS * len(retained.asked))
    level: dict[Side, torch.Tensor] = {}
    for side, members in touched.items():
        level[side] = torch.zeros(index.sizes[side])
        level[side][members.ids] = degree(side, members.share.float())
    means = _MeanLevels(retained)
    for _ in range(HOPS):
        found = means.of(level)
        for side, mean in found.items():
            level[side] = torch.maximum(level[side], torch.where(mean >= reach, mean, 0.0))
        _limit(touched, level, index, room)
    region = Region()
    for side, values in level.items():
        inside = values > 0
        inside[touched[side].ids] = True
        ids = inside.nonzero().flatten()
        region[side] = Members(ids, values[ids])
    return region


def _limit(touched: Region, level: dict[Side, torch.Tensor], index: TrainIndex, room: int) -> None:
    """Leave those out of ``level``, the least contaminated first, whose interactions are too many together."""
    others = {}
    for side, values in level.items():
        follows = values > 0
        follows[touched[side].ids] = False
        others[side] = follows.nonzero().flatten()
    links = torch.cat([index.counts(side, ids) for side, ids in others.items()])
    if int(links.sum()) <= room:
        return
    found, order = torch.cat([level[side][ids] for side, ids in others.items()]).sort(
        descending=True, stable=True
    )
    within = links[order].cumsum(0) <= room
    least = float(found[within][-1]) if bool(within.any()) else float("inf")
    for side, ids in others.items():
        level[side][ids[level[side][ids] < least]] = 0.0


class _MeanLevels:
    """For everybody, the mean of the other side's level over the retained interactions they have.

    The sums are kept from hop to hop, and taken from where the level has changed, which are few where a request is
    small.
    """

    def __init__(self, retained: RetainedIndex) -> None:
        self.retained = retained
        sizes: dict[Side, int] = {"user": retained.index.sizes["user"], "item": retained.index.sizes["item"]}
        self.number = {
            side: retained.counts(side, torch.arange(size)).clamp(min=1) for side, size in sizes.items()
        }
        self.total = {side: torch.zeros(size) for side, size in sizes.items()}
        self.known = {side: torch.zeros(size) for side, size in sizes.items()}

    def of(self, level: dict[Side, torch.Tensor]) -> dict[Side, torch.Tensor]:
        """The means by side (n,), of ``level`` (n',) by the other side."""
        index = self.retained.index
        for side, values in level.items():
            change = values - self.known[side]
            ids = change.nonzero().flatten()
            left = ~self.retained.deleted[index.of(side, ids)]
            each = torch.repeat_interleave(change[ids], index.counts(side, ids))
            self.total[OTHER[side]].index_add_(0, index.ends(side, ids)[left], each[left])
            self.known[side] = values.clone()
        return {OTHER[side]: self.total[OTHER[side]] / self.number[OTHER[side]] for side in level}
