r"""Shards: one model for each part of the training interactions, and the restart of those a request touches.

A shard's model sees only the shard's own interactions: its graph, its negatives and its stop on validation
(interactions of users and items it knows) are of the shard, so that nothing of another shard leaks into it. With
slices, the interactions of a shard come in L steps: slice 1, then 1 and 2, and so on, each from the weights the step
before ended with. A deleted interaction of slice l leaves the steps before l as they were, so a restart begins there;
with one slice it begins at the stored initial weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.data import Splits, UnlearnData
from recbole_unlearn.files import Trained
from recbole_unlearn.methods.sharded.partition import Partition
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import Job, build_model

Weights = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Shards:
    """The models of all shards, as data."""

    config: UnlearnConfig  # how a shard trains
    partition: Partition
    slices: torch.Tensor  # (|D|,), the slice of each interaction
    depth: int  # slices of a shard
    initial: list[Weights]  # by shard, the weights it starts from
    steps: list[list[Trained]]  # by shard, after each slice; what is missing is to be trained

    @classmethod
    def new(
        cls,
        config: UnlearnConfig,
        splits: Splits,
        partition: Partition,
        depth: int,
        generator: torch.Generator,
    ) -> Shards:
        """Shards that have not been trained, each with initial weights of its own."""
        slices = torch.randint(0, depth, (len(partition.interactions),), generator=generator)
        shards = cls(config, partition, slices, depth, [], [[] for _ in range(partition.number)])
        for shard in range(partition.number):
            model = build_model(shards._config(shard), shards.splits(splits, shard))
            shards.initial.append({name: value.clone() for name, value in model.state_dict().items()})
        return shards

    def _config(self, shard: int) -> UnlearnConfig:
        r"""Settings of a shard: a seed of its own, and so many epochs that L slices cost what one does.

        Step l sees l/L of the interactions, so with e epochs each the work is e (L + 1)/2 epochs over all of them.
        """
        epochs = max(1, round(2 * self.config["epochs"] / (self.depth + 1)))
        return self.config.replace(seed=self.config["seed"] + shard, epochs=epochs)

    def splits(self, splits: Splits, shard: int, step: int | None = None) -> Splits:
        """A shard's training interactions up to a step (None: all), and validation ones of their users and items."""
        mine = self.partition.interactions == shard
        if step is not None:
            mine &= self.slices <= step
        train = splits.train.copy(splits.train.inter_feat[mine])
        held = splits.valid.inter_feat
        fields = (train.uid_field, train.iid_field)
        own = torch.stack([torch.isin(held[field], train.inter_feat[field]) for field in fields]).all(dim=0)
        # Without such validation interactions, all of them decide when the shard stops.
        valid = splits.valid.copy(held[own]) if own.any() else splits.valid
        return Splits(train, valid, valid)

    def without(self, data: UnlearnData) -> Shards:
        """The shards of the retain set, without the steps that saw a deleted interaction; all other steps stay."""
        train = data.full.train
        users, items = (train.inter_feat[field] for field in (train.uid_field, train.iid_field))
        gone = data.deleted
        kept = []
        for shard, steps in enumerate(self.steps):
            touched = self.slices[gone & (self.partition.interactions == shard)]
            kept.append(steps[: int(touched.min())] if len(touched) else list(steps))
        return dataclasses.replace(
            self,
            partition=self.partition.without(gone, users, items),
            slices=self.slices[~gone],
            steps=kept,
        )

    def missing(self) -> list[int]:
        """Shards that have steps to train."""
        return [shard for shard, steps in enumerate(self.steps) if len(steps) < self.depth]

    def trained(
        self, splits: Splits, train_all: Callable[[Sequence[Job]], list[Trained]], label: str
    ) -> tuple[Shards, dict[int, list[Trained]]]:
        """The shards with all steps trained on ``splits``, and by shard what was trained for it."""
        steps = [list(held) for held in self.steps]
        new: dict[int, list[Trained]] = {shard: [] for shard in self.missing()}
        for step in range(self.depth):
            due = [shard for shard in new if len(steps[shard]) == step]
            jobs, places = [], []
            for shard in due:
                start = steps[shard][-1].state_dict if step else self.initial[shard]
                own = self.splits(splits, shard, step)
                if len(own.train) == 0:  # nothing to learn from: the weights stay
                    steps[shard].append(Trained(start, None, {}, -1, seconds=0.0))
                    continue
                # Not the shard's own number: it would say among whom to look for a request of one user.
                name = f"{label} shard {due.index(shard) + 1}/{len(due)}"
                name += f" slice {step + 1}/{self.depth}" if self.depth > 1 else ""
                jobs.append(Job(self._config(shard), own, name, start))
                places.append(shard)
            for shard, trained in zip(places, train_all(jobs), strict=True):
                steps[shard].append(trained)
                new[shard].append(trained)
        return dataclasses.replace(self, steps=steps), new

    def models(self, splits: Splits) -> list[AbstractRecommender]:
        """The models themselves, each built on its shard's interactions."""
        models = []
        for shard in range(self.partition.number):
            model = build_model(self._config(shard), self.splits(splits, shard))
            self.steps[shard][-1].load_weights(model)
            models.append(model)
        return models
