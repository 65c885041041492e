r"""Batches of S and of D\S for gradient-based methods, and the model's training loss on both.

A model may learn by interaction (a pair, a labelled pair) or by user (an autoencoder reads and scores a whole
history). In the second case a deleted interaction has no loss of its own; its contribution is the user's loss with it
minus the user's loss without:

    loss on S = mean over users of  ℓ(u; D) - ℓ(u; D\S)

Both come from the model's own training loss, the first from a model that is built on D and shares the weights.

In a sequential model a deleted interaction has a loss where it was the target of a window, with the history that the
model was trained with, uncleaned. A user's first interaction was no target and has no loss. BERT4Rec is trained on
masked items of histories instead of targets: there, the loss of a deleted interaction is that of the window after it,
whose history ends with it, with this last item masked (as in half of its training batches). The last training
interaction of a user has no such window, and was never learned.
"""

import contextlib
import functools
from typing import Any

import torch
from recbole.data.dataloader import AbstractDataLoader
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import init_seed

from recbole_unlearn.data import TRAIN, SequenceSplits, Splits, facts_of, loaders
from recbole_unlearn.methods.base import UnlearnTask
from recbole_unlearn.recbole_compat import replaced
from recbole_unlearn.rows import Region, RetainedIndex, Triples, Witness, as_batch, find_region, training_loss
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import build_model

BATCH = 2048  # windows in a batch; FEARec compares all windows of a batch with each other


def tie(model: AbstractRecommender, to: AbstractRecommender) -> None:
    """Make the weights of ``model`` the same tensors as those of ``to``; its data (such as a graph) stays its own."""
    others = dict(to.named_modules())
    for name, module in model.named_modules():
        for key in module._parameters:
            module._parameters[key] = others[name]._parameters[key]
        for key in module._buffers.keys() - module._non_persistent_buffers_set:
            module._buffers[key] = others[name]._buffers[key]


class RequestLosses:
    """The interactions of one request to a model of pairs, with a generator for all draws."""

    def __init__(self, task: UnlearnTask, model: AbstractRecommender) -> None:
        r"""``model`` is built on D\S. It is put into evaluation mode: without dropout a loss is one function."""
        index = task.index
        self.config, self.data, self.index, self.model = task.config, task.data, index, model
        forget = task.data.forget
        self.users, self.items = (forget.inter_feat[field].cpu() for field in (forget.uid_field, forget.iid_field))
        self.retained = RetainedIndex(index, task.data.deleted)
        self.region = find_region(index, self.users, self.items, task.data.lost)
        self.generator = torch.Generator().manual_seed(task.config["seed"])
        self.facts = facts_of(task.data.retain.train, task.config["NEG_PREFIX"])
        self.by_user = self.witness().by_user
        still(model, self.config)

    @functools.cached_property
    def before(self) -> AbstractRecommender:
        """The model on D with the same weights, as the tensors of ``model``."""
        before = build_model(self.config, self.data.full)
        tie(before, self.model)
        still(before, self.config)
        return before

    def witness(self, region: Region | None = None) -> Witness:
        """Batches of retained interactions for a region, by default that of the request."""
        return Witness(self.config, self.retained, region or self.region, self.generator, facts=self.facts)

    def deleted_rows(self) -> torch.Tensor:
        """Numbers of the interactions of S whose losses make up the loss on S: all, or one for each user."""
        return torch.arange(len(self.users))[self.witness().units(self.users)]

    def deleted_batch(self, chosen: torch.Tensor) -> Interaction:
        """Interactions of S with uniform negatives, in the form the model's loss takes."""
        drawn = self.retained.negatives(self.users[chosen], self.generator)
        batch = as_batch(self.config, self.data.forget, chosen, drawn)
        if self.facts is not None:
            batch.update(self.facts.batch(torch.full_like(chosen, -1), self.generator))
        return batch

    def deleted_loss(self, chosen: torch.Tensor, model: AbstractRecommender | None = None) -> torch.Tensor:
        """The mean loss on some interactions of S; that of ``model`` where it learns by interaction."""
        batch = self.deleted_batch(chosen)
        if self.by_user:
            return training_loss(self.before, batch) - training_loss(self.model, batch)
        return training_loss(model or self.model, batch)

    def fixed_batch(self, region: Region, size: int) -> tuple[Interaction, int]:
        """``size`` retained interactions whose user, item or drawn negative is in a region, and the number of all."""
        witness = self.witness(region)
        triples = witness.triples(witness.counted(witness.interactions()))
        if not self.by_user and len(region["item"]):
            more = witness.against_region(witness.extra())
            new = ~(region["user"].contains(more.users) | region["item"].contains(more.items))
            triples = Triples(*(torch.cat(pair) for pair in zip(triples, more.part(new), strict=True)))
        number = len(triples.numbers)
        return witness.batch(triples.part(torch.randperm(number, generator=self.generator)[:size])), number

    def kept_sample(self, size: int) -> list[Interaction]:
        """``size`` of all retained interactions, uniform, as one batch."""
        witness = self.witness()
        chosen = witness.uniform(min(size, self.retained.size))
        return [witness.batch(witness.triples(witness.counted(chosen)))]


class WindowLosses:
    """The windows of one request to a sequential model, in batches of RecBole's own loader."""

    def __init__(self, task: UnlearnTask, model: AbstractRecommender) -> None:
        """``model`` is put into evaluation mode: without dropout a loss is one function."""
        full, windows = task.data.full, task.data.retain.for_model()
        assert isinstance(full, SequenceSplits)
        self.model, self.generator = model, torch.Generator().manual_seed(task.config["seed"])
        self._kept: AbstractDataLoader = loaders(task.config, windows).train
        self._deleted: AbstractDataLoader | None = None  # none for no windows: RecBole cannot load nothing
        self._lookups: dict[str, Any] = {}  # attributes that the loss reads from the training data
        sequences, masked = full.sequences, task.config["transform"] == "mask_itemseq"
        rows = (sequences.role == TRAIN).nonzero().flatten()[task.data.deleted]
        rows = rows[sequences.lengths()[rows] > 0]
        if masked:  # the windows after them, see above
            rows = sequences.following(rows)
            rows = rows[rows >= 0]
            rows = rows[sequences.role[rows] == TRAIN]
        if len(rows):
            deleted = Splits(windows.train.copy(sequences.prefix(rows)), windows.valid, windows.test)
            self._deleted = loaders(task.config, deleted).train
            if masked:
                self._deleted.transform.ft_ratio = 1.0  # always the last item
            if hasattr(model, "same_item_index"):  # FEARec's other windows of the same target
                train = full.for_model().train
                self._lookups = {"dataset": train, "same_item_index": model.get_same_item_index(train)}
        still(model, task.config)

    def deleted_rows(self) -> torch.Tensor:
        """Numbers of the windows whose losses make up the loss on S."""
        return torch.arange(0 if self._deleted is None else len(self._deleted._dataset))

    def deleted_loss(self, chosen: torch.Tensor) -> torch.Tensor:
        """The mean loss on some windows of S."""
        assert self._deleted is not None
        with contextlib.ExitStack() as stack:
            # cuDNN's recurrent layers have gradients in training mode alone.
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            for name, value in self._lookups.items():
                stack.enter_context(replaced(self.model, name, value))
            parts = [
                len(part) / len(chosen) * training_loss(self.model, self._deleted.collate_fn(part))
                for part in chosen.split(BATCH)
            ]
        return torch.stack(parts).sum()

    def kept_sample(self, size: int) -> list[Interaction]:
        """``size`` of all retained windows, uniform, in batches."""
        chosen = torch.randperm(len(self._kept._dataset), generator=self.generator)[:size]
        return [self.kept_batch(part) for part in chosen.split(BATCH)]

    def kept_batch(self, numbers: torch.Tensor) -> Interaction:
        """Retained windows by their numbers, as the loss takes them."""
        return self._kept.collate_fn(numbers)


def still(model: AbstractRecommender, config: UnlearnConfig) -> None:
    """Evaluation mode. Training mode comes first: some models (SGL) draw there a graph that their loss needs."""
    init_seed(config["seed"], config["reproducibility"])
    model.train()
    model.eval()
