r"""The item-side probe: whether the vectors of items still tell what a user deleted.

The row of a user who keeps no interaction starts again in every model, so no figure at that row tells a method from
one that does nothing. The vectors of the items q_i were trained next to the deleted row, and stay. For each user
a new row p is fitted to one half F of the deleted items, by ridge regression,

    p = argmin Σ_F (1 − q_i · p)² + λ |p|² = (Σ_F q_i q_iᵀ + λ I)⁻¹ Σ_F q_i,      λ = PENALTY · mean of q²,

and ranks the other half H among items that the user never touched, N:

    AUC = share of (i, j) in H × N with q_i · p > q_j · p, ties counted half.

A model that never saw these items together has an AUC above .5 too, because other users like them together. So it is
compared with the retrained model's. A graph model's vectors are those of its forward pass over the retained graph.
"""

import dataclasses

import torch
from recbole.data.dataset import Dataset
from recbole.model.abstract_recommender import AbstractRecommender, SequentialRecommender

from recbole_unlearn.data import UnlearnData
from recbole_unlearn.measures.scores import never_touched
from recbole_unlearn.rows import find_vectors

PENALTY = 10.0  # this told a model that did nothing best from a retrained one (docs/results.md)
LEAST_ITEMS = 10  # deleted items of a user who is probed
USERS = 500
UNTOUCHED = 500  # items, for each user


@dataclasses.dataclass(frozen=True)
class Probes:
    """The users who are probed: two halves of their deleted items, and items that they never touched (k, n)."""

    fitted: list[torch.Tensor]
    ranked: list[torch.Tensor]
    untouched: torch.Tensor

    @classmethod
    def of(cls, data: UnlearnData, seed: int) -> "Probes":
        """A sample of users with enough deleted items."""
        generator = torch.Generator().manual_seed(seed)
        users, counts = torch.unique_consecutive(data.forget_pairs[0], return_counts=True)
        items = data.forget_pairs[1].split(counts.tolist())
        enough = (counts >= LEAST_ITEMS).nonzero().flatten()
        chosen = enough[torch.randperm(len(enough), generator=generator)[:USERS].sort().values]
        drawn, usable = never_touched(users[chosen], data.full, UNTOUCHED, seed)
        own = [items[place] for place in chosen[usable].tolist()]
        halves = [one[torch.randperm(len(one), generator=generator)].tensor_split(2) for one in own]
        return cls([fit for fit, _ in halves], [rank for _, rank in halves], drawn[usable])


def probed_users(data: UnlearnData) -> int:
    """How many users are probed."""
    counts = torch.unique_consecutive(data.forget_pairs[0], return_counts=True)[1]
    return min(USERS, int((counts >= LEAST_ITEMS).sum()))


@torch.no_grad()
def probe(model: AbstractRecommender, dataset: Dataset, probes: Probes) -> torch.Tensor | None:
    """The AUC of each user (k,); None without users, or without item vectors whose products are scores."""
    if not probes.fitted or isinstance(model, SequentialRecommender):
        return None
    vectors = find_vectors(model, dataset)
    if vectors is None:
        return None
    items = vectors[1].cpu().double()
    penalty = PENALTY * items[1:].square().mean() * torch.eye(items.shape[1], dtype=items.dtype)
    found = []
    for fitted, ranked, untouched in zip(probes.fitted, probes.ranked, probes.untouched, strict=True):
        own = items[fitted]
        row = torch.linalg.solve(own.T @ own + penalty, own.sum(dim=0))
        above = (items[ranked] @ row)[:, None] - items[untouched] @ row
        found.append(((above > 0).double() + (above == 0).double() / 2).mean())
    return torch.stack(found)
