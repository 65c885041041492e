r"""RecEraser's attentive aggregation: one vector for each user and item, from those of the shards' models.

With e_s the vector of a user (or item) in the model of shard s,

    e'_s = e_s W_s + b_s,    α_s = softmax_s(hᵀ ReLU(W e'_s + b)),    e = Σ_s α_s e'_s,    score = e_u · e_i

W_s and b_s align the shards' spaces and serve users and items; the attention (W, b, h) is separate for both. The
models are frozen; the rest is trained with BPR on all retained interactions. It works for models whose score is the
product of a user's and an item's vector (BPR, LightGCN, NGCF), which is checked, not assumed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender
from torch import nn
from torch.nn import functional
from tqdm import tqdm

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Trained
from recbole_unlearn.methods import UnlearnTask
from recbole_unlearn.methods.sharded.base import Ensemble
from recbole_unlearn.rows import RetainedIndex, TrainIndex, as_rows, find_tables, pairs_batch
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import build_model

CHECKED = 64  # pairs by which vectors are checked
HIDDEN = 32  # width of the attention's hidden layer
DROPOUT = 0.1  # of the aligned embeddings e'_s
LEARNING_RATE, BATCH, L2 = 0.01, 2048, 1e-4  # of Adam: rate, interactions in a step, weight decay


@torch.no_grad()
def vectors(model: AbstractRecommender, dataset: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors of all users (n, d) and all items (m, d) whose products are the model's scores."""
    model.eval()
    generator = torch.Generator().manual_seed(0)
    users = torch.randint(1, dataset.user_num, (CHECKED,), generator=generator)
    items = torch.randint(1, dataset.item_num, (CHECKED,), generator=generator)
    device = next(model.parameters()).device
    scores = model.predict(pairs_batch(dataset, users, items).to(device)).reshape(-1)
    found = None if inspect.signature(model.forward).parameters else model.forward()  # of a graph model: all vectors
    if not isinstance(found, tuple) or [len(part) for part in found] != [dataset.user_num, dataset.item_num]:
        sides = _rows_by_side(model, dataset).values()
        found = [rows[0] for rows in sides] if all(len(rows) == 1 for rows in sides) else None  # the only tables
    if found is not None and found[0].shape[1:] == found[1].shape[1:]:
        p, q = (part.detach() for part in found)
        if torch.allclose((p[users] * q[items]).sum(dim=1), scores, rtol=1e-4, atol=1e-5):
            return p, q
    raise UnlearnError(
        f"Attention needs scores that are products of a user's and an item's vector, and those of "
        f"{type(model).__name__} are not. Use --receraser_aggregation=mean."
    )


def _rows_by_side(model: AbstractRecommender, dataset: Dataset) -> dict[str, list[torch.Tensor]]:
    """All tables of users (n, d) and of items (m, d), by side."""
    named = dict(model.named_parameters())
    sizes = {"user": dataset.user_num, "item": dataset.item_num}
    sides: dict[str, list[torch.Tensor]] = {"user": [], "item": []}
    for table in find_tables(model, dataset):
        rows = as_rows(named[table.parameter], table.axis)
        sides[table.side].append(rows[table.offset : table.offset + sizes[table.side]])
    return sides


def row_vectors(task: UnlearnTask, pretrained: Trained) -> tuple[torch.Tensor, torch.Tensor]:
    """The vectors of users (n, d) and items (m, d) in a pretrained model, or its tables side by side."""
    data = task.data.full
    model = build_model(task.config, data)
    pretrained.load_into(model)
    try:
        p, q = vectors(model, data.train)
    except UnlearnError:
        sides = _rows_by_side(model, data.train)
        if not all(sides.values()):
            raise UnlearnError(
                f"{task.config['model']} has no embeddings of {'users' if not sides['user'] else 'items'} to "
                "divide the interactions by. Use --unlearn=sisa."
            ) from None
        p, q = (torch.cat(rows, dim=1) for rows in sides.values())
    return p.cpu(), q.cpu()


class Attention(nn.Module):
    """α_s = softmax_s(hᵀ ReLU(W e'_s + b))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, HIDDEN), nn.Linear(HIDDEN, 1, bias=False)

    def forward(self, moved: torch.Tensor) -> torch.Tensor:
        """The vectors e (n, d) from e'_s (K, n, d)."""
        weights = self.outer(functional.relu(self.inner(moved))).softmax(dim=0)
        return (weights * moved).sum(dim=0)


class AttentiveEnsemble(Ensemble):
    """Scores by aggregated vectors; see the formula above."""

    def __init__(self, config: UnlearnConfig, models: Sequence[AbstractRecommender], dataset: Dataset) -> None:
        super().__init__(config, models)
        self.dataset, device = dataset, config["device"]
        pairs = [vectors(model, dataset) for model in models]
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
    """Train with BPR on the ensemble's dataset, and keep the epoch with the best ``score`` (higher is better).

    Stops after ``patience`` epochs without a gain. Returns (epoch, mean loss) of all epochs.
    """
    index = TrainIndex(ensemble.dataset)
    all_pairs = RetainedIndex.whole(index)
    attentions = [*ensemble.of_user.parameters(), *ensemble.of_item.parameters()]
    parameters = [ensemble.turn, ensemble.shift, *attentions]
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
