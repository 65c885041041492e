r"""RecEraser: interactions that belong together share a shard, and attention combines the shards' models.

From the paper (*Recommendation unlearning*, Chen et al.): balanced partitions by pretrained embeddings, of
interactions (InBP) or of users (UBP, the default); a model for each shard; an attentive aggregation of their
embeddings (`attention.py` has the formula), trained on all interactions with the models frozen; a request restarts
the shards that held one of its interactions, and then fits the aggregation again. From the appendix of Obliviate's
paper, the light variant: users are split at random, an item goes to the shard that has most of its interactions, an
interaction to its item's shard, and the score of a pair is that of its item's model (no pretraining, no aggregation).

Filled in: the pretrained embeddings are the plain original's. The aggregation is trained to the best validation
epoch. Models whose score is not a product of two vectors have no embeddings to aggregate: their scores can be
averaged (`receraser_aggregation: mean`). As in SISA, shards stop on the validation interactions of users and items
they know, and start from stored initial weights.

Avoided: the authors' code averages a centroid to one number instead of one for each dimension, which ruins the
partition; and negatives that are rejected by a user's full history, which leaks across shards.

Not exact: the partition was made from embeddings that saw the deleted interactions, and stays as it was. The models
and the aggregation saw none of them. The light variant divides by counts of interactions, deleted ones among them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.data import Splits, loaders
from recbole_unlearn.files import Trained
from recbole_unlearn.log import progress_bar
from recbole_unlearn.methods import Curve, UnlearnTask, method
from recbole_unlearn.methods.sharded.attention import AttentiveEnsemble, fit_attention, row_vectors
from recbole_unlearn.methods.sharded.base import Ensemble, ShardedTrainer
from recbole_unlearn.methods.sharded.partition import Partition, by_interactions, by_users, item_blocks
from recbole_unlearn.settings import UnlearnConfig, setting


@dataclasses.dataclass(frozen=True)
class RecEraserSettings:
    """Settings of RecEraser."""

    receraser_shards: int = setting("Shards, K.", low=1)
    receraser_partition: str = setting(
        "By interactions (InBP), by users (UBP), or the light one by items.",
        choices=("interactions", "users", "items"),
    )
    receraser_epochs: int | None = setting("Epochs of a shard's training; the model's own when empty.", low=1)
    receraser_learning_rate: float | None = setting("Learning rate of a shard; the model's own when empty.", low=0.0)
    receraser_aggregation: str = setting(
        "Attention over embeddings, or the mean of scores; the light partition has neither.",
        choices=("attention", "mean"),
    )
    receraser_attention_epochs: int = setting("attention: epochs at most.", low=1)


@method(
    "receraser",
    "Models of interactions that belong together, combined by attention; a request restarts its parts.",
    RecEraserSettings,
    models="whose score is a product of two vectors (BPR, LightGCN, NGCF); trains its own ensemble",
)
class RecEraser(ShardedTrainer):
    """e = Σ_k α_k (e_k W_k + b_k) for users and items, with model k trained on its part of the interactions."""

    def pretrain(self, task: UnlearnTask) -> Trained | None:
        """The plain original; the light variant needs no embeddings."""
        return None if task.settings.receraser_partition == "items" else super().pretrain(task)

    def divide(self, task: UnlearnTask, pretrained: Trained | None, generator: torch.Generator) -> Partition:
        """InBP, UBP or the light co-partition."""
        train, k = task.data.full.train, task.settings.receraser_shards
        users, items = (train.inter_feat[field] for field in (train.uid_field, train.iid_field))
        if pretrained is None:
            return item_blocks(users, items, train.user_num, train.item_num, k, generator)
        p, q = row_vectors(task, pretrained)
        if task.settings.receraser_partition == "users":
            return by_users(users, p, k, generator)
        return by_interactions(users, items, p, q, k, generator)

    def ensemble(self, task: UnlearnTask, splits: Splits, models: list[Any]) -> Ensemble:
        """By the item's shard, by attention, or the mean."""
        if task.settings.receraser_partition == "items":
            assert self.shards.partition.items is not None, "blocks are of items"
            return ItemEnsemble(task.config, models, self.shards.partition.items)
        if task.settings.receraser_aggregation == "mean":
            return Ensemble(task.config, models)
        return AttentiveEnsemble(task.config, models, splits.train)

    def fit_rule(self, task: UnlearnTask, ensemble: Ensemble, splits: Splits) -> dict[str, Curve]:
        """Train the attention on all interactions of ``splits``, and keep the best validation epoch."""
        if not isinstance(ensemble, AttentiveEnsemble):
            return {}
        data = loaders(task.config, splits)
        self.eval_collector.data_collect(data.train)
        generator = torch.Generator().manual_seed(task.config["seed"])
        epochs, patience = task.settings.receraser_attention_epochs, int(task.config["stopping_step"])
        with progress_bar(f"Attention {self.label}", epochs, bool(task.config["show_progress"])) as bar:
            score = functools.partial(self.validation_score, ensemble, data.valid)
            return {"loss": fit_attention(ensemble, epochs, patience, generator, score, bar)}


class ItemEnsemble(Ensemble):
    """The light variant's rule: s(u, i) = s_k(u, i) with k the shard of item i."""

    def __init__(self, config: UnlearnConfig, models: Sequence[AbstractRecommender], shards: torch.Tensor) -> None:
        """``shards`` (items,): the model of each item; -1, for items without interactions, takes the mean."""
        super().__init__(config, models)
        self.register_buffer("item_shards", shards.to(config["device"]), persistent=False)

    def combine(self, scores: torch.Tensor, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """The score of the item's model."""
        shard = self.item_shards[items].expand(scores.shape[1:])
        own = scores.gather(0, shard.clamp(min=0)[None])[0]
        return torch.where(shard >= 0, own, scores.mean(dim=0))
