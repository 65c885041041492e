r"""Training interactions by user, by item and by pair: built once, so that a request costs what it touches.

:class:`TrainIndex` is made of D before a request arrives. :class:`RetainedIndex` is its view without the deleted
interactions, and makes nothing of the size of D: with it, deleting a hundred interactions takes about as long with
a million users as with ten thousand (benchmarks/catalogue.py).

Where one request follows another, :meth:`TrainIndex.remove` takes the interactions of a finished one out, in place:
only the entries of their users and items are written.
"""

import functools
from typing import Literal, Self

import torch
from recbole.data.dataset import Dataset

TABLE_BYTES = 2**26  # up to this size a table of all pairs is kept, which is quicker to look up
IN_ORDER = 2**16  # keys that are looked up at once, from which on they are sorted first

Side = Literal["user", "item"]
SIDES: tuple[Side, Side] = ("user", "item")
OTHER: dict[Side, Side] = {"user": "item", "item": "user"}


class TrainIndex:
    """Where the interactions of a user, of an item and of a pair are in D."""

    def __init__(self, train: Dataset) -> None:
        self.train = train
        feat = train.inter_feat
        self.ids: dict[Side, torch.Tensor] = {
            "user": feat[train.uid_field].cpu(), "item": feat[train.iid_field].cpu(),
        }  # fmt: skip
        self.sizes: dict[Side, int] = {"user": train.user_num, "item": train.item_num}
        self.total = len(self.ids["user"])  # interactions are numbered up to here, also after some were removed
        self.removed = torch.zeros(self.total, dtype=torch.bool)
        self._live = self.total
        self.table: torch.Tensor | None = None
        if train.user_num * train.item_num <= TABLE_BYTES:
            self.table = torch.zeros(train.user_num * train.item_num, dtype=torch.bool)
            self.table[self.keys(self.ids["user"], self.ids["item"])] = True

    @functools.cached_property
    def pairs(self) -> torch.Tensor:
        """The keys of all interactions, sorted."""
        return self.keys(self.ids["user"], self.ids["item"]).sort().values

    @functools.cached_property
    def _count(self) -> dict[Side, torch.Tensor]:
        return {side: torch.bincount(self.ids[side], minlength=self.sizes[side]) for side in SIDES}

    @functools.cached_property
    def _start(self) -> dict[Side, torch.Tensor]:
        """Where the interactions of each id begin in ``_order``, and those of each user in ``pairs``."""
        zero = torch.zeros(1, dtype=torch.long)
        return {side: torch.cat([zero, n.cumsum(0)]) for side, n in self._count.items()}

    @functools.cached_property
    def _order(self) -> dict[Side, torch.Tensor]:
        """Numbers of interactions, sorted by id."""
        return {side: torch.argsort(self.ids[side], stable=True) for side in SIDES}

    @functools.cached_property
    def _far(self) -> dict[Side, torch.Tensor]:
        """The other ends of the interactions in ``_order``, stored together since they are read together."""
        return {side: self.ids[OTHER[side]][order] for side, order in self._order.items()}

    def complete(self) -> Self:
        """Build all parts now instead of at their first use."""
        _ = self.pairs, self._start, self._order, self._far
        return self

    def __len__(self) -> int:
        return self._live

    def remove(self, numbers: torch.Tensor) -> None:
        """Take the interactions ``numbers`` (m,) out for good, in place; all others keep their numbers.

        In ``_order`` an id's remaining entries move to the front of its range, before the removed ones. In ``pairs``
        a removed entry becomes (user, 0), with the padding item, at the front of its user's range: keys stay sorted.
        """
        self.complete()
        self.removed[numbers] = True
        for side in SIDES:
            self._move_back(side, torch.unique(self.ids[side][numbers]))
        users, items = (self.ids[side][numbers] for side in SIDES)
        self._remove_pairs(torch.unique(users))
        if self.table is not None:
            gone = self.keys(users, items)
            self.table[gone] = _contains(self.pairs, gone)

    def _move_back(self, side: Side, ids: torch.Tensor) -> None:
        """Move the removed interactions of ``ids`` behind the remaining ones; both keep their order."""
        order, start, count = self._order[side], self._start[side][ids], self._count[side][ids]
        places = ranges(start, count)
        out = self.removed[order.index_select(0, places)]
        left, gone = places[~out], places[out]
        lost = torch.bincount(torch.searchsorted(ids, self.ids[side][order[gone]]), minlength=len(ids))
        front, back = ranges(start, count - lost), ranges(start + count - lost, lost)
        for values in (order, self._far[side]):
            removed = values[gone]
            values.scatter_(0, front, values.index_select(0, left))  # faster than values[front] = values[left]
            values[back] = removed
        self._count[side][ids] = count - lost
        self._live -= int(lost.sum()) if side == "user" else 0

    def _remove_pairs(self, users: torch.Tensor) -> None:
        """Write the ranges of ``users`` in ``pairs`` again, from their remaining interactions."""
        start, count = self._start["user"][users], self._count["user"][users]
        empty = self._start["user"][users + 1] - start - count
        mine = self.of("user", users)
        left = self.keys(self.ids["user"][mine], self.ids["item"][mine]).sort().values
        self.pairs[ranges(start, empty)] = torch.repeat_interleave(users * self.sizes["item"], empty)
        self.pairs[ranges(start + empty, count)] = left

    def keys(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """One number for each pair."""
        return users * self.sizes["item"] + items

    def counts(self, side: Side, ids: torch.Tensor) -> torch.Tensor:
        """How many interactions each of ``ids`` has."""
        return self._count[side][ids]

    def of(self, side: Side, ids: torch.Tensor) -> torch.Tensor:
        """The numbers of all interactions of ``ids``, one id after the other."""
        return self._order[side][ranges(self._start[side][ids], self.counts(side, ids))]

    def ends(self, side: Side, ids: torch.Tensor) -> torch.Tensor:
        """The items of these users, or the users of these items: the other ends of what :meth:`of` gives."""
        return self._far[side][ranges(self._start[side][ids], self.counts(side, ids))]

    def removed_of(self, side: Side, ids: torch.Tensor) -> torch.Tensor:
        """As :meth:`of`, for removed interactions."""
        start, count = self._start[side][ids], self.counts(side, ids)
        return self._order[side][ranges(start + count, self._start[side][ids + 1] - start - count)]


class RetainedIndex:
    r"""D\S by the index of D: which interactions and pairs are left."""

    def __init__(self, index: TrainIndex, deleted: torch.Tensor, numbers: torch.Tensor | None = None) -> None:
        """``deleted`` (|D|,) is a mask in D of all interactions that are not left, also those removed before.

        With ``numbers`` (m,), those of the request, the index is this request's own: its table of pairs is changed
        in place, and :meth:`TrainIndex.remove` follows when the request is done.
        """
        self.index, self.deleted = index, deleted
        self._numbers = numbers
        self.gone = index.keys(*(index.ids[side][self.asked] for side in SIDES))  # pairs without an interaction left
        self.size = len(index) - len(self.gone)
        if len(self.gone):
            keys, gone = torch.unique(self.gone, return_counts=True)
            first = torch.searchsorted(index.pairs, keys)
            self.gone = keys[gone == torch.searchsorted(index.pairs, keys, right=True) - first]
        self.table = None
        if index.table is not None:
            self.table = index.table if numbers is not None else index.table.clone()
            self.table[self.gone] = False

    @classmethod
    def whole(cls, index: TrainIndex) -> Self:
        """All of D, nothing of it deleted."""
        return cls(index, torch.zeros(len(index), dtype=torch.bool))

    @functools.cached_property
    def asked(self) -> torch.Tensor:
        """The numbers of the deleted interactions, rising."""
        if self._numbers is not None:
            return self._numbers.sort().values
        return (self.deleted & ~self.index.removed).nonzero().flatten()

    def only(self, numbers: torch.Tensor) -> torch.Tensor:
        """Those of the interactions ``numbers`` that are left."""
        return numbers[~self.deleted[numbers]]

    def counts(self, side: Side, ids: torch.Tensor) -> torch.Tensor:
        """How many interactions each of ``ids`` has left."""
        gone = self.index.ids[side][self.asked].sort().values
        return (
            self.index.counts(side, ids) - torch.searchsorted(gone, ids, right=True) + torch.searchsorted(gone, ids)
        )

    def are_known(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Which pairs have an interaction that is left (a mask)."""
        keys = self.index.keys(users, items)
        if self.table is not None:
            return self.table[keys]
        return _contains(self.index.pairs, keys) & ~_contains(self.gone, keys)

    def negatives(self, users: torch.Tensor, generator: torch.Generator, tries: int = 8) -> torch.Tensor:
        """For each user an item without an interaction of theirs, uniform; after ``tries`` a known one may remain."""
        return self.draw(users, generator, tries)[0]

    def draw(self, users: torch.Tensor, generator: torch.Generator, tries: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As :meth:`negatives`, with the places in the flattened result where a known one remains."""
        item_num = self.index.sizes["item"]
        items = torch.randint(1, item_num, users.shape, generator=generator)
        flat_users, flat = users.reshape(-1), items.view(-1)
        known = self.are_known(flat_users, flat).nonzero().flatten()
        for _ in range(tries):
            if len(known) == 0:
                break
            flat[known] = torch.randint(1, item_num, known.shape, generator=generator)
            known = known[self.are_known(flat_users[known], flat[known])]
        return items, known


def ranges(starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """start, start + 1, … for every start (n,), as many as its length (n,), one after the other."""
    found = torch.repeat_interleave(starts - (lengths.cumsum(0) - lengths), lengths)
    return found + torch.arange(len(found), device=found.device)


def _contains(ordered: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Which of ``values`` are in a sorted tensor."""
    if len(ordered) == 0:
        return torch.zeros(values.shape, dtype=torch.bool)
    order = None
    if len(values) > IN_ORDER:  # a search then finds in the cache what the one before has read
        values, order = values.sort()
    place = torch.searchsorted(ordered, values).clamp_(max=len(ordered) - 1)
    found = ordered[place] == values
    return found if order is None else torch.empty_like(found).index_copy_(0, order, found)
