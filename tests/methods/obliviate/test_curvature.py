"""Second moments: read from optimizers, and of single rows against batches drawn many times."""

import pytest
import torch

from recbole_unlearn.data import load, loaders
from recbole_unlearn.methods.obliviate import curvature
from recbole_unlearn.rows import TrainIndex, Witness, find_tables, loss_gradients
from recbole_unlearn.training import build_model, train
from tests.parts import region_of, rest_of


def trained_by(make_config, learner):
    """A new model, the state of an optimizer that trained one, the config and the data."""
    config = make_config(learner=learner, epochs=1)
    splits = load(config).splits
    return build_model(config, splits), train(config, splits, "x").optimizer, config, splits


@pytest.mark.parametrize(
    ("learner", "key"),
    [("adam", "exp_avg_sq"), ("adamw", "exp_avg_sq"), ("rmsprop", "square_avg"), ("adagrad", "sum")],
)
def test_moments_are_read_from_the_optimizer(make_config, learner, key):
    model, optimizer, *_ = trained_by(make_config, learner)
    moments, _ = curvature.from_optimizer(model, optimizer)
    raw, step = optimizer["state"][1][key], float(optimizer["state"][1]["step"])
    expected = {"exp_avg_sq": raw / (1 - 0.999**step), "square_avg": raw, "sum": raw / step}[key]
    assert torch.allclose(moments["item_embedding.weight"], expected)
    assert list(moments) == ["user_embedding.weight", "item_embedding.weight"]


def test_without_moments_there_is_fisher_information(make_config, caplog):
    model, optimizer, config, splits = trained_by(make_config, "sgd")
    for state, reason in ((optimizer, r"keeps no second moments|there is none"), (None, "there is none")):
        with pytest.raises(curvature.UnusableStateError, match=reason):
            curvature.from_optimizer(model, state)
    batch = next(iter(loaders(config, splits).train))
    assert curvature.read_state(model, optimizer, 3) is None
    assert "is not used: " in caplog.text
    assert "Curvature is the Fisher information of retained interactions" in caplog.text
    moments, read = curvature.from_retained(model, [batch, batch])
    assert read == "Fisher information of retained interactions"
    gradient = loss_gradients(model, batch)[1]["user_embedding.weight"]
    assert torch.allclose(moments["user_embedding.weight"], gradient.square())


DAMAGE = [
    (lambda v: v[:, :4], "have another shape"), (lambda v: v.fill_(float("nan")), "not squares of gradients"),
    (lambda v: v - 1.0, "not squares of gradients"), (lambda v: v + 1e30, "not squares of gradients"),
    (lambda v: v * 0.0, "all moments are zero"), (lambda v: 3, "another shape"),
]  # fmt: skip
STEPS = [("x", "damaged"), (0, "damaged|not squares"), (None, "damaged"), (torch.zeros(3), "damaged")]


@pytest.mark.parametrize(
    ("key", "change", "reason"),
    [("exp_avg_sq", *case) for case in DAMAGE] + [("step", lambda v, to=to: to, why) for to, why in STEPS],
)
def test_moments_that_cannot_be_are_noticed(make_config, caplog, key, change, reason):
    """Zero, absurd or foreign moments would make a downdate of any size; they are not used, and one line says so."""
    model, optimizer, *_ = trained_by(make_config, "adam")
    for state in optimizer["state"].values():
        state[key] = change(state[key])
        if state[key] is None:
            del state[key]
    with pytest.raises(curvature.UnusableStateError, match=reason):
        curvature.from_optimizer(model, optimizer)
    assert curvature.read_state(model, optimizer, 3) is None
    assert caplog.text.count("The optimizer's state is not used") == 1


BATCH = 16


@pytest.fixture
def scene(make_config):
    """``scene("BPR")``: a model, its tables, a witness over all of `tiny`, and some rows of both sides."""

    def make(model, **changes):
        config = make_config(model, train_batch_size=BATCH, **changes)
        splits = load(config).splits
        net = build_model(config, splits)
        with torch.no_grad():
            for value in net.parameters():
                value.mul_(3.0)
        index = TrainIndex(splits.train).complete()
        touched = region_of(*[dict.fromkeys((2, 3, 7, 11), 1.0)] * 2)
        witness = Witness(config, rest_of(index, index.removed)[0], touched, torch.Generator().manual_seed(1))
        return net, find_tables(net, splits.train), witness, touched

    return make


@pytest.mark.parametrize("model", ["BPR", "NeuMF", "LightGCN"])
def test_they_are_what_an_optimizer_would_gather(scene, model, monkeypatch):
    """BPR's formula, autograd by row, and batches of a graph model: each is near the mean over 1,500 batches."""
    more = {"mf_train": True, "mlp_train": True, "dropout_prob": 0.0} if model == "NeuMF" else {}
    monkeypatch.setattr(curvature, "BATCHES", 200)
    monkeypatch.setattr(curvature, "SAMPLED", 32 if model == "NeuMF" else 1000)
    net, tables, witness, touched = scene(model, **more)
    expected = {name: torch.zeros_like(value) for name, value in net.named_parameters()}
    for _ in range(1500):
        batch = witness.batch(witness.triples(witness.uniform(BATCH)))
        for name, gradient in loss_gradients(net, batch)[1].items():
            expected[name] += gradient.square() / 1500
    moments = {name: torch.full_like(value, 7.0) for name, value in expected.items()}
    curvature.refresh(moments, net, tables, touched, witness, BATCH)
    for table in tables:
        ids = touched[table.side].ids
        found, true = moments[table.parameter][ids].sum(), expected[table.parameter][ids].sum()
        # For a negative item NeuMF's share is left out; it is a pointwise model whose rows are not at rest here.
        tolerance = 0.1 if model != "NeuMF" else 0.6
        assert float(found / true) == pytest.approx(1.0, abs=tolerance), table
        others = torch.ones(len(moments[table.parameter]), dtype=torch.bool)
        others[ids] = False
        assert (moments[table.parameter][others] == 7.0).all()


def test_a_row_with_nothing_left_has_no_moment(scene):
    net, tables, witness, touched = scene("BPR")
    witness.index.remove(witness.index.of("user", torch.tensor([3])))
    moments = {name: torch.full_like(value, 7.0) for name, value in net.named_parameters()}
    curvature.refresh(moments, net, tables, touched, witness, BATCH)
    rows = moments["user_embedding.weight"]
    assert (rows[3] == 0.0).all()
    assert (rows[2] > 0.0).all()
