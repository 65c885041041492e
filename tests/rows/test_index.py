"""Which rows a request touches: the index, the region and the witness set, against plain counting."""

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recbole_unlearn.methods.obliviate.fast_gradients import RowGradients
from recbole_unlearn.rows import OTHER, SIDES, Members, RetainedIndex, TrainIndex, pair_scores, predicted
from recbole_unlearn.rows import index as index_module
from recbole_unlearn.rows import region as region_module
from tests.parts import Rows, divided, make_witness, problem, rest_of

PAIRS = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 8)), min_size=1, max_size=40)


def indices(table, *lists):
    """Indices of lists of pairs, with or without the table of pairs."""
    with pytest.MonkeyPatch.context() as patch:
        if not table:
            patch.setattr(index_module, "TABLE_BYTES", 0)
        return [TrainIndex(Rows(pairs)) for pairs in lists]


@given(PAIRS, st.data(), st.booleans())
def test_the_index_agrees_with_counting(pairs, data, table):
    gone = data.draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    (index,) = indices(table, pairs)
    assert (index.table is not None) == table
    retained, region = rest_of(index, torch.tensor(gone))
    left = [pair for pair, out in zip(pairs, gone, strict=True) if not out]
    assert retained.size == len(left)
    for side, place in (("user", 0), ("item", 1)):
        ids = torch.arange(1, index.sizes[side])
        counts = [sum(pair[place] == k for pair in pairs) for k in ids.tolist()]
        assert index.counts(side, ids).tolist() == counts
        lost = sorted({pair[place] for pair, out in zip(pairs, gone, strict=True) if out})
        left_of = [sum(pair[place] == k for pair in left) for k in lost]
        assert region[side].ids.tolist() == lost
        shares = [1 - kept / counts[k - 1] for k, kept in zip(lost, left_of, strict=True)]
        assert region[side].share.tolist() == pytest.approx(shares)
        rows = index.of(side, ids)
        assert sorted(rows.tolist()) == list(range(len(pairs)))
        assert index.ids[side][rows].tolist() == sorted(pair[place] for pair in pairs)
        assert sorted(retained.only(rows).tolist()) == [k for k, out in enumerate(gone) if not out]
    grid = torch.cartesian_prod(torch.arange(1, 8), torch.arange(1, 9))
    assert retained.are_known(*grid.T).tolist() == [tuple(pair) in left for pair in grid.tolist()]
    users = torch.arange(1, 8).repeat(30)
    drawn = retained.negatives(users, torch.Generator().manual_seed(0), tries=60)
    full = {u for u in range(1, 8) if len({i for v, i in left if v == u}) == 8}
    assert all(u in full or (u, i) not in left for u, i in zip(users.tolist(), drawn.tolist(), strict=True))


@given(PAIRS, st.data(), st.booleans())
def test_removing_in_place_is_an_index_of_the_rest(pairs, data, table):
    order = data.draw(st.permutations(range(len(pairs))))
    first, second = sorted(data.draw(st.tuples(*[st.integers(0, len(pairs))] * 2)))
    left = sorted(order[second:])
    index, fresh = indices(table, pairs, [pairs[k] for k in left])
    index.remove(torch.tensor(order[:first], dtype=torch.long))
    numbers = torch.tensor(order[first:second], dtype=torch.long)
    index.removed[numbers] = True
    retained = RetainedIndex(index, index.removed, numbers)
    assert (retained.asked.tolist(), retained.size) == (sorted(order[first:second]), len(left))
    grid = torch.cartesian_prod(torch.arange(1, 8), torch.arange(1, 9))
    expected = [tuple(pair) in {pairs[k] for k in left} for pair in grid.tolist()]
    assert retained.are_known(*grid.T).tolist() == expected
    index.remove(numbers)
    index.remove(torch.tensor(order[:second] + order[:1] * bool(second), dtype=torch.long))  # gone already
    assert len(index) == len(fresh) == len(left)
    for side in SIDES:
        ids = torch.arange(index.sizes[side])
        assert torch.equal(index.counts(side, ids), fresh.counts(side, ids))
        assert index.of(side, ids).tolist() == [left[k] for k in fresh.of(side, ids).tolist()]
        assert torch.equal(index.ends(side, ids), index.ids[OTHER[side]][index.of(side, ids)])
        gone = index.removed_of(side, ids)
        assert gone.sort().values.tolist() == sorted(order[:second])
        assert index.ids[side][gone].tolist() == sorted(index.ids[side][gone].tolist())  # id after id
    after = RetainedIndex(index, index.removed)
    assert (after.are_known(*grid.T).tolist(), index.pairs.tolist()) == (expected, sorted(index.pairs.tolist()))
    assert [key for key in index.pairs.tolist() if key % index.sizes["item"]] == fresh.pairs.tolist()


@pytest.mark.parametrize("limit", [0, 2**17])
def test_places_of_members(monkeypatch, limit):
    monkeypatch.setattr(region_module, "PLACES", limit)
    members = Members(torch.tensor([2, 5, 9]), torch.ones(3))
    assert members.place(torch.tensor([9, 1, 2, 100, 5])).tolist() == [2, -1, 0, -1, 1]
    assert members.contains(torch.tensor([3, 5])).tolist() == [False, True]
    assert Members(torch.empty(0, dtype=torch.long), torch.empty(0)).place(torch.tensor([1])).tolist() == [-1]


@pytest.fixture
def tiny(make_config):
    """The divided data of `tiny`, and a witness set over it."""
    data = divided(make_config())
    return data, make_witness(make_config(), data)


def test_neighbours_join_by_their_share_and_no_more_than_the_cap():
    """User 1 loses a row; its item 2 is shared with user 2 alone, item 3 with many."""
    index = TrainIndex(Rows([(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3), (4, 3), (5, 4)]))
    retained, region = rest_of(index, torch.tensor([True] + [False] * 7))

    def near(side, cap=10):
        found = region_module.with_neighbours(region, retained, 0.5, cap)[side]
        return dict(zip(found.ids.tolist(), found.share.tolist(), strict=True))

    third = 1 / 3  # of user 1's rows
    assert near("item") == pytest.approx({1: 1.0, 2: 0.5 * third / 2, 3: 0.5 * third / 4})
    assert list(near("item", cap=1)) == [1, 2]
    assert list(near("user")) == [1]  # no retained interaction has item 1
    assert (region["user"].ids.tolist(), region["item"].ids.tolist()) == ([1], [1])  # as it was


def test_batches_are_epochs_of_retained_rows_that_touch_the_region(make_config, tiny):
    data, witness = tiny[0], make_witness(make_config(), tiny[0], negatives=0.0)
    rows = witness.interactions()
    touched = [witness.region[side].contains(witness.index.ids[side]) for side in SIDES]
    assert torch.equal(rows, ((touched[0] | touched[1]) & ~data.deleted).nonzero().flatten())
    steps = -(-len(rows) // 50)
    assert torch.equal(torch.cat([batch.numbers for batch in witness.batches(rows, 50, steps)]).sort().values, rows)
    seen = list(witness.batches(rows, 50, 3 * steps))
    assert len(seen) == 3 * steps
    assert not data.deleted[torch.cat([batch.numbers for batch in seen])].any()
    for batch in seen:
        assert not witness.retained.are_known(batch.users, batch.negatives).any()


def test_what_a_witness_draws(make_config, tiny):
    data, witness = tiny
    often = witness.retained.size * len(witness.region["item"]) / witness.index.sizes["item"]
    assert (witness.extra(), make_witness(make_config(), data, negatives=0.0).extra()) == (round(often), 0)
    drawn = witness.against_region(500)
    assert witness.region["item"].contains(drawn.negatives).all()
    assert not witness.retained.are_known(drawn.users, drawn.negatives).any()
    assert not data.deleted[drawn.numbers].any()
    data, witness = tiny
    wanted = set(zip(*(data.forget.inter_feat[f].tolist() for f in ("user_id", "item_id")), strict=True))
    deleted = witness.deleted(10**6)
    assert set(zip(deleted.users.tolist(), deleted.items.tolist(), strict=True)) == wanted
    assert len(witness.deleted(3).users) == 3
    drawn = witness.uniform(100)
    assert len(drawn) == 100
    assert not data.deleted[drawn].any()


# Models that learn and score by user: every user once

AUTOENCODERS = ["MultiVAE", "MultiDAE", "CDAE", "RecVAE", "MacridVAE"]


def watched(model, name):
    """A method of a model whose calls are noted."""
    return mock.patch.object(model, name, wraps=getattr(model, name))


def users_of(calls):
    """How many users each call got."""
    return [len(call.args[0]["user_id"]) for call in calls.call_args_list]


@pytest.mark.parametrize("model", [*AUTOENCODERS, "ENMF", "NeuMF"])
def test_by_user_every_user_is_looked_at_once_and_by_interaction_all_of_them(make_config, model):
    _, witness, adapters = problem(make_config(model))
    triples = witness.triples(witness.interactions())
    with watched(adapters.model, "calculate_loss") as calls:
        RowGradients(adapters, witness).own(triples)
    once, every = len(torch.unique(triples.users)), len(triples.users)
    assert users_of(calls) == [2 * every if model == "NeuMF" else once]  # and a negative for each
    assert once < every
    if model not in AUTOENCODERS:
        return
    net, train = adapters.model.eval(), witness.index.train  # and scores of every user once, as it scores pairs
    users, items = (train.inter_feat[field] for field in ("user_id", "item_id"))
    with torch.no_grad():
        expected = net.predict(train.inter_feat)
    with watched(net, "full_sort_predict") as calls:
        found = predicted(net, train, users, items)
        assert found.requires_grad
        assert torch.allclose(found, expected, atol=1e-6)
        assert torch.allclose(pair_scores(net, train, users, items), expected, atol=1e-6)
    assert set(users_of(calls)) == {len(torch.unique(users))}
