r"""Where a deleted pair belongs: how a model that never saw it would rank it, without training one.

A closed-form ranker on D\S estimates that. It is EASE for catalogues small enough for its inverse,

    B = I − P / diag(P) with P = (XᵀX + λI)⁻¹, scores X B,

and for larger ones a truncated SVD of X with every interaction divided by the roots of its user's and its item's
number of interactions, X̃ V Vᵀ: without that, popular items are all it sees. docs/method.md has how near both are to
retrained models; for noise on sparse data the level is too low.
"""

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg
import torch

from recbole_unlearn.rows.index import RetainedIndex

EASE_ITEMS = 5000  # beyond, EASE's matrix is too large to invert in seconds
FACTORS = 64
PENALTY = 50.0  # λ of EASE, times the mean number of interactions per item
PAIRS = 8192  # deleted pairs that are ranked at most


class ClosedFormRanker:
    r"""Scores by a closed-form ranker on D\S."""

    def __init__(self, retained: RetainedIndex, seed: int = 0) -> None:
        index = retained.index
        kept = (~retained.deleted).nonzero().flatten()
        users, items = (index.ids[side][kept].numpy() for side in ("user", "item"))
        shape = index.sizes["user"], index.sizes["item"]
        x = sp.csr_matrix((np.ones(len(kept), np.float32), (users, items)), shape)
        x.data[:] = 1.0
        self.x = x
        self.weights: torch.Tensor | None = None
        if shape[1] <= EASE_ITEMS:
            gram = torch.from_numpy((x.T @ x).toarray())
            gram.diagonal().add_(PENALTY * x.nnz / shape[1])
            inverse = torch.linalg.inv(gram)
            self.weights = -inverse / inverse.diagonal()
            self.weights.fill_diagonal_(0.0)
        else:
            size = min(FACTORS, *(n - 1 for n in shape))
            by_user, by_item = (sp.diags(np.maximum(np.asarray(x.sum(axis)).ravel(), 1.0) ** -0.5) for axis in (1, 0))
            x = self.x = (by_user @ x @ by_item).astype(np.float32).tocsr()
            start = np.random.default_rng(seed).standard_normal(min(shape)).astype(np.float32)
            self.factors = torch.from_numpy(scipy.sparse.linalg.svds(x, k=size, v0=start)[2].T.copy())

    def scores(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Scores of ``items`` (m, k) for ``users`` (m,)."""
        names, place = torch.unique(users, return_inverse=True)
        found = torch.empty(items.shape)
        for start in range(0, len(names), 1024):
            mine = ((place >= start) & (place < start + 1024)).nonzero().flatten()
            rows = self.x[names[start : start + 1024].numpy()]
            if self.weights is not None:
                scores = torch.from_numpy(rows @ self.weights.numpy())
                found[mine] = scores[(place[mine] - start)[:, None], items[mine]]
            else:
                mixed = torch.from_numpy(rows @ self.factors.numpy())[place[mine] - start]
                found[mine] = torch.einsum("md,mkd->mk", mixed, self.factors[items[mine]])
        return found
