"""A model in memory that requests change in place, one after the other.

What serves all requests to one model is made once, when it is loaded: the index of its interactions, the map that new
starts are read from, its second moments. A request then costs what it touches. What it did comes back as a
:class:`Change`: new values of the rows that moved, enough to bring a model that is loaded again to the same bits.

The maps are always those of the base (the model as it was trained, or last published), so that a request gives the
same result whether the process was started for it or has served others before.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import ModelType

from recbole_unlearn import settings
from recbole_unlearn.data import (
    Located,
    Source,
    Splits,
    UnlearnData,
    divide,
    fitted_after,
    lost_at_least,
    lost_since,
)
from recbole_unlearn.files import Trained
from recbole_unlearn.methods import UnlearnTask
from recbole_unlearn.methods.obliviate import Curvature, Obliviate, ObliviateSettings, refresh
from recbole_unlearn.recbole_compat import clear_caches, own_randomness, seed_again
from recbole_unlearn.rows import (
    Region,
    RetainedIndex,
    TrainIndex,
    Witness,
    find_features,
    find_region,
    find_tables,
)
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.state.deltas import Change, Rows, Tensors
from recbole_unlearn.training import build_model, compose, pair_remover

Masks = tuple[np.ndarray, np.ndarray, np.ndarray]  # which interactions of training, validation and test data


@dataclasses.dataclass(frozen=True)
class StreamData(UnlearnData):
    """The data of one request among many: counts come from the index, and nothing of the size of D is made."""

    index: TrainIndex | None = None  # with S still in it

    @property
    def _popularity(self) -> torch.Tensor:
        assert self.index is not None
        return self.index.counts("item", torch.arange(self.index.sizes["item"]))

    @functools.cached_property
    def lost(self) -> torch.Tensor | None:
        """As in the base class, by the index."""
        return None if self.fitted is None else lost_since(self.fitted, self._popularity)

    @functools.cached_property
    def lost_at_least(self) -> torch.Tensor | None:
        """As in the base class, by the index."""
        return None if self.fitted is None else lost_at_least(self.fitted, self._popularity)

    def fitted_after(self, refitted: torch.Tensor | None) -> torch.Tensor | None:
        """As in the base class, by the index."""
        before = self._popularity
        items = self.forget.inter_feat[self.forget.iid_field]
        after = before - torch.bincount(items, minlength=len(before))
        return fitted_after(self.fitted, before, after, refitted)


class LiveModel:
    """A model with all that requests to it need: a base, and the changes that requests made to it since."""

    def __init__(
        self,
        config: UnlearnConfig,
        source: Source,
        weights: Mapping[str, torch.Tensor],
        moments: Mapping[str, torch.Tensor],
        removed: Masks,
        changes: Sequence[Change] = (),
    ) -> None:
        """``source``, ``weights`` and ``moments`` are the base; ``removed`` is what requests took out of it since."""
        self.config = config.replace(show_progress=False, tensorboard=False, output_dir=None)
        self.options: ObliviateSettings = settings.read(
            Obliviate.Settings, self.config.method_values(Obliviate.name)
        )
        self.base, self.fitted = source, source.fitted
        self.removed: Masks = (removed[0].copy(), removed[1].copy(), removed[2].copy())
        self.closed_form = self.config["MODEL_TYPE"] == ModelType.TRADITIONAL
        self.index = TrainIndex(source.splits.train).complete()
        self.moments: Tensors = {name: value.clone() for name, value in moments.items()}
        with own_randomness():
            # Of the base, whatever was taken out of it since: some models draw while they read their data.
            net = build_model(self.config, source.splits)
            self._initial = {name: value.detach().clone() for name, value in net.named_parameters()}
            self.trainer: Obliviate = compose(Obliviate, self.config, self._built(weights), "live")
            self._task = self._prepared()
        gone = torch.from_numpy(np.flatnonzero(removed[0]))
        if len(gone):
            self.index.remove(gone)
        for change in changes:
            self._follow(change)
        self._remove_pairs = pair_remover(self.model)

    @property
    def model(self) -> AbstractRecommender:
        """The model as it is now."""
        return self.trainer.model

    def retained(self) -> UnlearnData:
        """All that is left of the base, divided as after one request for all that was taken out."""
        return divide(self.base.splits, Located(*self.removed), "requests", self.base.clock, self.fitted)

    def kept(self) -> tuple[UnlearnData, Masks]:
        """As :meth:`retained`, and which interactions of the base those are.

        Held-out interactions of users and items that have no training interaction left are not among them.
        """
        data = self.retained()
        masks = [~mask for mask in self.removed]
        train = self.base.splits.train
        for part, mask in zip(self.base.splits[1:], masks[1:], strict=True):
            for field, orphans in (
                (train.uid_field, data.orphan_users),
                (train.iid_field, data.orphan_items),
            ):
                mask &= ~torch.isin(part.inter_feat[field], orphans).numpy()
        return data, (masks[0], masks[1], masks[2])

    def state(self) -> Tensors:
        """The weights as they are now, copied."""
        return {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}

    def forget(self, numbers: Sequence[np.ndarray]) -> Change:
        """Make the model forget interactions, by their numbers in training, validation and test data of the base.

        What fails in the middle leaves a model that is neither: it has to be loaded again.
        """
        for mask, part in zip(self.removed, numbers, strict=True):
            mask[part] = True
        asked = torch.from_numpy(np.sort(numbers[0]))
        if len(asked) == 0:  # nothing that a model was trained on
            return Change({}, {}, self.fitted, 0.0)
        if self.closed_form:
            with own_randomness():
                self.trainer.model = self._built({})
            self.index.remove(asked)
            return Change({}, {}, self.fitted, 0.0)
        return self._forget(asked)

    def _forget(self, asked: torch.Tensor) -> Change:
        before = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        moments_before = {name: value.clone() for name, value in self.moments.items()}
        data = self._data(asked)
        self._take_out(data)
        touched = find_region(self.index, *_pairs(data), data.lost)
        task = dataclasses.replace(self._task, data=data)
        with own_randomness():
            # Models with dropout draw as they go.
            seed_again(self.config["seed"], self.config["reproducibility"])
            outcome = self.trainer.apply(task)
            self.index.remove(asked)
            self._refresh(touched)
        self.fitted = fitted = self.trainer.fitted
        weights = _between(before, self.model.state_dict())
        drift = sum(rows.distance(before[name]) for name, rows in weights.items())
        return Change(weights, _between(moments_before, self.moments), fitted, drift, outcome.certificates)

    def _built(self, weights: Mapping[str, torch.Tensor]) -> AbstractRecommender:
        """A new model on what is left, with ``weights``."""
        model = build_model(self.config, self._left(self.removed))
        if not self.closed_form:
            Trained(dict(weights), None, {}, -1).load_weights(model)
        return model

    def _left(self, removed: Masks) -> Splits:
        """What is left of the base without ``removed``."""
        parts = [
            part if not mask.any() else part.copy(part.inter_feat[torch.from_numpy(~mask)])
            for part, mask in zip(self.base.splits, removed, strict=True)
        ]
        return Splits(*parts)

    def _prepared(self) -> UnlearnTask:
        """What all requests share, made of the base."""
        data = self._data(torch.empty(0, dtype=torch.long))
        task = UnlearnTask(
            self.config,
            data,
            None,
            self._initial,
            self.options,
            _no_training,
            prepared_index=self.index,
        )
        prepared = self.trainer.prepare(task)
        moments = Curvature(self.moments, "the state's second moments") if self.moments else None
        return dataclasses.replace(task, prepared=prepared._replace(curvature=moments))

    def _data(self, asked: torch.Tensor) -> StreamData:
        """The data of a request for the training interactions ``asked``; they are marked in the index."""
        train = self.base.splits.train
        self.index.removed[asked] = True
        forget = train.copy(train.inter_feat[asked])
        orphans = []
        for side, field in (("user", train.uid_field), ("item", train.iid_field)):
            ids, gone = torch.unique(forget.inter_feat[field], return_counts=True)
            orphans.append(ids[gone == self.index.counts(side, ids)])
        before, after = self._sides(asked)
        return StreamData(
            before, after, forget, self.index.removed, "requests", self.base.clock, {},
            orphans[0], orphans[1], self.fitted, numbers=asked, index=self.index,
        )  # fmt: skip

    def _sides(self, asked: torch.Tensor) -> tuple[Splits, Splits]:
        """D and D without S, for models with rows of features: which values are in use takes a look at all of it.

        For all others the base itself, of which only the sizes are read.
        """
        if len(asked) == 0 or not find_features(self.model, self.base.splits.train):
            return self.base.splits, self.base.splits
        before = self.removed[0].copy()
        before[asked.numpy()] = False
        return self._left((before, *self.removed[1:])), self._left(self.removed)

    def _take_out(self, data: StreamData) -> None:
        """Take the deleted pairs out of what the model keeps of its data."""
        if self._remove_pairs is None:
            with own_randomness():
                self.trainer.model = self._built(self.state())
            return
        assert data.numbers is not None
        retained = RetainedIndex(self.index, *_pairs(data), data.deleted, data.numbers)
        if len(retained.gone):
            items = self.index.sizes["item"]
            self._remove_pairs(retained.gone // items, retained.gone % items)

    def _refresh(self, touched: Region) -> None:
        """Second moments of touched rows, without what was deleted."""
        if not self.moments:
            return
        nobody = torch.empty(0, dtype=torch.long)
        retained = RetainedIndex(self.index, nobody, nobody, self.index.removed, nobody)
        generator = torch.Generator().manual_seed(self.config["seed"])
        witness = Witness(self.config, retained, touched, generator)
        tables = find_tables(self.model, self.base.splits.train)
        refresh(self.moments, self.model, tables, touched, witness, self.config["train_batch_size"])
        clear_caches(self.model)

    @torch.no_grad()
    def _follow(self, change: Change) -> None:
        """Do again what a request did, to the same bits."""
        named = self.model.state_dict()
        for name, rows in change.weights.items():
            rows.write(named[name])
        for name, rows in change.moments.items():
            rows.write(self.moments[name])
        self.fitted = change.fitted
        clear_caches(self.model)


def _pairs(data: UnlearnData) -> tuple[torch.Tensor, torch.Tensor]:
    return data.forget.inter_feat[data.forget.uid_field], data.forget.inter_feat[data.forget.iid_field]


def _between(before: Tensors, after: Mapping[str, torch.Tensor]) -> dict[str, Rows]:
    found = {name: Rows.between(before[name], value.detach()) for name, value in after.items()}
    return {name: rows for name, rows in found.items() if rows is not None}


def _no_training(*job: Any) -> Trained:
    raise AssertionError("no model is trained for a request")
