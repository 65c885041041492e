"""How alike the ranked lists of two models are, user by user."""

from __future__ import annotations

import torch

from recbole_unlearn.measures.base import View, measure, rounded
from recbole_unlearn.results.schema import Figure

_USERS = {"all": ", all users", "affected": ", affected users", "unaffected": ", unaffected users"}


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


def _by_group(view: View, values: torch.Tensor) -> dict[str, float]:
    """Means over all, affected and unaffected users."""
    affected = view.questions.affected
    who = {"all": torch.ones_like(affected), "affected": affected, "unaffected": ~affected}
    return {group: rounded(values[mask].mean()) for group, mask in who.items() if mask.any()}


@measure(
    "overlap",
    title="Top-{k} overlap",
    meaning="share of the first K items that the retrained model's list has too",
    good="that of two retrained models; 1 is equal",
    parts=_USERS,
    is_distance=True,
    place=8,
)
def _overlap(view: View) -> dict[str, Figure]:
    if view.retrained is None:
        return {}
    return {"overlap@20": _by_group(view, top_k_overlap(view.seen.top, view.retrained.top, 20))}


@measure(
    "rbo",
    title="Rank-biased overlap",
    meaning="the same over the first 50 items (p = .9), where the first ranks weigh most",
    good="that of two retrained models; 1 is equal",
    parts=_USERS,
    is_distance=True,
    place=9,
)
def _rbo(view: View) -> dict[str, Figure]:
    if view.retrained is None:
        return {}
    return {"rbo": _by_group(view, rank_biased_overlap(view.seen.top, view.retrained.top))}
