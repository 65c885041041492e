r"""Downdate: a closed form of D becomes that of D\S without a refit (`training/downdate.py` has the formulas).

EASE is then equal to a fit within rounding, ItemKNN bit for bit. Pop is counted again.
"""

from __future__ import annotations

import dataclasses
import logging

import torch
from recbole.model.general_recommender.pop import Pop

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.methods import Outcome, UnlearnTask, UnlearnTrainer, method
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import can_downdate, downdate_model

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class DowndateSettings:
    """It has no settings."""


def closed_form(trainer: UnlearnTrainer, task: UnlearnTask) -> Outcome:
    r"""Make the trainer's model the closed form of D\S, by a downdate of the original or else by a fit."""
    name, data = task.config["model"], task.data
    items = torch.arange(data.full.train.item_num)
    matrices = {} if task.original is None else task.original.other_parameter
    if downdate_model(trainer.model, matrices, data.full.train, task.config):
        logger.info("%s is a closed form: the request is subtracted from its matrices, which is exact.", name)
        return Outcome({"exact": True, "refitted": False}, refitted_items=items)
    logger.info("%s is a closed form: it is computed again from the retain set, which is exact.", name)
    trained = task.train(task.config, data.retain, task.label)
    trained.load_into(trainer.model)
    certificates = {"exact": True, "refitted": True}
    return Outcome(certificates, {}, trained.seconds, trained.from_cache, refitted_items=items)


@method(
    "downdate", "Subtract the request from a closed form: exact, without a refit.", DowndateSettings,
    models="EASE, ItemKNN, Pop", result="exact",
)  # fmt: skip
class Downdate(UnlearnTrainer):
    r"""The matrices of D\S from those of D."""

    exact = True
    fits_closed_forms = True

    @classmethod
    def check(cls, settings: DowndateSettings, config: UnlearnConfig) -> None:
        """Refuse all models but three."""
        if not can_downdate(config.model_class) and config.model_class is not Pop:
            raise UnlearnError(
                f"{config['model']} has no downdate: that is for EASE, ItemKNN and Pop. "
                "Use --unlearn=rebuild or --unlearn=retrain, which are exact too."
            )

    def unlearn(self, task: UnlearnTask) -> Outcome:
        """Downdate the original's matrices."""
        return closed_form(self, task)
