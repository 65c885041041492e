"""The gradient-based baselines: their numerics against closed forms, and each of them end to end."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recbole.data.interaction import Interaction
from recbole.model.general_recommender.bpr import BPR
from recbole.utils import InputType
from torch.nn.functional import softplus

from recbole_unlearn.methods import RequestLosses, ifru, rrl
from recbole_unlearn.methods.ifru import Selection, gradient_sum, hessian_product, losing
from recbole_unlearn.rows import Table, TrainIndex, find_tables, learns_by_user, pair_scores, training_loss
from recbole_unlearn.training import build_model, train
from tests.methods.conftest import make_task, regression, run
from tests.parts import Rows, check_outside, divided, make_witness, refused, region_of, same, weights

METHODS = ["finetune", "gradient_ascent", "ifru", "rrl"]
ORIGINALS = {}  # trained once for all tests of this file


@pytest.fixture(autouse=True)
def small_fisher(monkeypatch):
    monkeypatch.setattr(rrl, "FISHER_BATCHES", 8)
    monkeypatch.setattr(rrl, "FISHER_SIZE", 16)


@pytest.fixture
def begin(make_config):
    """``begin("rrl", "BPR", epochs=2, rrl_steps=9)``: the trainer of a method on a trained original, and its task."""

    def make(method, model="BPR", epochs=1, original=None, **changes):
        config = make_config(model, epochs=epochs)
        data = divided(config)
        if original is None and (model, epochs) not in ORIGINALS:
            ORIGINALS[model, epochs] = train(config, data.full, "original")
        original = original or copy.deepcopy(ORIGINALS[model, epochs])
        return make_task(config, data, method, original, **changes)

    return make


def definite(seed, size):
    """A positive definite matrix and a right-hand side."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(size, size, generator=generator, dtype=torch.float64)
    b = torch.randn(size, generator=generator, dtype=torch.float64)
    return a @ a.T / size + 0.1 * torch.eye(size, dtype=torch.float64), b


@given(st.integers(0, 999), st.integers(1, 12), st.floats(0.0, 2.0))
def test_conjugate_gradients_solve(seed, size, damping):
    matrix, b = definite(seed, size)
    found = ifru.conjugate_gradient(lambda v: matrix @ v, b, damping, 10 * size, 1e-10)
    exact = torch.linalg.solve(matrix + damping * torch.eye(size, dtype=b.dtype), b)
    assert torch.allclose(found.x, exact, atol=1e-7)
    assert found.residuals[-1] <= 1e-10
    assert not found.negative_curvature
    by_coordinate = torch.arange(1.0, 1.0 + size, dtype=b.dtype)
    found = ifru.damped(lambda v: matrix @ v, b, by_coordinate, damping, 10 * size, 1e-10)
    exact = torch.linalg.solve(matrix + damping * torch.diag(by_coordinate), b)
    assert torch.allclose(found.x, exact, atol=1e-7)
    assert found.damping == damping


def test_the_solver_on_negative_curvature_where_more_damping_helps_on_zero_and_on_nan():
    matrix, b = torch.diag(torch.tensor([1.0, -0.5, 2.0])), torch.ones(3)
    assert ifru.conjugate_gradient(lambda v: matrix @ v, b, 0.0, 20, 1e-6).negative_curvature
    found = ifru.damped(lambda v: matrix @ v, b, torch.ones(3), 0.0, 20, 1e-6)
    assert found.damping > 0.5
    assert torch.allclose(found.x, 1.0 / (matrix.diag() + found.damping), atol=1e-4)
    refused("not positive definite", ifru.damped, lambda v: -1e30 * v, b, torch.ones(3), 0.0, 20, 1e-6)
    found = ifru.conjugate_gradient(lambda v: v, torch.zeros(3), 0.1, 5, 1e-6)
    assert torch.equal(found.x, torch.zeros(3))
    assert found.outcome().certificates["solver"]["steps"] == 0
    for product, b in ((lambda v: v * float("nan"), 1.0), (lambda v: v, float("nan"))):
        refused("not finite", ifru.conjugate_gradient, product, torch.full((3,), b), 0.1, 5, 1e-6)


@pytest.mark.parametrize("model", ["BPR", "LightGCN", "NeuMF", "FM"])
def test_hessian_products_agree_with_finite_differences(make_config, model):
    config = make_config(model)
    data = divided(config)
    net = build_model(config, data.retain).double()
    if model == "LightGCN":
        net.norm_adj_matrix = net.norm_adj_matrix.double()
    net.eval()
    witness = make_witness(config, data)
    batch = witness.batch(witness.triples(witness.interactions()[:40]))
    selection = Selection(net, find_tables(net, data.full.train), witness.region, witness.index)
    start = selection.gather(selection.named)
    v = torch.randn(len(start), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = hessian_product(training_loss(net, batch), selection, 3.0)(v)
    gradients = []
    for sign in (1.0, -1.0):
        selection.put(start + sign * 1e-6 * v, selection.named)
        gradients.append(gradient_sum([(training_loss(net, batch), 3.0)], selection))
    assert torch.allclose(found, (gradients[0] - gradients[1]) / 2e-6, atol=1e-6, rtol=1e-4)
    assert float(found.norm()) > 0


def test_a_selection_reads_and_writes_its_rows_only():
    net = torch.nn.ParameterDict({"users": torch.randn(8, 3), "columns": torch.randn(2, 9), "other": torch.randn(4)})
    before, index = weights(net), TrainIndex(Rows([(1, 1), (1, 2), (2, 3)]))
    tables = [Table("users", "user"), Table("columns", "item", 0, 1)]
    selection = Selection(net, tables, region_of([1, 4], [3]), index)
    assert len(selection.weights) == 2 * 3 + 2
    assert selection.weights.tolist() == pytest.approx([2.0] * 3 + [1.0] * 3 + [1.0 + 3 / 9] * 2)
    selection.put(selection.gather(selection.named) + 1.0, selection.named)
    assert torch.equal(net.users[[1, 4]], before["users"][[1, 4]] + 1.0)
    assert torch.equal(net.columns[:, 3], before["columns"][:, 3] + 1.0)
    assert torch.equal(net.users[[0, 2, 3, 5, 6, 7]], before["users"][[0, 2, 3, 5, 6, 7]])
    assert torch.equal(net.other, before["other"])
    full = selection.scatter(torch.arange(8.0))
    assert torch.equal(selection.gather(full), torch.arange(8.0))
    assert float(full["users"].sum() + full["columns"].sum()) == 28.0
    net, index = torch.nn.Linear(3, 1, bias=False), TrainIndex(Rows([(1, 1)]))
    selection = Selection(net, [Table("weight", "user", 0, 1)], region_of([0, 2]), index)
    assert torch.equal(hessian_product(net(torch.ones(1, 3)).sum(), selection)(torch.ones(2)), torch.zeros(2))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("kind", "error"), [("ridge", 1e-7), ("logistic", 0.1)])
def test_the_influence_step_goes_to_the_leave_out_optimum(kind, error, seed):
    """θ₀ + H⁻¹b: exact for squares, up to second order for logistic regression; with minus it is twice as far off."""
    loss, deleted, kept, start, target = regression(kind, seed)
    net, index = torch.nn.Linear(4, 1, bias=False).double(), TrainIndex(Rows([(1, 1)]))
    net.weight.data.copy_(start[None])
    selection = Selection(net, [Table("weight", "user", 0, 1)], region_of(range(4)), index)
    product = hessian_product(loss(net.weight[0], kept), selection)
    b = gradient_sum([(loss(net.weight[0], deleted), 1.0)], selection)
    step = ifru.damped(product, b, selection.weights, 0.0, 40, 1e-12).x
    away = float((start - target).norm())
    assert float((start + step - target).norm()) <= error * away
    assert float((start - step - target).norm()) > 1.9 * away


class Ridge(BPR):
    """Users' rows by ridge regression on fixed items: convex, and the optimum is known for any set of rows.

    ℓ(u, i) = ½ (p_u·q_i - 1)² + ½ |p_u|² / 10
    """

    input_type = InputType.PAIRWISE

    def calculate_loss(self, interaction):
        p, q = self.forward(interaction[self.USER_ID], interaction[self.ITEM_ID])
        fit = 0.5 * ((p * q.detach()).sum(dim=1) - 1.0).square()
        return (fit + 0.05 * p.square().sum(dim=1)).mean()


def ridge_optimum(model, dataset):
    """The optimum of every user with rows; others as they are."""
    users, items = dataset.inter_feat["user_id"], dataset.inter_feat["item_id"]
    best = model.user_embedding.weight.detach().clone()
    for user in torch.unique(users):
        q = model.item_embedding.weight.detach()[items[users == user]].double()
        a = q.T @ q + 0.1 * len(q) * torch.eye(q.shape[1], dtype=torch.float64)
        best[user] = torch.linalg.solve(a, q.sum(dim=0)).float()
    return best


def test_ifru_finds_the_leave_out_optimum(make_config, begin, monkeypatch):
    """The whole method on a convex model: it ends where training without S ends."""
    monkeypatch.setattr(ifru, "TOLERANCE", 1e-7)
    monkeypatch.setattr(ifru, "STEPS", 100)
    config = make_config(Ridge, epochs=1)
    data = divided(config)
    original, start = train(config, data.full, "original"), build_model(config, data.full)
    start.item_embedding.weight.data.mul_(20.0)
    original.state_dict["item_embedding.weight"] = start.item_embedding.weight.detach().clone()
    before = original.state_dict["user_embedding.weight"] = ridge_optimum(start, data.full.train)
    trainer, task = begin("ifru", Ridge, original=original, ifru_damping=0.0)
    finished, target = trainer.run(task), ridge_optimum(start, data.retain.train)
    found, users = trainer.model.user_embedding.weight.detach(), data.affected_users
    assert float((found[users] - target[users]).norm()) < 1e-3 * float((before[users] - target[users]).norm())
    assert finished.certificates["solver"]["residual"] <= 1e-6
    others = torch.ones(len(found), dtype=torch.bool)
    others[users] = False
    assert torch.equal(found[others], before[others])
    assert torch.equal(trainer.model.item_embedding.weight, original.state_dict["item_embedding.weight"])


def test_the_spillover_is_the_change_of_the_retained_loss(begin, monkeypatch):
    """Graphs: b is the gradient of D's loss on its graph minus that of what is retained on its own."""
    monkeypatch.setattr(ifru, "SPILLOVER", 0.0)
    trainer, task = begin("ifru", "LightGCN")
    data = task.data
    trainer.model.reg_weight = 0.0
    request = RequestLosses(task, trainer.model)
    request.before.reg_weight = 0.0
    assert ifru.knows_its_data(request)
    everyone = region_of(range(data.full.train.user_num), range(data.full.train.item_num))
    selection = Selection(trainer.model, find_tables(trainer.model, data.full.train), everyone, task.index)
    state = request.generator.get_state()
    found = gradient_sum(trainer._spillover(request), selection)
    request.generator.set_state(state)
    request.deleted_batch(request.deleted_rows()[:1024])  # what knows_its_data draws
    witness = request.witness(losing(request.region, more_than=0.0))
    batch = witness.batch(witness.triples(witness.interactions()))
    on_full, on_retained = build_model(task.config, data.full), trainer.model
    on_full.load_state_dict(on_retained.state_dict())
    expected = []
    for net in (on_full, on_retained):
        u, i = net.forward()
        users, items, negatives = (batch[key] for key in ("user_id", "item_id", "neg_item_id"))
        loss = softplus(-(u[users] * (i[items] - i[negatives])).sum(dim=1)).sum()
        parameters = [net.user_embedding.weight, net.item_embedding.weight]
        expected.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)]))
    assert torch.allclose(found, expected[0] - expected[1], atol=1e-4)
    assert float(found.norm()) > 0
    trainer, task = begin("ifru")  # BPR has no graph
    assert list(trainer._spillover(RequestLosses(task, trainer.model))) == []


@pytest.mark.parametrize("model", ["BPR", "LightGCN", "NeuMF", "MultiVAE"])
def test_rrl_lowers_the_scores_of_deleted_pairs(begin, model):
    """The sign: a public port ranks deleted pairs up."""
    trainer, task = begin("rrl", model, epochs=10, rrl_steps=15)
    (users, items), full = task.data.forget_pairs, task.data.full.train
    others = items.roll(1) % (full.item_num - 1) + 1

    def margin():
        own, other = (pair_scores(trainer.model, full, users, some) for some in (items, others))
        return float((own - other).mean())

    before, finished = margin(), trainer.run(task)
    assert margin() < before
    assert finished.curves["loss"][-1][1] < finished.curves["loss"][0][1]


def test_fisher_information_is_a_sum_of_squares_over_retained_rows(begin, monkeypatch):
    """With one row a batch it is n times the mean square; every retained row was drawn a few times."""
    monkeypatch.setattr(rrl, "FISHER_BATCHES", 1000)
    monkeypatch.setattr(rrl, "FISHER_SIZE", 1)
    trainer, task = begin("rrl", epochs=4)
    data, request = task.data, RequestLosses(task, trainer.model)
    found = trainer._fisher(request)["user_embedding.weight"]
    p, q = trainer.model.user_embedding.weight.detach(), trainer.model.item_embedding.weight.detach()
    users, items = (data.retain.train.inter_feat[key] for key in ("user_id", "item_id"))
    expected, draws = torch.zeros_like(p), 20
    for _ in range(draws):
        x = q[items] - q[request.retained.negatives(users, request.generator)]
        g = (torch.sigmoid((p[users] * x).sum(dim=1)) - 1.0)[:, None] * x
        expected.index_add_(0, users, g.square() / draws)
    assert float(found.sum()) == pytest.approx(float(expected.sum()), rel=0.1)
    by_user = torch.stack([found[data.affected_users], expected[data.affected_users]]).sum(dim=2)
    assert torch.allclose(by_user[0], by_user[1], rtol=0.5)


def test_the_fisher_term_has_its_weight_for_each_deleted_pair(begin, monkeypatch):
    """The first step starts at the anchor, so it is the same for all weights, and the second loss grows with them."""
    monkeypatch.setattr(rrl.RRL, "_fisher", lambda self, request: {"item_embedding.weight": torch.tensor(700.0)})
    last = {}
    for steps, weight in ((1, 1.0), (2, 1.0), (2, 3.0)):
        trainer, task = begin("rrl", rrl_steps=steps, rrl_fisher=weight, rrl_learning_rate=0.01)
        before, pairs = weights(trainer.model), len(RequestLosses(task, trainer.model).retained.gone)
        last[steps, weight] = trainer.unlearn(task).curves["loss"][-1][1]
        if steps == 1:
            moved = weights(trainer.model)["item_embedding.weight"] - before["item_embedding.weight"]
    expected = (3.0 - 1.0) / pairs * 0.5 * 700.0 * float(moved.square().sum())
    assert last[2, 3.0] - last[2, 1.0] == pytest.approx(expected, rel=1e-4)
    assert expected > 0.1


def test_rrl_leaves_a_model_alone_whose_deleted_pairs_are_all_retained(begin):
    trainer, task = begin("rrl")
    before = trainer.snapshot().state_dict
    task.index.pairs = torch.cat([task.index.pairs, task.index.pairs]).sort().values
    trainer.unlearn(task)
    assert same(before, trainer.model.state_dict())


def test_ascent_raises_the_loss_of_deleted_rows_and_stops_before_retained_ones_suffer(begin):
    losses = {}
    for tolerance in (0.0, 0.02, 10.0):
        trainer, task = begin(
            "gradient_ascent", epochs=10, gradient_ascent_learning_rate=0.05,
            gradient_ascent_tolerance=tolerance, gradient_ascent_steps=60,
        )  # fmt: skip
        finished = trainer.run(task)
        kept = [value for _, value in finished.curves["retained_loss"]]
        assert max(kept) <= kept[0] * (1 + tolerance) + 1e-6
        losses[tolerance] = len(kept)
    points = finished.curves["loss"]
    assert points[-1][1] > points[0][1]
    assert losses[0.0] <= losses[0.02] < losses[10.0]


def test_an_autoencoder_s_loss_on_deleted_rows_is_what_they_added(begin, make_config):
    trainer, task = begin("gradient_ascent", "MultiVAE")
    data, request = task.data, RequestLosses(task, trainer.model)
    assert request.by_user
    assert not learns_by_user(make_config())
    chosen = request.deleted_rows()
    assert torch.equal(request.users[chosen], data.affected_users)
    full = build_model(task.config, data.full)
    full.load_state_dict(trainer.model.state_dict())
    full.eval()
    batch = Interaction({"user_id": data.affected_users})
    expected = training_loss(full, batch) - training_loss(trainer.model, batch)
    assert torch.allclose(request.deleted_loss(chosen), expected, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["BPR", "LightGCN", "SGL", "NeuMF", "MultiVAE", "FM"])
def test_every_method_on_many_models(begin, model, method):
    trainer, task = begin(method, model)
    full, before = task.data.full.train, task.original.state_dict
    users, items = (task.data.forget.inter_feat[key].unique().tolist() for key in ("user_id", "item_id"))
    finished = trainer.run(task)
    assert not same(weights(trainer.model), before)
    assert finished.curves
    if method == "ifru":
        check_outside(trainer.model, before, full, region_of(users, items))
        assert finished.certificates["solver"]["steps"] > 0
    if method in ("rrl", "gradient_ascent") and model == "BPR":
        check_outside(trainer.model, before, full, region_of(users, range(full.item_num)))
    if model in ("BPR", "LightGCN"):
        again, task = begin(method, model)
        torch.rand(3)  # the global generator's state does not matter
        again.run(task)
        assert same(trainer.model.state_dict(), again.model.state_dict())


@pytest.mark.parametrize("method", [*METHODS, "obliviate", "obliviate_paper"])
def test_a_whole_user_is_forgotten(settings, method):
    """Nothing is retained of the user, who gets an initial row; others of the request are still unlearned.

    Bit for bit, whatever Obliviate's adapters made of it, and also after its certificates have looked at θ₀.
    """
    outcome = run(settings, method, forget={"user_id": ["u5"]}, epochs=1)
    row = outcome.data.full.train.token2id("user_id", "u5")
    fresh = build_model(outcome.config, outcome.data.retain).user_embedding.weight
    same_rows = (outcome.model.user_embedding.weight == fresh).all(dim=1)
    assert same_rows[row]
    assert not same_rows[row + 1]


@pytest.mark.parametrize("method", [*METHODS, "sisa", "receraser"])
def test_closed_form_models_are_refused(settings, method):
    refused("--unlearn=obliviate or --unlearn=retrain, which are exact", run, settings, method, "EASE", epochs=1)


@pytest.mark.parametrize(("method", "changes", "message"), [
    ("finetune", {"finetune_learning_rate": 1e30}, "Training of the unlearned model failed|not finite"),
    ("gradient_ascent", {"gradient_ascent_tolerance": -0.1}, "gradient_ascent_tolerance=-0.1"),
    ("gradient_ascent", {"gradient_ascent_learning_rate": 1e30}, "gradient_ascent failed"),
    ("rrl", {"rrl_learning_rate": 1e30}, "rrl failed"),
    ("sisa", {"sisa_shards": 41}, "use 40 or fewer"),
    ("receraser", {"model": "NeuMF"}, "receraser_aggregation=mean"),  # it has no vectors
    ("obliviate", {"rank": "much"}, "rank='much'"),
    ("obliviate", {"lac_learning_rate": 1e30}, "LAC failed: its loss is not a number"),
])  # fmt: skip
def test_settings_they_cannot_work_with(settings, method, changes, message):
    refused(message, run, settings, method, **{"epochs": 1} | changes)


@pytest.mark.parametrize("method", ["ifru", "gradient_ascent", "obliviate"])
def test_weights_that_are_not_numbers_are_refused(begin, method):
    original = copy.deepcopy(begin(method)[1].original)
    original.state_dict["user_embedding.weight"][3] = float("nan")
    trainer, task = begin(method, original=original)
    refused(r"not finite|not a number|not a finite number", trainer.run, task)
