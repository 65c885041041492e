"""Partitions of the training interactions into K shards.

SISA divides users at random, RecEraser keeps interactions (or users) together that are near each other in a
pretrained embedding, UltraRE does so in shards of one size, and the light variant of the Obliviate paper gives each
item to the block of users that has most of its interactions. All are pure functions on the CPU of the ``users`` and
``items`` (|D|,) of the interactions, pretrained embeddings ``p`` (user_num, d) and ``q`` (item_num, d) of users and
items, the number ``k`` of shards and a generator; ids are those of the dataset, where 0 is padding and has no
interactions. The inner steps divide *points*, which are interactions or users, as numpy arrays: numpy breaks ties in
a fixed order, torch does not promise to.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from recbole_unlearn.errors import UnlearnError

ROUNDS = 50  # of alternating between shards and centroids, at most
SLACK = 1.2  # a shard holds up to this times its equal share
MAX_PIVOTS = 10**9  # of the exact transport: it ends by itself, long before
Place = Callable[[np.ndarray], np.ndarray]  # costs (n, k) of points to their shards (n,)


@dataclasses.dataclass(frozen=True)
class Partition:
    """Which shard each training interaction belongs to."""

    number: int  # K
    interactions: torch.Tensor  # (|D|,) int64, the shard of each training interaction
    users: torch.Tensor | None  # (user_num,) int64, -1 without interactions; None if users are in many shards
    items: torch.Tensor | None  # (item_num,) int64, likewise

    def without(self, deleted: torch.Tensor, users: torch.Tensor, items: torch.Tensor) -> "Partition":
        """The partition without the interactions ``deleted`` (a mask); the shards of orphans become -1."""
        sides = [
            None if shard is None else shard.masked_fill(ids[~deleted].bincount(minlength=len(shard)) == 0, -1)
            for shard, ids in ((self.users, users), (self.items, items))
        ]
        return Partition(self.number, self.interactions[~deleted], *sides)


def random_users(users: torch.Tensor, user_num: int, k: int, generator: torch.Generator) -> Partition:
    """SISA: users in random order, dealt out to the shards, which differ by one user at most."""
    present = users.unique()
    _check_number(k, len(present), "users with interactions")
    shuffled = present[torch.randperm(len(present), generator=generator)]
    return _of_users(users, user_num, shuffled, torch.arange(len(shuffled)) % k, k)


def item_blocks(
    users: torch.Tensor, items: torch.Tensor, user_num: int, item_num: int, k: int, generator: torch.Generator
) -> Partition:
    """The light co-partition of the Obliviate paper: b(i) = argmax_s #{(u, i) in D : b(u) = s}.

    Users are divided at random into blocks as in :func:`random_users`; an item, and with it all its interactions,
    goes to the block whose users have most of them, the lowest of several; one without items gets the nearest miss.
    """
    blocks = random_users(users, user_num, k, generator)
    present = items.unique()
    _check_number(k, len(present), "items with interactions")
    counts = torch.bincount(items * k + blocks.interactions, minlength=item_num * k).view(item_num, k)
    cost = -counts[present].numpy()
    of_item = torch.full((item_num,), -1)
    of_item[present] = torch.from_numpy(mend(cost.argmin(1), cost))
    return Partition(k, of_item[items], None, of_item)


def by_interactions(
    users: torch.Tensor, items: torch.Tensor, p: torch.Tensor, q: torch.Tensor, k: int, generator: torch.Generator
) -> Partition:
    """RecEraser's InBP: by the affinity -‖p_u - c_u‖²·‖q_i - c_i‖² of interactions to shards' centroids (c_u, c_i).

    The first centroids are ``k`` random interactions. A round fills the shards in order of affinity (:func:`fill`) up
    to ⌈1.2·|D|/k⌉ interactions, then moves each centroid to the mean of its interactions in every dimension (the
    authors' code takes one mean over all dimensions, which ruins it), until nothing changes.
    """
    _check_number(k, len(users), "interactions")
    factors = [_embedded(ids, rows, side)[1:] for ids, rows, side in ((users, p, "user"), (items, q, "item"))]
    return Partition(k, _alternate(factors, k, generator, fill), None, None)


def by_users(users: torch.Tensor, p: torch.Tensor, k: int, generator: torch.Generator, place: Place) -> Partition:
    """k-means of users with interactions, from ``k`` random ones; ``place`` is fill (UBP) or transport (UltraRE)."""
    present, _, vectors = _embedded(users, p, "user")
    _check_number(k, len(present), "users with interactions")
    shard = _alternate([(np.arange(len(present)), vectors)], k, generator, place)
    return _of_users(users, len(p), present, shard, k)


def fill(cost: np.ndarray, slack: float = SLACK) -> np.ndarray:
    """Greedily give n points to k shards of at most ⌈slack·n/k⌉ points, slack ≥ 1. cost (n, k) -> (n,).

    The result is that of a loop over all (point, shard) pairs from the lowest cost up (ties: lower point, then lower
    shard), which takes a pair if the point has no shard yet and the shard is not full. Until a shard is full, that
    loop gives every point its best open shard, in order of cost; so one sort per shard that fills up is enough.
    """
    n, k = cost.shape
    shard, room = np.full(n, -1, dtype=np.int64), np.full(k, math.ceil(slack * n / k))
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


def transport(cost: np.ndarray) -> np.ndarray:
    """Give n users to k shards of ⌊n/k⌋ or ⌈n/k⌉ users by optimal transport. cost (n, k) -> (n,).

    It takes a second with 30 000 users, and over four times that with twice as many.

    min_T ⟨T, cost⟩ over T ≥ 0 with rows that sum to 1/n and columns that sum to 1/k; all is multiplied by n·k, so
    that masses are whole numbers and exact. A vertex of this polytope divides fewer than k users, and none if k
    divides n. Those few are placed such that sizes are balanced and most of their mass stays where it was.
    """
    import ot  # takes a while, and one method needs it

    n, k = cost.shape
    mass = ot.emd(np.full(n, float(k)), np.full(k, float(n)), cost, numItermax=MAX_PIVOTS)
    shard = mass.argmax(1)
    divided = np.flatnonzero(mass[np.arange(n), shard] < k)
    whole = np.bincount(np.delete(shard, divided), minlength=k)
    low, high = n // k, -(-n // k)
    needed, spare = np.repeat(np.arange(k), low - whole), np.repeat(np.arange(k), high - low)
    seats = np.concatenate([needed, spare])
    kept = mass[np.ix_(divided, seats)]
    kept[:, : len(needed)] += n * k + 1  # more than all mass: needed seats are taken first
    _, seat = linear_sum_assignment(kept, maximize=True)
    shard[divided] = seats[seat]
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


def _alternate(
    factors: Sequence[tuple[np.ndarray, np.ndarray]], k: int, generator: torch.Generator, place: Place
) -> torch.Tensor:
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
        shard = mend(place(cost), cost)
        if np.array_equal(shard, before):
            break
    return torch.from_numpy(shard)


def _embedded(ids: torch.Tensor, embeddings: torch.Tensor, side: str) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """The m ids that occur, the place of each of ``ids`` among them (n,), and their embeddings (m, d) in float64."""
    present, place = ids.unique(return_inverse=True)
    vectors = embeddings.detach().cpu()[present].double()
    if not vectors.isfinite().all():
        raise UnlearnError(
            f"The {side} embeddings to partition by are not finite. Train the pretrained model again, "
            "with a lower learning rate."
        )
    return present, place.numpy(), vectors.numpy()


def _of_users(users: torch.Tensor, user_num: int, present: torch.Tensor, shard: torch.Tensor, k: int) -> Partition:
    """The partition in which the interactions of user ``present[j]`` are in ``shard[j]``."""
    of_user = torch.full((user_num,), -1)
    of_user[present] = shard
    return Partition(k, of_user[users], of_user, None)


def _check_number(k: int, n: int, things: str) -> None:
    if k > n:
        raise UnlearnError(f"Cannot divide {n} {things} among {k} shards: use {n} or fewer.")
