"""The items of each user in RecBole's samplers and loaders: sets that are made when they are asked for.

RecBole makes one for every user and phase, which takes more memory than the interactions and more time than an epoch.
"""

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
from recbole.data.dataset import Dataset
from recbole.sampler import Sampler
from scipy import sparse


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
        if isinstance(users, Iterable):
            return [self[user] for user in users]
        if users is None:  # before the first user, by FullSortEvalDataLoader
            return None
        user = int(users)
        if user not in self._sets:
            start, end = self._matrix.indptr[user : user + 2]
            self._sets[user] = set(self._matrix.indices[start:end].tolist())
        return self._sets[user]

    def have_all(self) -> bool:
        """Whether a user has all items but the padding."""
        train = self._parts[0]
        number = sum(np.bincount(part.inter_feat[train.uid_field], minlength=train.user_num) for part in self._parts)
        wanted = train.item_num - 1
        return bool((number >= wanted).any() and (np.diff(self._matrix.indptr) == wanted).any())  # some may be twice


def used_ids(self: Sampler) -> dict[str, UsedItems]:
    """As RecBole's `Sampler.get_used_ids`: by phase, the items of its dataset and of those before it."""
    found = {phase: UsedItems(self.datasets[: last + 1]) for last, phase in enumerate(self.phases)}
    if found[self.phases[-1]].have_all():
        raise ValueError("some users have interacted with all items; set user_inter_num_interval to leave them out")
    return found
