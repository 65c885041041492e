r"""SISA: users are divided at random, each shard trains a model, scores are averaged; a request restarts its shards.

From the paper (*Machine unlearning*, Bourtoule et al.; for recommenders as in the appendix of Obliviate's): shards
that are trained apart (*sharded*, *isolated*), and scores averaged with equal weights (*aggregated*). A deleted
interaction restarts its shard from its initial weights. Slices within a shard (*sliced*) are left out: with the one
slice of Obliviate's experiments there are none.

Filled in, for recommenders: the unit is the user, whose interactions stay together, in shards of equal numbers of
users. A user has a trained row in one shard's model only; in the others the row has its initial value (for graph
models, no edges), and their scores weigh as much in the mean. Each shard has a seed of its own and stops on
validation interactions of the users and items it knows.

Avoided: restarting from weights that were trained on the deleted interactions (the paper of Obliviate speaks of the
*saved model*, which may be read so); negatives or early stopping that depend on other shards' interactions.

Exact for the ensemble: its models saw no deleted interaction. A user's shard depends on chance alone.
"""

import dataclasses

import torch

from recbole_unlearn.methods import UnlearnTask, method
from recbole_unlearn.methods.sharded.base import ShardedTrainer, Vectors
from recbole_unlearn.methods.sharded.partition import random_users
from recbole_unlearn.settings import setting


@dataclasses.dataclass(frozen=True)
class SISASettings:
    """Settings of SISA."""

    sisa_shards: int = setting("Shards, K.", low=1)
    sisa_learning_rate: float | None = setting("Learning rate of a shard; the model's own when empty.", low=0.0)


@method(
    "sisa",
    "Models of random parts of the users, averaged; a request restarts its parts.",
    SISASettings,
    models="differentiable; trains its own ensemble",
    result="exact for its ensemble",
)
class SISA(ShardedTrainer):
    """s(u, i) = 1/K Σ_k s_k(u, i), with model k trained on the interactions of its users."""

    def pretrain(self, task: UnlearnTask) -> None:
        """None: users are divided at random."""

    def divide(self, task: UnlearnTask, embeddings: Vectors | None, generator: torch.Generator) -> torch.Tensor:
        """Users at random."""
        train = task.data.full.train
        return random_users(train.inter_feat[train.uid_field], task.settings.sisa_shards, generator)
