"""Stage 1: signs, scales, ranks, curvature and re-embedding, each against a closed form."""

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.nn.functional import softplus

from recbole_unlearn.data.splits import load
from recbole_unlearn.methods.obliviate import curvature, lua, newton, reembed
from recbole_unlearn.rows.batches import as_batch
from recbole_unlearn.rows.index import RetainedIndex, TrainIndex
from recbole_unlearn.rows.own_loss import loss_gradients
from recbole_unlearn.rows.region import find_region
from recbole_unlearn.training.phase import build_model, train
from tests.parts import Rows, divided, make_adapters, make_witness


def quadratic(seed, n=40, d=5):
    """Ridge regression: J(θ) = ½Σ(xᵀθ − y)² + ½|θ|², whose leave-out optimum is known exactly."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=rng, dtype=torch.float64)
    y = torch.randn(n, generator=rng, dtype=torch.float64)

    def optimum(rows):
        a = x[rows].T @ x[rows] + torch.eye(d, dtype=torch.float64)
        return torch.linalg.solve(a, x[rows].T @ y[rows])

    return x, y, optimum


@pytest.mark.parametrize("seed", range(5))
def test_the_sign_goes_up_the_deleted_loss(seed):
    """Paper error 1: θ₋S ≈ θ0 + H⁻¹g_S. With the exact Hessian of the retained rows it is exact; minus is far off."""
    x, y, optimum = quadratic(seed)
    deleted, kept = torch.arange(4), torch.arange(4, 40)
    start, target = optimum(torch.arange(40)), optimum(kept)
    gradient = x[deleted].T @ (x[deleted] @ start - y[deleted])
    hessian = x[kept].T @ x[kept] + torch.eye(5, dtype=torch.float64)
    step = torch.linalg.solve(hessian, gradient)
    assert torch.allclose(start + step, target)
    assert (start - step - target).norm() > 1.9 * (start - target).norm()


@pytest.mark.parametrize("seed", range(5))
def test_the_diagonal_downdate_approaches_the_leave_out_optimum(seed):
    """Paper error 2: with √v̂ for curvature only a scale is missing, and the line search finds one that helps."""
    x, y, optimum = quadratic(seed)
    deleted, kept = torch.arange(4), torch.arange(4, 40)
    start, target = optimum(torch.arange(40)), optimum(kept)
    gradient = x[deleted].T @ (x[deleted] @ start - y[deleted])
    moment = (x * (x @ start - y)[:, None]).square().mean(dim=0)
    step = lua.newton_direction(gradient, moment)

    def objective(scale):
        theta = start + scale * step
        return float(((x[kept] @ theta - y[kept]) ** 2).sum() + theta.square().sum())

    scale = lua.line_search(objective, start=1e-6)
    assert scale > 0
    assert (start + scale * step - target).norm() < (start - target).norm()


def test_the_line_search_keeps_zero_when_nothing_helps():
    assert lua.line_search(lambda scale: scale, start=1e-3) == 0.0


def test_the_line_search_finds_the_valley():
    found = lua.line_search(lambda scale: (scale - 0.05) ** 2, start=1e-4)
    assert 0.05 / 2 < found < 0.05 * 2


def test_the_deletion_gradient_is_a_sum_over_rows(make_config):
    """Means over batches of different sizes add up to the gradient of the whole sum."""
    config = make_config()
    data = divided(config)
    model = build_model(config, data.full)
    forget = data.forget
    negatives = torch.arange(len(forget)) % 50 + 1
    parts = [torch.arange(0, 7), torch.arange(7, len(forget))]
    batches = [(as_batch(config, forget, p, negatives[p]), len(p)) for p in parts]
    found = lua.deletion_gradient(model, batches)
    users, items = forget.inter_feat["user_id"], forget.inter_feat["item_id"]
    p, q = model.user_embedding.weight, model.item_embedding.weight
    loss = softplus(-(p[users] * (q[items] - q[negatives])).sum(dim=1)).sum()
    for name, gradient in zip(found, torch.autograd.grad(loss, [p, q]), strict=True):
        assert torch.allclose(found[name], gradient, atol=1e-5)


@hypothesis_settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 999))
def test_the_projection_is_the_truncated_svd(rows, d, seed):
    delta = torch.randn(rows, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    u, s, vh = torch.linalg.svd(delta, full_matrices=False)
    for rank in range(1, d + 1):
        low = lua.project(delta, rank)
        best = (u[:, :rank] * s[:rank]) @ vh[:rank]
        assert torch.allclose(low.a @ low.b.T, best, atol=1e-6)
        assert low.energy == pytest.approx(float((s[:rank] ** 2).sum() / (s**2).sum()), abs=1e-6)
    wanted = 0.8
    auto = lua.project(delta, None, wanted)
    assert auto.energy >= wanted - 1e-9
    smaller = auto.a.shape[1] - 1
    assert smaller == 0 or lua.project(delta, smaller).energy < wanted


def test_all_deltas_at_one_rank():
    generator = torch.Generator().manual_seed(0)
    deltas = [torch.randn(n, 6, generator=generator) for n in (9, 4)]
    for low, delta in zip(lua.project_all(deltas, "full", 0.5, True), deltas, strict=True):
        assert torch.equal(low.a @ low.b.T, delta)
        assert low.energy == 1.0
    apart = lua.project_all(deltas, 2, 0.5, False)
    assert not torch.equal(apart[0].b, apart[1].b)
    assert torch.allclose(apart[0].a, lua.project(deltas[0], 2).a)
    one = lua.project_all(deltas, 2, 0.5, True)
    assert torch.equal(one[0].b, one[1].b)
    stack = lua.project(torch.cat(deltas), 2)
    assert torch.allclose(torch.cat([low.a @ low.b.T for low in one]), stack.a @ stack.b.T, atol=1e-5)
    for low, delta in zip(one, deltas, strict=True):
        kept = (low.a @ low.b.T).square().sum() / delta.square().sum()
        assert low.energy == pytest.approx(float(kept), abs=1e-5)
    auto = lua.project_all(deltas, "auto", 0.9, False)
    assert all(low.energy >= 0.9 for low in auto)


def test_nothing_to_project():
    low = lua.project_all([torch.zeros(3, 4)], 2, 0.9, True)[0]
    assert low.energy == 1.0
    assert torch.allclose(low.b.T @ low.b, torch.eye(2))


# Re-embedding


def test_rows_are_what_the_model_gives_others_with_the_same_neighbours(monkeypatch):
    """Where the map is exactly linear, the rows of the region are found again, whatever stood there."""
    monkeypatch.setattr(reembed, "RIDGE", 1e-14)
    generator = torch.Generator().manual_seed(1)
    pairs = [
        (user, item)
        for user in range(1, 80)
        for item in (torch.randperm(49, generator=generator)[: 3 + user % 40] + 1).tolist()
    ]
    index = TrainIndex(Rows(pairs, users=80, items=50))
    deleted = (index.ids["user"] <= 5) & (index.ids["item"] % 2 == 0)
    gone = [index.ids[side][deleted] for side in ("user", "item")]
    retained, region = RetainedIndex(index, *gone, deleted), find_region(index, *gone, 0.1)
    items = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    transform = torch.randn(11, 4, generator=generator, dtype=torch.float64)
    users = torch.zeros(80, 4, dtype=torch.float64)
    near = reembed.neighbours(retained, region, "user", torch.arange(1, 80), items)
    users[1:] = reembed.features(near) @ transform
    wrong = users.clone()
    wrong[1:6] = 100.0  # rows that have seen S
    told, known = reembed.predict(retained, region, "user", wrong, items, generator)
    assert known.all()
    assert torch.allclose(told, users[1:6], atol=1e-4)


def test_neighbours_are_means_over_retained_rows(make_config):
    config = make_config()
    data = divided(config)
    witness = make_witness(config, data)
    items = torch.randn(data.full.train.item_num, 3)
    ids = torch.tensor([1, 7])
    near = reembed.neighbours(witness.retained, witness.region, "user", ids, items)
    rows = data.retain.train.inter_feat
    for k, user in enumerate(ids.tolist()):
        mine = rows["item_id"][rows["user_id"] == user]
        assert torch.allclose(near.mean[k], items[mine].mean(dim=0), atol=1e-6)
        assert near.number[k] == len(mine)


def test_items_are_told_by_users_outside_the_region_only(make_config):
    config = make_config()
    data = divided(config)
    witness = make_witness(config, data)
    users = torch.zeros(data.full.train.user_num, 2)
    users[1:6] = 1000.0  # those inside
    near = reembed.neighbours(witness.retained, witness.region, "item", witness.region["item"].ids, users)
    assert float(near.mean.abs().max()) == 0.0


def test_an_item_nobody_can_tell_of_is_like_the_rarest(monkeypatch):
    """Item 9 loses all its rows; items 1 to 8 have n rows each, and their rows in the table say n."""
    pairs = [(user, item) for item in range(1, 9) for user in range(1, 1 + 4 * item)] + [(1, 9), (2, 9)]
    index = TrainIndex(Rows(pairs, users=40, items=10))
    deleted = index.ids["item"] == 9
    gone = [index.ids[side][deleted] for side in ("user", "item")]
    retained, region = RetainedIndex(index, *gone, deleted), find_region(index, *gone, 0.1)
    monkeypatch.setattr(reembed, "RAREST", 2)
    own = torch.arange(10.0)[:, None] * torch.ones(1, 2)
    users = torch.randn(40, 2)
    told, known = reembed.predict(retained, region, "item", own, users, torch.Generator().manual_seed(0))
    assert known.all()
    assert told.tolist() == [[1.5, 1.5]]  # of items 1 and 2


def test_too_few_to_learn_from(make_config):
    config = make_config(embedding_size=16)
    data = divided(config)
    witness = make_witness(config, data)
    own, others = torch.zeros(data.full.train.user_num, 16), torch.zeros(data.full.train.item_num, 16)
    known = reembed.predict(witness.retained, witness.region, "user", own, others, witness.generator)[1]
    assert not known.any()


# The Newton downdate of a model


def test_directions_are_gradients_over_curvature_for_the_rows_of_the_region(make_config):
    config = make_config()
    data = divided(config)
    witness = make_witness(config, data)
    adapters = make_adapters(config, data, witness)
    adapters.detach()
    named = dict(adapters.model.named_parameters())
    moments = {name: torch.full_like(value, 4.0) for name, value in named.items()}
    found = newton.directions(adapters, witness, data, moments, draws=1, size=10**6)
    again = make_witness(config, data)
    users = data.forget.inter_feat["user_id"]
    negatives = again.retained.negatives(users, again.generator)
    batch = as_batch(config, data.forget, torch.arange(len(users)), negatives)
    expected = loss_gradients(adapters.model, batch)[1]
    for adapter, direction in zip(adapters.adapters, found, strict=True):
        rows = len(users) * expected[adapter.name][adapter.rows] / 2.0
        assert torch.allclose(direction, rows, atol=1e-5)


@pytest.mark.parametrize("model", ["BPR", "LightGCN", "NeuMF"])
def test_the_scale_that_is_found_lowers_the_witness_objective(make_config, model):
    config = make_config(model, epochs=15)
    data = divided(config)
    witness = make_witness(config, data, threshold=0.0)
    adapters = make_adapters(config, data, witness)
    train(config, data.full, "x").load_weights(adapters.model)
    for adapter in adapters.adapters:
        adapter.base = adapters.rows(adapter)[adapter.rows].clone()
        adapter.a = torch.zeros_like(adapter.base)
    before = {name: value.detach().clone() for name, value in adapters.model.named_parameters()}
    moments = {name: torch.ones_like(value) for name, value in before.items()}
    steps = newton.directions(adapters, witness, data, moments, 2, 64)
    assert newton.search(adapters, witness, steps, 64) > 0
    adapters.attach()
    for name, value in adapters.model.named_parameters():
        assert torch.equal(value, before[name])  # the search leaves nothing behind


# Curvature


@pytest.mark.parametrize(
    ("learner", "key"),
    [("adam", "exp_avg_sq"), ("adamw", "exp_avg_sq"), ("rmsprop", "square_avg"), ("adagrad", "sum")],
)
def test_moments_are_read_from_the_optimizer(make_config, learner, key):
    config = make_config(learner=learner, epochs=2)
    splits = load(config).splits
    trained = train(config, splits, "x")
    model = build_model(config, splits)
    moments = curvature.from_optimizer(model, trained.optimizer)
    raw = trained.optimizer["state"][1][key]
    step = float(trained.optimizer["state"][1]["step"])
    expected = {"exp_avg_sq": raw / (1 - 0.999**step), "square_avg": raw, "sum": raw / step}[key]
    assert torch.allclose(moments["item_embedding.weight"], expected)
    assert list(moments) == ["user_embedding.weight", "item_embedding.weight"]


def test_without_moments_there_is_fisher_information(make_config, caplog):
    config = make_config(learner="sgd", epochs=1)
    splits = load(config).splits
    trained = train(config, splits, "x")
    model = build_model(config, splits)
    with pytest.raises(curvature.UnusableStateError, match=r"keeps no second moments|there is none"):
        curvature.from_optimizer(model, trained.optimizer)
    with pytest.raises(curvature.UnusableStateError, match="there is none"):
        curvature.from_optimizer(model, None)
    batch = as_batch(config, splits.train, torch.arange(8), torch.arange(1, 9))
    caplog.set_level("INFO")
    moments = curvature.second_moments(model, trained.optimizer, lambda: [batch, batch])
    assert "is not used: " in caplog.text
    assert "Fisher information of 2 batches" in caplog.text
    gradient = loss_gradients(model, batch)[1]["user_embedding.weight"]
    assert torch.allclose(moments["user_embedding.weight"], gradient.square())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state: state.update(exp_avg_sq=state["exp_avg_sq"][:, :4]), "have another shape"),
        (
            lambda state: state.update(exp_avg_sq=state["exp_avg_sq"].fill_(float("nan"))),
            "not squares of gradients",
        ),
        (lambda state: state.update(exp_avg_sq=state["exp_avg_sq"] - 1.0), "not squares of gradients"),
        (lambda state: state.update(exp_avg_sq=state["exp_avg_sq"] + 1e30), "not squares of gradients"),
        (lambda state: state.update(exp_avg_sq=state["exp_avg_sq"] * 0.0), "all moments are zero"),
        (lambda state: state.update(step="x"), "damaged"),
        (lambda state: state.update(step=0), "damaged|not squares"),
        (lambda state: state.update(exp_avg_sq=3), "another shape"),
    ],
)
def test_moments_that_cannot_be_are_noticed(make_config, caplog, change, reason):
    """Zero, absurd or foreign moments would make a downdate of any size; they are not used, and one line says so."""
    config = make_config(epochs=1)
    splits = load(config).splits
    trained = train(config, splits, "x")
    for state in trained.optimizer["state"].values():
        change(state)
    model = build_model(config, splits)
    with pytest.raises(curvature.UnusableStateError, match=reason):
        curvature.from_optimizer(model, trained.optimizer)
    batch = as_batch(config, splits.train, torch.arange(8), torch.arange(1, 9))
    assert curvature.second_moments(model, trained.optimizer, lambda: [batch])
    assert caplog.text.count("The optimizer's state is not used") == 1
