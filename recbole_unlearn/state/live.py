"""A model in memory that requests change in place, one after the other.

Everything that serves all requests is made once, when the model is loaded: the index of its interactions, the map
from which new starts are read, its second moments. A request then costs what it touches. Its effect is returned as a
:class:`Change`: new values of the rows that moved, enough to bring a newly loaded model to the same bits.

The maps are always those of the base (the model as it was trained, or last published), so a request gives the same
result in a process that was started for it and in one that has served others before.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recbole.data.dataset import Dataset
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.model.general_recommender.pop import Pop
from recbole.utils import ModelType

from recbole_unlearn import settings
from recbole_unlearn.data import Located, Source, Splits, UnlearnData, divide, load, loaders, time_precision
from recbole_unlearn.files import Trained
from recbole_unlearn.methods import UnlearnTask
from recbole_unlearn.methods.obliviate import (
    Curvature,
    Obliviate,
    ObliviateSettings,
    drawn_by,
    from_retained,
    read_state,
    refresh,
)
from recbole_unlearn.recbole_compat import clear_caches, on_cpu, other_parameters, own_randomness, seed_again
from recbole_unlearn.rows import (
    SIDES,
    Region,
    RetainedIndex,
    TrainIndex,
    Witness,
    find_features,
    find_region,
    find_tables,
)
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.state.deltas import Change, Tensors, changed
from recbole_unlearn.training import (
    DOWNDATED,
    PhaseTrainer,
    build_model,
    check_finite,
    compose,
    downdate_model,
    pair_remover,
)

MIN_GROUP = 10  # users who could have made a request of a shown size
SECRET = 16  # old rows of each table whose bits draw the new moments
Arrays = Sequence[np.ndarray]  # masks or numbers in training, validation and test data


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamData(UnlearnData):
    """The data of one request of many: counts come from the index, and nothing of the size of D is made."""

    index: TrainIndex  # with S still in it
    held_out: TrainIndex  # validation interactions, without deleted ones

    @property
    def validation(self) -> Dataset:
        """As in the base class, by the index."""
        valid = self.held_out.train
        return valid.copy(valid.inter_feat[~self.held_out.removed])

    @functools.cached_property
    def popularity(self) -> torch.Tensor:
        """As in the base class, by the index."""
        return self.index.counts("item", torch.arange(self.index.sizes["item"]))


class LiveModel:
    """A base, the changes that requests made to it since, and an index of what is left of its data."""

    def __init__(
        self, config: UnlearnConfig, source: Source, weights: Tensors, moments: Tensors, removed: Arrays,
        changes: Sequence[Change] = (),
    ) -> None:  # fmt: skip
        """``source``, ``weights`` and ``moments`` are the base; ``removed`` are the interactions deleted since."""
        self.config = config.replace(show_progress=False, tensorboard=False, output_dir=None).without_curves()
        self.options: ObliviateSettings = settings.read(Obliviate.Settings, self.config.method_values(Obliviate.name))
        self.base = source
        self.closed_form = self.config["MODEL_TYPE"] == ModelType.TRADITIONAL
        self.parts = [TrainIndex(part) for part in source.splits]  # of training, validation and test data
        self.index = self.parts[0].complete()
        self.moments: Tensors = {name: value.to(self.config["device"], copy=True) for name, value in moments.items()}
        with own_randomness():
            # On the whole base, whatever was deleted since: some models draw while they read their data.
            net = build_model(self.config, source.splits)
            self._matrices = other_parameters(net) if self.closed_form else {}
            self._initial = on_cpu(dict(net.named_parameters()))
            model = self._built(weights, removed)
            check_finite(model, "state's")  # once; a request then checks what it writes
            self.trainer: Obliviate = compose(Obliviate, self.config, model, "unlearned")
            self.trainer.fitted = source.fitted
            self._task = self._prepared()
        for index, mask in zip(self.parts, removed, strict=True):
            if mask.any():
                index.remove(torch.from_numpy(np.flatnonzero(mask)))
        for change in changes:
            self._follow(change)
        self._remove_pairs = pair_remover(self.model)

    @property
    def model(self) -> AbstractRecommender:
        """The model as it is now."""
        return self.trainer.model

    @property
    def removed(self) -> Arrays:
        """The interactions of the base that were deleted."""
        return [index.removed.numpy() for index in self.parts]

    @functools.cached_property
    def precisions(self) -> list[float]:
        """The precision of timestamps in training, validation and test data."""
        return [time_precision(part) for part in self.base.splits]

    @functools.cached_property
    def usual(self) -> int:
        """How many training interactions of the base at least ten users have."""
        counts = torch.bincount(self.index.ids["user"]).sort(descending=True).values
        return int(counts[MIN_GROUP - 1]) if len(counts) >= MIN_GROUP else 0

    def retained(self) -> UnlearnData:
        """The base, divided as by one request for everything that was deleted."""
        train, valid, test = self.removed
        return divide(self.base.splits, Located(train, valid, test), "requests", self.base.clock, self.trainer.fitted)

    def kept(self) -> tuple[UnlearnData, Arrays]:
        """As :meth:`retained`, with masks of the retained interactions in the base.

        Held-out interactions of users and items without a training interaction are not retained.
        """
        data, masks = self.retained(), [~mask for mask in self.removed]
        orphans = zip(SIDES, (data.orphan_users, data.orphan_items), strict=True)
        for side, ids in orphans:
            for index, mask in zip(self.parts[1:], masks[1:], strict=True):
                mask &= ~torch.isin(index.ids[side], ids).numpy()
        return data, masks

    def state(self) -> Tensors:
        """The weights as they are now, copied."""
        return on_cpu(self.model.state_dict())

    def forget(self, numbers: Arrays) -> Change:
        """Make the model forget interactions, by their numbers in training, validation and test data of the base.

        After an exception the model is neither the old nor the new one, and has to be loaded again.
        """
        asked, *held_out = (torch.from_numpy(np.sort(part)) for part in numbers)
        for index, part in zip(self.parts[1:], held_out, strict=True):
            if len(part):
                index.remove(part)
        if len(asked) and not self.closed_form:
            return self._forget(asked)
        if len(asked):
            self.index.remove(asked)
            with own_randomness():
                self.trainer.model = self._built({}, self.removed)
        return Change({}, self.trainer.fitted, 0.0)

    def _forget(self, asked: torch.Tensor) -> Change:
        parameters = dict(self.model.named_parameters())
        others = {name: value.clone() for name, value in self.model.state_dict().items() if name not in parameters}
        data = self._data(asked)
        self._take_out(data)
        users, items = (data.forget.inter_feat[field] for field in (data.forget.uid_field, data.forget.iid_field))
        touched = find_region(self.index, users, items, data.lost)
        with own_randomness():
            seed_again(self.config["seed"], self.config["reproducibility"])  # models with dropout draw
            earlier = self.trainer.apply(dataclasses.replace(self._task, data=data)).earlier
            assert earlier is not None
            self.index.remove(asked)
            moments = []
            if self.moments:  # those of touched rows, without the deleted interactions
                tables = find_tables(self.model, self.base.splits.train)
                generator = drawn_by([one.values[:SECRET] for one in earlier])
                moments = refresh(self.moments, tables, touched, self.index, generator)
        rows, drift = changed("weights", self.model.state_dict(), earlier, others)
        return Change(rows | changed("moments", self.moments, moments)[0], self.trainer.fitted, drift)

    def _built(self, weights: Mapping[str, torch.Tensor], removed: Arrays) -> AbstractRecommender:
        """A new model on the data without ``removed``, with ``weights``; of closed forms a downdate of the base."""
        splits, base = self._without(removed), self.base.splits.train
        model = build_model(self.config, splits, self._matrices)
        if not self.closed_form:
            Trained(dict(weights), None, {}, -1).load_weights(model)
        elif isinstance(model, Pop):  # it counts in an epoch
            trainer = compose(PhaseTrainer, self.config, model, "unlearned")
            trainer._train_epoch(loaders(self.config, splits).train, 0)
        elif type(model) in DOWNDATED and not downdate_model(model, self._matrices, base, self.config):
            model = build_model(self.config, splits)
        return model

    def _without(self, removed: Arrays) -> Splits:
        return self.base.splits.only([torch.from_numpy(~mask) for mask in removed])

    def _prepared(self) -> UnlearnTask:
        """The parts of a task that all requests share, made from the base."""
        data = self._data(torch.empty(0, dtype=torch.long))
        task = UnlearnTask(
            self.config, data, None, self._initial, self.options, _no_training, prepared_index=self.index
        )
        prepared = self.trainer.prepare(task)
        moments = Curvature(self.moments, "the state's second moments") if self.moments else None
        return dataclasses.replace(task, prepared=prepared._replace(curvature=moments))

    def _data(self, asked: torch.Tensor) -> StreamData:
        """The data of a request for the training interactions ``asked``, which are marked in the index."""
        train = self.base.splits.train
        self.index.removed[asked] = True
        forget = train.copy(train.inter_feat[asked])
        orphans = []
        for side, field in zip(SIDES, (train.uid_field, train.iid_field), strict=True):
            ids, gone = torch.unique(forget.inter_feat[field], return_counts=True)
            orphans.append(ids[gone == self.index.counts(side, ids)])
        before = after = self.base.splits  # of which only the sizes are read
        if len(asked) and find_features(self.model, train):  # a pass over the data finds the values in use
            earlier = self.removed[0].copy()
            earlier[asked.numpy()] = False
            before, after = self._without((earlier, *self.removed[1:])), self._without(self.removed)
        return StreamData(
            before, after, forget, self.index.removed, "requests", self.base.clock, {},
            orphans[0], orphans[1], self.trainer.fitted, numbers=asked, index=self.index, held_out=self.parts[1],
        )  # fmt: skip

    def _take_out(self, data: StreamData) -> None:
        """Take the deleted pairs out of the data that the model itself keeps, such as a graph."""
        if self._remove_pairs is None:
            with own_randomness():
                self.trainer.model = self._built(self.state(), self.removed)
            return
        retained = RetainedIndex(self.index, data.deleted, data.numbers)
        if len(retained.gone):
            items = self.index.sizes["item"]
            self._remove_pairs(retained.gone // items, retained.gone % items)

    @torch.no_grad()
    def _follow(self, change: Change) -> None:
        """Apply the change of an earlier request, to the same bits."""
        tensors = {"weights": self.model.state_dict(), "moments": self.moments}
        for name, rows in change.rows.items():
            kind, _, parameter = name.partition(".")
            rows.write(tensors[kind][parameter])
        self.trainer.fitted = change.fitted
        clear_caches(self.model)


def load_trained(config: UnlearnConfig, trained: Trained, dataset: Path | None) -> tuple[Source, Tensors]:
    """The data of a trained model, refused if its weights do not fit them, and its second moments."""
    with own_randomness():
        source = load(config, dataset)
        net = build_model(config, source.splits)
        trained.load_into(net)
        return source, read_moments(config, net, trained, source.splits)


def read_moments(config: UnlearnConfig, model: AbstractRecommender, trained: Trained, splits: Splits) -> Tensors:
    """Second moments of a model: those of its optimizer, or Fisher information where the checkpoint has none."""
    if config["MODEL_TYPE"] == ModelType.TRADITIONAL:
        return {}
    found = read_state(model, trained.optimizer, trained.epoch)
    if found is None:
        retained = RetainedIndex.whole(TrainIndex(splits.train))
        witness = Witness(config, retained, Region(), torch.Generator().manual_seed(config["seed"]))
        parts = torch.arange(retained.size).split(config["train_batch_size"])
        found = from_retained(model, [witness.batch(witness.triples(part)) for part in parts])
    return dict(found.moments)


def squared_norm(weights: Tensors) -> float:
    """‖θ‖² of all weights."""
    floats = (value for value in weights.values() if value.is_floating_point())
    return float(sum(value.double().square().sum() for value in floats))


def _no_training(*job: Any) -> Trained:
    raise AssertionError("no model is trained for a request")
