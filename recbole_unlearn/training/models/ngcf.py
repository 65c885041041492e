"""NGCF with the sparse product of `graph.py`, unless edges are dropped: then each step has another matrix."""

from __future__ import annotations

import torch
from recbole.model.general_recommender import ngcf
from torch import nn
from torch.nn import functional

from recbole_unlearn.training.models import PairRemover, faster
from recbole_unlearn.training.models.graph import EdgeRemoval, SymmetricProduct, normalised_adjacency


@faster(ngcf.NGCF, filed_as="recbole_unlearn.models.ngcf.NGCF")
class NGCF(ngcf.NGCF):
    """RecBole's NGCF with the same weights, in less time."""

    def get_norm_adj_mat(self) -> torch.Tensor:
        """The normalised adjacency, built at once; in COO form where edges are to be dropped from it."""
        matrix = normalised_adjacency(self.interaction_matrix)
        return matrix.to_sparse_coo().coalesce() if self.node_dropout else matrix

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """User and item embeddings: all layers x_k side by side, x_k+1 from (x_k + Âx_k)W₁ + (Âx_k ⊙ x_k)W₂."""
        if self.node_dropout:
            return super().forward()
        layer = self.get_ego_embeddings()
        layers = [layer]
        # RecBole 1.2.0 makes a new module at every step, which drops in evaluation too: its numbers, so ours.
        dropout = getattr(self, "emb_dropout", None) or nn.Dropout(self.message_dropout)
        for step in self.GNNlayers:
            near = SymmetricProduct.apply(self.norm_adj_matrix, layer)
            layer = step.linear(layer + near) + step.interActTransform(near * layer)
            layer = dropout(functional.leaky_relu(layer, negative_slope=0.2))
            layer = functional.normalize(layer, p=2, dim=1)
            layers.append(layer)
        users, items = torch.split(torch.cat(layers, dim=1), [self.n_users, self.n_items])
        return users, items

    def pair_remover(self) -> PairRemover | None:
        """Takes pairs out of the graph; not where edges are dropped from it at every step."""
        if self.node_dropout:
            return None
        self.interaction_matrix = None  # read only to build the graph
        return EdgeRemoval(self.norm_adj_matrix, self.n_users).remove
