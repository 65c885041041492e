r"""Closed forms without a refit: the matrices of EASE and ItemKNN on D\S, from those on D.

X (users, items) has the number of interactions of each pair in D, X' in D\S; m is the number of items.

**EASE.** G = XᵀX + λI, P = G⁻¹, D = diag(P), B = I − P D⁻¹, so P = (I − B) D. A checkpoint has B and X, and P comes
back without an inversion: for every v, vᵀG(I − B) = vᵀD⁻¹. With v = e_j that is P_jj = 1 / (G_jj − Σ_k G_jk B_kj), a
product for each item; with v of random signs it is one product for all. The mean of a few v is taken, since B is
rounded: on ml-1m it is within 6e-7 of P_jj.

Items J without an interaction in X' leave; then r users with rows U (of the other items) get their rows U' of X':

    W = [E_J, Uᵀ, U'ᵀ],  K = diag(0, −I, +I),  P' = P − P W (K + Wᵀ P W)⁻¹ Wᵀ P,  then P'_JJ = I / λ

For −I and +I this is Woodbury's identity for G' = G − UᵀU + U'ᵀU'. The 0 is its limit for an infinite penalty on J,
the inverse of G without the rows and columns J: P_RR − P_RJ P_JJ⁻¹ P_JR. Empty rows of U' are left out. So a whole
user is one column of W, a user who loses some items two, and a whole item one, whatever its number of users. With k
columns this takes 2m²k + 4mk² operations in float64, which cost twice those in float32, of which an inversion takes
2m³: beyond k = m / 4 there is little to gain, and the model is fitted. It is fitted too when ‖G'P'v − v‖ is larger
than `TOLERANCE` ‖v‖ for one of some random v. Entries of B' between items that no chain of users connects are zeros,
as in a fit: rounding must not show what connected them.

**ItemKNN.** w_ij = C_ij / (n_i n_j + shrink + 10⁻⁶) with C = XᵀX and n_i = √C_ii; the k largest of each column are
kept. C has integers, which are exact in float32 below 2²⁴, and all else is elementwise. So column j stays the same
bit for bit unless j, or an item that shares a user with it, loses an interaction. The other columns are computed
again with RecBole's operations on sparse products, as are the predictions Xw of users whom that concerns. With
`knn_method: user` the same is true of X transposed.

**Pop** has no downdate. RecBole counts the batches that have an item, drawn negatives among them, and nothing can be
subtracted from that; it is counted again, in one pass.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from recbole.data.dataset import Dataset
from recbole.model.abstract_recommender import AbstractRecommender, GeneralRecommender
from recbole.model.general_recommender import ease, itemknn
from scipy.sparse.csgraph import connected_components
from torch import nn

from recbole_unlearn.training.fast_models import fast_class, faster

BLOCK = 128  # rows or columns of a large matrix that are in memory in float64
PROBES = 8  # vectors v
LARGEST_RANK = 0.25  # k, as a share of the items
TOLERANCE = 1e-4  # RecBole's own inverse has 5e-7 on ml-1m with λ = 250, and 2e-5 on ml-100k with λ = 1
LARGEST_COUNT = 2**24  # below, float32 has every integer
Array = np.ndarray[Any, Any]
logger = logging.getLogger(__name__)


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK))


def _signs(size: int, seed: int) -> Array:
    return np.random.default_rng(seed).choice([-1.0, 1.0], (size, PROBES))


def _gram(x: sp.csr_matrix, penalty: float, v: Array) -> Array:
    """G v = Xᵀ(X v) + λ v, for v (items, n)."""
    product: Array = x.T @ (x @ v) + penalty * v
    return product


def inverse_diagonal(b: Array, x: sp.csr_matrix, penalty: float) -> Array:
    """diag(P) (items,) of B and X: 1 / P_jj = v_j (vᵀG(I − B))_j, the mean over some v of random signs."""
    signs = _signs(len(b), 0)
    left = _gram(x, penalty, signs).T
    product = left - sum(left[:, rows] @ b[rows].astype(np.float64) for rows in _blocks(len(b)))
    return 1.0 / (product * signs.T).mean(axis=0)


def downdate_ease(
    b: Array, before: sp.csr_matrix, after: sp.csr_matrix, penalty: float, diagonal: Array | None = None
) -> tuple[Array, Array] | None:
    """B and diag(P) of X' = ``after`` from those of X = ``before``; None where a fit is due.

    ``diagonal`` is diag(P) of ``before``, if it is known. B' has the type of B, everything between is float64.
    """
    size, (before, after) = len(b), (x.astype(np.float64) for x in (before, after))
    count, left = (np.asarray(x.sum(axis=0)).ravel() for x in (before, after))
    gone = np.flatnonzero((count > 0) & (left == 0))
    rest = (before @ sp.diags((left > 0).astype(np.float64))).tocsr()
    users = np.unique((rest - after).nonzero()[0])
    new = after[users[np.diff(after.indptr)[users] > 0]]
    basis = sp.csr_matrix((np.ones(len(gone)), (np.arange(len(gone)), gone)), (len(gone), size))
    w = sp.vstack([basis, rest[users], new], format="csr")  # Wᵀ (k, items)
    if w.shape[0] > LARGEST_RANK * size:
        logger.info("The request changes too much of EASE for a downdate to be quicker than a fit.")
        return None
    d = inverse_diagonal(b, before, penalty) if diagonal is None else diagonal
    read = np.unique(w.indices)
    narrow, q = w[:, read], w.toarray()
    for columns in _blocks(size):  # (P W)ᵀ = Wᵀ(I − B) D, as P is symmetric
        q[:, columns] = (q[:, columns] - narrow @ b[read, columns].astype(np.float64)) * d[columns]
    inner = np.diag(np.repeat([0.0, -1.0, 1.0], [len(gone), len(users), new.shape[0]])) + w @ q.T
    try:
        t = np.linalg.solve((inner + inner.T) / 2, q)
    except np.linalg.LinAlgError:
        return None
    d_new = d - (q * t).sum(axis=0)
    d_new[gone] = 1.0 / penalty
    b_new = np.empty_like(b)
    with np.errstate(all="ignore"):  # of a matrix that is no inverse; the residual finds it
        ratio, t = d / d_new, t / d_new
        for rows in _blocks(size):  # B'_ij = −P'_ij / P'_jj
            b_new[rows] = b[rows] * ratio + q[:, rows].T @ t
        np.fill_diagonal(b_new, 0.0)
        _separate(b_new, after)
        found = residual(b_new, d_new, after, penalty)
    if not found < TOLERANCE:
        logger.info("The downdate of EASE is not accurate enough (residual %.0e).", found)
        return None
    return b_new, d_new


def _separate(b: Array, x: sp.csr_matrix) -> None:
    """Set the entries of B between items to zero that no chain of users of X connects."""
    label = connected_components(sp.bmat([[None, x], [x.T, None]]), directed=False)[1][x.shape[0] :]
    apart = np.flatnonzero(label != np.bincount(label).argmax())
    other = label[apart, None] != label
    b[apart] = np.where(other, 0.0, b[apart])
    b[:, apart] = np.where(other.T, 0.0, b[:, apart])


def residual(b: Array, diagonal: Array, x: sp.csr_matrix, penalty: float) -> float:
    """The largest ‖G P v − v‖ / ‖v‖ of some v of random signs, with P = (I − B) D."""
    signs = _signs(len(b), 1)
    scaled = diagonal[:, None] * signs
    product = scaled - np.concatenate([b[rows].astype(np.float64) @ scaled for rows in _blocks(len(b))])
    wrong = _gram(x, penalty, product) - signs
    return float(np.sqrt((wrong**2).mean(axis=0)).max())


def downdate_knn(
    w: sp.csc_matrix, before: sp.csr_matrix, after: sp.csr_matrix, k: int, shrink: float, by_user: bool
) -> sp.csc_matrix | None:
    """The similarities w of X' = ``after`` from those of X = ``before``, bit for bit; None where a fit is due."""
    shape = w.shape
    before, after, w = (x.T.tocsc() if by_user else x.tocsc() for x in (before, after, w))  # similarities by column
    if shrink < 0 or before.power(2).sum(axis=0).max() >= LARGEST_COUNT:
        return None
    norm, size = np.sqrt(np.array(after.power(2).sum(axis=0)).ravel()), after.shape[1]
    changed = np.bincount((before - after).nonzero()[1], minlength=size) > 0
    lines = np.flatnonzero(before.T @ (before @ changed.astype(np.float32)))  # columns that share something with them
    old, top = w.tocoo(), min(k, size)
    kept = ~np.isin(old.col, lines)
    rows, columns, values = [old.row[kept]], [old.col[kept]], [old.data[kept]]
    for block in _blocks(len(lines)):
        own = lines[block]
        weights = (after.T @ after[:, own]).T.toarray()  # (columns, size)
        weights[np.arange(len(own)), own] = 0.0
        weights = np.multiply(weights, 1 / (norm[own, None] * norm + shrink + 1e-6))
        chosen = (-weights).argpartition(top - 1, axis=1)[:, :top]
        value = np.take_along_axis(weights, chosen, axis=1)
        rows.append(chosen[value != 0.0])
        columns.append(np.repeat(own, (value != 0.0).sum(axis=1)))
        values.append(value[value != 0.0])
    place = np.concatenate(rows), np.concatenate(columns)
    data = np.concatenate(values)
    return sp.csr_matrix((data, place[::-1] if by_user else place), shape, dtype=np.float32).tocsc()


@faster(ease.EASE, "recbole.model.general_recommender.ease.EASE")
class EASE(ease.EASE):
    """RecBole's EASE, which can be built without a fit."""

    fitted_names: ClassVar[tuple[str, ...]] = ("interaction_matrix", "item_similarity")

    def __init__(self, config: Any, dataset: Dataset, fit: bool = True) -> None:
        if fit:
            super().__init__(config, dataset)
            return
        GeneralRecommender.__init__(self, config, dataset)
        self.dummy_param = nn.Parameter(torch.zeros(1))
        self.interaction_matrix = dataset.inter_matrix(form="csr").astype(np.float32)
        self.item_similarity = np.broadcast_to(np.float32(0.0), (self.n_items, self.n_items))  # takes no memory
        self.other_parameter_name = ["interaction_matrix", "item_similarity"]

    def downdate(self, original: Mapping[str, Any], dataset: Dataset, config: Any) -> bool:
        """Take B from the matrices of the original, which has its own X."""
        b, before = np.asarray(original["item_similarity"], np.float32), original["interaction_matrix"].tocsr()
        found = downdate_ease(b, before, self.interaction_matrix, float(config["reg_weight"]))
        if found is not None:
            self.item_similarity = found[0].view(np.matrix)  # as RecBole has it
        return found is not None


@faster(itemknn.ItemKNN, "recbole.model.general_recommender.itemknn.ItemKNN")
class ItemKNN(itemknn.ItemKNN):
    """RecBole's ItemKNN, which can be built without a fit."""

    fitted_names: ClassVar[tuple[str, ...]] = ("w", "pred_mat")

    def __init__(self, config: Any, dataset: Dataset, fit: bool = True) -> None:
        if fit:
            super().__init__(config, dataset)
            return
        GeneralRecommender.__init__(self, config, dataset)
        self.k, self.method = config["k"], config["knn_method"]
        self.shrink = config["shrink"] or 0.0
        self.interaction_matrix = dataset.inter_matrix(form="csr").astype(np.float32)
        size = self.n_users if self.method == "user" else self.n_items
        self.w = sp.csc_matrix((size, size), dtype=np.float32)
        self.pred_mat = sp.lil_matrix((self.n_users, self.n_items), dtype=np.float32)
        self.fake_loss = nn.Parameter(torch.zeros(1))
        self.other_parameter_name = ["w", "pred_mat"]

    def downdate(self, original: Mapping[str, Any], dataset: Dataset, config: Any) -> bool:
        """Take w and the predictions from the original's of ``dataset``; only rows that differ are multiplied."""
        before = dataset.inter_matrix(form="csr").astype(np.float32)
        x, by_user, old = self.interaction_matrix, self.method == "user", original["w"].tocsc()
        w = downdate_knn(old, before, x, self.k, self.shrink, by_user)
        if w is None:
            return False
        first, second = (w, x) if by_user else (x, w)  # factors of the predictions
        differs = ((first != (old if by_user else before)), (second != (before if by_user else old)))
        inside = np.bincount(differs[1].nonzero()[0], minlength=second.shape[0]) > 0
        rows = np.flatnonzero((first @ inside.astype(np.float32) > 0) | (differs[0].getnnz(axis=1) > 0))
        part, prediction = first[rows].dot(second).tolil(), original["pred_mat"].tolil()
        self.pred_mat = sp.lil_matrix(prediction.shape, dtype=np.float32)
        for name in ("rows", "data"):
            lists = getattr(self.pred_mat, name)
            lists[:] = getattr(prediction, name)
            lists[rows] = getattr(part, name)
        self.w = w
        return True


def can_downdate(model_class: type) -> bool:
    """Whether RecBole's ``model_class`` has a downdate; a subclass of a user may compute something else."""
    return fast_class(model_class) in (EASE, ItemKNN)


def is_fitted(model_class: type, held: Mapping[str, Any] | None) -> bool:
    """Whether ``held`` has all that fitting a model with a downdate computes."""
    return can_downdate(model_class) and set(fast_class(model_class).fitted_names) <= set(held or ())  # type: ignore


def downdate_model(model: AbstractRecommender, original: Mapping[str, Any], dataset: Dataset, config: Any) -> bool:
    r"""Make ``model``, built on D\S, the closed form of D\S; False where it has to be fitted.

    ``original`` are RecBole's other parameters of the model of ``dataset``, the training interactions of D.
    """
    if not isinstance(model, EASE | ItemKNN) or not is_fitted(config.model_class, original):
        return False
    return model.downdate(original, dataset, config)
