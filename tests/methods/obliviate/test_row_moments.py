"""Second moments of single rows, against batches drawn many times."""

import pytest
import torch

from recbole_unlearn.data import load
from recbole_unlearn.methods.obliviate import row_moments
from recbole_unlearn.rows import (
    Members,
    Region,
    RetainedIndex,
    Table,
    TrainIndex,
    Witness,
    find_tables,
    loss_gradients,
)
from recbole_unlearn.training import build_model

BATCH = 16


@pytest.fixture
def scene(make_config):
    """``scene("BPR")``: config, model, witness over all of `tiny`, and some rows of both sides."""

    def make(model, **changes):
        config = make_config(model, train_batch_size=BATCH, **changes)
        splits = load(config).splits
        net = build_model(config, splits)
        with torch.no_grad():
            for value in net.parameters():
                value.mul_(3.0)
        index = TrainIndex(splits.train).complete()
        nobody = torch.empty(0, dtype=torch.long)
        retained = RetainedIndex(index, nobody, nobody, index.removed)
        ids = torch.tensor([2, 3, 7, 11])
        touched = Region(user=Members(ids, torch.ones(4)), item=Members(ids, torch.ones(4)))
        return config, net, Witness(config, retained, touched, torch.Generator().manual_seed(1)), touched

    return make


def drawn(net, witness, batches):
    """The mean over ``batches`` of the squared gradient of a batch of BATCH, by parameter."""
    totals = {}
    for _ in range(batches):
        batch = witness.batch(witness.triples(witness.uniform(BATCH)))
        for name, gradient in loss_gradients(net, batch)[1].items():
            totals[name] = totals.get(name, 0.0) + gradient.square() / batches
    return totals


@pytest.mark.parametrize("model", ["BPR", "NeuMF", "LightGCN"])
def test_they_are_what_an_optimizer_would_gather(scene, model, monkeypatch):
    """BPR's formula, autograd by row, and batches of a graph model: each is near the mean over 1,500 batches."""
    more = {"mf_train": True, "mlp_train": True, "dropout_prob": 0.0} if model == "NeuMF" else {}
    monkeypatch.setattr(row_moments, "BATCHES", 200)
    monkeypatch.setattr(row_moments, "SAMPLED", 32 if model == "NeuMF" else 1000)
    _, net, witness, touched = scene(model, **more)
    expected = drawn(net, witness, 1500)
    moments = {name: torch.full_like(value, 7.0) for name, value in expected.items()}
    tables = find_tables(net, witness.index.train)
    row_moments.refresh(moments, net, tables, touched, witness, BATCH)
    for table in tables:
        ids = touched[table.side].ids
        found, true = moments[table.parameter][ids].sum(), expected[table.parameter][ids].sum()
        # For a negative item NeuMF's share is left out; it is a pointwise model whose rows are not at rest here.
        tolerance = 0.1 if model != "NeuMF" else 0.6
        assert float(found / true) == pytest.approx(1.0, abs=tolerance), table
        others = torch.ones(len(moments[table.parameter]), dtype=torch.bool)
        others[ids] = False
        assert (moments[table.parameter][others] == 7.0).all()


@pytest.mark.parametrize("power", [False, True])
def test_lightgcn_is_written_out(scene, power):
    """The same as by autograd, up to rounding."""
    _, net, witness, touched = scene("LightGCN", require_pow=power, reg_weight=0.1)
    tables = find_tables(net, witness.index.train)
    found = []
    for way in (row_moments._of_lightgcn, row_moments._by_autograd):
        witness.generator.manual_seed(3)
        found.append(way(net, tables, touched, witness, BATCH))
    for table in tables:
        assert torch.allclose(found[0][table], found[1][table], rtol=1e-3, atol=1e-12), table


def test_a_row_with_nothing_left_has_no_moment(scene):
    _, net, witness, touched = scene("BPR")
    index = witness.index
    index.remove(index.of("user", torch.tensor([3])))
    moments = {name: torch.full_like(value, 7.0) for name, value in net.named_parameters()}
    row_moments.refresh(moments, net, find_tables(net, index.train), touched, witness, BATCH)
    rows = moments["user_embedding.weight"]
    assert (rows[3] == 0.0).all()
    assert (rows[2] > 0.0).all()
    assert Table("user_embedding.weight", "user") in find_tables(net, index.train)
