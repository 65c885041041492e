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

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from recbole.model.abstract_recommender import AbstractRecommender
from sklearn.linear_model import LogisticRegression

from recbole_unlearn.data import Splits
from recbole_unlearn.methods import Curve, UnlearnTask, method
from recbole_unlearn.methods.sharded.base import Ensemble, ShardedTrainer, Vectors
from recbole_unlearn.methods.sharded.partition import Partition, by_users, transport
from recbole_unlearn.rows import RetainedIndex, TrainIndex, pair_scores
from recbole_unlearn.settings import UnlearnConfig, setting

FITTED = 20_000  # interactions of each cluster that its regression is fitted to, at most


@dataclasses.dataclass(frozen=True)
class UltraRESettings:
    """Settings of UltraRE."""

    ultrare_shards: int = setting("Clusters of users, K.", low=1)
    ultrare_learning_rate: float | None = setting("Learning rate of a cluster; the model's own when empty.", low=0.0)


@method(
    "ultrare",
    "Models of clusters from optimal transport, combined by regression; a request restarts its parts.",
    UltraRESettings,
    models="differentiable, with rows of users and items; trains its own ensemble",
)
class UltraRE(ShardedTrainer):
    """s(u, i) = Σ_k w[g(u), k] s_k(u, i), with model k trained on the interactions of cluster k."""

    def divide(self, task: UnlearnTask, embeddings: Vectors | None, generator: torch.Generator) -> Partition:
        """Clusters of users."""
        assert embeddings is not None
        users = task.data.full.train.inter_feat[task.data.full.train.uid_field]
        return by_users(users, embeddings[0], task.settings.ultrare_shards, generator, transport)

    def ensemble(self, task: UnlearnTask, splits: Splits, models: list[Any]) -> Ensemble:
        """Weights by cluster."""
        assert self.shards.partition.users is not None, "clusters are of users"
        return WeightedEnsemble(task.config, models, self.shards.partition.users)

    def fit_rule(self, task: UnlearnTask, ensemble: Ensemble, splits: Splits) -> dict[str, Curve]:
        """A regression for each cluster that has interactions."""
        assert isinstance(ensemble, WeightedEnsemble)
        index = TrainIndex(splits.train)
        all_pairs = RetainedIndex.whole(index)
        generator = torch.Generator().manual_seed(task.config["seed"])
        clusters = ensemble.user_shards.cpu()[index.ids["user"]]
        for cluster in range(len(ensemble.models)):
            own = (clusters == cluster).nonzero().flatten()
            own = own[torch.randperm(len(own), generator=generator)[:FITTED]]
            if len(own) == 0:
                continue
            users, items = (index.ids[side][own] for side in ("user", "item"))
            negatives = all_pairs.negatives(users, generator)
            better = [
                pair_scores(model, splits.train, users, items) - pair_scores(model, splits.train, users, negatives)
                for model in ensemble.models
            ]
            ensemble.weights[cluster] = ranking_weights(torch.stack(better, dim=1)).to(ensemble.weights)
        return {}


class WeightedEnsemble(Ensemble):
    """The models' scores with weights that depend on the user's cluster: s(u, i) = Σ_k w[g(u), k] s_k(u, i)."""

    def __init__(self, config: UnlearnConfig, models: Sequence[AbstractRecommender], shards: torch.Tensor) -> None:
        """``shards`` (users,): g(u), or -1. All weights are 1/K at first; those of users with -1 stay so."""
        super().__init__(config, models)
        number, device = len(models), config["device"]
        self.register_buffer("user_shards", shards.to(device), persistent=False)
        self.register_buffer("weights", torch.full((number + 1, number), 1.0 / number, device=device))

    def combine(self, scores: torch.Tensor, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """The weighted sum; index -1 takes the last row of the weights, which stays uniform."""
        return torch.einsum("knm,nk->nm", scores, self.weights[self.user_shards[users]])


def ranking_weights(better: torch.Tensor) -> torch.Tensor:
    """The w (K,) that maximises Σ log σ(w · x) - ½ |w|² over n vectors x (K,) of score differences."""
    both = torch.cat([better, -better]).double().cpu().numpy()
    labels = [1] * len(better) + [0] * len(better)
    # Each comparison is there twice, once with each sign, so that both classes occur: C is halved for it.
    found = LogisticRegression(C=0.5, fit_intercept=False, max_iter=1000).fit(both, labels)
    return torch.from_numpy(found.coef_[0])
