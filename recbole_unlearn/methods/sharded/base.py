r"""The base of sharded methods: how an ensemble is trained, and how it forgets.

A method says how the interactions are divided (:meth:`ShardedTrainer.divide`) and how the models answer together
(:meth:`ShardedTrainer.ensemble`, :meth:`ShardedTrainer.fit_rule`); all else is here. The ensemble is trained from
the start, so it is an original of its own, not the plain model. A request restarts the shards that hold one of its
interactions; the others are kept bit for bit.

Times are sums over the shards' own trainings, whether they ran side by side or not, so that they compare with those
of one model on one thread; `certificates` has the shards' times.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from recbole.utils import init_seed

from recbole_unlearn.data import Splits, UnlearnData, loaders
from recbole_unlearn.files import Trained
from recbole_unlearn.methods import Curve, Outcome, UnlearnTask, UnlearnTrainer
from recbole_unlearn.methods.sharded import storage
from recbole_unlearn.methods.sharded.ensemble import Ensemble
from recbole_unlearn.methods.sharded.partition import Partition
from recbole_unlearn.methods.sharded.shards import Shards, Weights
from recbole_unlearn.recbole_compat import clear_caches
from recbole_unlearn.settings import UnlearnConfig

logger = logging.getLogger(__name__)


class ShardedTrainer(UnlearnTrainer):
    r"""K models on parts of D; those that saw S are trained again, on their part of D\S."""

    needs_original = False
    own_original = True
    needs_gradients = True

    shards: Shards  # of the original, and after `run` of the result, with retained interactions only

    def shard_settings(self, task: UnlearnTask) -> tuple[UnlearnConfig, int]:
        """How a shard trains, and the number of its slices."""
        return task.config, 1

    def pretrain(self, task: UnlearnTask) -> Trained | None:
        """A model of D by which the interactions are divided, for methods that need one."""
        return None

    def divide(self, task: UnlearnTask, pretrained: Trained | None, generator: torch.Generator) -> Partition:
        """Which shard each training interaction belongs to."""
        raise NotImplementedError(f"{type(self).__name__} does not implement divide().")

    def ensemble(
        self, task: UnlearnTask, splits: Splits, models: list[Any], partition: Partition
    ) -> Ensemble:
        """The models with the rule that combines them, by default the mean of their scores."""
        return Ensemble(task.config, models)

    def fit_rule(
        self, task: UnlearnTask, ensemble: Ensemble, splits: Splits, partition: Partition
    ) -> dict[str, Curve]:
        """Fit the rule to training interactions, where it has anything to fit; returns the curves of that."""
        return {}

    def originate(self, task: UnlearnTask) -> Outcome:
        """Train the ensemble on D, or take it from where it was saved."""
        full = task.data.full
        if task.stored is not None:
            self.shards, rule = storage.read(task.stored, self.shard_settings(task)[0], full)
            self.model = self._assembled(task, full, self.shards, rule)[0]
            return Outcome()
        pretrained = self.pretrain(task)
        start = time.perf_counter()
        shards = self.untrained(task, pretrained)
        spent = time.perf_counter() - start
        self.shards, new = shards.trained(full, task.train_all, self.name)
        trained = [one for several in new.values() for one in several]
        trained += [] if pretrained is None else [pretrained]
        self.model, _, rule_seconds = self._combined(task, full, self.shards)
        spent += rule_seconds + sum(one.seconds or 0.0 for one in trained)
        return Outcome(seconds=spent, from_cache=any(one.from_cache for one in trained))

    def untrained(self, task: UnlearnTask, pretrained: Trained | None) -> Shards:
        """The interactions divided, with initial weights for each part."""
        config, slices = self.shard_settings(task)
        generator = torch.Generator().manual_seed(task.config["seed"])
        partition = self.divide(task, pretrained, generator)
        return Shards.new(config, task.data.full, partition, slices, generator)

    def _assembled(
        self, task: UnlearnTask, splits: Splits, shards: Shards, rule: Weights | None = None
    ) -> tuple[Ensemble, dict[str, Curve]]:
        """The ensemble of ``shards`` with the given rule or one that is fitted, and the curves of the fit."""
        models = shards.models(splits)
        init_seed(task.config["seed"], task.config["reproducibility"])
        ensemble = self.ensemble(task, splits, models, shards.partition)
        curves = {}
        if rule is None:
            curves = self.fit_rule(task, ensemble, splits, shards.partition)
        else:
            ensemble.load_own_state(rule)
        clear_caches(ensemble)
        return ensemble.eval(), curves

    def _combined(
        self, task: UnlearnTask, splits: Splits, shards: Shards
    ) -> tuple[Ensemble, dict[str, Curve], float]:
        """The ensemble with a fitted rule, and the seconds that took; as in every training, without validation."""
        start, looked = time.perf_counter(), self.validation_seconds
        ensemble, curves = self._assembled(task, splits, shards)
        return ensemble, curves, time.perf_counter() - start - (self.validation_seconds - looked)

    def unlearn(self, task: UnlearnTask) -> Outcome:
        """Restart what saw a deleted interaction, and fit the rule again."""
        before = time.perf_counter()
        shards = self.shards.without(task.data)
        number, touched = shards.partition.number, shards.missing()
        logger.info("%s: the shards that hold deleted interactions start again.", self.name)
        finding = time.perf_counter() - before
        self.shards, new = shards.trained(task.data.retain, task.train_all, self.label)
        self.model, curves, rule_seconds = self._combined(task, task.data.retain, self.shards)
        spent = {shard: sum(one.seconds or 0.0 for one in steps) for shard, steps in new.items()}
        return Outcome(
            {
                "shards": number,
                "restarted": len(touched),
                "shard_seconds": {str(shard + 1): round(value, 4) for shard, value in spent.items()},
                "rule_seconds": round(rule_seconds, 4),
            },
            curves,
            seconds=finding + rule_seconds + sum(spent.values()),
            from_cache=any(one.from_cache for steps in new.values() for one in steps),
        )

    def keep(self, task: UnlearnTask) -> Outcome:
        """As the base class; the original is the ensemble."""
        self.shards = self.shards.without(task.data)
        return Outcome(seconds=0.0)

    def reset_orphans(self, task: UnlearnTask, refitted_items: bool = False) -> None:
        """Nothing to do: shards that held a deleted interaction started again, and no other ever saw it."""

    def save(self, directory: Path, data: UnlearnData, home: Path) -> str:
        """The ensemble as a directory."""
        name = f"{self.config['model']}-unlearned"
        storage.write(directory / name, home / name, self.config, self.name, self.shards, self.model, data)
        return name

    def validation(self, task: UnlearnTask, ensemble: Ensemble, splits: Splits) -> Callable[[], float]:
        """A function that gives the ensemble's validation score, higher is better."""
        data = loaders(task.config, splits)
        self.eval_collector.data_collect(data.train)
        return lambda: self.validation_score(ensemble, data.valid)
