"""Scores of pairs by any model."""

from __future__ import annotations

import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender, AutoEncoderMixin

from recbole_unlearn.compat import clear_caches
from recbole_unlearn.rows.batches import pairs_batch

CHUNK = 2048  # pairs scored at once: some models score the whole catalogue for each


def predicted(
    model: AbstractRecommender, train: Dataset, users: torch.Tensor, items: torch.Tensor
) -> torch.Tensor:
    """Scores of pairs (m,), with their graph, by the model as it is.

    An autoencoder scores the whole catalogue for a user, and its `predict` does so again for every pair of theirs;
    here it does so once for each user.
    """
    device = next(model.parameters()).device
    if not isinstance(model, AutoEncoderMixin):
        return model.predict(pairs_batch(train, users, items).to(device)).reshape(-1)
    names, place = torch.unique(users, return_inverse=True)
    scores = model.full_sort_predict(Interaction({train.uid_field: names}).to(device)).view(len(names), -1)
    return scores[place.to(device), items.to(device)]


@torch.no_grad()
def pair_scores(
    model: AbstractRecommender, train: Dataset, users: torch.Tensor, items: torch.Tensor
) -> torch.Tensor:
    """Scores of pairs (m,), on the CPU."""
    model.eval()
    clear_caches(model)
    parts = [
        predicted(model, train, u, i).cpu()
        for u, i in zip(users.split(CHUNK), items.split(CHUNK), strict=True)
    ]
    return torch.cat(parts) if parts else torch.empty(0)
