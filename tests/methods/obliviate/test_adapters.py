"""Adapters: projection to a rank, attaching and undoing, files, and gradients of their rows."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recbole.model.general_recommender import BPR, LightGCN

from recbole_unlearn.methods.obliviate import AdapterSet, fast_gradients
from recbole_unlearn.methods.obliviate import adapters as module
from recbole_unlearn.methods.obliviate.fast_gradients import BPRGradients, LightGCNGradients, RowGradients
from recbole_unlearn.training import build_model, fast_class, fast_models
from tests.parts import check_outside, problem, refused, same, weights


@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 999))
def test_the_projection_is_the_truncated_svd(rows, d, seed):
    delta = torch.randn(rows, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    u, s, vh = torch.linalg.svd(delta, full_matrices=False)
    for rank in range(1, d + 1):
        low = module.project(delta, rank)
        best = (u[:, :rank] * s[:rank]) @ vh[:rank]
        assert torch.allclose(low.a @ low.b.T, best, atol=1e-6)
        assert low.energy == pytest.approx(float((s[:rank] ** 2).sum() / (s**2).sum()), abs=1e-6)


def test_all_deltas_at_one_rank():
    generator = torch.Generator().manual_seed(0)
    deltas = [torch.randn(n, 6, generator=generator) for n in (9, 4)]
    for low, delta in zip(module.project_shared(deltas, "full"), deltas, strict=True):
        assert torch.equal(low.a @ low.b.T, delta)
        assert low.energy == 1.0
    one = module.project_shared(deltas, 2)
    assert torch.equal(one[0].b, one[1].b)
    stack = module.project(torch.cat(deltas), 2)
    assert torch.allclose(torch.cat([low.a @ low.b.T for low in one]), stack.a @ stack.b.T, atol=1e-5)
    for low, delta in zip(one, deltas, strict=True):
        kept = (low.a @ low.b.T).square().sum() / delta.square().sum()
        assert low.energy == pytest.approx(float(kept), abs=1e-5)
    (nothing,) = module.project_shared([torch.zeros(3, 4)], 2)
    assert nothing.energy == 1.0
    assert torch.allclose(nothing.b.T @ nothing.b, torch.eye(2))


def test_adapters_change_their_rows_and_give_them_back(make_config):
    data, witness, adapters = problem(make_config(), rank=3)
    model, attached = adapters.model, weights(adapters.model)
    adapters.detach()
    before = weights(model)
    assert same(before, weights(build_model(make_config(), data.retain)))  # bit for bit
    adapters.attach()
    assert same(attached, weights(model))
    check_outside(model, before, data.full.train, witness.region)
    total = 0.0
    for adapter in adapters.adapters:
        change = adapter.a @ adapter.b.T
        after, first = (values[adapter.name][adapter.rows] for values in (attached, before))
        assert torch.allclose(after, first + change)
        total += float(change.square().sum())
    assert adapters.drift() == pytest.approx(total, rel=1e-5)
    assert adapters.merge() is model
    assert adapters.adapters == []


@pytest.mark.parametrize("model", ["BPR", "FM", "MultiVAE", "DMF"])
def test_adapters_are_saved_and_loaded(make_config, tmp_path, model):
    _, _, adapters = problem(make_config(model), rank=3)
    attached = weights(adapters.model)
    adapters.save(tmp_path / "kept", method="obliviate")
    assert same(attached, weights(adapters.model))  # saving changes nothing
    written = json.loads((tmp_path / "kept" / module.CONFIG).read_text())
    assert written["method"] == "obliviate"
    adapters.detach()
    assert written["base"] == module.weights_digest(adapters.model)
    AdapterSet.load(adapters.model, tmp_path / "kept").attach()
    assert same(attached, weights(adapters.model))  # bit for bit
    refused("another model", AdapterSet.load, adapters.model, tmp_path / "kept")


def test_adapters_that_cannot_be_read(make_config, tmp_path):
    _, _, adapters = problem(make_config())
    adapters.detach()
    refused("Cannot read adapters", AdapterSet.load, adapters.model, tmp_path)
    folder = adapters.save(tmp_path / "kept")
    (folder / module.WEIGHTS).write_bytes(b"nonsense")
    refused("Cannot read adapters", AdapterSet.load, adapters.model, folder)
    adapters.save(folder)
    described = json.loads((folder / module.CONFIG).read_text())
    described["adapters"][0]["parameter"] = "item_embedding.bias"
    (folder / module.CONFIG).write_text(json.dumps(described))
    refused("does not fit", AdapterSet.load, adapters.model, folder)


SHAPES = [({}, False), ({"rank": 3, "shared": True}, False), ({"rank": 3}, False), ({"rank": 3}, True)]
PENALTIES = [{"reg_weight": 0.3, "require_pow": power} for power in (False, True)]


@pytest.mark.parametrize(("about", "whole"), SHAPES)
@pytest.mark.parametrize(("model", "changes"), [("BPR", {}), *(("LightGCN", more) for more in PENALTIES)])
def test_written_out_gradients_equal_autograd(make_config, model, changes, about, whole):
    _, witness, adapters = problem(make_config(model, **changes), **about)
    fast = type(fast_gradients.row_gradients(adapters, witness))
    assert fast is {"BPR": BPRGradients, "LightGCN": LightGCNGradients}[model]
    batch = next(witness.batches(witness.interactions(), 200, 1))
    found = []
    for cls in (RowGradients, fast):
        gradients = cls(adapters, witness, whole)
        loss = gradients.own(batch, 0.7)
        scores = gradients.scores(batch.users, batch.items)
        gradients.back(torch.linspace(-1, 1, len(scores)))
        found.append((loss, scores, gradients.take()))
    (slow_loss, slow_scores, slow), (fast_loss, fast_scores, quick) = found
    assert fast_loss == pytest.approx(slow_loss, rel=1e-4)
    assert torch.allclose(slow_scores, fast_scores, atol=1e-5)
    for a, b in zip(slow, quick, strict=True):
        assert a.abs().max() > 0
        assert torch.allclose(a, b, atol=1e-4, rtol=1e-3)


class OwnLoss(BPR):
    """BPR with a loss of its own."""

    def calculate_loss(self, interaction):
        return 2.0 * super().calculate_loss(interaction)


class OwnName(BPR):
    """BPR under another name: scores and loss are RecBole's."""


def test_gradients_by_model(monkeypatch):
    """A faster BPR with a forward pass of its own gives the same numbers, so its gradients stay written out."""
    written_out = fast_gradients.written_out
    assert [written_out(model) for model in (BPR, OwnName, OwnLoss)] == [BPRGradients, BPRGradients, RowGradients]
    assert written_out(LightGCN) is written_out(fast_class(LightGCN)) is LightGCNGradients
    for name in ("entries", "_sources"):
        monkeypatch.setattr(fast_models.FAST, name, dict(getattr(fast_models.FAST, name)))

    @fast_models.faster(BPR)
    class FasterBPR(BPR):
        def forward(self, user, item):
            return super().forward(user, item)

    assert fast_class(BPR) is FasterBPR
    assert written_out(FasterBPR) is BPRGradients
    with pytest.raises(ValueError, match="already"):
        fast_models.faster(BPR)(type("Another", (BPR,), {}))
