"""Stage 2: losses, gradients, adapters, the level of never-seen items and the certificates."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tqdm import tqdm

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.methods.obliviate import (
    CONFIG,
    WEIGHTS,
    Adapter,
    AdapterSet,
    BPRGradients,
    LightGCNGradients,
    RowGradients,
    Schedule,
    WitnessObjective,
    calibrate,
    certificates,
    losses,
    rate_of,
    row_gradients,
    weights_digest,
)
from recbole_unlearn.rows import ClosedFormRanker, ExpectedStanding, pair_scores
from recbole_unlearn.rows import closed_form as level
from recbole_unlearn.training import build_model
from tests.parts import divided, make_adapters, make_witness

# Losses


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


SCORES = st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=8)


@hypothesis_settings(max_examples=50, deadline=None)
@given(SCORES)
def test_losses_equal_their_formulas(pairs):
    first, second = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    n = len(pairs)
    assert float(losses.ranking(first, second)) == pytest.approx(
        -sum(log_sigmoid(a - b) for a, b in pairs) / n
    )
    assert float(losses.reverse_ranking(first, second)) == pytest.approx(
        -sum(log_sigmoid(b - a) for a, b in pairs) / n
    )
    square = sum((a - b) ** 2 for a, b in pairs) / n
    assert float(losses.stand_in(first, second)) == pytest.approx(square)
    assert float(losses.distillation(first, second)) == pytest.approx(square)
    assert float(losses.drift([first, second])) == pytest.approx(sum(a * a + b * b for a, b in pairs))


def test_the_forgetting_losses_push_deleted_items_the_right_way():
    deleted, other = torch.tensor([1.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)
    losses.reverse_ranking(deleted, other).backward()
    assert deleted.grad > 0 > other.grad  # a step down the loss lowers the deleted score
    deleted.grad = other.grad = None
    losses.stand_in(deleted, other).backward()
    assert deleted.grad < 0  # towards its stand-in, upwards here
    assert other.grad is None  # which is not moved


def test_the_hardest_of_some_candidates():
    scores = torch.tensor([[0.1, 0.9, 0.3], [2.0, 1.0, 0.0]])
    assert losses.hardest(scores, torch.tensor([[5, 6, 7], [8, 9, 10]])).tolist() == [6, 8]


# Gradients


def batch_of(witness, size=200):
    return next(witness.batches(witness.interactions(), size, 1))


CASES = [
    ("BPR", BPRGradients, {}, {}),
    ("BPR", BPRGradients, {"rank": 3}, {}),
    ("BPR", BPRGradients, {"rank": 3}, {"whole": True}),
    ("LightGCN", LightGCNGradients, {}, {}),
    ("LightGCN", LightGCNGradients, {"rank": 3, "shared": True}, {}),
    ("LightGCN", LightGCNGradients, {"rank": 3}, {}),
    ("LightGCN", LightGCNGradients, {"rank": 3}, {"whole": True}),
]


@pytest.mark.parametrize(("model", "fast", "make", "take"), CASES)
@pytest.mark.parametrize("power", [False, True])
def test_written_out_gradients_equal_autograd(make_config, model, fast, make, take, power):
    changes = {"reg_weight": 0.3, "require_pow": power} if model == "LightGCN" else {}
    config = make_config(model, **changes)
    data = divided(config)
    witness = make_witness(config, data)
    adapters = make_adapters(config, data, witness, **make)
    batch = batch_of(witness)
    found = []
    for cls in (RowGradients, fast):
        gradients = cls(adapters, adapters.adapters, witness, **take)
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


@pytest.mark.parametrize("model", ["BPR", "LightGCN"])
def test_models_with_written_out_gradients_use_them(make_config, model):
    config = make_config(model)
    data = divided(config)
    witness = make_witness(config, data)
    adapters = make_adapters(config, data, witness)
    kind = type(row_gradients(adapters, adapters.adapters, witness))
    assert kind is {"BPR": BPRGradients, "LightGCN": LightGCNGradients}[model]


@pytest.mark.parametrize("model", ["BPR", "LightGCN", "NeuMF", "MultiVAE"])
@pytest.mark.parametrize("kind", ["reverse", "stand_ins", "distill"])
def test_the_objective_s_gradient_agrees_with_finite_differences(make_config, model, kind):
    config = make_config(model, **({"dropout_prob": 0.0} if model in ("NeuMF", "MultiVAE") else {}))
    data = divided(config)
    base = make_witness(config, data)
    adapters = make_adapters(config, data, base)
    batch = batch_of(base, 50)
    standing = ExpectedStanding(base, base.deleted(100))
    teacher = torch.zeros(len(data.full.train))

    def make():
        """The same draws every time."""
        witness = make_witness(config, data, seed=5)
        objective = WitnessObjective(
            ranking=0.0, forget=0.0 if kind == "distill" else 0.5, distill=2.0 if kind == "distill" else 0.0,
            standing=standing, stand_ins=kind == "stand_ins", teacher=lambda rows: teacher[rows],
        )  # fmt: skip
        gradients = row_gradients(adapters, adapters.adapters, witness)
        gradients.changed()
        return objective.value(gradients, witness, batch), gradients.take()

    _, slopes = make()
    for k, adapter in enumerate(adapters.adapters):
        spot = divmod(int(slopes[k].abs().argmax()), slopes[k].shape[1])
        if kind == "stand_ins":
            continue  # its stand-ins are held still, which a difference cannot do
        values = []
        for sign in (1, -1):
            adapter.a[spot] += sign * 1e-2
            values.append(make()[0])
            adapter.a[spot] -= sign * 1e-2
        slope = (values[0] - values[1]) / 2e-2
        assert slope == pytest.approx(float(slopes[k][spot]), rel=0.05, abs=2e-4)
    assert any(slope.abs().max() > 0 for slope in slopes)


@pytest.mark.parametrize("train_b", [False, True])
@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_calibration_lowers_its_objective(make_config, schedule, train_b):
    config = make_config()
    data = divided(config)
    witness = make_witness(config, data)
    adapters = make_adapters(config, data, witness, rank=3)
    before = [(adapter.a.clone(), adapter.b.clone()) for adapter in adapters.adapters]
    plan = Schedule(30, 0.05, 500, schedule, train_b)
    objective = WitnessObjective(drift=0.001)
    with tqdm(disable=True) as bar:
        values = calibrate(adapters, witness, objective, plan, None, bar).values
    assert len(values) == 30
    assert sum(values[-5:]) < sum(values[:5])
    for adapter, (a, b) in zip(adapters.adapters, before, strict=True):
        assert not torch.equal(adapter.a, a)
        assert torch.equal(adapter.b, b) != train_b
        assert torch.equal(adapters.rows(adapter)[adapter.rows], adapter.base + adapter.delta)


@pytest.mark.parametrize("model", ["BPR", "LightGCN"])
def test_a_new_start_is_frozen_and_rows_that_follow_are_not_calibrated(make_config, model):
    config = make_config(model)
    data = divided(config)
    witness = make_witness(config, data)
    adapters = make_adapters(config, data, witness, rank=3, shared=True)
    for adapter in adapters.adapters:
        adapter.shift = torch.randn_like(adapter.base)
    rest = torch.tensor([r for r in range(1, 20) if r not in witness.region["item"].ids.tolist()])
    table = adapters.model.item_embedding.weight
    none = torch.zeros(len(rest), 0), torch.zeros(table.shape[1], 0)
    base = table.detach()[rest].clone()
    follower = Adapter(
        "item_embedding.weight", rest, *none, base, 0, "item", torch.ones_like(base), trained=False
    )
    adapters.adapters.append(follower)
    adapters.attach()
    shifts = [adapter.shift.clone() for adapter in adapters.adapters]
    with tqdm(disable=True) as bar:
        calibrate(adapters, witness, WitnessObjective(), Schedule(3, 0.05, 200), None, bar)
    assert all(torch.equal(a.shift, s) for a, s in zip(adapters.adapters, shifts, strict=True))
    assert torch.equal(table.detach()[rest], base + 1.0)
    for adapter in adapters.trained:
        rows = adapters.rows(adapter)[adapter.rows]
        assert torch.equal(rows, adapter.base + adapter.shift + adapter.a @ adapter.b.T)
    adapters.detach()
    assert torch.equal(table.detach()[rest], base)


def test_the_rate_follows_the_training_s_up_to_a_limit():
    assert [rate_of(x) for x in (0.0001, 0.001, 0.005, 0.02)] == pytest.approx([0.0012, 0.012, 0.06, 0.06])


def test_a_small_request_takes_few_steps():
    plan = Schedule(30, 0.1, 8192)
    assert plan.within(100) == Schedule(1, 0.1, 8192, horizon=1)
    assert plan.within(2000).steps == 4  # 16 · 2000 / 8192, rounded up
    assert plan.within(10**6).steps == plan.within(10**6).laid_out == 30
    assert Schedule(3, 0.1, 8192, horizon=30).within(2000) == Schedule(3, 0.1, 8192, horizon=4)


def test_a_shared_b_takes_one_step_with_the_gradients_of_all_who_share_it(make_config):
    """B moves by the rate along the sign of Σ (GᵀA + 2λ B AᵀA) over its adapters, as Adam's first step does, once."""
    config = make_config()
    data = divided(config)
    adapters = make_adapters(config, data, make_witness(config, data), rank=3, shared=True)
    users, items = adapters.adapters
    items.b = users.b
    before, lefts = users.b.clone(), [adapter.a.clone() for adapter in (users, items)]
    witness = make_witness(config, data, seed=7)
    gradients = row_gradients(adapters, adapters.adapters, witness, whole=True)
    witness.deleted(witness.watched)  # as `calibrate` draws
    batch = next(witness.batches(witness.interactions(), 500, 1))
    WitnessObjective().value(gradients, witness, batch)
    wanted = sum(g.T @ a + 0.02 * before @ (a.T @ a) for g, a in zip(gradients.take(), lefts, strict=True))
    with tqdm(disable=True) as bar:
        plan = Schedule(1, 0.5, 500, train_b=True)
        calibrate(adapters, make_witness(config, data, seed=7), WitnessObjective(drift=0.01), plan, None, bar)
    assert users.b is items.b
    assert torch.allclose(users.b, before - 0.5 * wanted / (wanted.abs() + 1e-8), atol=1e-4)


def test_the_drift_penalty_s_gradient(make_config):
    """Paper error 4: ‖ABᵀ‖² is not quadratic in (A, B); its gradient is 2λABᵀB and 2λBAᵀA."""
    from recbole_unlearn.methods.obliviate.lac import _add_drift

    a, b = torch.randn(5, 2, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    (0.3 * losses.drift([a @ b.T])).backward()
    adapter = Adapter("x", torch.arange(5), a.detach().clone(), b.detach().clone(), torch.zeros(5, 4))
    adapter.a.grad, adapter.b.grad = torch.zeros(5, 2), torch.zeros(4, 2)
    assert _add_drift(adapter, 0.3) == pytest.approx((a @ b.T).square().sum().item(), rel=1e-5)
    assert torch.allclose(adapter.a.grad, a.grad, atol=1e-5)
    assert torch.allclose(adapter.b.grad, b.grad, atol=1e-5)


def test_with_b_fixed_the_change_is_linear_in_what_is_trained_and_else_it_is_not():
    """Paper error 4, the other half: its convexity needs B fixed."""
    a1, a2, b1, b2 = (torch.randn(4, 2) for _ in range(4))

    def delta(a, b):
        return Adapter("x", torch.arange(4), a, b, torch.zeros(4, 4)).delta

    middle = delta((a1 + a2) / 2, b1)
    assert torch.allclose(middle, (delta(a1, b1) + delta(a2, b1)) / 2, atol=1e-6)
    both = delta((a1 + a2) / 2, (b1 + b2) / 2)
    assert not torch.allclose(both, (delta(a1, b1) + delta(a2, b2)) / 2, atol=1e-2)


def test_it_stops_at_the_level_of_never_seen_items(make_config):
    """Paper error 6: not as far down as it goes, but as far as a model that never saw them would put them."""
    config = make_config()
    data = divided(config)
    for stop in (False, True):
        witness = make_witness(config, data)
        adapters = make_adapters(config, data, witness)
        standing = ExpectedStanding(witness, witness.deleted(1000))
        standing.percentile[:] = 0.6
        objective = WitnessObjective(ranking=0.0, forget=1.0, standing=standing, stop=stop)
        with tqdm(disable=True) as bar:
            trace = calibrate(adapters, witness, objective, Schedule(300, 0.005, 1000), None, bar)
        assert len(trace.values) == 300  # what is retained is fitted to the end
        assert [step for step, _ in trace.demotion][:3] == [0, 10, 20]
        reached = row_gradients(adapters, adapters.adapters, witness).demotion(standing.deleted)
        assert (0.6 <= reached < 0.8) if stop else reached > 0.8


def test_a_loss_that_is_not_a_number_stops_it(make_config):
    config = make_config()
    data = divided(config)
    witness = make_witness(config, data)
    adapters = make_adapters(config, data, witness)
    adapters.adapters[0].a[:] = math.nan
    adapters.attach()
    with tqdm(disable=True) as bar, pytest.raises(UnlearnError, match="not a number"):
        calibrate(adapters, witness, WitnessObjective(), Schedule(3, 0.1, 50), None, bar)


# The level of never-seen items


@pytest.mark.parametrize("items", [5000, 0])
def test_the_standing_tells_what_is_liked_from_what_is_not(make_config, monkeypatch, items):
    """`tiny` has two tastes: a deleted item of the own half stands high, one of the other half low."""
    monkeypatch.setattr(level, "EASE_ITEMS", items)
    monkeypatch.setattr(level, "FACTORS", 2)
    config = make_config()
    data = divided(config)
    witness = make_witness(config, data)
    standing = ExpectedStanding(witness, witness.deleted(10**6))
    train = data.full.train
    taste = [int(token[1:]) % 2 for token in train.id2token("user_id", standing.deleted.users)]
    half = [int(token[1:]) >= 30 for token in train.id2token("item_id", standing.deleted.items)]
    own = torch.tensor([a == b for a, b in zip(taste, half, strict=True)])
    assert own.any()
    assert not own.all()
    assert standing.percentile[own].mean() + 0.2 < standing.percentile[~own].mean()
    assert 0.0 <= standing.level <= 1.0
    assert not witness.retained.are_known(standing.deleted.users, standing.stand_ins).any()


def test_ease_equals_its_closed_form(make_config):
    data = divided(make_config())
    witness = make_witness(make_config(), data)
    reference = ClosedFormRanker(witness.retained)
    x = torch.from_numpy(reference.x.toarray()).double()
    gram = x.T @ x + level.PENALTY * x.sum() / x.shape[1] * torch.eye(x.shape[1], dtype=torch.float64)
    inverse = torch.linalg.inv(gram)
    b = torch.eye(x.shape[1], dtype=torch.float64) - inverse / inverse.diagonal()
    users, items = torch.tensor([3, 8]), torch.tensor([[1, 2], [5, 9]])
    assert torch.allclose(reference.scores(users, items).double(), (x @ b)[users[:, None], items], atol=1e-5)
    assert x.sum() == witness.retained.size


def test_the_ranker_of_large_catalogues_equals_its_closed_form(make_config, monkeypatch):
    """X̃ V Vᵀ, X̃ being X over the roots of the numbers of its users and items."""
    monkeypatch.setattr(level, "EASE_ITEMS", 0)
    monkeypatch.setattr(level, "FACTORS", 3)
    config = make_config()
    witness = make_witness(config, divided(config))
    x = torch.zeros(witness.index.sizes["user"], witness.index.sizes["item"], dtype=torch.float64)
    left = ~witness.retained.deleted
    x[witness.index.ids["user"][left], witness.index.ids["item"][left]] = 1.0
    scaled = x / x.sum(1, keepdim=True).clamp(min=1).sqrt() / x.sum(0, keepdim=True).clamp(min=1).sqrt()
    v = torch.linalg.svd(scaled).Vh[:3].T
    users, items = torch.tensor([3, 8]), torch.tensor([[1, 2], [5, 9]])
    found = ClosedFormRanker(witness.retained).scores(users, items).double()
    assert torch.allclose(found, (scaled @ v @ v.T)[users[:, None], items], atol=1e-5)


# Adapters


def test_adapters_change_their_rows_and_give_them_back(make_config):
    model = build_model(make_config(), divided(make_config()).retain)
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
    assert adapters.drift() == pytest.approx(float((a @ b.T).square().sum()), rel=1e-5)
    adapters.detach()
    assert torch.equal(model.user_embedding.weight, before)  # bit for bit
    adapters.attach()
    assert adapters.merge() is model
    assert adapters.adapters == []


@pytest.mark.parametrize("model", ["BPR", "FM", "MultiVAE", "DMF"])
def test_adapters_are_saved_and_loaded(make_config, tmp_path, model):
    config = make_config(model)
    data = divided(config)
    witness = make_witness(config, data)
    adapters = make_adapters(config, data, witness, rank=3)
    attached = {name: value.detach().clone() for name, value in adapters.model.named_parameters()}
    adapters.save(tmp_path / "kept", method="obliviate")
    for name, value in adapters.model.named_parameters():
        assert torch.equal(value, attached[name])  # saving changes nothing
    written = json.loads((tmp_path / "kept" / CONFIG).read_text())
    assert written["method"] == "obliviate"
    adapters.detach()
    assert written["base"] == weights_digest(adapters.model)
    again = AdapterSet.load(adapters.model, tmp_path / "kept")
    again.attach()
    for name, value in adapters.model.named_parameters():
        assert torch.equal(value, attached[name])  # bit for bit
    with pytest.raises(UnlearnError, match="another model"):
        AdapterSet.load(adapters.model, tmp_path / "kept")  # attached: not the base any more


def test_adapters_that_cannot_be_read(make_config, tmp_path):
    config = make_config()
    data = divided(config)
    adapters = make_adapters(config, data, make_witness(config, data))
    adapters.detach()
    with pytest.raises(UnlearnError, match="Cannot read adapters"):
        AdapterSet.load(adapters.model, tmp_path)
    folder = adapters.save(tmp_path / "kept")
    (folder / WEIGHTS).write_bytes(b"nonsense")
    with pytest.raises(UnlearnError, match="Cannot read adapters"):
        AdapterSet.load(adapters.model, folder)
    adapters.save(folder)
    described = json.loads((folder / CONFIG).read_text())
    described["adapters"][0]["parameter"] = "item_embedding.bias"
    (folder / CONFIG).write_text(json.dumps(described))
    with pytest.raises(UnlearnError, match="does not fit"):
        AdapterSet.load(adapters.model, folder)


# Certificates


@hypothesis_settings(max_examples=100, deadline=None)
@given(st.floats(-20, 20))
def test_the_margin_follows_from_the_loss(margin):
    """Paper error 3: ℓ ≤ ε gives s⁻ − s⁺ ≥ −log(e^ε − 1), with equality at the loss of that margin."""
    loss = math.log1p(math.exp(-margin))
    assert certificates.margin_bound(loss) == pytest.approx(margin, abs=1e-5)
    if margin > 1:
        assert certificates.margin_bound(loss) > 0  # the paper's sign would say that nothing is forgotten


@hypothesis_settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=1, max_size=10))
def test_the_bound_holds_for_the_mean(margins):
    scores = torch.tensor(margins, dtype=torch.float64)
    loss = float(losses.reverse_ranking(torch.zeros_like(scores), scores))
    assert float(scores.mean()) >= certificates.margin_bound(loss) - 1e-9


def test_extreme_losses_have_a_bound():
    assert certificates.margin_bound(0.0) == math.inf
    assert certificates.margin_bound(1000.0) == -1000.0


def test_drift_stays_below_its_bound(make_config):
    """‖Δθ‖² ≤ L(φ₀)/λ wherever L(φ) ≤ L(φ₀), bilinear or not."""
    config = make_config()
    data = divided(config)
    witness = make_witness(config, data, negatives=0.0)
    adapters = make_adapters(config, data, witness, rank=2)
    with tqdm(disable=True) as bar:
        plan = Schedule(60, 0.05, 10**6, train_b=True)
        values = calibrate(
            adapters, witness, WitnessObjective(forget=1.0, drift=0.05), plan, None, bar
        ).values
    assert values[-1] < values[0]
    assert adapters.drift() <= certificates.drift_bound(values[0], 0.05)


def test_the_change_on_retained_pairs_is_measured(make_config):
    config = make_config()
    data = divided(config)
    witness = make_witness(config, data)
    adapters = make_adapters(config, data, witness)
    model = adapters.model
    attached = model.user_embedding.weight.detach().clone()
    users, items = (data.retain.train.inter_feat[field] for field in ("user_id", "item_id"))
    found = certificates.retained_change(adapters, lambda: pair_scores(model, data.full.train, users, items))
    assert torch.equal(model.user_embedding.weight, attached)
    after = pair_scores(model, data.full.train, users, items)
    adapters.detach()
    before = pair_scores(model, data.full.train, users, items)
    assert found["largest"] == pytest.approx(float((after - before).abs().max()), abs=1e-5)
    deleted = witness.deleted(10**6)
    scores = [
        pair_scores(model, data.full.train, deleted.users, i) for i in (deleted.items, deleted.negatives)
    ]
    assert certificates.margin(*scores)["pairs"] == len(deleted.users)
