"""Scores of pairs by any model."""

from __future__ import annotations

import torch
from recbole.data.dataset import Dataset
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.compat import clear_caches
from recbole_unlearn.rows.batches import pairs_batch

CHUNK = 2048  # pairs scored at once: some models score the whole catalogue for each


@torch.no_grad()
def pair_scores(
    model: AbstractRecommender, train: Dataset, users: torch.Tensor, items: torch.Tensor
) -> torch.Tensor:
    """Scores of pairs (m,), on the CPU."""
    model.eval()
    clear_caches(model)
    device = next(model.parameters()).device
    parts = [
        model.predict(pairs_batch(train, u, i).to(device)).reshape(-1).cpu()
        for u, i in zip(users.split(CHUNK), items.split(CHUNK), strict=True)
    ]
    return torch.cat(parts) if parts else torch.empty(0)
