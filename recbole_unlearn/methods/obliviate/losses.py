"""The losses of LAC, each a function of scores.

Scores are one number per pair (m,); the result is a scalar. A *deleted* score is s(u, i⁺) of a pair in S.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn.functional import softplus


def ranking(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """−mean log σ(s⁺ − s⁻): retained items above their negatives."""
    return softplus(negative - positive).mean()


def reverse_ranking(deleted: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """−mean log σ(s(u, i⁻) − s(u, i⁺)): deleted items below their negatives (the paper's unlearning loss).

    Right for noise. A genuine interaction belongs where a model that never saw it would put it: see `stand_in`.
    """
    return softplus(deleted - negative).mean()


def stand_in(deleted: torch.Tensor, substitute: torch.Tensor) -> torch.Tensor:
    """The mean of (s(u, i⁺) − s(u, stand-in))²: a deleted item goes where an unseen one of the same expected rank is.

    No gradient reaches the stand-in: it is the level, not what is moved.
    """
    return (deleted - substitute.detach()).square().mean()


def distillation(score: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """The mean of (s(u, i; θ) − s(u, i; θ₀))²: retained pairs keep their scores."""
    return (score - teacher.detach()).square().mean()


def drift(changes: Iterable[torch.Tensor]) -> torch.Tensor:
    """‖Δθ‖²_F over all adapters' changes."""
    return sum((change.square().sum() for change in changes), torch.zeros(()))


def hardest(scores: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """Of each pair's candidate items (m, k) the one with the highest score (m, k): a hard negative."""
    return candidates.gather(1, scores.argmax(dim=1, keepdim=True)).squeeze(1)
