r"""A request to a sequential model as gradient-based methods see it: windows of S and of D\S, and the losses on both.

A deleted interaction has a loss where it was the target of a window. That window is taken as the model was trained
with it, its history uncleaned. A user's first interaction was no target, and has no loss of its own. Batches are made
by RecBole's own loader: with its transform, and with negatives where the loss needs them.

BERT4Rec is never trained on a target, but on masked items of histories. There the loss of a deleted interaction is
that of the window after it, whose history ends with it, with this last item masked (half of its training batches
are like that). The last interaction of a user's training has no such window, and was never learned.
"""

from __future__ import annotations

import torch
from recbole.data.dataloader import AbstractDataLoader
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.data import TRAIN, Sequences, SequenceSplits, Splits, loaders
from recbole_unlearn.methods.base import UnlearnTask
from recbole_unlearn.methods.request_losses import still
from recbole_unlearn.rows import lent, looked_up, training_loss

BATCH = 2048  # windows; FEARec compares all windows of a batch with each other


class WindowLosses:
    """The windows of one request, and a generator for what is chosen of them."""

    def __init__(self, task: UnlearnTask, model: AbstractRecommender) -> None:
        """``model`` is put into evaluation mode: without dropout a loss is one function."""
        full, windows = task.data.full, task.data.retain.for_model()
        assert isinstance(full, SequenceSplits)
        self.model, self.generator = model, torch.Generator().manual_seed(task.config["seed"])
        self._kept: AbstractDataLoader = loaders(task.config, windows).train
        self._deleted: AbstractDataLoader | None = None  # RecBole has no loader of nothing
        targets = (full.sequences.role == TRAIN).nonzero().flatten()[task.data.deleted]
        masked = task.config["transform"] == "mask_itemseq"
        rows = trained_windows(full.sequences, targets, masked)
        if len(rows):
            deleted = Splits(windows.train.copy(full.sequences.prefix(rows)), windows.valid, windows.test)
            self._deleted = loaders(task.config, deleted).train
            if masked:
                self._deleted.transform.ft_ratio = 1.0  # always the last item
            self._lookups = looked_up(model, full.for_model().train)
        still(model, task.config)

    def deleted_rows(self) -> torch.Tensor:
        """Numbers of the windows whose losses make up the loss on S."""
        return torch.arange(0 if self._deleted is None else len(self._deleted._dataset))

    def deleted_loss(self, chosen: torch.Tensor) -> torch.Tensor:
        """The mean loss on some windows of S."""
        assert self._deleted is not None
        # cuDNN's recurrent layers have gradients in training mode alone.
        with torch.backends.cudnn.flags(enabled=False), lent(self.model, self._lookups):
            parts = [
                len(part) / len(chosen) * training_loss(self.model, self._deleted.collate_fn(part))
                for part in chosen.split(BATCH)
            ]
        return torch.stack(parts).sum()

    def kept_sample(self, size: int) -> list[Interaction]:
        """``size`` of all retained windows, uniform, in batches."""
        number = len(self._kept._dataset)
        chosen = torch.randperm(number, generator=self.generator)[:size]
        return [self._kept.collate_fn(part) for part in chosen.split(BATCH)]


def trained_windows(sequences: Sequences, rows: torch.Tensor, masked: bool) -> torch.Tensor:
    """The targets (m,) of the windows in which training learned the interactions ``rows`` (n,), see above."""
    rows = rows[sequences.lengths()[rows] > 0]
    if masked:
        rows = sequences.following(rows)
        rows = rows[rows >= 0]
        rows = rows[sequences.role[rows] == TRAIN]
    return rows
