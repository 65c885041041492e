"""The items of each user in RecBole's samplers and loaders: sets that are made when they are asked for.

RecBole makes one for every user and phase, which takes more memory than the interactions and more time than an epoch.
"""

import functools
from typing import Any

import numpy as np
from recbole.data.dataset import Dataset
from recbole.sampler import Sampler
from scipy import sparse

HELD = 2**16  # sets, at most: all of them take several times the memory of the interactions


class UsedItems:
    """In place of RecBole's array of sets: that of a user, or a list of those of several."""

    def __init__(self, parts: list[Dataset]) -> None:
        self._parts, self._sets = parts, dict[int, set[int]]()

    @functools.cached_property
    def _matrix(self) -> sparse.csr_matrix:
        train = self._parts[0]
        users, items = (
            np.concatenate([part.inter_feat[field].numpy() for part in self._parts]).astype(np.int32)
            for field in (train.uid_field, train.iid_field)
        )
        return sparse.csr_matrix(
            (np.ones(len(users), dtype=np.int8), (users, items)), shape=(train.user_num, train.item_num)
        )

    def __getitem__(self, users: Any) -> Any:
        if np.ndim(users):
            return [self[user] for user in users]
        user = int(users or 0)  # before the first user FullSortEvalDataLoader asks for None; the padding has nothing
        if user not in self._sets:
            if len(self._sets) >= HELD:  # an evaluation asks for every user once
                self._sets.clear()
            start, end = self._matrix.indptr[user : user + 2]
            self._sets[user] = set(self._matrix.indices[start:end].tolist())
        return self._sets[user]


def used_ids(self: Sampler) -> dict[str, UsedItems]:
    """As RecBole's `Sampler.get_used_ids`: by phase, the items of its dataset and of those before it."""
    found = {phase: UsedItems(self.datasets[: last + 1]) for last, phase in enumerate(self.phases)}
    number = sum(np.bincount(part.inter_feat[self.uid_field], minlength=self.user_num) for part in self.datasets)
    whole, every = found[self.phases[-1]], self.item_num - 1
    if any(len(whole[user]) == every for user in np.flatnonzero(number >= every)):  # others need no set for this
        raise ValueError("some users have interacted with all items; set user_inter_num_interval to leave them out")
    return found
