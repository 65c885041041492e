"""A model's own training loss, its gradients and Fisher information; scores of pairs, and losses of scores."""

import functools
import operator
from collections.abc import Iterable

import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender, AutoEncoderMixin
from recbole.model.general_recommender.recvae import RecVAE
from torch.nn.functional import softplus

from recbole_unlearn.recbole_compat import clear_caches

Moments = dict[str, torch.Tensor]  # by parameter name

CHUNK = 2048  # pairs scored at once: some models score the whole catalogue for each


def training_loss(model: AbstractRecommender, batch: Interaction) -> torch.Tensor:
    """The model's own training loss on one batch, as one number where RecBole returns it in parts.

    RecVAE trains encoder and decoder in turn with one loss; rows of both are fitted here, by the encoder's.
    """
    turn = {"encoder_flag": True} if isinstance(model, RecVAE) else {}
    loss = model.calculate_loss(batch.to(next(model.parameters()).device), **turn)
    return functools.reduce(operator.add, loss) if isinstance(loss, tuple) else loss


def loss_gradients(model: AbstractRecommender, batch: Interaction) -> tuple[float, Moments]:
    """The model's own training loss on one batch, and its gradients by parameter name."""
    loss = training_loss(model, batch)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
    return loss.item(), {name: g for (name, _), g in zip(named, gradients, strict=True) if g is not None}


def fisher(model: AbstractRecommender, batches: Iterable[Interaction]) -> Moments:
    """Diagonal Fisher information: the mean over batches of the squared gradient of the training loss."""
    totals: Moments = {}
    number = 0
    for batch in batches:
        number += 1
        for name, gradient in loss_gradients(model, batch)[1].items():
            square = gradient.square()
            totals[name] = totals[name] + square if name in totals else square
    return {name: total / max(1, number) for name, total in totals.items()}


def predicted(model: AbstractRecommender, train: Dataset, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    """Scores of pairs (m,) with their autograd graph; an autoencoder scores the catalogue once for each user."""
    device = next(model.parameters()).device
    if not isinstance(model, AutoEncoderMixin):
        pairs = train.join(Interaction({train.uid_field: users, train.iid_field: items}))  # with their features
        return model.predict(pairs.to(device)).reshape(-1)
    names, place = torch.unique(users, return_inverse=True)
    scores = model.full_sort_predict(Interaction({train.uid_field: names}).to(device)).view(len(names), -1)
    return scores[place.to(device), items.to(device)]


@torch.no_grad()
def pair_scores(model: AbstractRecommender, train: Dataset, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    """Scores of pairs (m,), on the CPU."""
    model.eval()
    clear_caches(model)
    chunks = zip(users.split(CHUNK), items.split(CHUNK), strict=True)
    parts = [predicted(model, train, u, i).cpu() for u, i in chunks]
    return torch.cat(parts) if parts else torch.empty(0)


def reverse_ranking_loss(deleted: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """−mean log σ(s(u, i⁻) − s(u, i⁺)) of scores (m,): deleted items below negatives, which is right for noise."""
    return softplus(deleted - negative).mean()
