"""The sparse product that graph models share: a CSR graph and a backward pass that uses its symmetry.

RecBole builds the normalised adjacency entry by entry and multiplies it in COO form, whose backward pass
transposes it at every step. The matrix Â = D^-½ A D^-½ is symmetric, so the gradient of Âx is Âg: one CSR
product forwards and one backwards.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch


class SymmetricProduct(torch.autograd.Function):
    """``matrix @ x`` for a constant symmetric sparse matrix; d(Âx)ᵀg/dx = Âᵀg = Âg."""

    @staticmethod
    def forward(ctx: Any, matrix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """(n, n) sparse times (n, d) dense."""
        ctx.matrix = matrix
        return matrix @ x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        """The same product, with the gradient."""
        return None, ctx.matrix @ gradient


def normalised_adjacency(interactions: sp.coo_matrix, epsilon: float = 1e-7) -> torch.Tensor:
    """Â = D^-½ A D^-½ over users and items as a CSR tensor (n_users + n_items, the same).

    A pair counts once however often it occurs, and degrees get RecBole's ``epsilon``, in its precision.
    """
    users, items = interactions.shape
    block = sp.csr_matrix((np.ones(interactions.nnz), (interactions.row, interactions.col)), (users, items))
    block.sum_duplicates()
    block.data[:] = 1.0
    adjacency = sp.bmat([[None, block], [block.T, None]], format="csr")
    adjacency.sort_indices()
    scale = np.power(np.diff(adjacency.indptr) + epsilon, -0.5)
    rows = np.repeat(np.arange(users + items), np.diff(adjacency.indptr))
    values = scale[rows] * scale[adjacency.indices]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(adjacency.indptr.astype(np.int64)),
            torch.from_numpy(adjacency.indices.astype(np.int64)),
            torch.from_numpy(values.astype(np.float32)),
            size=adjacency.shape,
            check_invariants=True,
        )
