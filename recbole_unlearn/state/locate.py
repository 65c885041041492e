"""Which interactions a request means, found by an index: it costs what its users and items have, not what D has."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from recbole.data.dataset import Dataset

from recbole_unlearn.data import EMPTY, ForgetRequest, Source, ids_of
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.rows import TrainIndex


@dataclasses.dataclass(frozen=True)
class Found:
    """What a request means in training, validation and test data."""

    numbers: tuple[np.ndarray, np.ndarray, np.ndarray]  # of interactions, rising, each once
    gone: tuple[
        np.ndarray, np.ndarray, np.ndarray
    ]  # the same of those that requests before this one took out
    suppressed: list[tuple[int, int]]  # (user, item), sorted; 0 for everybody, or for everything
    users: int
    items: int
    missing: np.ndarray  # (rows of the request,), which name nothing that is there


class Finder:
    """Finds requests in what is left of a dataset."""

    def __init__(self, source: Source, train: TrainIndex, removed: tuple[np.ndarray, ...]) -> None:
        """``train`` is an index that somebody else keeps up to date; those of held-out data are made here."""
        self.dataset: Dataset = source.splits.train
        self.clock = source.clock
        self.parts = [train]
        for part, gone in zip(source.splits[1:], removed[1:], strict=True):
            index = TrainIndex(part)
            index.remove(torch.from_numpy(np.flatnonzero(gone)))
            self.parts.append(index)
        self._slack: float | None = None

    def find(self, request: ForgetRequest) -> Found:
        """The interactions that a request means, of those that are left, and of those that may come back.

        An earlier request can be undone until it is published. What this one asks for too must stay gone then.
        """
        users, items = ids_of(request, self.dataset)
        time = request.frame["time"].to_numpy(dtype=np.float64)
        numbers, gone, there = [], [], np.zeros(len(request.frame), dtype=bool)
        for index in self.parts:
            part, hit = self._in(index, users, items, time, request)
            numbers.append(part)
            gone.append(self._gone(index, users, items, time, request))
            there |= hit
        whole = {(0, int(item)) for item in items[there & (users == EMPTY)]}
        single = self._pairs(numbers)
        return Found(
            (numbers[0], numbers[1], numbers[2]),
            (gone[0], gone[1], gone[2]),
            sorted(single | self._pairs(gone) | whole),
            len({user for user, _ in single}),
            len({item for _, item in single}),
            ~there,
        )

    def remove(self, numbers: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        """Forget held-out interactions; the index of training data is not this one's to change."""
        for index, part in zip(self.parts[1:], numbers[1:], strict=True):
            if len(part):
                index.remove(torch.from_numpy(part))

    def refuse_emptying(self, name: str, numbers: Sequence[np.ndarray]) -> None:
        """Refuse to take out the last interactions of a part; ``name`` is the request's."""
        for index, part, data in zip(self.parts, numbers, ("training", "validation", "test"), strict=True):
            if len(index) and int((~index.removed[torch.from_numpy(part)]).sum()) == len(index):
                raise UnlearnError(
                    f"{name}: no {data} interaction would be left, and there is no model without. Ask for less, or "
                    "delete the model."
                )

    def _pairs(self, numbers: list[np.ndarray]) -> set[tuple[int, int]]:
        """The pairs (user, item) of interactions of each part."""
        found: set[tuple[int, int]] = set()
        for index, part in zip(self.parts, numbers, strict=True):
            chosen = torch.from_numpy(part)
            found.update(
                zip(index.ids["user"][chosen].tolist(), index.ids["item"][chosen].tolist(), strict=True)
            )
        return found

    def _in(
        self,
        index: TrainIndex,
        users: np.ndarray,
        items: np.ndarray,
        time: np.ndarray,
        request: ForgetRequest,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of interactions in one part, and which rows of the request have one there (a mask)."""
        found, hit = [], np.zeros(len(users), dtype=bool)
        for own, other, side in ((users, items, "user"), (items, users, "item")):
            rows = np.flatnonzero((own > 0) & (other == EMPTY))
            ids = torch.from_numpy(own[rows])
            found.append(index.of(side, ids).numpy())
            hit[rows] = (index.counts(side, ids) > 0).numpy()
        rows = np.flatnonzero((users > 0) & (items > 0))
        if len(rows):
            near = index.of("user", torch.from_numpy(np.unique(users[rows])))
            numbers, hits = self._of_pairs(index, near, users[rows], items[rows], time[rows], request)
            found.append(numbers)
            hit[rows] = hits
        return np.unique(np.concatenate(found)), hit

    def _gone(
        self,
        index: TrainIndex,
        users: np.ndarray,
        items: np.ndarray,
        time: np.ndarray,
        request: ForgetRequest,
    ) -> np.ndarray:
        """Numbers of interactions in one part that the request means, and that are taken out of it already."""
        found = []
        for own, other, side in ((users, items, "user"), (items, users, "item")):
            ids = torch.from_numpy(np.unique(own[(own > 0) & (other == EMPTY)]))
            found.append(index.removed_of(side, ids).numpy())
        rows = np.flatnonzero((users > 0) & (items > 0))
        near = index.removed_of("user", torch.from_numpy(np.unique(users[rows])))
        pairs, _ = self._of_pairs(index, near, users[rows], items[rows], time[rows], request)
        return np.unique(np.concatenate([*found, pairs]))

    def _of_pairs(
        self,
        index: TrainIndex,
        near: torch.Tensor,
        users: np.ndarray,
        items: np.ndarray,
        time: np.ndarray,
        request: ForgetRequest,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Those of the interactions ``near`` that have one of the pairs, and which pairs have one (a mask)."""
        keys = index.keys(index.ids["user"][near], index.ids["item"][near]).numpy()
        wanted = users * index.sizes["item"] + items
        order = np.argsort(keys, kind="stable")
        keys, near_numbers = keys[order], near.numpy()[order]
        first, last = np.searchsorted(keys, wanted), np.searchsorted(keys, wanted, side="right")
        row = np.repeat(np.arange(len(wanted)), last - first)
        place = np.arange(len(row)) - np.repeat((last - first).cumsum() - (last - first), last - first)
        numbers = near_numbers[first[row] + place]
        timed = ~np.isnan(time[row])
        if timed.any():
            fits = ~timed | self._at_that_time(index, numbers, time[row], request)
            row, numbers = row[fits], numbers[fits]
        hit = np.zeros(len(wanted), dtype=bool)
        hit[row] = True
        return numbers, hit

    def _at_that_time(
        self, index: TrainIndex, numbers: np.ndarray, asked: np.ndarray, request: ForgetRequest
    ) -> np.ndarray:
        """Which interactions have the time that was asked for, within the precision RecBole keeps (float32)."""
        train = self.dataset
        if train.time_field not in train.inter_feat:
            raise UnlearnError(
                f"{request.name} gives {train.time_field}, but the model's data has none. Drop that column."
            )
        if self._slack is None:
            largest = np.abs(train.inter_feat[train.time_field].numpy()).max(initial=1.0)
            self._slack = 2 * float(np.spacing(np.float32(largest)))
        times = index.train.inter_feat[train.time_field][torch.from_numpy(numbers)].numpy().astype(np.float64)
        asked = self.clock(asked) if self.clock else asked
        return np.abs(times - asked) <= self._slack
