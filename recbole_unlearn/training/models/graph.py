"""The sparse product that graph models share: a CSR graph and a backward pass that uses its symmetry.

RecBole builds the normalised adjacency entry by entry and multiplies it in COO form, whose backward pass
transposes it at every step. The matrix Â = D^-½ A D^-½ is symmetric, so the gradient of Âx is Âg: one CSR
product forwards and one backwards.

A graph can lose edges in place (:class:`EdgeRemoval`), so that a small request does not build it again.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

EPSILON = 1e-7  # RecBole adds it to degrees


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


def normalised_adjacency(interactions: sp.coo_matrix, epsilon: float = EPSILON) -> torch.Tensor:
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


def some_rows(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """``rows`` (m,) of a CSR tensor (n, n), copied, as one of (m, n); a product with it has the same bits."""
    start = matrix.crow_indices()
    count = start[rows + 1] - start[rows]
    ends = torch.cat([count.new_zeros(1), count.cumsum(0)])
    places = torch.repeat_interleave(start[rows] - ends[:-1], count)
    places += torch.arange(len(places), device=places.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            ends, matrix.col_indices()[places], matrix.values()[places], (len(rows), matrix.shape[1])
        )


class EdgeRemoval:
    """Takes edges out of a normalised adjacency Â, in place: entries of the nodes they join are written, no others.

    A removed edge becomes a stored zero, which adds nothing to a product: Âx is bit for bit that of a graph that was
    built without the edge.
    """

    def __init__(self, matrix: torch.Tensor, users: int) -> None:
        """``matrix`` (n, n) has users first, then items."""
        self._values = matrix.values()  # shares its memory with the matrix; all else is kept on the CPU
        self._columns, self._start = matrix.col_indices().cpu(), matrix.crow_indices().cpu()
        self._users, self._size = users, matrix.shape[0]
        count = self._start[1:] - self._start[:-1]
        rows = torch.repeat_interleave(torch.arange(self._size), count)
        self._keys = rows * self._size + self._columns  # sorted, since columns are sorted within a row
        self._there = torch.ones(len(self._keys), dtype=torch.bool)
        self._degree = count.clone()

    def remove(self, users: torch.Tensor, items: torch.Tensor) -> None:
        """Take the edges between ``users`` and ``items`` (m,) out; each has to be there, and is named once."""
        first, second = users, items + self._users
        for one, other in ((first, second), (second, first)):
            place = torch.searchsorted(self._keys, one * self._size + other)
            self._there[place] = False
            self._write(place, torch.zeros(len(place)))
        both = torch.cat([first, second])
        self._degree.index_add_(0, both, torch.full_like(both, -1))
        self._scale(torch.unique(both))

    def _scale(self, nodes: torch.Tensor) -> None:
        """Write the entries in the rows and columns of ``nodes`` again: 1 / √((d_a + ε)(d_b + ε)), as it is built."""
        count = self._start[nodes + 1] - self._start[nodes]
        ends = count.cumsum(0)
        places = torch.repeat_interleave(self._start[nodes] - (ends - count), count) + torch.arange(
            int(ends[-1])
        )
        rows, columns = torch.repeat_interleave(nodes, count), self._columns[places]
        left = self._there[places]
        places, rows, columns = places[left], rows[left], columns[left]
        # numpy's power, as where the graph is built: torch's differs in the last bit
        scale = [
            torch.from_numpy(np.power(self._degree[ids].numpy() + EPSILON, -0.5)) for ids in (rows, columns)
        ]
        values = scale[0] * scale[1]
        self._write(places, values)
        self._write(torch.searchsorted(self._keys, columns * self._size + rows), values)

    def _write(self, places: torch.Tensor, values: torch.Tensor) -> None:
        self._values[places.to(self._values.device)] = values.to(self._values)
