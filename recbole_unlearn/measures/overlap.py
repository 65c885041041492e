"""How alike the ranked lists of two models are, user by user."""

from __future__ import annotations

import torch


def matches(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """|A_d ∩ B_d| for the first d = 1 .. K items of two lists without repeats (n, K), shape (n, K)."""
    same = a[:, :, None] == b[:, None, :]
    depth = a.shape[1]
    # Items at places i of A and j of B meet at depth max(i, j).
    place = torch.maximum(*torch.meshgrid(torch.arange(depth), torch.arange(depth), indexing="ij")).flatten()
    found = torch.zeros(len(a), depth)
    found.index_add_(1, place, same.flatten(1).float())
    return found.cumsum(dim=1)


def top_k_overlap(a: torch.Tensor, b: torch.Tensor, k: int) -> torch.Tensor:
    """|A_K ∩ B_K| / K of each user (n,)."""
    k = min(k, a.shape[1])
    return matches(a[:, :k], b[:, :k])[:, -1] / k


def rank_biased_overlap(a: torch.Tensor, b: torch.Tensor, p: float = 0.9) -> torch.Tensor:
    """RBO = (1−p)/(1−p^K) Σ_d p^(d−1) |A_d ∩ B_d| / d over the first K items (n,).

    1 for the same list, 0 for none in common. The first ranks weigh most; normalised for lists that end at K.
    """
    depth = a.shape[1]
    d = torch.arange(1, depth + 1, dtype=torch.float32)
    weights = p ** (d - 1)
    return (matches(a, b) / d * weights).sum(dim=1) / weights.sum()
