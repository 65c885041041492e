"""Adapters: projection to a rank, attaching and undoing, files, gradients of their rows; and second moments."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recbole.model.general_recommender import BPR, LightGCN

from recbole_unlearn.data import loaders
from recbole_unlearn.methods.obliviate import adapters as module
from recbole_unlearn.methods.obliviate import curvature, fast_gradients
from recbole_unlearn.methods.obliviate.fast_gradients import BPRGradients, LightGCNGradients, RowGradients
from recbole_unlearn.rows import TrainIndex, find_tables, loss_gradients
from recbole_unlearn.training import build_model, fast_class, fast_models, train
from tests.parts import check_outside, loaded, problem, region_of, same, weights


@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 999))
def test_the_projection_is_the_truncated_svd(rows, d, seed):
    delta = torch.randn(rows, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    u, s, vh = torch.linalg.svd(delta, full_matrices=False)
    for rank in range(1, d + 1):
        low, best = module.project(delta, rank), (u[:, :rank] * s[:rank]) @ vh[:rank]
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
        assert low.energy == pytest.approx(float((low.a @ low.b.T).square().sum() / delta.square().sum()), abs=1e-5)
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
        loss, scores = gradients.own(batch, 0.7), gradients.scores(batch.users, batch.items)
        gradients.back(torch.linspace(-1, 1, len(scores)))
        found.append((loss, scores, gradients.take()))
    (slow_loss, slow_scores, slow), (fast_loss, fast_scores, quick) = found
    assert fast_loss == pytest.approx(slow_loss, rel=1e-4)
    assert torch.allclose(slow_scores, fast_scores, atol=1e-5)
    for a, b in zip(slow, quick, strict=True):
        assert a.abs().max() > 0
        assert torch.allclose(a, b, atol=1e-4, rtol=1e-3)


def test_gradients_by_model(monkeypatch):
    """A faster BPR with a forward pass of its own gives the same numbers, so its gradients stay written out."""
    written_out, name = fast_gradients.written_out, type("OwnName", (BPR,), {})
    loss = type("OwnLoss", (BPR,), {"calculate_loss": lambda self, batch: 0.0})
    assert [written_out(model) for model in (BPR, name, loss)] == [BPRGradients, BPRGradients, RowGradients]
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


def trained_by(make_config, learner):
    """A new model, the state of an optimizer that trained one, the config and the data."""
    config, splits = loaded(make_config(learner=learner, epochs=1))
    return build_model(config, splits), train(config, splits, "x").optimizer, config, splits


@pytest.mark.parametrize(("learner", "key"), [
    ("adam", "exp_avg_sq"), ("adamw", "exp_avg_sq"), ("rmsprop", "square_avg"), ("adagrad", "sum"),
])  # fmt: skip
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


def test_moments_after_a_request_are_those_of_rows_with_as_many_interactions(make_config):
    """A moment that grows with the interactions of its row is near its old value; none of the row's own is left."""
    config, splits = loaded(make_config("LightGCN"))
    net, index = build_model(config, splits), TrainIndex(splits.train).complete()
    touched = region_of(*[dict.fromkeys((2, 3, 7, 11), 1.0)] * 2)
    moments = {}
    for side in ("user", "item"):
        rows = torch.ones(index.sizes[side], 8) * index.counts(side, torch.arange(index.sizes[side]))[:, None]
        rows[touched[side].ids] = float("nan")
        moments[f"{side}_embedding.weight"] = rows
    before = {name: rows.clone() for name, rows in moments.items()}
    index.remove(index.of("user", torch.tensor([3])))
    curvature.refresh(moments, find_tables(net, splits.train), touched, index, torch.Generator().manual_seed(1))
    for side in ("user", "item"):
        rows, ids = moments[f"{side}_embedding.weight"], touched[side].ids
        number = index.counts(side, ids).float()
        assert ((rows[ids, 0] - number).abs() <= 0.5 * number + 4).all()
        others = torch.ones(len(rows), dtype=torch.bool)
        others[ids] = False
        assert torch.equal(rows[others], before[f"{side}_embedding.weight"][others])
    assert (moments["user_embedding.weight"][3] == 0.0).all()
