"""A trained model as data: what a checkpoint of RecBole holds of it, apart from its settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.model.knowledge_aware_recommender.kgcn import KGCN

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.recbole_compat import clear_caches

NEIGHBOURS = ("adj_entity", "adj_relation")  # of KGCN, by entity: what it has drawn of the knowledge graph


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
        """Put these weights into ``model``, and nothing else: what the model knows of its interactions stays.

        KGCN draws some neighbours of every entity when it is made, and its weights are fitted to just those.
        """
        try:
            model.load_state_dict(self.state_dict)
        except RuntimeError as error:
            raise UnlearnError(_misfit(self.state_dict, model)) from error
        if isinstance(model, KGCN):
            model.load_other_parameter(_neighbours(self.other_parameter, model))
        clear_caches(model)

    def load_into(self, model: AbstractRecommender) -> None:
        """Make ``model``, built on the same rows, this trained model."""
        self.load_weights(model)
        done = NEIGHBOURS if isinstance(model, KGCN) else ()
        model.load_other_parameter({k: v for k, v in self.other_parameter.items() if k not in done})
        clear_caches(model)


def _neighbours(other: dict[str, Any], model: KGCN) -> dict[str, torch.Tensor]:
    """The neighbours that a trained KGCN has drawn, refused unless they are those of a graph like the model's."""
    found = {}
    for name, number in zip(NEIGHBOURS, (model.n_entities, model.n_relations + 1), strict=True):
        value: Any = other.get(name)
        own = getattr(model, name)
        fits = isinstance(value, torch.Tensor) and value.shape == own.shape and value.dtype == own.dtype
        if not fits or not 0 <= int(value.min()) <= int(value.max()) < number:
            raise UnlearnError(
                f"The neighbours in the graph ({name}) do not fit the model and dataset. Give the dataset, data_path "
                "and settings that the checkpoint was trained with."
            )
        found[name] = value.to(own.device)
    return found


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
