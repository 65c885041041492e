"""Partitions of the training interactions: which of K shards each belongs to.

SISA divides users at random, RecEraser keeps interactions (or users) together that are near each other in a
pretrained embedding. All are pure functions on the CPU of the ``users`` and ``items`` (|D|,) of the interactions,
pretrained embeddings ``p`` (user_num, d) and ``q`` (item_num, d) of users and items, the number ``k`` of shards and
a generator; they return the shards (|D|,), 0 to k - 1. The inner steps divide *points*, which are interactions or
users, as numpy arrays: numpy breaks ties in a fixed order, torch does not promise to.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.spatial.distance import cdist

from recbole_unlearn.errors import UnlearnError

ROUNDS = 50  # of alternating between shards and centroids, at most
SLACK = 1.2  # a shard holds up to this times its equal share


def random_users(users: torch.Tensor, k: int, generator: torch.Generator) -> torch.Tensor:
    """SISA: users in random order, dealt out to the shards, which differ by one user at most."""
    present, place = users.unique(return_inverse=True)
    _check_number(k, len(present), "users with interactions")
    order = torch.randperm(len(present), generator=generator)
    return (torch.argsort(order) % k)[place]


def by_interactions(
    users: torch.Tensor, items: torch.Tensor, p: torch.Tensor, q: torch.Tensor, k: int, generator: torch.Generator
) -> torch.Tensor:
    """RecEraser's InBP: by the affinity -‖p_u - c_u‖²·‖q_i - c_i‖² of interactions to shards' centroids (c_u, c_i).

    The first centroids are ``k`` random interactions. A round fills the shards in order of affinity (:func:`fill`) up
    to ⌈1.2·|D|/k⌉ interactions, then moves each centroid to the mean of its interactions in every dimension (the
    authors' code takes one mean over all dimensions, which ruins it), until nothing changes.
    """
    _check_number(k, len(users), "interactions")
    return _alternate([_embedded(users, p, "user"), _embedded(items, q, "item")], k, generator)


def by_users(users: torch.Tensor, p: torch.Tensor, k: int, generator: torch.Generator) -> torch.Tensor:
    """RecEraser's UBP: k-means of users with interactions, from ``k`` random ones, filled as in InBP."""
    place, vectors = _embedded(users, p, "user")
    _check_number(k, len(vectors), "users with interactions")
    return _alternate([(np.arange(len(vectors)), vectors)], k, generator)[place]


def fill(cost: np.ndarray) -> np.ndarray:
    """Greedily give n points to k shards of at most ⌈SLACK·n/k⌉ points. cost (n, k) -> (n,).

    The result is that of a loop over all (point, shard) pairs from the lowest cost up (ties: lower point, then lower
    shard), which takes a pair if the point has no shard yet and the shard is not full. Until a shard is full, that
    loop gives every point its best open shard, in order of cost; so one sort per shard that fills up is enough.
    """
    n, k = cost.shape
    shard, room = np.full(n, -1, dtype=np.int64), np.full(k, math.ceil(SLACK * n / k))
    left = np.arange(n)
    while len(left):
        free = np.flatnonzero(room)
        best = free[cost[np.ix_(left, free)].argmin(1)]
        order = np.argsort(cost[left, best], kind="stable")
        best = best[order]
        stop = len(left)
        for s in free:
            places = np.flatnonzero(best[:stop] == s)
            if len(places) >= room[s]:  # s is full after so many; the points after them have to choose again
                stop = int(places[room[s] - 1]) + 1
        shard[left[order[:stop]]] = best[:stop]
        room -= np.bincount(best[:stop], minlength=k)
        left = np.flatnonzero(shard < 0)
    return shard


def mend(shard: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Give each empty shard the point that loses least, of another with several: shard (n,), cost (n, k) -> (n,)."""
    sizes = np.bincount(shard, minlength=cost.shape[1])
    shard = shard.copy()
    for s in np.flatnonzero(sizes == 0):
        movable = np.flatnonzero(sizes[shard] > 1)
        point = movable[(cost[movable, s] - cost[movable, shard[movable]]).argmin()]
        sizes[shard[point]] -= 1
        sizes[s] = 1
        shard[point] = s
    return shard


def means(vectors: np.ndarray, ids: np.ndarray, shard: np.ndarray, k: int) -> np.ndarray:
    """The means of the vectors of a shard's points: vectors (m, d), ids and shard (n,), -1 for none -> (k, d)."""
    m, placed = len(vectors), shard >= 0
    counts = np.bincount(shard[placed] * m + ids[placed], minlength=k * m).reshape(k, m)
    return counts.astype(vectors.dtype) @ vectors / counts.sum(1, keepdims=True)


def _alternate(factors: Sequence[tuple[np.ndarray, np.ndarray]], k: int, generator: torch.Generator) -> torch.Tensor:
    """Shards (n,) from costs (n, k) and costs from shards, in turn; at first each of k random points is a shard.

    ``factors``: ids of points (n,), vectors of ids (m, d). A cost is the product of squared distances to the means.
    """
    n = len(factors[0][0])
    shard = np.full(n, -1, dtype=np.int64)
    shard[torch.randperm(n, generator=generator)[:k].numpy()] = np.arange(k)
    for _ in range(ROUNDS):
        before = shard
        parts = (cdist(rows, means(rows, ids, shard, k), "sqeuclidean")[ids] for ids, rows in factors)
        cost = functools.reduce(np.multiply, parts)
        shard = mend(fill(cost), cost)
        if np.array_equal(shard, before):
            break
    return torch.from_numpy(shard)


def _embedded(ids: torch.Tensor, embeddings: torch.Tensor, side: str) -> tuple[np.ndarray, np.ndarray]:
    """The place of each of ``ids`` among the m that occur (n,), and the embeddings of these (m, d) in float64."""
    present, place = ids.unique(return_inverse=True)
    vectors = embeddings.detach().cpu()[present].double()
    if not vectors.isfinite().all():
        raise UnlearnError(
            f"The {side} embeddings to partition by are not finite. Train the pretrained model again, "
            "with a lower learning rate."
        )
    return place.numpy(), vectors.numpy()


def _check_number(k: int, n: int, things: str) -> None:
    if k > n:
        raise UnlearnError(f"Cannot divide {n} {things} among {k} shards: use {n} or fewer.")
