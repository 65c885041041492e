r"""What the measures ask a sequential model: where an item ranks after a history, not for a user as such.

* A deleted interaction is asked for at its *cleaned prefix*: what is retained of its user's interactions before it.
  It must have been the target of a window, and something must be left before it.
* A held-out interaction is asked for at the history of its own window.
* Lists are ranked after a user's last training and validation interactions, as at test. Nothing but padding is
  masked, as in RecBole's evaluation of sequential models.

All histories are those of D\S, in every phase: the original is measured with its weights on cleaned histories.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol

import numpy as np
import torch
from recbole.data.interaction import Interaction, cat_interactions

from recbole_unlearn.data import SCORES, TRAIN, Sequences, SequenceSplits, Splits, UnlearnData, append
from recbole_unlearn.measures.scores import (
    DEPTH,
    OTHERS,
    Observation,
    Pairs,
    Questions,
    Standing,
    match,
    never_touched,
)
from recbole_unlearn.rows import TrainIndex
from recbole_unlearn.training import PhaseTrainer


@dataclasses.dataclass(frozen=True)
class WindowQuestions(Questions):
    """Questions with the windows at which pairs are asked for, in the order of the pairs."""

    deleted_windows: Interaction
    held_out_windows: Interaction
    deleted_rows: torch.Tensor  # (m,), the numbers of the deleted pairs in the sequences of D

    @classmethod
    def ask(cls, data: UnlearnData, negatives: int, seed: int) -> WindowQuestions:
        """Look at all affected users who have a history left and at some others, as for other models."""
        assert isinstance(data.retain, SequenceSplits)
        deleted, rows = compared(data, deleted_targets(data).asked, negatives, seed)
        members, held_out = match(deleted, data, np.random.default_rng(seed))
        users = _looked_at(data, seed)
        history = TrainIndex(append(data.retain.train, data.retain.valid.inter_feat))
        affected = torch.isin(users, data.affected_users)
        windows, at = sequences_of(data.full).prefix(rows, kept(data)), _windows_of(data.retain, held_out)
        return cls(users, affected, deleted, members, held_out, history, windows, at, rows)


def _looked_at(data: UnlearnData, seed: int) -> torch.Tensor:
    """The affected users with a history, and a sample of the others in the test split (n,), sorted."""
    retain = data.retain
    with_history = torch.cat([part.inter_feat[part.uid_field] for part in retain.everything()[:2]])
    tested = torch.unique(retain.test.inter_feat[retain.test.uid_field])
    others = tested[~torch.isin(tested, data.affected_users)]
    pick = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))[:OTHERS]
    affected = data.affected_users[torch.isin(data.affected_users, with_history)]
    return torch.cat([others[pick], affected]).sort().values


class Targets(NamedTuple):
    """Deleted interactions that were targets of windows, by their numbers in the sequences of D."""

    asked: torch.Tensor  # with something retained before them
    emptied: torch.Tensor  # with nothing retained before them, as all of a whole user


def deleted_targets(data: UnlearnData) -> Targets:
    """The deleted pairs that no retained training interaction has, each once."""
    sequences, keep = sequences_of(data.full), kept(data)
    rows = (sequences.role == TRAIN).nonzero().flatten()[data.deleted]
    rows = rows[sequences.lengths()[rows] > 0]
    keys = _keys(data.full, sequences.raw.inter_feat)
    rows = rows[~torch.isin(keys[rows], keys[keep & (sequences.role == TRAIN)])]
    has_prefix = sequences.lengths(keep)[rows] > 0
    asked, rest = _once(rows[has_prefix], keys), rows[~has_prefix]
    return Targets(asked, _once(rest[~torch.isin(keys[rest], keys[asked])], keys))


def _once(rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The first of ``rows`` with each key, by user, then item."""
    _, first = np.unique(keys[rows].numpy(), return_index=True)
    return rows[torch.from_numpy(first)]


def compared(data: UnlearnData, rows: torch.Tensor, negatives: int, seed: int) -> tuple[Pairs, torch.Tensor]:
    """Deleted interactions ``rows`` as pairs with items to compare them with, and those of ``rows`` that have any."""
    size = data.full.train.item_num
    keys = _keys(data.full, sequences_of(data.full).raw.inter_feat)[rows]
    drawn, usable = never_touched(keys // size, data.full, negatives, torch.Generator().manual_seed(seed))
    keys = keys[usable]
    return Pairs(keys // size, keys % size, drawn[usable]), rows[usable]


def sequences_of(splits: Splits) -> Sequences:
    """The interactions behind the windows of a sequential model."""
    assert isinstance(splits, SequenceSplits)
    return splits.sequences


def kept(data: UnlearnData) -> torch.Tensor:
    """Which interactions of the sequences of D are retained (n,)."""
    keep = torch.zeros(len(sequences_of(data.full)), dtype=torch.bool)
    keep[sequences_of(data.retain).numbers] = True
    return keep


def _keys(splits: Splits, feat: Interaction) -> torch.Tensor:
    """One number for each pair of a user and an item (n,)."""
    train = splits.train
    return feat[train.uid_field] * train.item_num + feat[train.iid_field]


def _windows_of(splits: SequenceSplits, pairs: Pairs) -> Interaction:
    """The held-out windows that ``pairs`` are the targets of; of several with one target, the first."""
    windows = cat_interactions([part.inter_feat for part in splits.for_model()[1:]])
    keys, first = np.unique(_keys(splits, windows).numpy(), return_index=True)
    asked = pairs.users * splits.train.item_num + pairs.items
    return windows[torch.from_numpy(first[np.searchsorted(keys, asked.numpy())])]


@torch.no_grad()
def observe_windows(trainer: PhaseTrainer, questions: Questions, splits: Splits) -> Observation:
    """Score the windows of all questions once."""
    assert isinstance(questions, WindowQuestions)
    depth = min(DEPTH, splits.train.item_num - 1)
    tops, masked = [], []
    for users in questions.users.split(step(splits)):
        scores = trainer.batch_scores(splits.batch(users), splits.train)
        tops.append(scores.topk(depth, dim=1).indices)
        gone = questions.deleted.of(users)
        rows = torch.searchsorted(users, questions.deleted.users[gone])
        scores[rows, questions.deleted.items[gone]] = -torch.inf
        masked.append(scores.topk(depth, dim=1).indices)
    return Observation(
        torch.cat(tops),
        torch.cat(masked),
        standing(trainer, questions.deleted, questions.deleted_windows, splits),
        standing(trainer, questions.held_out, questions.held_out_windows, splits),
    )


def step(splits: Splits) -> int:
    """How many windows are scored at a time."""
    return max(1, SCORES // splits.train.item_num)


class Windows(Protocol):
    """Windows that can be had by their numbers, all of them at hand or made when they are asked for."""

    def __getitem__(self, rows: torch.Tensor) -> Interaction:
        """The windows ``rows``."""


@torch.no_grad()
def standing(trainer: PhaseTrainer, pairs: Pairs, windows: Windows, splits: Splits) -> Standing:
    """Where each pair ranks at its window."""
    found = [torch.zeros(2, 0)]
    assert isinstance(splits, SequenceSplits)
    for rows in torch.arange(len(pairs)).split(step(splits)) if len(pairs) else ():
        scores = trainer.batch_scores(splits.read(windows[rows]), splits.train)
        spread, mean = torch.std_mean(scores[:, 1:], dim=1)
        own = scores.gather(1, pairs.items[rows, None])
        demoted = (own < scores.gather(1, pairs.others[rows])).float().mean(dim=1)
        found.append(torch.stack([(own[:, 0] - mean) / spread.clamp(min=1e-12), demoted]))
    return Standing(*torch.cat(found, dim=1))
