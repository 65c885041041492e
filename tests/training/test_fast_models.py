"""Faster models give RecBole's numbers, where RecBole has any."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from recbole.data.interaction import Interaction
from recbole.model.general_recommender import ngcf
from recbole.model.general_recommender.bpr import BPR
from recbole.model.general_recommender.lightgcn import LightGCN as RecBoleLightGCN

from recbole_unlearn import UnlearnConfig, recbole_compat
from recbole_unlearn.data import append, load, loaders
from recbole_unlearn.recbole_compat import anomaly_mode_kept, clear_caches
from recbole_unlearn.training import build_model, fast_class, pair_remover
from recbole_unlearn.training.fast_models import EdgeRemoval, SymmetricMap, normalised_adjacency
from tests.parts import loaded

with anomaly_mode_kept():
    from recbole.model.sequential_recommender import bert4rec, fearec


@given(users=st.integers(1, 8), items=st.integers(1, 8), seed=st.integers(0, 999), rows=st.integers(0, 30))
def test_the_adjacency_is_its_definition(users, items, seed, rows):
    """D^-½ A D^-½ written out, with pairs that occur more than once and nodes without an edge."""
    rng = np.random.default_rng(seed)
    pairs = (rng.integers(0, users, rows), rng.integers(0, items, rows))
    dense = np.zeros((users + items, users + items))
    dense[pairs[0], pairs[1] + users] = dense[pairs[1] + users, pairs[0]] = 1.0
    scale = np.diag((dense.sum(axis=1) + 1e-7) ** -0.5)
    expected = scale @ dense @ scale
    found = normalised_adjacency(sp.coo_matrix((np.ones(rows), pairs), (users, items))).to_dense().numpy()
    assert np.allclose(found, expected, atol=1e-6)


@given(users=st.integers(1, 8), items=st.integers(1, 8), seed=st.integers(0, 999), rows=st.integers(1, 40))
def test_edges_are_removed_as_if_they_had_never_been_there(users, items, seed, rows):
    """In two goes, bit for bit what is built without them; products too."""
    rng = np.random.default_rng(seed)
    pairs = np.unique(np.stack([rng.integers(0, users, rows), rng.integers(0, items, rows)]), axis=1)
    order = rng.permutation(pairs.shape[1])
    first, second = sorted(rng.integers(0, len(order) + 1, 2))

    def built(which):
        u, i = pairs[:, which]
        return normalised_adjacency(sp.coo_matrix((np.ones(len(u)), (u, i)), (users, items)))

    matrix = built(np.arange(pairs.shape[1]))
    removal = EdgeRemoval(matrix, users)
    for part in (order[:first], order[first:second]):
        if len(part):
            matrix = removal.remove(*torch.from_numpy(pairs[:, part]))
    expected = built(np.sort(order[second:]))
    assert torch.equal(matrix.to_dense(), expected.to_dense())
    x = torch.rand(users + items, 8)
    assert torch.equal(matrix @ x, expected @ x)


@pytest.mark.parametrize("model", ["BPR", "LightGCN", "NGCF"])
def test_a_model_without_pairs_is_one_built_without_them(make_config, model):
    config, splits = loaded(make_config(model))
    train = splits.train
    keep = torch.arange(len(train)) % 7 > 0
    rest = splits._replace(train=train.copy(train.inter_feat[keep]))
    ours, expected = build_model(config, splits), build_model(config, rest)
    users, items = (train.inter_feat[field][~keep] for field in ("user_id", "item_id"))
    keys = torch.unique(users * train.item_num + items)
    pair_remover(ours)(keys // train.item_num, keys % train.item_num)
    expected.load_state_dict(ours.state_dict())
    ours.eval(), expected.eval()
    batch = train.join(Interaction({"user_id": torch.arange(1, 20), "item_id": torch.arange(1, 20)}))
    assert torch.equal(ours.predict(batch), expected.predict(batch))


def test_what_is_not_known_is_built_again(make_config):
    class Own(BPR):
        """A user's model, which may keep anything."""

    splits = load(make_config("LightGCN")).splits
    assert fast_class(BPR) is BPR
    assert pair_remover(Own(make_config("BPR"), splits.train)) is None
    assert pair_remover(build_model(make_config("SGL"), splits)) is None
    assert pair_remover(build_model(make_config("NGCF", node_dropout=0.1), splits)) is None


def test_the_gradient_of_the_product():
    """Against finite differences, in double precision."""
    matrix = torch.rand(5, 5, dtype=torch.float64)
    matrix = ((matrix + matrix.T) * (matrix + matrix.T > 0.9)).to_sparse_csr()
    x = torch.rand(5, 3, dtype=torch.float64, requires_grad=True)
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda y: SymmetricMap.apply(matrix.matmul, y), (x,))


@pytest.mark.parametrize(("model", "changes"), [
    ("LightGCN", {"n_layers": 1}), ("LightGCN", {"n_layers": 3}),
    *(("NGCF", {"node_dropout": n, "message_dropout": n / 3}) for n in (0.0, 0.3)),
])  # fmt: skip
def test_scores_loss_and_gradients_equal_recboles(make_config, model, changes):
    config = make_config(model, reg_weight=0.01, **changes)
    assert config.model_class in (RecBoleLightGCN, ngcf.NGCF)
    assert config.to_recbole().model_class is config.model_class  # theirs is saved
    splits = load(config).splits
    doubled = splits._replace(train=append(splits.train, splits.train.inter_feat[:20]))  # repeated pairs
    with recbole_compat.dok_update():
        theirs = config.model_class(config, doubled.train)
    ours = build_model(config, doubled)
    ours.load_state_dict(theirs.state_dict())
    assert type(ours) is fast_class(type(theirs)) is not type(theirs)
    batch = next(iter(loaders(config, doubled).train))
    for net in (theirs, ours):
        torch.manual_seed(0)  # what is dropped
        net.calculate_loss(batch).backward()
    for (name, a), (_, b) in zip(theirs.named_parameters(), ours.named_parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-7), name
    found = []
    for net in (theirs, ours):
        torch.manual_seed(0)
        found.append(net.eval().forward())
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_what_is_mended_in_sequential_models(settings):
    """FEARec has RecBole's index, BERT4Rec no loss where nothing is masked; RepeatNet keeps nothing of a batch."""
    del settings["embedding_size"]

    def built(model):
        config, splits = loaded(UnlearnConfig(model, "tiny", config_dict=settings | {"MAX_ITEM_LIST_LENGTH": 6}))
        return build_model(config, splits), next(iter(loaders(config, splits).train))

    model, _ = built("FEARec")
    expected = fearec.FEARec.get_same_item_index(model, model.dataset)
    assert type(model) is not fearec.FEARec
    assert set(model.same_item_index) == set(expected)
    assert all(np.array_equal(model.same_item_index[item], rows) for item, rows in expected.items())
    model, batch = built("BERT4Rec")
    model.eval()
    assert model.calculate_loss(batch) == bert4rec.BERT4Rec.calculate_loss(model, batch)
    nothing = Interaction({**batch.interaction, "MASK_INDEX": torch.zeros_like(batch["MASK_INDEX"])})
    assert bert4rec.BERT4Rec.calculate_loss(model, nothing).isnan()
    loss = model.calculate_loss(nothing)
    loss.backward()
    assert loss == 0
    model, batch = built("RepeatNet")
    model.calculate_loss(batch)
    assert "repeat_explore" in vars(model)
    clear_caches(model)
    assert "repeat_explore" not in vars(model)
