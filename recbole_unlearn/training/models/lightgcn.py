"""LightGCN with the sparse product of `graph.py`: the same weights, in less time."""

from __future__ import annotations

import torch
from recbole.model.general_recommender.lightgcn import LightGCN as RecBoleLightGCN

from recbole_unlearn.training.models import PairRemover, faster
from recbole_unlearn.training.models.graph import EdgeRemoval, SymmetricProduct, normalised_adjacency


@faster(RecBoleLightGCN, filed_as="recbole_unlearn.models.lightgcn.LightGCN")
class LightGCN(RecBoleLightGCN):
    """RecBole's LightGCN with the same weights, in less time (see benchmarks/lightgcn_step.py)."""

    def get_norm_adj_mat(self) -> torch.Tensor:
        """The normalised adjacency, built at once."""
        return normalised_adjacency(self.interaction_matrix)

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """User and item embeddings: the mean over the layers x, Âx, Â²x, ..."""
        layer = total = self.get_ego_embeddings()
        for _ in range(self.n_layers):
            layer = SymmetricProduct.apply(self.norm_adj_matrix, layer)
            total = total + layer
        users, items = torch.split(total / (self.n_layers + 1), [self.n_users, self.n_items])
        return users, items

    def pair_remover(self) -> PairRemover:
        """Takes pairs out of the graph."""
        self.interaction_matrix = None  # read only to build the graph
        return EdgeRemoval(self.norm_adj_matrix, self.n_users).remove
