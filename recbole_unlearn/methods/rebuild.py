r"""Exact unlearning in a few epochs: retraining that does not start from random rows.

Retraining is slow because its rows start at random. A factorization of the *retained* interactions gives rows that
rank about as well as a trained model (`training/spectral.py`); a few epochs of the model's own training do the rest.

Nothing of S, of the original or of anything computed from them goes in, so the result is exact: a model of D\S and
nothing else. It is not the model that retraining gives: it is trained by another recipe, and often ranks better.

A model without rows of users (an autoencoder) is trained in full instead, and a closed form is computed again; both
are exact too.
"""

from __future__ import annotations

import logging
from typing import Any

from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.methods import Outcome, UnlearnTask, method
from recbole_unlearn.methods.retrain import Retrain
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import SPECTRAL, most_epochs

# As good as retrained by docs/results.md. Others can be rebuilt, but --unlearn=auto retrains them.
MEASURED = ("BPR", "LightGCN", "NGCF", "SGL", "SimpleX", "NeuMF", "GRU4Rec")
logger = logging.getLogger(__name__)


@method(
    "rebuild",
    "Start from a factorization of the retained interactions, then train a few epochs: exact, and done in seconds.",
    models="all; in full where a model has no rows of users",
    result="exact",
    recommended="for a batch of requests, and whenever the result has to be exact",
)
class Rebuild(Retrain):
    r"""A model of D\S alone, from a spectral start."""

    reference = False
    auto_order = 2

    @classmethod
    def suits(cls, model: type[AbstractRecommender]) -> bool:
        """Models that were measured to rank as well as retrained ones, and classes derived from them."""
        return any(base.__name__ in MEASURED and base.__module__.startswith("recbole.") for base in model.__mro__)

    @classmethod
    def training(cls, settings: Any, config: UnlearnConfig, repeat: int) -> UnlearnConfig:
        """The config with a spectral start, and a new seed."""
        return super().training(settings, config, repeat).replace(start=SPECTRAL)

    @classmethod
    def epochs(cls, settings: Any, config: UnlearnConfig) -> int:
        """A share of the model's own."""
        return most_epochs(config.replace(start=SPECTRAL))

    def unlearn(self, task: UnlearnTask) -> Outcome:
        """Train on the retain set, from a spectral start."""
        logger.info("Rebuild: nothing but the retained interactions goes into the model, so it is exact.")
        return super().unlearn(task)
