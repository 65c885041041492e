"""Obliviate: the numerical parts against closed forms, and the method end to end."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.nn.functional import softplus

from recbole_unlearn import UnlearnConfig, run_unlearn
from recbole_unlearn.data import divide, load
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.forget import Located
from recbole_unlearn.obliviate import curvature, lua
from recbole_unlearn.obliviate import witness as witness_module
from recbole_unlearn.obliviate.adapters import Adapter, AdapterSet
from recbole_unlearn.obliviate.lac import BPRGradients, RowGradients
from recbole_unlearn.obliviate.region import find_region
from recbole_unlearn.obliviate.witness import Negatives, Witness
from recbole_unlearn.trainer import PhaseTrainer, build_model, compose, train


@pytest.fixture
def divided(make_config):
    splits = load(make_config()).splits
    mask = np.zeros(len(splits.train), bool)
    users = splits.train.inter_feat["user_id"].numpy()
    mask[np.flatnonzero(users <= 5)[::2]] = True
    return divide(
        splits, Located(mask, np.zeros(len(splits.valid), bool), np.zeros(len(splits.test), bool)), "x"
    )


# The region


def test_shares_are_counted(divided):
    region = find_region(divided, 0.3)
    full, gone = (part.inter_feat["item_id"].tolist() for part in (divided.full.train, divided.forget))
    for item in range(divided.full.train.item_num):
        expected = gone.count(item) / max(1, full.count(item))
        assert float(region.item_share[item]) == pytest.approx(expected)
        assert (item in region.ids("item").tolist()) == (expected >= 0.3)
    assert region.ids("user").tolist() == [1, 2, 3, 4, 5]


def test_rows_that_lost_nothing_are_never_in_the_region(divided):
    region = find_region(divided, 0.0)
    assert not region.inside("user")[6:].any()


# LUA


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


def test_the_deletion_gradient_is_a_sum_over_rows(make_config, divided):
    """Means over batches of different sizes add up to the gradient of the whole sum."""
    config = make_config()
    model = build_model(config, divided.full)
    forget = divided.forget
    negatives = torch.arange(len(forget)) % 50 + 1
    parts = [torch.arange(0, 7), torch.arange(7, len(forget))]
    batches = [(witness_module.as_batch(config, forget, p, negatives[p]), len(p)) for p in parts]
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


def test_retirement_goes_from_nothing_to_the_initial_row():
    weights, initial = torch.ones(4, 2), torch.zeros(4, 2)
    share = torch.tensor([0.0, 0.1, 0.5, 1.0])
    assert lua.retire(weights, initial, share, 3.0)[:, 0].tolist() == pytest.approx([1.0, 0.7, 0.0, 0.0])


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
    assert curvature.from_optimizer(model, trained.optimizer) is None
    assert curvature.from_optimizer(model, None) is None
    batch = witness_module.as_batch(config, splits.train, torch.arange(8), torch.arange(1, 9))
    caplog.set_level("INFO")
    moments = curvature.second_moments(model, trained.optimizer, [batch, batch])
    assert "Fisher" in caplog.text
    gradient = curvature.loss_gradients(model, batch)[1]["user_embedding.weight"]
    assert torch.allclose(moments["user_embedding.weight"], gradient.square())


def test_moments_of_another_model_are_refused(make_config):
    config = make_config(epochs=1)
    splits = load(config).splits
    trained = train(config, splits, "x")
    assert (
        curvature.from_optimizer(build_model(make_config(embedding_size=4), splits), trained.optimizer)
        is None
    )


# The witness set


@pytest.mark.parametrize("table", [True, False])
def test_negatives_are_not_in_the_data(divided, monkeypatch, table):
    if not table:
        monkeypatch.setattr(witness_module, "TABLE_BYTES", 0)
    data = divided.retain.train
    negatives = Negatives(data, torch.Generator().manual_seed(0))
    assert (negatives.table is not None) == table
    users = data.inter_feat["user_id"].repeat(20)
    drawn = negatives.draw(users)
    known = set(zip(data.inter_feat["user_id"].tolist(), data.inter_feat["item_id"].tolist(), strict=True))
    assert not known & set(zip(users.tolist(), drawn.tolist(), strict=True))
    assert negatives.are_known(data.inter_feat["user_id"], data.inter_feat["item_id"]).all()
    assert set(range(1, data.item_num)) == set(drawn.tolist())


def make_witness(config, divided, negatives=1.0, threshold=0.1):
    region = find_region(divided, threshold)
    return Witness(config, divided.retain.train, region, torch.Generator().manual_seed(0), negatives), region


def test_witness_rows_touch_the_region(make_config, divided):
    witness, region = make_witness(make_config(), divided)
    users, items = region.inside("user"), region.inside("item")
    for sides, wanted in (
        (("user",), users[witness.users]),
        (("item",), items[witness.items] & ~users[witness.users]),
        (("user", "item"), users[witness.users] | items[witness.items]),
    ):
        assert torch.equal(witness.rows(sides), wanted.nonzero().flatten())


def test_items_of_the_region_are_negatives_as_often_as_in_training(make_config, divided):
    witness, region = make_witness(make_config(), divided)
    rows = witness.rows(("item",))
    chosen, _ = witness.triples(rows, 1000, items=True)
    often = len(witness.users) * len(region.ids("item")) / divided.full.train.item_num
    assert witness.negative_share(rows) == pytest.approx(often / (often + len(rows)))
    assert len(chosen) <= 1000
    assert make_witness(make_config(), divided, negatives=0.0)[0].negative_share(rows) == 0.0


@pytest.mark.parametrize("model", ["BPR", "NeuMF", "FM", "MultiVAE"])
def test_batches_have_the_form_the_model_takes(make_config, divided, model):
    config = make_config(model)
    splits = load(config).splits
    batch = witness_module.as_batch(config, splits.train, torch.arange(6), torch.arange(1, 7))
    loss = build_model(config, splits).calculate_loss(batch)
    assert torch.isfinite(sum(loss) if isinstance(loss, tuple) else loss)


# Adapters and LAC


def test_adapters_change_their_rows_and_give_them_back(make_config, divided):
    model = build_model(make_config(), divided.retain)
    before = model.user_embedding.weight.detach().clone()
    rows = torch.tensor([2, 5])
    a, b = torch.randn(2, 3), torch.linalg.qr(torch.randn(8, 3))[0]
    adapters = AdapterSet(model, [Adapter("user_embedding.weight", rows, a, b, before[rows].clone())])
    adapters.attach()
    after = model.user_embedding.weight
    assert torch.allclose(after[rows], before[rows] + a @ b.T)
    others = torch.ones(len(before), dtype=torch.bool)
    others[rows] = False
    assert torch.equal(after[others], before[others])
    assert adapters.drift() == pytest.approx(float((a @ b.T).square().sum()))
    adapters.detach()
    assert torch.equal(model.user_embedding.weight, before)  # bit for bit
    adapters.attach()
    assert adapters.merge() is model
    assert adapters.adapters == []


def test_written_out_gradients_equal_autograd(make_config, divided):
    config = make_config()
    model = build_model(config, divided.retain)
    witness, region = make_witness(config, divided)
    named = dict(model.named_parameters())
    adapters = [
        Adapter(
            name, region.ids(side), torch.zeros(0), torch.zeros(0), named[name].detach()[region.ids(side)]
        )
        for name, side in (("user_embedding.weight", "user"), ("item_embedding.weight", "item"))
    ]
    triples = witness.triples(witness.rows(("user", "item")), 200, items=True)
    slow = RowGradients(model, witness, adapters)(*triples)
    fast = BPRGradients(model, witness, adapters)(*triples)
    assert fast[0] == pytest.approx(slow[0], abs=1e-5)
    for a, b in zip(slow[1], fast[1], strict=True):
        assert torch.allclose(a, b, atol=1e-6)


# End to end


OBLIVIATE = {"lac_steps": 10, "lac_batch_size": 64}


@pytest.mark.parametrize("model", ["BPR", "LightGCN", "NGCF", "NeuMF", "SGL", "SimpleX", "FM", "DeepFM"])
def test_it_works_on_many_models(settings, model):
    extra = {"history_len": 10} if model == "SimpleX" else {}
    outcome = run_unlearn(model, "tiny", unlearn="obliviate", config_dict=settings | OBLIVIATE | extra)
    phases = outcome.result["phases"]
    assert phases["unlearned"]["metrics"] != phases["original"]["metrics"]
    assert outcome.result["certificates"]["drift"] > 0
    assert "recovered" not in outcome.result  # retraining did not run


@pytest.mark.parametrize("model", ["BPR", "NeuMF"])
def test_rows_outside_the_region_keep_their_weights_bit_for_bit(settings, model):
    outcome = run_unlearn(
        model, "tiny", unlearn="obliviate",
        config_dict=settings | OBLIVIATE | {"cache": False, "lua_threshold": 0.3, "save_unlearned": False},
    )  # fmt: skip
    original = train(outcome.config, outcome.data.full, "original").state_dict
    region = find_region(outcome.data, 0.3)
    changed = 0
    for name, value in outcome.model.state_dict().items():
        side = "user" if "user" in name else "item" if "item" in name else None
        if side is None:
            assert torch.equal(value, original[name]), name
            continue
        same = (value == original[name]).all(dim=1)
        inside = region.inside(side)
        assert same[~inside].all(), name
        changed += int((~same[inside]).sum())
    assert changed > 0


def test_it_forgets_noise_and_keeps_what_is_liked(tmp_path):
    """ml-100k: noise ends where retraining puts it, at a fraction of the time, others are left in peace."""
    values = {
        "epochs": 60, "embedding_size": 32, "learning_rate": 0.005, "eval_step": 10, "show_progress": False,
        "tensorboard": False, "save_unlearned": False, "stopping_step": 3,
    }  # fmt: skip
    result = run_unlearn("BPR", "ml-100k", unlearn="obliviate", compare="retrain", config_dict=values).result
    original, unlearned, retrained = (
        result["phases"][name] for name in ("original", "unlearned", "retrained")
    )
    assert result["recovered"]["ndcg@20"] > 0.7
    gap = abs(unlearned["forgetting"]["demotion_rate"] - retrained["forgetting"]["demotion_rate"])
    assert gap < 0.25
    assert unlearned["unaffected"]["ndcg@20"] > 0.95 * original["unaffected"]["ndcg@20"]


@pytest.mark.parametrize("model", ["BPR", "LightGCN", "NeuMF"])
def test_one_interaction_is_not_too_small_a_request(settings, model):
    """The commonest request takes a small share of its user's rows; the user's row must change all the same."""
    splits = load(UnlearnConfig(model, "tiny", config_dict=settings)).splits
    user, item = (int(splits.train.inter_feat[field][0]) for field in ("user_id", "item_id"))
    pair = (splits.train.id2token("user_id", [user]), splits.train.id2token("item_id", [item]))
    outcome = run_unlearn(model, "tiny", unlearn="obliviate", forget=pair, config_dict=settings | OBLIVIATE)
    original = train(outcome.config, outcome.data.full, "original").state_dict
    for name, value in outcome.model.state_dict().items():
        if "user" in name:
            changed = (value != original[name]).any(dim=1).nonzero().flatten().tolist()
            assert changed == [user], name


def test_same_seed_same_weights(settings):
    weights = [
        run_unlearn("BPR", "tiny", unlearn="obliviate", config_dict=settings | OBLIVIATE).model.state_dict()
        for _ in range(2)
    ]
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name])


@pytest.mark.parametrize(
    "changes", [{"rank": 3}, {"rank": "auto"}, {"lua_scale": "auto"}, {"lua_scale": 1e-5}]
)
def test_ranks_and_scales(settings, changes):
    outcome = run_unlearn("BPR", "tiny", unlearn="obliviate", config_dict=settings | OBLIVIATE | changes)
    certificates = outcome.result["certificates"]
    energies = certificates["energy"].values()
    assert all(0 < energy <= 1 for energy in energies)
    if changes.get("rank") == 3:
        assert all(energy < 1 for energy in energies)
    if "lua_scale" in changes:
        assert certificates["lua_scale"] >= 0


def test_a_whole_user_is_forgotten(settings):
    outcome = run_unlearn(
        "BPR", "tiny", unlearn="obliviate", forget={"user_id": ["u5"]}, config_dict=settings | OBLIVIATE
    )
    row = outcome.data.full.train.token2id("user_id", "u5")
    fresh = build_model(outcome.config, outcome.data.retain)
    assert torch.equal(outcome.model.user_embedding.weight[row], fresh.user_embedding.weight[row])


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("BPR", {"rank": "much"}, "rank='much'"),
        ("BPR", {"rank": 0}, "rank=0"),
        ("BPR", {"lua_scale": "big"}, "lua_scale='big'"),
        ("BPR", {"lac_passes": ["people"]}, "lac_passes='people'"),
        ("MultiVAE", {}, "no embedding table"),
        ("DMF", {}, "no embedding table"),
    ],
)
def test_what_it_cannot_do_is_said(settings, model, changes, message):
    with pytest.raises(UnlearnError, match=message):
        run_unlearn(model, "tiny", unlearn="obliviate", config_dict=settings | OBLIVIATE | changes)


def test_the_model_is_left_ready_for_evaluation(settings):
    outcome = run_unlearn("LightGCN", "tiny", unlearn="obliviate", config_dict=settings | OBLIVIATE)
    trainer = compose(PhaseTrainer, outcome.config, outcome.model, "x")
    users = torch.tensor([1])
    scores = trainer.scores(users, outcome.data.retain.train)
    user, item = outcome.model.forward()
    assert torch.allclose(scores[0, 1:], (user[users] @ item.T)[0, 1:], atol=1e-6)
