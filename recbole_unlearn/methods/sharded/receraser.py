r"""RecEraser: interactions that belong together stay together, and attention combines the models of the parts.

From the paper (*Recommendation unlearning*, Chen et al.): balanced partitions by pretrained embeddings, of
interactions (InBP) or of users (UBP, the default); a model for each part; an attentive aggregation of their
embeddings, trained on all interactions with the models frozen; a request restarts the parts that held one of its
interactions, and then fits the aggregation again. And, from the appendix of Obliviate's paper, the light variant:
users are split at random, an item goes to the part that has most of its interactions, an interaction to its item's
part, and the score of a pair is that of its item's model (no pretraining, no aggregation).

Filled in: the pretrained embeddings are the plain original's. The aggregation is trained to the best validation
epoch. Models whose score is not a product of two vectors have no embeddings to aggregate: for them the scores can
be averaged (`receraser_aggregation: mean`). As in SISA, shards stop on the validation interactions
of users and items they know, and start from stored initial weights.

Avoided: the authors' code averages a centroid to one number instead of one for each dimension, which ruins the
partition; and negatives that are rejected by a user's full history, which leaks across shards.

Not exact: the partition was made from embeddings that saw the deleted interactions, and stays as it was. The models
and the aggregation saw none of them. The light variant divides by counts of interactions, deleted ones among them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from recbole_unlearn.data import Splits
from recbole_unlearn.files import Trained
from recbole_unlearn.log import progress_bar
from recbole_unlearn.methods import Curve, UnlearnTask, method
from recbole_unlearn.methods.sharded import partition as parts
from recbole_unlearn.methods.sharded.attention import AttentiveEnsemble, Fit, fit_attention, row_vectors
from recbole_unlearn.methods.sharded.base import ShardedTrainer
from recbole_unlearn.methods.sharded.ensemble import Ensemble, ItemEnsemble
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
    receraser_learning_rate: float | None = setting(
        "Learning rate of a shard's training; the model's own when empty.", low=0.0
    )
    receraser_aggregation: str = setting(
        "Attention over embeddings, or the mean of scores; the light partition has neither.",
        choices=("attention", "mean"),
    )
    receraser_attention_epochs: int = setting("attention: epochs at most.", low=1)
    receraser_attention_rate: float = setting("attention: Adam's learning rate.", low=0.0)
    receraser_attention_size: int = setting("attention: width of its hidden layer.", low=1)
    receraser_attention_batch: int = setting("attention: interactions in a step.", low=1)
    receraser_dropout: float = setting("attention: dropout of the moved embeddings.", low=0.0, high=0.99)
    receraser_l2: float = setting("attention: weight decay.", low=0.0)


@method(
    "receraser",
    "Models of interactions that belong together, combined by attention; a request restarts its parts.",
    RecEraserSettings,
    models="whose score is a product of two vectors (BPR, LightGCN, NGCF); trains its own ensemble",
)
class RecEraser(ShardedTrainer):
    """e = Σ_k α_k (e_k W_k + b_k) for users and items, with model k trained on its part of the interactions."""

    @classmethod
    def epochs(cls, settings: RecEraserSettings, config: UnlearnConfig) -> int:
        """Of a shard's training."""
        return settings.receraser_epochs or int(config["epochs"])

    def shard_settings(self, task: UnlearnTask) -> tuple[UnlearnConfig, int]:
        """How a shard trains; there are no slices."""
        options: RecEraserSettings = task.settings
        return task.config.given(
            epochs=options.receraser_epochs, learning_rate=options.receraser_learning_rate
        ), 1

    def pretrain(self, task: UnlearnTask) -> Trained | None:
        """The plain original, unless nothing is to be read from its embeddings."""
        if task.settings.receraser_partition == "items":
            return None
        return task.original or task.train(task.config, task.data.full, "pretrained")

    def divide(
        self, task: UnlearnTask, pretrained: Trained | None, generator: torch.Generator
    ) -> parts.Partition:
        """InBP, UBP or the light co-partition."""
        options: RecEraserSettings = task.settings
        train, k = task.data.full.train, options.receraser_shards
        users, items = (train.inter_feat[field] for field in (train.uid_field, train.iid_field))
        if pretrained is None:
            return parts.item_blocks(users, items, train.user_num, train.item_num, k, generator)
        p, q = row_vectors(task, pretrained)
        if options.receraser_partition == "users":
            return parts.by_users(users, p, k, generator)
        return parts.by_interactions(users, items, p, q, k, generator)

    def ensemble(
        self, task: UnlearnTask, splits: Splits, models: list[Any], partition: parts.Partition
    ) -> Ensemble:
        """By the item's part, by attention, or the mean."""
        options: RecEraserSettings = task.settings
        if options.receraser_partition == "items":
            assert partition.items is not None, "blocks are of items"
            return ItemEnsemble(task.config, models, partition.items)
        if options.receraser_aggregation == "mean":
            return Ensemble(task.config, models)
        return AttentiveEnsemble(
            task.config, models, splits.train, options.receraser_attention_size, options.receraser_dropout
        )

    def fit_rule(
        self, task: UnlearnTask, ensemble: Ensemble, splits: Splits, partition: parts.Partition
    ) -> dict[str, Curve]:
        """Train the attention on all interactions of ``splits``."""
        if not isinstance(ensemble, AttentiveEnsemble):
            return {}
        options: RecEraserSettings = task.settings
        fit = Fit(
            options.receraser_attention_epochs, options.receraser_attention_rate,
            options.receraser_attention_batch, options.receraser_l2, int(task.config["stopping_step"]),
        )  # fmt: skip
        score = self.validation(task, ensemble, splits)
        generator = torch.Generator().manual_seed(task.config["seed"])
        with progress_bar(f"Attention {self.label}", fit.epochs, bool(task.config["show_progress"])) as bar:
            return {"loss": fit_attention(ensemble, fit, generator, score, bar)}
