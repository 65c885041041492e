r"""Closed forms without a refit: the matrices of EASE and ItemKNN on D\S, from those on D.

X (users, items) has the number of interactions of each pair in D, X' in D\S; m is the number of items.

**EASE.** G = XᵀX + λI, P = G⁻¹, D = diag(P), B = I − P D⁻¹, so P = (I − B) D. A checkpoint has B and X, and P comes
back without an inversion: vᵀG(I − B) = vᵀD⁻¹ for every v. With v = e_j that is P_jj = 1 / (G_jj − Σ_k G_jk B_kj), a
product for each item; with v of random signs it is one product for all. B is rounded, so a few v are averaged: on
ml-1m that is within 6e-7 of P_jj. Items J without an interaction in X' leave, and users with rows U (of the other
items) get their rows U' of X':

    W = [E_J, Uᵀ, U'ᵀ],  K = diag(0, −I, +I),  P' = P − P W (K + Wᵀ P W)⁻¹ Wᵀ P,  then P'_JJ = I / λ

For −I and +I this is Woodbury's identity for G' = G − UᵀU + U'ᵀU'. The 0 is its limit for an infinite penalty on J,
the inverse of G without the rows and columns J: P_RR − P_RJ P_JJ⁻¹ P_JR. Empty rows of U' are left out, so a whole
user or item is one column of W, and a user who loses some items two. With k columns this takes 2m²k + 4mk² operations
in float64, each as long as two of the 2m³ of an inversion in float32: beyond k = m / 4 there is little to gain, and
the model is fitted. It is fitted too when ‖G'P'v − v‖ > `TOLERANCE` ‖v‖ for one of some random v. Entries of B'
between items that no chain of users connects are zeros, as in a fit: rounding must not show what connected them.

**ItemKNN.** w_ij = C_ij / (n_i n_j + shrink + 10⁻⁶) with C = XᵀX and n_i = √C_ii; the k largest of each column are
kept. C has integers, which are exact in float32 below 2²⁴, and all else is elementwise. So column j stays the same
bit for bit unless j, or an item that shares a user with it, loses an interaction. The others are computed again with
RecBole's operations, on sparse products. With `knn_method: user` the same is true of X transposed.

**Pop** is counted again: RecBole counts batches that have an item, negatives too, and nothing subtracts from that.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from recbole.data.dataset import Dataset
from recbole.model.abstract_recommender import AbstractRecommender, GeneralRecommender
from recbole.model.general_recommender.ease import EASE
from recbole.model.general_recommender.itemknn import ItemKNN
from scipy.sparse.csgraph import connected_components

# What a fit gives them, of all that a checkpoint keeps. A subclass of a user may compute something else.
DOWNDATED: dict[type, tuple[str, ...]] = {EASE: ("interaction_matrix", "item_similarity"), ItemKNN: ("w", "pred_mat")}
BLOCK = 128  # rows or columns of a large matrix that are in memory in float64
PROBES = 8  # vectors v
LARGEST_RANK = 0.25  # k, as a share of the items
TOLERANCE = 1e-4  # RecBole's own inverse has 5e-7 on ml-1m with λ = 250, and 2e-5 on ml-100k with λ = 1
Array = np.ndarray[Any, Any]
logger = logging.getLogger(__name__)


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK))


def inverse_diagonal(b: Array, x: sp.csr_matrix, penalty: float) -> Array:
    """diag(P) (items,) of B and X: 1 / P_jj = v_j (vᵀG(I − B))_j, the mean over some v of random signs."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (len(b), PROBES))
    left = (x.T @ (x @ signs) + penalty * signs).T
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
        label = connected_components(sp.bmat([[None, after], [after.T, None]]), directed=False)[1][-size:]
        apart = np.flatnonzero(label != np.bincount(label).argmax())
        linked = label[apart, None] == label
        b_new[apart], b_new[:, apart] = b_new[apart] * linked, b_new[:, apart] * linked.T
        found = residual(b_new, d_new, after, penalty)
    if not found < TOLERANCE:
        logger.info("The downdate of EASE is not accurate enough (residual %.0e).", found)
        return None
    return b_new, d_new


def residual(b: Array, diagonal: Array, x: sp.csr_matrix, penalty: float) -> float:
    """The largest ‖G P v − v‖ / ‖v‖ of some v of random signs, with P = (I − B) D."""
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (len(b), PROBES))
    v = diagonal[:, None] * signs
    v -= np.concatenate([b[rows].astype(np.float64) @ v for rows in _blocks(len(b))])
    return float(np.sqrt(((x.T @ (x @ v) + penalty * v - signs) ** 2).mean(axis=0)).max())


def downdate_knn(
    w: sp.csc_matrix, before: sp.csr_matrix, after: sp.csr_matrix, k: int, shrink: float, by_user: bool
) -> sp.csc_matrix | None:
    """The similarities w of X' = ``after`` from those of X = ``before``, bit for bit; None where a fit is due."""
    shape = w.shape
    before, after, w = (x.T.tocsc() if by_user else x.tocsc() for x in (before, after, w))  # similarities by column
    if shrink < 0 or before.power(2).sum(axis=0).max() >= 2**24:
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
    place = [np.concatenate(columns), np.concatenate(rows)][:: 1 if by_user else -1]
    return sp.csr_matrix((np.concatenate(values), place), shape, dtype=np.float32).tocsc()


def is_fitted(model_class: type, other_parameter: Mapping[str, Any] | None) -> bool:
    """Whether the other parameters of a checkpoint have all that a fit of ``model_class`` would compute."""
    return model_class in DOWNDATED and set(DOWNDATED[model_class]) <= set(other_parameter or ())


def unfitted(model_class: type, config: Any, dataset: Dataset) -> AbstractRecommender:
    """An EASE or ItemKNN on ``dataset`` as RecBole's constructor makes it, with zeros in place of the fit."""
    model: Any = object.__new__(model_class)
    GeneralRecommender.__init__(model, config, dataset)
    model.interaction_matrix = dataset.inter_matrix(form="csr").astype(np.float32)
    model.other_parameter_name = [*DOWNDATED[model_class]]
    if model_class is EASE:
        model.dummy_param = torch.nn.Parameter(torch.zeros(1))
        model.item_similarity = np.broadcast_to(np.float32(0.0), (model.n_items,) * 2)  # takes no memory
        return model
    model.fake_loss = torch.nn.Parameter(torch.zeros(1))
    model.k, model.method, model.shrink = config["k"], config["knn_method"], config["shrink"] or 0.0
    model.w = sp.csc_matrix((model.n_users if model.method == "user" else model.n_items,) * 2, dtype=np.float32)
    model.pred_mat = sp.lil_matrix((model.n_users, model.n_items), dtype=np.float32)
    return model


def downdate_model(model: AbstractRecommender, original: Mapping[str, Any], dataset: Dataset, config: Any) -> bool:
    r"""Make ``model``, built on D\S, the closed form of D\S; False where it has to be fitted.

    ``original`` are RecBole's other parameters of the model of ``dataset``, the training interactions of D.
    """
    if not is_fitted(type(model), original):
        return False
    after = model.interaction_matrix
    if isinstance(model, EASE):
        b, before = np.asarray(original["item_similarity"], np.float32), original["interaction_matrix"].tocsr()
        found = downdate_ease(b, before, after, float(config["reg_weight"]))
        if found is not None:
            model.item_similarity = found[0].view(np.matrix)  # as RecBole has it
        return found is not None
    before, by_user = dataset.inter_matrix(form="csr").astype(np.float32), model.method == "user"
    w = downdate_knn(original["w"], before, after, model.k, model.shrink, by_user)
    if w is not None:
        model.w, model.pred_mat = w, (w.dot(after) if by_user else after.dot(w)).tolil()
    return w is not None
