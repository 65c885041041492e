"""A trained model as data: what a checkpoint of RecBole holds of it, apart from its settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.compat import clear_caches
from recbole_unlearn.errors import UnlearnError


@dataclasses.dataclass
class Trained:
    """A trained model as data: what a checkpoint holds of it."""

    state_dict: dict[str, torch.Tensor]
    optimizer: dict[str, Any] | None
    other_parameter: dict[str, Any]
    epoch: int
    seconds: float | None = None
    from_cache: bool = False

    def load_weights(self, model: AbstractRecommender) -> None:
        """Put these weights into ``model``, and nothing else: what the model knows of its data stays."""
        try:
            model.load_state_dict(self.state_dict)
        except RuntimeError as error:
            raise UnlearnError(_misfit(self.state_dict, model)) from error
        clear_caches(model)

    def load_into(self, model: AbstractRecommender) -> None:
        """Make ``model``, built on the same rows, this trained model."""
        self.load_weights(model)
        model.load_other_parameter(self.other_parameter)
        clear_caches(model)


def _misfit(state: dict[str, torch.Tensor], model: AbstractRecommender) -> str:
    """Why weights do not fit a model, by the first parameter that differs."""
    own = model.state_dict()
    text = "The weights do not fit the model and dataset"
    hint = "Give the dataset, data_path and settings that the checkpoint was trained with."
    for name in sorted(state.keys() | own.keys()):
        if name not in state or name not in own:
            where = "the model" if name in own else "the checkpoint"
            return f"{text}: {name} is only in {where}. {hint}"
        if state[name].shape != own[name].shape:
            return (
                f"{text}: {name} is {list(state[name].shape)} there and {list(own[name].shape)} here. {hint}"
            )
    return f"{text}. {hint}"
