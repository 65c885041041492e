r"""Downdate: a closed form of D becomes that of D\S without a refit; `training/downdate.py` has the formulas."""

import logging
from typing import Any

import torch
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.model.general_recommender.pop import Pop

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.methods import Outcome, UnlearnTask, UnlearnTrainer, method
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import DOWNDATED, downdate_model

logger = logging.getLogger(__name__)


def closed_form(trainer: UnlearnTrainer, task: UnlearnTask) -> Outcome:
    r"""Make the trainer's model the closed form of D\S, by a downdate of the original or else by a fit."""
    train, items = task.data.full.train, torch.arange(task.data.full.train.item_num)
    original = {} if task.original is None else task.original.other_parameter
    if downdate_model(trainer.model, original, train, task.config):
        logger.info("%s is a closed form: the request is subtracted, which is exact.", task.config["model"])
        return Outcome({"exact": True, "refitted": False}, refitted_items=items)
    logger.info("%s is a closed form: it is computed again without the request, exactly.", task.config["model"])
    new = task.train(task.config, task.data.retain, task.label)
    new.load_into(trainer.model)
    return Outcome({"exact": True, "refitted": True}, {}, new.seconds, new.from_cache, refitted_items=items)


@method("downdate", "Subtract the request from a closed form: exact.", models="EASE, ItemKNN, Pop")
class Downdate(UnlearnTrainer):
    r"""The matrices of D\S from those of D."""

    exact = fits_closed_forms = True
    auto_order = 1

    @classmethod
    def suits(cls, model: type[AbstractRecommender]) -> bool:
        """Three models of RecBole; a class of the user's own may compute something else."""
        return model in (*DOWNDATED, Pop)

    @classmethod
    def check(cls, settings: Any, config: UnlearnConfig) -> None:
        """Refuse all models but three."""
        if not cls.suits(config.model_class):
            raise UnlearnError(
                f"{config['model']} has no downdate: that is for EASE, ItemKNN and Pop. "
                "Use --unlearn=rebuild or --unlearn=retrain, which are exact too."
            )

    def unlearn(self, task: UnlearnTask) -> Outcome:
        """Downdate the original's matrices."""
        return closed_form(self, task)
