r"""A request to a sequential model as gradient-based methods see it: windows of S and of D\S, and the losses on both.

A deleted interaction has a loss where it was the target of a window. That window is taken as the model was trained
with it, its history uncleaned. A user's first interaction was no target, and has no loss of its own. Batches are made
by RecBole's own loader: with its transform, and with negatives where the loss needs them.
"""

from __future__ import annotations

import torch
from recbole.data.dataloader import AbstractDataLoader
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.data import TRAIN, SequenceSplits, Splits, loaders
from recbole_unlearn.methods.base import UnlearnTask
from recbole_unlearn.methods.request_losses import still
from recbole_unlearn.rows import training_loss


class WindowLosses:
    """The windows of one request, and a generator for what is chosen of them."""

    def __init__(self, task: UnlearnTask, model: AbstractRecommender) -> None:
        """``model`` is put into evaluation mode: without dropout a loss is one function."""
        full, retain = task.data.full, task.data.retain
        assert isinstance(full, SequenceSplits)
        sequences = full.sequences
        rows = (sequences.role == TRAIN).nonzero().flatten()[task.data.deleted]
        rows = rows[sequences.lengths()[rows] > 0]
        self.model, self.generator = model, torch.Generator().manual_seed(task.config["seed"])
        windows = retain.for_model()
        self._kept: AbstractDataLoader = loaders(task.config, windows).train
        self._deleted: AbstractDataLoader | None = None  # RecBole has no loader of nothing
        if len(rows):
            deleted = Splits(windows.train.copy(sequences.prefix(rows)), windows.valid, windows.test)
            self._deleted = loaders(task.config, deleted).train
        still(model, task.config)

    def deleted_rows(self) -> torch.Tensor:
        """Numbers of the windows whose losses make up the loss on S."""
        return torch.arange(0 if self._deleted is None else len(self._deleted._dataset))

    def deleted_loss(self, chosen: torch.Tensor) -> torch.Tensor:
        """The mean loss on some windows of S."""
        assert self._deleted is not None
        with torch.backends.cudnn.flags(
            enabled=False
        ):  # its recurrent layers have gradients in training mode alone
            return training_loss(self.model, self._deleted.collate_fn(chosen))

    def kept_sample(self, size: int) -> Interaction:
        """``size`` of all retained windows, uniform, as one batch."""
        number = len(self._kept._dataset)
        return self._kept.collate_fn(torch.randperm(number, generator=self.generator)[:size])
