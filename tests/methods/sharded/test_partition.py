"""Partitions of the interactions: each rule against a plain reference, and properties of all of them."""

import dataclasses
import itertools

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recbole_unlearn.methods.sharded import Partition, partition
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
        """The partition that the function ``name`` makes, or that of users whom it places."""
        sizes = len(self.p), len(self.q)
        function, *arguments = {
            "random_users": (partition.random_users, self.users, sizes[0]),
            "item_blocks": (partition.item_blocks, self.users, self.items, *sizes),
            "by_interactions": (partition.by_interactions, self.users, self.items, self.p, self.q),
            "fill": (partition.by_users, self.users, self.p),
            "transport": (partition.by_users, self.users, self.p),
        }[name]
        place = [getattr(partition, name)] if function is partition.by_users else []
        return function(*arguments, k, seeded(seed), *place)


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


EVERY = ["random_users", "item_blocks", "by_interactions", "fill", "transport"]
LEARNED = EVERY[2:]


@pytest.mark.parametrize("name", EVERY)
@given(seed=seeds, n=st.integers(1, 14), k=st.integers(1, 14), kinds=st.sampled_from([None, 1, 2]))
def test_each_row_has_one_shard_and_no_shard_is_empty(name, seed, n, k, kinds):
    k = min(k, n)
    data = make_data(seed, n=n, rows=seed % 30, kinds=kinds)
    found = data.parts(name, k, seed)
    assert (found.number, found.interactions.shape) == (k, data.users.shape)
    assert (found.interactions.dtype, found.interactions.unique().tolist()) == (torch.int64, list(range(k)))
    for shard, ids, size in ((found.users, data.users, data.p), (found.items, data.items, data.q)):
        if shard is not None:
            assert shard.dtype == torch.int64
            assert torch.equal(shard[ids], found.interactions)
            assert shard[0] == shard[len(size) - 1] == -1


@pytest.mark.parametrize("name", ["random_users", "transport"])
@given(seed=seeds, n=st.integers(1, 25), k=st.integers(1, 7), kinds=st.sampled_from([None, 1, 3]))
def test_shards_of_one_size(name, seed, n, k, kinds):
    k = min(k, n)
    sizes = make_data(seed, n=n, kinds=kinds).parts(name, k, seed).users[1:-1].bincount(minlength=k)
    assert sizes.max() - sizes.min() <= 1
    assert sizes.sum() == n


@given(seeds, st.integers(1, 4))
def test_items_follow_the_majority(seed, k):
    data = make_data(seed, rows=80)
    found = data.parts("item_blocks", k, seed)
    blocks = partition.random_users(data.users, len(data.p), k, seeded(seed)).users
    assert found.users is None
    wanted = [-1] * len(data.q)
    for item in range(1, len(data.q) - 1):
        votes = [int((blocks[data.users[data.items == item]] == s).sum()) for s in range(k)]
        wanted[item] = votes.index(max(votes))
    if set(range(k)) <= set(wanted):
        assert found.items.tolist() == wanted
    else:  # one item for each block that would be empty
        assert (found.items != torch.tensor(wanted)).sum() == k - len(set(wanted) - {-1})


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
@given(seeds, st.integers(1, 40), st.integers(1, 7), st.sampled_from([1, 2, 5, 10**6]), st.floats(1, 1.5))
def test_the_fill_is_that_of_the_loop(seed, n, k, values, slack):
    cost = np.random.default_rng(seed).integers(0, values, (n, k)).astype(float)
    assert partition.fill(cost, slack).tolist() == one_by_one(cost, int(np.ceil(slack * n / k)))


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


@pytest.mark.parametrize("name", ["fill", "transport"])
@pytest.mark.parametrize("seed", range(4))
def test_the_end_is_a_fixed_point(name, seed):
    data = make_data(seed, n=40)
    found, vectors = data.parts(name, 4, seed).users[1:-1].numpy(), data.p[1:-1].double().numpy()
    centroids = np.stack([vectors[found == s].mean(0) for s in range(4)])
    assert getattr(partition, name)(np.square(vectors[:, None] - centroids).sum(-1)).tolist() == found.tolist()


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
    assert found.interactions.tolist() == one_by_one(cost, int(np.ceil(1.2 * len(users) / 3)))
    assert found.users is found.items is None


@given(seeds, st.sampled_from([(2, 2), (4, 2), (6, 2), (6, 3), (4, 4), (3, 1)]), st.sampled_from([2, 10**6]))
def test_transport_is_the_best_balanced_assignment(seed, shape, values):
    n, k = shape
    cost = np.random.default_rng(seed).integers(0, values, (n, k)).astype(float)
    found = partition.transport(cost)
    balanced = set(itertools.permutations([s for s in range(k) for _ in range(n // k)]))
    best = min(sum(cost[row, s] for row, s in enumerate(each)) for each in balanced)
    assert tuple(found) in balanced
    assert cost[np.arange(n), found].sum() == best


def test_without_drops_rows_and_forgets_orphans():
    users, items = torch.tensor([1, 1, 2, 3]), torch.tensor([1, 2, 2, 3])
    whole = Partition(2, torch.tensor([0, 0, 1, 1]), torch.tensor([-1, 0, 1, 1]), torch.tensor([-1, 0, 0, 1]))
    left = whole.without(torch.tensor([True, False, True, False]), users, items)
    assert (left.number, left.interactions.tolist()) == (2, [0, 1])
    assert (left.users.tolist(), left.items.tolist()) == ([-1, 0, -1, 1], [-1, -1, 0, 1])
    assert whole.users.tolist() == [-1, 0, 1, 1]


@pytest.mark.parametrize("name", EVERY)
def test_more_shards_than_there_is_to_divide(name):
    data = make_data(0, n=3, rows=0)
    refused(r"^Cannot divide 3 .* among 4 shards: use 3 or fewer\.$", data.parts, name, 4)
    if name == "item_blocks":
        refused("1 items with", Data(data.users, torch.ones_like(data.items), data.p, data.q).parts, name, 2)


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_embeddings_that_are_not_finite(name, value):
    data = make_data(0)
    data.p[0] = data.p[-1] = data.q[0] = value  # padding and a user without rows do not matter
    assert data.parts(name, 2).interactions.unique().tolist() == [0, 1]
    data.p[3, 1] = value
    refused(r"user embeddings .* not finite", data.parts, name, 2)
    if name == "by_interactions":
        data.p[3, 1], data.q[3, 1] = 0.0, value
        refused(r"item embeddings .* not finite", data.parts, name, 2)
