"""Partitions of the interactions: each rule against a plain reference, and properties of all of them."""

import dataclasses
import itertools

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recbole_unlearn.methods.sharded import partition
from tests.parts import refused

seeds = st.integers(0, 9999)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@dataclasses.dataclass
class Data:
    """Rows of users 1..n and of items 1..n, with embeddings; the last user and the last item have no row."""

    users: torch.Tensor
    items: torch.Tensor
    p: torch.Tensor
    q: torch.Tensor

    def parts(self, name, k, seed=0):
        """The partition that the function ``name`` makes."""
        arguments = {
            "random_users": (self.users,),
            "by_interactions": (self.users, self.items, self.p, self.q),
            "by_users": (self.users, self.p),
        }[name]
        return getattr(partition, name)(*arguments, k, seeded(seed))

    def of_users(self, name, k, seed=0):
        """The shards of users 1..n, of whom each has all rows in one shard."""
        found = self.parts(name, k, seed)
        shards = torch.full((len(self.p),), -1).scatter(0, self.users, found)
        assert torch.equal(shards[self.users], found)
        return shards[1:-1]


def make_data(seed, n=12, rows=40, d=3, kinds=None):
    """Random rows; each user and item has one at least. With ``kinds``, embeddings take so many values (ties)."""
    generator = seeded(seed)
    extra = torch.randint(1, n + 1, (2, rows), generator=generator)
    ids = torch.arange(1, n + 1)
    shuffled = ids[torch.randperm(n, generator=generator)]
    p, q = torch.randn(2, n + 2, d, generator=generator)
    if kinds is not None:
        p, q = p[torch.arange(n + 2) % kinds], q[torch.arange(n + 2) % kinds]
    return Data(torch.cat([ids, extra[0]]), torch.cat([shuffled, extra[1]]), p, q)


EVERY = ["random_users", "by_interactions", "by_users"]


@pytest.mark.parametrize("name", EVERY)
@given(seed=seeds, n=st.integers(1, 14), k=st.integers(1, 14), kinds=st.sampled_from([None, 1, 2]))
def test_each_row_has_one_shard_and_no_shard_is_empty(name, seed, n, k, kinds):
    k = min(k, n)
    data = make_data(seed, n=n, rows=seed % 30, kinds=kinds)
    found = data.parts(name, k, seed)
    assert (found.shape, found.dtype) == (data.users.shape, torch.int64)
    assert found.unique().tolist() == list(range(k))
    if name != "by_interactions":
        data.of_users(name, k, seed)


@given(seed=seeds, n=st.integers(1, 25), k=st.integers(1, 7))
def test_shards_of_one_size(seed, n, k):
    k = min(k, n)
    sizes = make_data(seed, n=n).of_users("random_users", k, seed).bincount(minlength=k)
    assert sizes.max() - sizes.min() <= 1
    assert sizes.sum() == n


def one_by_one(cost, cap):
    """The fill as RecEraser writes it: a loop over all pairs in order of cost."""
    n, k = cost.shape
    shard, sizes = [-1] * n, [0] * k
    for _, row, s in sorted((cost[row, s], row, s) for row in range(n) for s in range(k)):
        if shard[row] < 0 and sizes[s] < cap:
            shard[row] = s
            sizes[s] += 1
    return shard


@hypothesis.settings(max_examples=300)
@given(seeds, st.integers(1, 40), st.integers(1, 7), st.sampled_from([1, 2, 5, 10**6]))
def test_the_fill_is_that_of_the_loop(seed, n, k, values):
    cost = np.random.default_rng(seed).integers(0, values, (n, k)).astype(float)
    assert partition.fill(cost).tolist() == one_by_one(cost, int(np.ceil(1.2 * n / k)))


@given(seeds, st.integers(1, 9), st.integers(1, 9))
def test_mending_moves_one_row_for_each_empty_shard(seed, n, k):
    n, rng = max(n, k), np.random.default_rng(seed)
    shard, cost = rng.integers(0, k, n), rng.random((n, k))
    mended = partition.mend(shard, cost)
    assert (set(mended), (mended != shard).sum()) == (set(range(k)), k - len(set(shard)))


def test_mending_takes_the_row_that_loses_least():
    assert partition.mend(np.array([0, 0, 0]), np.array([[0.0, 5.0], [1.0, 3.0], [0.0, 4.0]])).tolist() == [0, 1, 0]


@given(seeds, st.integers(1, 5))
def test_centroids_are_means_in_each_dimension(seed, k):
    rng = np.random.default_rng(seed)
    vectors, ids = rng.normal(size=(6, 3)), rng.integers(0, 6, 30)
    shard = np.concatenate([np.arange(k), rng.integers(-1, k, 30 - k)])
    found = partition.means(vectors, ids, shard, k)
    assert np.allclose(found, np.stack([vectors[ids[shard == s]].mean(0) for s in range(k)]))


@pytest.mark.parametrize("seed", range(4))
def test_the_end_is_a_fixed_point(seed):
    data = make_data(seed, n=40)
    found, vectors = data.of_users("by_users", 4, seed).numpy(), data.p[1:-1].double().numpy()
    centroids = np.stack([vectors[found == s].mean(0) for s in range(4)])
    assert partition.fill(np.square(vectors[:, None] - centroids).sum(-1)).tolist() == found.tolist()


def test_the_affinity_of_a_row_is_a_product(monkeypatch):
    monkeypatch.setattr(partition, "ROUNDS", 1)
    data = make_data(5)
    p, q, users, items = data.p.double(), data.q.double(), data.users, data.items
    first = torch.randperm(len(users), generator=seeded(7))[:3]
    cost = np.zeros((len(users), 3))
    for row, s in itertools.product(range(len(users)), range(3)):
        user = (p[users[row]] - p[users[first[s]]]).square().sum()
        cost[row, s] = user * (q[items[row]] - q[items[first[s]]]).square().sum()
    found = data.parts("by_interactions", 3, 7)
    assert found.tolist() == one_by_one(cost, int(np.ceil(1.2 * len(users) / 3)))


@pytest.mark.parametrize("name", EVERY)
def test_more_shards_than_there_is_to_divide(name):
    data = make_data(0, n=3, rows=0)
    refused(r"^Cannot divide 3 .* among 4 shards: use 3 or fewer\.$", data.parts, name, 4)


@pytest.mark.parametrize("name", EVERY[1:])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_embeddings_that_are_not_finite(name, value):
    data = make_data(0)
    data.p[0] = data.p[-1] = data.q[0] = value  # padding and a user without rows do not matter
    assert data.parts(name, 2).unique().tolist() == [0, 1]
    data.p[3, 1] = value
    refused(r"user embeddings .* not finite", data.parts, name, 2)
    if name == "by_interactions":
        data.p[3, 1], data.q[3, 1] = 0.0, value
        refused(r"item embeddings .* not finite", data.parts, name, 2)
