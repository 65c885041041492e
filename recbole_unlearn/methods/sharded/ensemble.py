"""Ensembles: several models of RecBole that answer as one, by a rule for their scores.

An ensemble is a model as far as RecBole's trainer and evaluator see: it has `predict` and `full_sort_predict`. Its
rule is :meth:`Ensemble.combine`; each subclass says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import ModelType
from torch import nn

from recbole_unlearn.settings import UnlearnConfig


class Ensemble(AbstractRecommender):
    """K models whose scores are averaged: s(u, i) = 1/K Σ_k s_k(u, i)."""

    type = ModelType.GENERAL

    def __init__(self, config: UnlearnConfig, models: Sequence[AbstractRecommender]) -> None:
        super().__init__()
        self.user_field, self.item_field = config["USER_ID_FIELD"], config["ITEM_ID_FIELD"]
        self.models: Any = nn.ModuleList(models)

    def combine(self, scores: torch.Tensor, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Scores (K, n, m) of ``users`` (n,) for ``items`` (n or 1, m) as one score each (n, m)."""
        return scores.mean(dim=0)

    def predict(self, interaction: Interaction) -> torch.Tensor:
        """Scores of pairs (n,)."""
        scores = torch.stack([model.predict(interaction).reshape(-1, 1) for model in self.models])
        users, items = interaction[self.user_field], interaction[self.item_field]
        return self.combine(scores, users, items[:, None]).reshape(-1)

    def full_sort_predict(self, interaction: Interaction) -> torch.Tensor:
        """Scores of all items for each user (n · items,)."""
        number = len(interaction)
        scores = torch.stack([m.full_sort_predict(interaction).reshape(number, -1) for m in self.models])
        items = torch.arange(scores.shape[2], device=scores.device)[None]
        return self.combine(scores, interaction[self.user_field], items).reshape(-1)

    def calculate_loss(self, interaction: Interaction) -> torch.Tensor:
        """An ensemble is not trained as one; its models are."""
        raise NotImplementedError("The models of an ensemble are trained one by one.")

    def own_state(self) -> dict[str, torch.Tensor]:
        """The weights of the rule, without those of the models."""
        return {k: v for k, v in self.state_dict().items() if not k.startswith("models.")}

    def load_own_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take over what :meth:`own_state` gave."""
        self.load_state_dict({**self.state_dict(), **state})


class ItemEnsemble(Ensemble):
    """The score of a pair is that of the model whose shard the item belongs to."""

    def __init__(
        self, config: UnlearnConfig, models: Sequence[AbstractRecommender], item_shards: torch.Tensor
    ) -> None:
        """``item_shards`` (items,): the model of each item; -1, for items without interactions, takes the mean."""
        super().__init__(config, models)
        self.register_buffer("item_shards", item_shards.to(config["device"]), persistent=False)

    def combine(self, scores: torch.Tensor, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """s(u, i) = s_k(u, i) with k the shard of i."""
        shard = self.item_shards[items].expand(scores.shape[1:])
        own = scores.gather(0, shard.clamp(min=0)[None])[0]
        return torch.where(shard >= 0, own, scores.mean(dim=0))


class WeightedEnsemble(Ensemble):
    """The models' scores with weights that depend on the user's shard: s(u, i) = Σ_k w[g(u), k] s_k(u, i)."""

    def __init__(
        self, config: UnlearnConfig, models: Sequence[AbstractRecommender], user_shards: torch.Tensor
    ) -> None:
        """``user_shards`` (users,): g(u); users of none (-1) have equal weights, and so has everybody at first."""
        super().__init__(config, models)
        number = len(models)
        self.register_buffer("user_shards", user_shards.to(config["device"]), persistent=False)
        self.register_buffer(
            "weights", torch.full((number + 1, number), 1.0 / number, device=config["device"])
        )

    def combine(self, scores: torch.Tensor, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """The weighted sum; the last row of the weights, which index -1 takes, stays uniform."""
        return torch.einsum("knm,nk->nm", scores, self.weights[self.user_shards[users]])
