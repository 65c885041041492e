r"""RecEraser: interactions that belong together share a shard, and attention combines the shards' models.

From the paper (*Recommendation unlearning*, Chen et al.): balanced partitions by pretrained embeddings, of
interactions (InBP) or of users (UBP, the default); a model for each shard; an attentive aggregation of their
embeddings; a request restarts the shards that held one of its interactions, and then fits the aggregation again. With
e_s the vector of a user (or item) in the model of shard s,

    e'_s = e_s W_s + b_s,    α_s = softmax_s(hᵀ ReLU(W e'_s + b)),    e = Σ_s α_s e'_s,    score = e_u · e_i

W_s and b_s align the shards' spaces and serve users and items; the attention (W, b, h) is separate for both. The
models are frozen; the rest is trained with BPR on all retained interactions. It works for models whose score is the
product of a user's and an item's vector (BPR, LightGCN, NGCF), which is checked, not assumed.

Filled in: the pretrained embeddings are the plain original's. The aggregation is trained to the best validation
epoch. The scores of other models can be averaged (`receraser_aggregation: mean`). As in SISA, shards stop on the
validation interactions of users and items they know, and start from stored initial weights.

Avoided: the authors' code averages a centroid to one number instead of one for each dimension, which ruins the
partition; and negatives that are rejected by a user's full history, which leaks across shards.

Not exact: the partition was made from embeddings that saw the deleted interactions, and stays as it was. The models
and the aggregation saw none of them.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender
from torch import nn
from torch.nn import functional
from tqdm import tqdm

from recbole_unlearn.data import Splits, loaders
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.log import progress_bar
from recbole_unlearn.methods import Curve, UnlearnTask, method
from recbole_unlearn.methods.sharded.base import Ensemble, ShardedTrainer, Vectors
from recbole_unlearn.methods.sharded.partition import by_interactions, by_users
from recbole_unlearn.rows import RetainedIndex, TrainIndex, find_vectors
from recbole_unlearn.settings import UnlearnConfig, setting

HIDDEN = 32  # width of the attention's hidden layer
DROPOUT = 0.1  # of the aligned embeddings e'_s
LEARNING_RATE, BATCH, L2 = 0.01, 2048, 1e-4  # of Adam: rate, interactions in a step, weight decay


@dataclasses.dataclass(frozen=True)
class RecEraserSettings:
    """Settings of RecEraser."""

    receraser_shards: int = setting("Shards, K.", low=1)
    receraser_partition: str = setting(
        "By interactions (InBP), or by users (UBP).", choices=("interactions", "users")
    )
    receraser_learning_rate: float | None = setting("Learning rate of a shard; the model's own when empty.", low=0.0)
    receraser_aggregation: str = setting(
        "Attention over embeddings, or the mean of scores.", choices=("attention", "mean")
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

    def divide(self, task: UnlearnTask, embeddings: Vectors | None, generator: torch.Generator) -> torch.Tensor:
        """InBP or UBP."""
        assert embeddings is not None
        train, k, (p, q) = task.data.full.train, task.settings.receraser_shards, embeddings
        users, items = (train.inter_feat[field] for field in (train.uid_field, train.iid_field))
        if task.settings.receraser_partition == "users":
            return by_users(users, p, k, generator)
        return by_interactions(users, items, p, q, k, generator)

    def ensemble(self, task: UnlearnTask, splits: Splits, models: list[Any]) -> Ensemble:
        """By attention, or the mean."""
        if task.settings.receraser_aggregation == "mean":
            return Ensemble(models)
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


class Attention(nn.Module):
    """α_s = softmax_s(hᵀ ReLU(W e'_s + b))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, HIDDEN), nn.Linear(HIDDEN, 1, bias=False)

    def forward(self, moved: torch.Tensor) -> torch.Tensor:
        """The vectors e (n, d) from e'_s (K, n, d)."""
        return (self.outer(functional.relu(self.inner(moved))).softmax(dim=0) * moved).sum(dim=0)


class AttentiveEnsemble(Ensemble):
    """Scores by aggregated vectors; see the formula above."""

    def __init__(self, config: UnlearnConfig, models: Sequence[AbstractRecommender], dataset: Dataset) -> None:
        super().__init__(models)
        self.dataset, device = dataset, config["device"]
        self.user_field, self.item_field = dataset.uid_field, dataset.iid_field
        pairs = [found for model in models if (found := find_vectors(model, dataset)) is not None]
        if len(pairs) < len(models):
            raise UnlearnError(
                "Attention needs scores that are products of a user's and an item's vector, and those of "
                f"{type(models[0]).__name__} are not. Use --receraser_aggregation=mean."
            )
        self.users, self.items = (torch.stack(side).to(device) for side in zip(*pairs, strict=True))
        number, _, width = self.users.shape
        self.turn = nn.Parameter(torch.eye(width, device=device).repeat(number, 1, 1))
        self.shift = nn.Parameter(torch.zeros(number, 1, width, device=device))
        self.of_user, self.of_item = Attention(width).to(device), Attention(width).to(device)
        self.dropout = nn.Dropout(DROPOUT)
        # RecBole's names for tables that are computed again when the weights have changed.
        self.restore_user_e: torch.Tensor | None = None
        self.restore_item_e: torch.Tensor | None = None
        self.other_parameter_name = ["restore_user_e", "restore_item_e"]

    def aggregate(self, vectors: torch.Tensor, attention: Attention) -> torch.Tensor:
        """The vectors e (n, d) from e_s (K, n, d)."""
        return attention(self.dropout(torch.baddbmm(self.shift, vectors, self.turn)))

    def pair_scores(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Scores of pairs (n,), with their graph."""
        p = self.aggregate(self.users[:, users], self.of_user)
        q = self.aggregate(self.items[:, items], self.of_item)
        return (p * q).sum(dim=1)

    @torch.no_grad()
    def _tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.restore_user_e is None or self.restore_item_e is None:
            self.restore_user_e = self.aggregate(self.users, self.of_user)
            self.restore_item_e = self.aggregate(self.items, self.of_item)
        return self.restore_user_e, self.restore_item_e

    def predict(self, interaction: Interaction) -> torch.Tensor:
        """Scores of pairs (n,)."""
        p, q = self._tables()
        return (p[interaction[self.user_field]] * q[interaction[self.item_field]]).sum(dim=1)

    def full_sort_predict(self, interaction: Interaction) -> torch.Tensor:
        """Scores of all items for each user (n · items,)."""
        p, q = self._tables()
        return (p[interaction[self.user_field]] @ q.T).reshape(-1)


def fit_attention(
    ensemble: AttentiveEnsemble, epochs: int, patience: int, generator: torch.Generator, score: Callable[[], float],
    bar: tqdm,
) -> list[tuple[int, float]]:  # fmt: skip
    """Train with BPR, keep the epoch of the best ``score``, stop ``patience`` epochs after it; (epoch, mean loss)."""
    index = TrainIndex(ensemble.dataset)
    all_pairs = RetainedIndex.whole(index)
    parameters = [ensemble.turn, ensemble.shift, *ensemble.of_user.parameters(), *ensemble.of_item.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, weight_decay=L2)
    device = ensemble.turn.device
    ensemble.eval()
    best, kept, since, losses = score(), [p.detach().clone() for p in parameters], 0, []
    for epoch in range(epochs):
        ensemble.dropout.train()
        total = 0.0
        for chosen in torch.randperm(len(index), generator=generator).split(BATCH):
            users, items = (index.ids[side][chosen] for side in ("user", "item"))
            negatives = all_pairs.negatives(users, generator)
            twice = torch.cat([users, users]).to(device)
            own, other = ensemble.pair_scores(twice, torch.cat([items, negatives]).to(device)).chunk(2)
            loss = -functional.logsigmoid(own - other).mean()
            if not torch.isfinite(loss):
                raise UnlearnError(
                    "The aggregation failed: its loss is not finite. Lower receraser_learning_rate, with which the "
                    "shards are trained, or use --receraser_aggregation=mean."
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(chosen)
        losses.append((epoch + 1, round(total / len(index), 6)))
        bar.update()
        ensemble.eval()
        ensemble.restore_user_e = ensemble.restore_item_e = None
        now = score()
        if now > best:
            best, kept, since = now, [p.detach().clone() for p in parameters], 0
        else:
            since += 1
            if since >= patience:
                break
    with torch.no_grad():
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.copy_(value)
    ensemble.restore_user_e = ensemble.restore_item_e = None
    return losses
