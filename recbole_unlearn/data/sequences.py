"""The interactions behind the windows of sequential models, and the windows after a deletion.

RecBole makes a *window* of every interaction but a user's first: the interaction is its target, and the L before it
are its history. It splits the windows afterwards. A deleted interaction is therefore in other windows as well, and
deleting starts from the interactions:

* The *role* of an interaction is the split of its window; a user's first has none and is training. Roles are
  determined once, by RecBole's own split of the full data, and stay the same after deletions.
* Deleting an interaction removes its window, and removes it from the histories of later windows; where these were cut
  off at L, an older interaction moves in. If it was the first, the next one is first and loses its window.

Interactions of one user are in the order of (role, time, place in the data). RecBole's order is (time, place), which
is the same: none of its splits puts a later interaction into an earlier part. Noise at the same time comes first.
"""

import dataclasses
import functools
import hashlib
import itertools
import random
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from recbole.data.dataset import Dataset, SequentialDataset
from recbole.data.interaction import Interaction, cat_interactions
from recbole.data.transform import construct_transform

from recbole_unlearn.data.splits import Splits, three_parts
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.recbole_compat import own_randomness
from recbole_unlearn.settings import has_users

TRAIN, VALID, TEST = range(3)
SCORES = 4_096_000  # of windows and items that are held at a time
_NUMBER = "unlearn_number"
_PROPERTIES = ("field2type", "field2source", "field2seqlen", "field2id_token", "field2token_id")


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Interactions (n) in the order of their parts, their roles, and how long a history may be."""

    raw: SequentialDataset  # training interactions, then validation, then test
    role: torch.Tensor  # (n,), TRAIN, VALID or TEST
    length: int  # L
    usable: torch.Tensor  # (n,), which may have a window of their own; the others are in histories alone
    numbers: torch.Tensor  # (n,), their numbers in the sequences they were taken from

    @classmethod
    def of(cls, dataset: SequentialDataset) -> Self:
        """The interactions of a dataset as `create_dataset` returns it, in the order of RecBole's windows."""
        if dataset.config["eval_args"]["order"] != "TO":
            raise UnlearnError(
                "Sequential models need interactions in the order of time: set order to TO, for example "
                "--eval_args='{split: {LS: valid_and_test}, order: TO, mode: full}'."
            )
        Dataset._change_feat_format(dataset)  # without the windows
        if dataset.time_field not in dataset.inter_feat.columns:
            columns = f"{dataset.uid_field}, {dataset.iid_field}, {dataset.config['TIME_FIELD']}"
            raise UnlearnError(
                "Sequential models need the times of interactions, and none are loaded: add "
                f"--load_col='{{inter: [{columns}]}}'."
            )
        dataset.sort(by=[dataset.uid_field, dataset.time_field])
        users = dataset.inter_feat[dataset.uid_field]
        first = torch.ones(len(users), dtype=torch.bool)
        first[1:] = users[1:] != users[:-1]
        parts = _split(dataset, (~first).nonzero().flatten())
        parts[TRAIN] = torch.cat([first.nonzero().flatten(), parts[TRAIN]])
        feat = dataset.inter_feat[torch.cat(parts)]
        return cls.divided(dataset, feat, [len(part) for part in parts], dataset.max_item_list_len)

    @classmethod
    def divided(cls, dataset: SequentialDataset, feat: Interaction, sizes: Sequence[int], length: int) -> Self:
        """Training, validation and test interactions one after the other; ``dataset`` has the ids."""
        raw, role = dataset.copy(feat), _roles(sizes)
        return cls(raw, role, length, torch.ones(len(role), dtype=torch.bool), torch.arange(len(role)))

    @classmethod
    def saved(cls, dataset: SequentialDataset) -> Self:
        """The interactions of a dataset that this plugin wrote, which has the size of each part."""
        Dataset._change_feat_format(dataset)
        return cls.divided(dataset, dataset.inter_feat, dataset.file_size_list, dataset.max_item_list_len)

    @classmethod
    def recovered(cls, windows: Splits) -> Self:
        """The interactions behind windows of RecBole's `build()`: all targets, and each user's first history."""
        dataset = windows.train
        suffix, size = dataset.config["LIST_SUFFIX"], dataset.item_list_length_field
        both = cat_interactions([part.inter_feat for part in windows])
        lists = {field for field in both.columns if f"{field}{suffix}" in both.columns}
        if dataset.time_field not in lists or dataset.iid_field not in lists:
            raise UnlearnError(
                "The interactions behind these windows cannot be recovered: they have no times. Leave "
                f"{dataset.time_field} out of unused_col."
            )
        order = _ordered(dataset.copy(both), _roles([len(part) for part in windows]))
        users = both[dataset.uid_field][order]
        is_first = torch.zeros(len(order), dtype=torch.bool)
        is_first[order[torch.cat([torch.ones(1, dtype=torch.bool), users[1:] != users[:-1]])]] = True
        opening = both[is_first]
        length = both[f"{dataset.iid_field}{suffix}"].shape[1]
        inside = torch.arange(length) < opening[size][:, None]
        first = {field: opening[f"{field}{suffix}"][inside] for field in lists}
        first[dataset.uid_field] = opening[dataset.uid_field].repeat_interleave(opening[size])
        targets = Interaction({field: both[field] for field in first})
        openings, sizes = Interaction(first), [len(part) for part in windows]
        sizes[TRAIN] += len(openings)
        return cls.divided(dataset, cat_interactions([openings, targets]), sizes, length)

    def __len__(self) -> int:
        return len(self.role)

    def part(self, role: int) -> torch.Tensor:
        """Which interactions (n,) have a role; of held-out ones, those with a window of their own."""
        rows = self.role == role
        return rows if role == TRAIN else rows & self.usable

    def only(self, keep: torch.Tensor) -> Self:
        """The interactions ``keep`` (n,), with the roles they have."""
        raw = self.raw.copy(self.raw.inter_feat[keep])
        return type(self)(raw, self.role[keep], self.length, self.usable[keep], keep.nonzero().flatten())

    def latest(self, users: torch.Tensor) -> Interaction:
        """Windows (m) of ``users`` (m,) with their last training and validation interactions, and no target."""
        kept = self._order[(self.role != TEST)[self._order]]
        owners = self.raw.inter_feat[self.raw.uid_field][kept]
        start, end = torch.searchsorted(owners, users), torch.searchsorted(owners, users, right=True)
        nothing = {
            field: torch.zeros_like(values[:1]).expand(len(users), *values.shape[1:])
            for field, values in self.raw.inter_feat.interaction.items()
        }
        targets = Interaction({**nothing, self.raw.uid_field: users})
        return self._windows(targets, kept, end, (end - start).clamp(max=self.length))

    @functools.cached_property
    def _order(self) -> torch.Tensor:
        """(n,), the interactions user by user, each user's in their order."""
        return _ordered(self.raw, self.role)

    @functools.cached_property
    def _place(self) -> torch.Tensor:
        """(n,), where each interaction is in :attr:`_order`."""
        place = torch.empty_like(self._order)
        place[self._order] = torch.arange(len(self))
        return place

    @functools.cached_property
    def _start(self) -> torch.Tensor:
        """(n,), where the user of each interaction begins in :attr:`_order`."""
        users = self.raw.inter_feat[self.raw.uid_field]
        return torch.searchsorted(users[self._order], users)

    def _before(self, keep: torch.Tensor | None) -> torch.Tensor:
        """(n + 1,), how many interactions of ``keep`` (n,) there are before each place of :attr:`_order`."""
        if keep is None:
            return torch.arange(len(self) + 1)
        return torch.cat([torch.zeros(1, dtype=torch.long), keep[self._order].long().cumsum(0)])

    def following(self, rows: torch.Tensor) -> torch.Tensor:
        """The next interaction of the same user after each of ``rows`` (m,); -1 where there is none."""
        place = self._place[rows] + 1
        after = self._order[place.clamp(max=len(self) - 1)]
        users = self.raw.inter_feat[self.raw.uid_field]
        return torch.where((place < len(self)) & (users[after] == users[rows]), after, -1)

    def lengths(self, keep: torch.Tensor | None = None) -> torch.Tensor:
        """(n,), the length of each interaction's history among ``keep``; 0 where it has no window."""
        before = self._before(keep)
        return (before[self._place] - before[self._start]).clamp(max=self.length)

    def prefix(self, rows: torch.Tensor, keep: torch.Tensor | None = None) -> Interaction:
        """Windows (m) of the targets ``rows`` (m,), with histories among ``keep`` (n,) in FIELD_list (m, L)."""
        kept = self._order if keep is None else self._order[keep[self._order]]
        length, end = self.lengths(keep)[rows], self._before(keep)[self._place[rows]]
        return self._windows(self.raw.inter_feat[rows], kept, end, length)

    def _windows(
        self, targets: Interaction, kept: torch.Tensor, end: torch.Tensor, length: torch.Tensor
    ) -> Interaction:
        """Windows (m) whose histories are the ``length`` (m,) interactions of ``kept`` before ``end`` (m,)."""
        place = torch.arange(self.length)
        inside = place < length[:, None]
        history = torch.cat([kept, kept.new_zeros(1)])[((end - length)[:, None] + place).clamp(max=len(kept))]
        found = dict(targets.interaction)
        found[self.raw.item_list_length_field] = length
        for field, values in self.raw.inter_feat.interaction.items():
            if field != self.raw.uid_field:
                outside = ~inside.reshape(*inside.shape, *[1] * (values.ndim - 1))
                found[f"{field}{self.raw.config['LIST_SUFFIX']}"] = values[history].masked_fill(outside, 0)
        return Interaction(found)

    def windows(self) -> Splits:
        """All windows, each in the split of its target, as datasets of RecBole."""
        targets = self.usable & (self.lengths() > 0)
        dropped = (self.raw.config["unused_col"] or {}).get("inter", ())  # loaded for the split alone
        parts = []
        for role in (TRAIN, VALID, TEST):
            windows = self.prefix((targets & (self.role == role)).nonzero().flatten())
            kept = {field: values for field, values in windows.interaction.items() if field not in dropped}
            parts.append(self._windowed.copy(Interaction(kept)))
        return Splits(*parts)

    @functools.cached_property
    def _windowed(self) -> SequentialDataset:
        """A copy of the raw dataset that also knows the fields of histories."""
        dataset = self.raw.copy(self.raw.inter_feat)
        dataset.max_item_list_len = self.length
        dataset.__dict__.update(_own_properties(dataset))
        dataset._aug_presets()
        for fields in (dataset.config["unused_col"] or {}).values():
            for field, name in itertools.product(fields, _PROPERTIES):
                getattr(dataset, name).pop(field, None)
        return dataset


class SequenceSplits(Splits):
    """The splits of a sequential model: interactions, and the windows made of them that its models read."""

    sequences: Sequences
    roles: Sequence[int]  # of the three parts

    @classmethod
    def of(cls, sequences: Sequences, roles: Sequence[int] = (TRAIN, VALID, TEST)) -> Self:
        """The interactions by their roles, without held-out ones that are only in histories."""
        raw = sequences.raw
        made = cls(*(raw.copy(raw.inter_feat[sequences.part(role)]) for role in roles))
        made.sequences, made.roles = sequences, roles
        return made

    @functools.cached_property
    def windows(self) -> Splits:
        """All windows, as datasets of RecBole."""
        windows = self.sequences.windows()
        return Splits(*(windows[role] for role in self.roles))

    def for_model(self) -> Splits:
        """The windows."""
        return self.windows

    def digest(self) -> str:
        """As of all splits, with the interactions that are only in histories, and L."""
        sequences = self.sequences
        seen = sequences.role != TEST
        items = sequences.raw.inter_feat[sequences.raw.iid_field][seen]
        digest = hashlib.sha256(f"{super().digest()} {sequences.length}".encode())
        for values in (items, sequences.usable[seen]):
            digest.update(values.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def with_train(self, train: Dataset) -> Self:
        """The same with other training interactions, in the order of time and then of ``train``."""
        parts = [train.inter_feat, self.valid.inter_feat, self.test.inter_feat]
        sizes, old = [len(part) for part in parts], self.sequences
        return self.of(Sequences.divided(old.raw, cat_interactions(parts), sizes, old.length))

    def only(self, keep: Sequence[torch.Tensor]) -> Self:
        """The interactions ``keep``, a mask for each part; the others leave all histories."""
        sequences = self.sequences
        stays = torch.ones(len(sequences), dtype=torch.bool)
        for role, mask in enumerate(keep):
            stays[sequences.part(role)] = mask
        return self.of(sequences.only(stays))

    def measurable(self, users: torch.Tensor, items: torch.Tensor) -> Self:
        """Without held-out windows that have no history or whose target has no training interaction.

        Where the model has rows of users, also without those of users who have no training window. The interactions
        stay in the histories of other windows.
        """
        sequences, is_train = self.sequences, self.sequences.role == TRAIN
        feat, has_window = sequences.raw.inter_feat, sequences.lengths() > 0
        fit = has_window & torch.isin(feat[self.train.iid_field], self.train.inter_feat[self.train.iid_field])
        if has_users(sequences.raw.config.model_class):
            owners = feat[self.train.uid_field]
            fit &= torch.isin(owners, owners[is_train & has_window])
        return self.of(dataclasses.replace(sequences, usable=is_train | fit))

    def validated(self) -> Self:
        """The same with the validation windows also as test windows; no history has a test interaction.

        Validation interactions get the role of test ones, which are gone; those left keep their numbers.
        """
        old, keep = self.sequences, self.sequences.role != TEST
        role = old.role[keep].masked_fill(old.role[keep] == VALID, TEST)
        return self.of(dataclasses.replace(old.only(keep), role=role, numbers=old.numbers[keep]), (TRAIN, TEST, TEST))

    def everything(self) -> Sequence[Dataset]:
        """The three parts, with the interactions that are only in histories."""
        raw, role = self.sequences.raw, self.sequences.role
        return [raw.copy(raw.inter_feat[role == part]) for part in (TRAIN, VALID, TEST)]

    def in_windows(self) -> Dataset:
        """The training interactions that are in a training window; a user with a single one has none."""
        sequences, train = self.sequences, self.train
        with_window = (sequences.role == TRAIN) & (sequences.lengths() > 0)
        users = sequences.raw.inter_feat[train.uid_field][with_window]
        return train.copy(train.inter_feat[torch.isin(train.inter_feat[train.uid_field], users)])

    def batch(self, users: torch.Tensor) -> Interaction:
        """The last training and validation interactions of ``users`` (n,) as windows."""
        return self.read(self.sequences.latest(users))

    def read(self, windows: Interaction) -> Interaction:
        """Windows (n) as the model reads them, with features and the loaders' fields; BERT4Rec's masks never vary."""
        dataset = self.windows.train
        if not len(windows):  # RecBole cannot mask items of none
            return dataset.join(windows)
        with own_randomness():
            random.seed(dataset.config["seed"])
            return construct_transform(dataset.config)(dataset, dataset.join(windows))


def _roles(sizes: Sequence[int]) -> torch.Tensor:
    """The role of each interaction of three parts that follow each other (n,)."""
    return torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))


def _ordered(dataset: Dataset, role: torch.Tensor) -> torch.Tensor:
    """The interactions (n,) user by user, each user's by (role, time, place)."""
    time = dataset.inter_feat[dataset.time_field]
    time = time[..., 0] if time.ndim > 1 else time  # with its bucket
    return torch.from_numpy(np.lexsort((time.numpy(), role.numpy(), dataset.inter_feat[dataset.uid_field].numpy())))


def _own_properties(dataset: Dataset) -> dict[str, dict]:
    """The properties of a dataset's fields, copied: RecBole changes them in place, for all copies of a dataset."""
    return {name: dict(getattr(dataset, name)) for name in _PROPERTIES}


class _Targets(Dataset):
    """Interactions that RecBole splits as it splits the windows whose targets they are."""

    def _change_feat_format(self) -> None:
        """Nothing to change: the format is there already."""


def _split(dataset: Dataset, rows: torch.Tensor) -> list[torch.Tensor]:
    """The interactions ``rows`` as RecBole's own `build()` divides and orders their windows: three parts of them."""
    targets = _Targets.__new__(_Targets)
    targets.__dict__.update(dataset.__dict__ | _own_properties(dataset))
    targets.inter_feat = Interaction({**dataset.inter_feat[rows].interaction, _NUMBER: rows})
    return [part.inter_feat[_NUMBER] for part in three_parts(targets.build())]
