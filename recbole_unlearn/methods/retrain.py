"""Exact unlearning: a new model, trained from scratch on the retain set.

Slow, and right by definition. Every other method is measured against it, so it has a seed of its own: sharing the
original's initial weights and sampling would make it look nearer to the original than an independent retraining is.
"""

from typing import Any

import torch

from recbole_unlearn.methods import Outcome, UnlearnTask, UnlearnTrainer, method
from recbole_unlearn.settings import UnlearnConfig


@method("retrain", "Train from scratch on the retain set: exact and slow.", models="all", result="exact")
class Retrain(UnlearnTrainer):
    r"""θ₋S = argmin of the training objective over D\S, from a new initialisation."""

    exact = True
    reference = True
    auto_order = 3
    on_sequences = True
    on_knowledge = True
    needs_original = False
    fits_closed_forms = True

    @classmethod
    def training(cls, settings: Any, config: UnlearnConfig, repeat: int) -> UnlearnConfig:
        """The config with a new seed; a second retraining in the same run gets the next one."""
        return config.replace(seed=config["seed"] + 1 + repeat)

    def unlearn(self, task: UnlearnTask) -> Outcome:
        """Train on the retain set."""
        config = self.training(task.settings, task.config, task.repeat)
        trained = task.train(config, task.data.retain, task.label)
        trained.load_into(self.model)
        return Outcome(
            {"exact": True},
            seconds=trained.seconds,
            from_cache=trained.from_cache,
            trained=trained,
            refitted_items=torch.arange(task.data.full.train.item_num),
        )
