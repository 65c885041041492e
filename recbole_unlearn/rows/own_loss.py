"""A model's own training loss on a batch: its value, its gradients, and their squares (Fisher information)."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.model.general_recommender.recvae import RecVAE

Moments = dict[str, torch.Tensor]  # by parameter name


def training_loss(model: AbstractRecommender, batch: Interaction) -> torch.Tensor:
    """The model's own training loss on one batch; RecBole gives some losses in parts.

    RecVAE trains its encoder and its decoder in turn, with one loss for both and dropout for the encoder alone. Rows
    of both are fitted here, so its loss is the encoder's.
    """
    turn = {"encoder_flag": True} if isinstance(model, RecVAE) else {}
    loss = model.calculate_loss(batch.to(next(model.parameters()).device), **turn)
    return functools.reduce(operator.add, loss) if isinstance(loss, tuple) else loss


def looked_up(model: AbstractRecommender, train: Dataset) -> dict[str, Any]:
    """What the loss of ``model`` looks up in its training data, if that were ``train``, by attribute.

    FEARec compares a window with others that have the same target.
    """
    if not hasattr(model, "same_item_index"):
        return {}
    return {"dataset": train, "same_item_index": model.get_same_item_index(train)}


@contextlib.contextmanager
def lent(model: AbstractRecommender, values: Mapping[str, Any]) -> Iterator[None]:
    """Let ``model`` have other values of some attributes for a while."""
    own = {name: getattr(model, name) for name in values}
    vars(model).update(values)
    try:
        yield
    finally:
        vars(model).update(own)


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
