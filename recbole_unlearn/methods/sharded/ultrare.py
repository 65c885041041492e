r"""UltraRE: RecEraser with clusters from optimal transport and a simple combination.

From the paper (*UltraRE: Enhancing RecEraser for recommendation unlearning via error decomposition*): users are
clustered by their embeddings so that clusters are balanced *and* near, as an optimal transport of mass 1/n from
every user to 1/K at every centroid; models are trained on the clusters until they converge; and the attention is
replaced by a simple estimator.

Filled in: the embeddings are the plain original's, the transport is exact (earth mover's distance, by POT), and the
combination is a logistic regression of rankings on the models' scores,

    P(i before j | u) = σ(Σ_k w[g(u), k] (s_k(u, i) - s_k(u, j)))

one for each cluster g(u) of users, fitted in a second on retained interactions with uniform negatives. It needs
scores only, so it works for every model. A user's own cluster has the one model that knows them, and the regression
finds that out.

Avoided: as in RecEraser. Not exact, for the same reason: the clusters were made from embeddings that saw S.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression

from recbole_unlearn.data import Splits
from recbole_unlearn.files import Trained
from recbole_unlearn.methods import Curve, UnlearnTask, method
from recbole_unlearn.methods.sharded.attention import row_vectors
from recbole_unlearn.methods.sharded.base import ShardedTrainer
from recbole_unlearn.methods.sharded.ensemble import Ensemble, WeightedEnsemble
from recbole_unlearn.methods.sharded.partition import Partition, by_transport
from recbole_unlearn.rows import RetainedIndex, TrainIndex, pair_scores
from recbole_unlearn.settings import UnlearnConfig, setting


@dataclasses.dataclass(frozen=True)
class UltraRESettings:
    """Settings of UltraRE."""

    ultrare_shards: int = setting("Clusters of users, K.", low=1)
    ultrare_epochs: int | None = setting("Epochs of a cluster's training; the model's own when empty.", low=1)
    ultrare_learning_rate: float | None = setting(
        "Learning rate of a cluster's training; the model's own when empty.", low=0.0
    )
    ultrare_combination: str = setting(
        "Logistic regression on the models' scores, or their mean.", choices=("logistic", "mean")
    )
    ultrare_rows: int = setting("logistic: interactions of each cluster it is fitted to, at most.", low=1)


@method(
    "ultrare",
    "Models of clusters from optimal transport, combined by regression; a request restarts its parts.",
    UltraRESettings,
    models="differentiable, with rows of users and items; trains its own ensemble",
)
class UltraRE(ShardedTrainer):
    """s(u, i) = Σ_k w[g(u), k] s_k(u, i), with model k trained on the interactions of cluster k."""

    @classmethod
    def epochs(cls, settings: UltraRESettings, config: UnlearnConfig) -> int:
        """Of a shard's training."""
        return settings.ultrare_epochs or int(config["epochs"])

    def shard_settings(self, task: UnlearnTask) -> tuple[UnlearnConfig, int]:
        """How a cluster trains; there are no slices."""
        options: UltraRESettings = task.settings
        config = task.config.given(epochs=options.ultrare_epochs, learning_rate=options.ultrare_learning_rate)
        return config, 1

    def pretrain(self, task: UnlearnTask) -> Trained:
        """The plain original."""
        return task.original or task.train(task.config, task.data.full, "pretrained")

    def divide(self, task: UnlearnTask, pretrained: Trained | None, generator: torch.Generator) -> Partition:
        """Clusters of users."""
        train = task.data.full.train
        assert pretrained is not None
        p, _ = row_vectors(task, pretrained)
        return by_transport(train.inter_feat[train.uid_field], p, task.settings.ultrare_shards, generator)

    def ensemble(
        self, task: UnlearnTask, splits: Splits, models: list[Any], partition: Partition
    ) -> Ensemble:
        """Weights by cluster, or the mean."""
        if task.settings.ultrare_combination == "mean":
            return Ensemble(task.config, models)
        assert partition.users is not None, "clusters are of users"
        return WeightedEnsemble(task.config, models, partition.users)

    def fit_rule(
        self, task: UnlearnTask, ensemble: Ensemble, splits: Splits, partition: Partition
    ) -> dict[str, Curve]:
        """A regression for each cluster that has interactions."""
        if not isinstance(ensemble, WeightedEnsemble):
            return {}
        index = TrainIndex(splits.train)
        nothing = torch.empty(0, dtype=torch.long)
        all_pairs = RetainedIndex(index, nothing, nothing, torch.zeros(len(index), dtype=torch.bool))
        generator = torch.Generator().manual_seed(task.config["seed"])
        for cluster in range(len(ensemble.models)):
            own = (partition.interactions == cluster).nonzero().flatten()
            own = own[torch.randperm(len(own), generator=generator)[: task.settings.ultrare_rows]]
            if len(own) == 0:
                continue
            users, items = (index.ids[side][own] for side in ("user", "item"))
            negatives = all_pairs.negatives(users, generator)
            better = torch.stack(
                [
                    pair_scores(model, splits.train, users, items)
                    - pair_scores(model, splits.train, users, negatives)
                    for model in ensemble.models
                ],
                dim=1,
            )
            ensemble.weights[cluster] = ranking_weights(better).to(ensemble.weights)
        return {}


def ranking_weights(better: torch.Tensor) -> torch.Tensor:
    """The w (K,) that maximises Σ log σ(w · x) - ½ |w|² over n vectors x (K,) of score differences."""
    both = torch.cat([better, -better]).double().cpu().numpy()
    labels = [1] * len(better) + [0] * len(better)
    # Each comparison is there twice, once with each sign, so that both classes occur: C is halved for it.
    found = LogisticRegression(C=0.5, fit_intercept=False, max_iter=1000).fit(both, labels)
    return torch.from_numpy(found.coef_[0])
