"""Which rows a request touches: the index, the region and the witness set, against plain counting."""

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recbole_unlearn.data import load
from recbole_unlearn.methods.obliviate.fast_gradients import RowGradients
from recbole_unlearn.rows import (
    Members,
    RetainedIndex,
    TrainIndex,
    as_batch,
    find_region,
    pair_scores,
    pairs_batch,
    predicted,
    with_neighbours,
)
from recbole_unlearn.rows import index as index_module
from recbole_unlearn.rows import region as region_module
from recbole_unlearn.training import build_model
from tests.parts import Rows, divided, make_adapters, make_witness

PAIRS = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 8)), min_size=1, max_size=40)


@hypothesis_settings(max_examples=60, deadline=None)
@given(PAIRS, st.data(), st.booleans())
def test_the_index_agrees_with_counting(pairs, data, table):
    """Any rows, any deletion, doubled pairs included; with and without the table of pairs."""
    gone = data.draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    before = index_module.TABLE_BYTES
    index_module.TABLE_BYTES = before if table else 0
    try:
        index = TrainIndex(Rows(pairs))
    finally:
        index_module.TABLE_BYTES = before
    assert (index.table is not None) == table
    deleted = torch.tensor(gone)
    users, items = (index.ids[side][deleted] for side in ("user", "item"))
    retained = RetainedIndex(index, users, items, deleted)
    left = [pair for pair, out in zip(pairs, gone, strict=True) if not out]
    assert retained.size == len(left)
    for side, place in (("user", 0), ("item", 1)):
        ids = torch.arange(1, index.sizes[side])
        counts = [sum(pair[place] == k for pair in pairs) for k in ids.tolist()]
        assert index.counts(side, ids).tolist() == counts
        rows = index.of(side, ids)
        assert sorted(rows.tolist()) == list(range(len(pairs)))
        assert index.ids[side][rows].tolist() == sorted(pair[place] for pair in pairs)
        assert sorted(retained.only(rows).tolist()) == [k for k, out in enumerate(gone) if not out]
    grid = torch.cartesian_prod(torch.arange(1, 8), torch.arange(1, 9))
    known = retained.are_known(grid[:, 0], grid[:, 1])
    assert known.tolist() == [tuple(pair) in left for pair in grid.tolist()]
    drawn = retained.negatives(torch.arange(1, 8).repeat(30), torch.Generator().manual_seed(0), tries=60)
    full = {u for u in range(1, 8) if len({i for v, i in left if v == u}) == 8}
    assert not {
        (u, i) for u, i in zip(list(range(1, 8)) * 30, drawn.tolist(), strict=True) if u not in full
    } & set(left)


@hypothesis_settings(max_examples=60, deadline=None)
@given(PAIRS, st.data(), st.booleans())
def test_removing_in_place_is_an_index_of_the_rest(pairs, data, table):
    """Two requests, one after the other, the second worked on in place: all that is asked of an index agrees."""
    order = data.draw(st.permutations(range(len(pairs))))
    first, second = sorted(data.draw(st.tuples(*[st.integers(0, len(pairs))] * 2)))
    before = index_module.TABLE_BYTES
    index_module.TABLE_BYTES = before if table else 0
    try:
        index = TrainIndex(Rows(pairs))
        left = sorted(order[second:])
        fresh = TrainIndex(Rows([pairs[k] for k in left]))
    finally:
        index_module.TABLE_BYTES = before
    index.remove(torch.tensor(order[:first], dtype=torch.long))
    numbers = torch.tensor(order[first:second], dtype=torch.long)
    index.removed[numbers] = True
    asked = (index.ids[side][numbers] for side in ("user", "item"))
    retained = RetainedIndex(index, *asked, index.removed, numbers)
    assert retained.asked.tolist() == sorted(order[first:second])
    assert retained.size == len(left)
    grid = torch.cartesian_prod(torch.arange(1, 8), torch.arange(1, 9))
    expected = [tuple(pair) in {pairs[k] for k in left} for pair in grid.tolist()]
    assert retained.are_known(grid[:, 0], grid[:, 1]).tolist() == expected
    index.remove(numbers)
    index.remove(torch.tensor(order[:second] + order[:1] * bool(second), dtype=torch.long))  # gone already
    assert len(index) == len(fresh) == len(left)
    for side in ("user", "item"):
        ids = torch.arange(index.sizes[side])
        assert torch.equal(index.counts(side, ids), fresh.counts(side, ids))
        assert index.of(side, ids).tolist() == [left[k] for k in fresh.of(side, ids).tolist()]
        other = "item" if side == "user" else "user"
        assert torch.equal(index.ends(side, ids), index.ids[other][index.of(side, ids)])
        gone = index.removed_of(side, ids)
        assert gone.sort().values.tolist() == sorted(order[:second])
        assert index.ids[side][gone].tolist() == sorted(index.ids[side][gone].tolist())  # id after id
    nothing = torch.empty(0, dtype=torch.long)
    after = RetainedIndex(index, nothing, nothing, index.removed)
    assert after.are_known(grid[:, 0], grid[:, 1]).tolist() == expected
    assert index.pairs.tolist() == sorted(index.pairs.tolist())
    assert [key for key in index.pairs.tolist() if key % index.sizes["item"]] == fresh.pairs.tolist()


@hypothesis_settings(max_examples=60, deadline=None)
@given(PAIRS, st.integers(1, 5), st.integers(0, 99))
def test_a_sample_has_each_interaction_once(pairs, most, seed):
    index = TrainIndex(Rows(pairs))
    for side in ("user", "item"):
        ids = torch.arange(1, index.sizes[side])
        numbers, place = index.sample(side, ids, most, torch.Generator().manual_seed(seed))
        assert torch.equal(index.ids[side][numbers], ids[place])
        assert (
            torch.bincount(place, minlength=len(ids)).tolist()
            == index.counts(side, ids).clamp(max=most).tolist()
        )
        assert len(torch.unique(numbers)) == len(numbers)
        assert place.tolist() == sorted(place.tolist())


def test_no_ids_have_no_rows():
    index = TrainIndex(Rows([(1, 2)]))
    assert len(index.of("user", torch.empty(0, dtype=torch.long))) == 0


@pytest.mark.parametrize("limit", [0, 2**17])
def test_places_of_members(monkeypatch, limit):
    monkeypatch.setattr(region_module, "PLACES", limit)
    members = Members(torch.tensor([2, 5, 9]), torch.ones(3))
    assert members.place(torch.tensor([9, 1, 2, 100, 5])).tolist() == [2, -1, 0, -1, 1]
    assert members.contains(torch.tensor([3, 5])).tolist() == [False, True]
    nothing = Members(torch.empty(0, dtype=torch.long), torch.empty(0))
    assert nothing.place(torch.tensor([1])).tolist() == [-1]


def test_shares_are_counted(make_config):
    data = divided(make_config())
    region = make_witness(make_config(), data).region
    full, gone = (part.inter_feat["item_id"].tolist() for part in (data.full.train, data.forget))
    shares = {item: gone.count(item) / full.count(item) for item in set(gone)}
    expected = sorted(shares)
    assert region["item"].ids.tolist() == expected
    assert region["item"].share.tolist() == pytest.approx([shares[item] for item in expected])
    assert region["user"].ids.tolist() == [1, 2, 3, 4, 5]


def test_neighbours_join_by_their_share_and_no_more_than_the_cap():
    """User 1 loses a row; its item 2 is shared with user 2 alone, item 3 with many."""
    pairs = [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3), (4, 3), (5, 4)]
    index = TrainIndex(Rows(pairs))
    deleted = torch.tensor([True] + [False] * 7)
    users, items = index.ids["user"][:1], index.ids["item"][:1]
    retained = RetainedIndex(index, users, items, deleted)
    region = find_region(index, users, items)
    assert (region["user"].ids.tolist(), region["item"].ids.tolist()) == ([1], [1])
    one = with_neighbours(region, retained, hops=1, decay=0.5, least=0.0, cap=10)
    assert one["item"].ids.tolist() == [1, 2, 3]
    third = 1 / 3  # of user 1's rows
    assert one["item"].share.tolist() == pytest.approx([1.0, 0.5 * third / 2, 0.5 * third / 4])
    assert with_neighbours(region, retained, 1, 0.5, 0.0, cap=1)["item"].ids.tolist() == [1, 2]
    assert with_neighbours(region, retained, 1, 0.5, 0.06, cap=10)["item"].ids.tolist() == [1, 2]
    two = with_neighbours(region, retained, 2, 0.5, 0.0, 10)
    assert two["user"].ids.tolist() == [1, 2, 3, 4]  # user 5 shares no item
    assert region["item"].ids.tolist() == [1]  # the region itself is as it was


def test_witness_rows_touch_the_region(make_config):
    data = divided(make_config())
    witness = make_witness(make_config(), data)
    users, items = (witness.index.ids[side] for side in ("user", "item"))
    touched = witness.region["user"].contains(users) | witness.region["item"].contains(items)
    assert torch.equal(witness.interactions(), (touched & ~data.deleted).nonzero().flatten())


def test_batches_are_epochs_of_retained_rows(make_config):
    data = divided(make_config())
    witness = make_witness(make_config(), data, negatives=0.0)
    rows = witness.interactions()
    steps = -(-len(rows) // 50)
    once = torch.cat([batch.numbers for batch in witness.batches(rows, 50, steps)])
    assert torch.equal(once.sort().values, rows)
    seen = list(witness.batches(rows, 50, 3 * steps))
    assert len(seen) == 3 * steps
    assert not data.deleted[torch.cat([batch.numbers for batch in seen])].any()
    for batch in seen:
        assert not witness.retained.are_known(batch.users, batch.negatives).any()


def test_items_of_the_region_are_negatives_as_often_as_in_training(make_config):
    data = divided(make_config())
    witness = make_witness(make_config(), data)
    often = witness.retained.size * len(witness.region["item"]) / witness.index.sizes["item"]
    assert witness.extra() == round(often)
    assert make_witness(make_config(), data, negatives=0.0).extra() == 0
    drawn = witness.against_region(500)
    assert witness.region["item"].contains(drawn.negatives).all()
    assert not witness.retained.are_known(drawn.users, drawn.negatives).any()
    assert not data.deleted[drawn.numbers].any()


def test_deleted_pairs_and_the_buffer(make_config):
    data = divided(make_config())
    witness = make_witness(make_config(), data)
    wanted = set(zip(*(data.forget.inter_feat[f].tolist() for f in ("user_id", "item_id")), strict=True))
    deleted = witness.deleted(10**6)
    assert set(zip(deleted.users.tolist(), deleted.items.tolist(), strict=True)) == wanted
    assert len(witness.deleted(3).users) == 3
    buffer = witness.buffer(0.5)
    assert len(buffer) == round(0.5 * witness.retained.size)
    assert not data.deleted[buffer].any()


@pytest.mark.parametrize("model", ["BPR", "NeuMF", "FM", "MultiVAE", "CDAE", "ENMF"])
def test_batches_have_the_form_the_model_takes(make_config, model):
    config = make_config(model)
    splits = load(config).splits
    batch = as_batch(config, splits.train, torch.arange(6), torch.arange(1, 7))
    loss = build_model(config, splits).calculate_loss(batch)
    assert torch.isfinite(sum(loss) if isinstance(loss, tuple) else loss)


# Models that learn and score by user: every user once

BY_USER = ["MultiVAE", "MultiDAE", "CDAE", "RecVAE", "MacridVAE", "ENMF"]


@pytest.fixture
def sizes(monkeypatch):
    """``sizes(model, "predict")``: how many users each call of a method of the model gets, as a list that grows."""

    def watch(model, name):
        found, original = [], getattr(model, name)

        def call(batch, **options):
            found.append(len(batch["user_id"]))
            return original(batch, **options)

        monkeypatch.setattr(model, name, call)
        return found

    return watch


@pytest.mark.parametrize("model", BY_USER)
def test_a_loss_has_every_user_of_its_interactions_once(make_config, sizes, model):
    config = make_config(model)
    data = divided(config)
    witness = make_witness(config, data)
    adapters = make_adapters(config, data, witness)
    gradients = RowGradients(adapters, witness)
    triples = witness.triples(witness.interactions())
    seen = sizes(adapters.model, "calculate_loss")
    gradients.own(triples)
    assert seen == [len(torch.unique(triples.users))]
    assert seen[0] < len(triples.users)


def test_a_loss_by_interaction_has_all_of_them(make_config):
    config = make_config("NeuMF")
    data = divided(config)
    witness = make_witness(config, data)
    triples = witness.triples(witness.interactions())
    assert all(
        torch.equal(*pair) for pair in zip(triples.part(witness.units(triples.users)), triples, strict=True)
    )


@pytest.mark.parametrize("model", ["MultiVAE", "MultiDAE", "CDAE", "RecVAE", "MacridVAE"])
def test_an_autoencoder_scores_every_user_once_and_as_it_does_by_pair(make_config, sizes, model):
    config = make_config(model)
    data = divided(config)
    train = data.full.train
    net = build_model(config, data.retain).eval()
    users, items = (train.inter_feat[field] for field in ("user_id", "item_id"))
    with torch.no_grad():
        expected = net.predict(pairs_batch(train, users, items))
    seen = sizes(net, "full_sort_predict")
    found = predicted(net, train, users, items)
    assert found.requires_grad
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(pair_scores(net, train, users, items), expected, atol=1e-6)
    assert set(seen) == {len(torch.unique(users))}
