"""The paper's algorithm and its ablations: objective, gradients of both factors, bound of the drift, values."""

import pytest
import torch
from tqdm import tqdm

from recbole_unlearn import UnlearnConfig, run_unlearn
from recbole_unlearn.methods.obliviate import Adapter, paper
from recbole_unlearn.methods.obliviate.obliviate import Schedule, calibrate
from recbole_unlearn.methods.obliviate.paper import PaperObjective
from tests.methods.conftest import run
from tests.parts import problem


def test_the_hardest_of_some_candidates():
    scores = torch.tensor([[0.1, 0.9, 0.3], [2.0, 1.0, 0.0]])
    assert paper.hardest(scores, torch.tensor([[5, 6, 7], [8, 9, 10]])).tolist() == [6, 8]


def test_gradients_of_both_factors_with_the_drift():
    """Paper error 4: ‖ABᵀ‖² is not quadratic in (A, B). ⟨G, ABᵀ⟩ + λ‖ABᵀ‖² by autograd."""
    a, b, g = torch.randn(5, 2, requires_grad=True), torch.randn(4, 2, requires_grad=True), torch.randn(5, 4)
    ((g * (a @ b.T)).sum() + 0.3 * (a @ b.T).square().sum()).backward()
    adapter = Adapter("x", torch.arange(5), a.detach().clone(), b.detach().clone(), torch.zeros(5, 4))
    penalty = PaperObjective(drift=0.3).set_gradient(adapter, g)
    assert penalty == pytest.approx(0.3 * (a @ b.T).square().sum().item(), rel=1e-5)
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


def test_drift_stays_below_its_bound(make_config):
    """‖Δθ‖² ≤ L(φ₀)/λ wherever L(φ) ≤ L(φ₀), bilinear or not."""
    _, witness, adapters = problem(make_config(), negatives=0.0, rank=2)
    before = [adapter.b.clone() for adapter in adapters.adapters]
    with tqdm(disable=True) as bar:
        plan, rows = Schedule(60, 0.05, 10**6, 60), witness.interactions()
        values, _ = calibrate(adapters, witness, PaperObjective(1.0, drift=0.05), plan, rows, bar)
    assert values[-1] < values[0]
    assert adapters.drift() <= values[0] / 0.05
    assert all(not torch.equal(x.b, b) for x, b in zip(adapters.adapters, before, strict=True))


@pytest.mark.parametrize("model", ["BPR", "LightGCN"])
def test_the_paper_and_its_ablations_in_one_run(settings, model):
    names = ["obliviate_paper", "no_lua", "no_lac", "no_distill"]
    config = settings | {"epochs": 2, "eval_step": 9, "lac_batch_size": 64, "save_unlearned": False, "report": "none"}
    outcome = run_unlearn(model, "tiny", unlearn="obliviate", compare=["retrain", *names], config_dict=config)
    phases = outcome.result["phases"]
    assert list(phases) == ["original", "unlearned", "retrained", *names]
    metrics = [phase["metrics"] for phase in phases.values()]
    assert all(a != b for k, a in enumerate(metrics) for b in metrics[k + 1 :])


def test_neighbours_are_adapted_and_the_drift_is_certified(settings):
    outcome = run(settings, "obliviate_paper", lac_drift=0.01, lac_steps=40)
    certificates = outcome.result["certificates"]
    assert certificates["drift"] <= certificates["drift_bound"]
    assert certificates["rows"]["user_embedding.weight"] > len(outcome.data.affected_users)
    assert set(certificates["rank"].values()) == {4}


def test_the_presets_have_the_paper_s_values(settings):
    def values(method, model, dataset):
        changes = settings | ({} if dataset == "tiny" else {"load_col": None})
        return UnlearnConfig(model, dataset, config_dict=changes).method_values(method)

    printed = {
        ("BPR", "ml-1m"): (160, 4), ("BPR", "amazon-music"): (110, 4), ("BPR", "yelp2018"): (200, 6),
        ("LightGCN", "ml-1m"): (180, 4), ("LightGCN", "amazon-music"): (150, 4), ("LightGCN", "yelp2018"): (250, 6),
    }  # fmt: skip
    for place, (steps, rank) in printed.items():
        found = values("obliviate_paper", *place)
        assert (found["lac_steps"], found["rank"]) == (steps, rank)
        assert values("no_lac", *place)["lac_steps"] == 0
        assert values("no_distill", *place)["lac_steps"] == steps
        assert values("no_distill", *place)["lac_distill"] == 0
        assert values("no_lua", *place)["lua_scale"] == 0
    assert set(values("no_lua", "BPR", "tiny")) == set(values("obliviate_paper", "BPR", "tiny"))
    assert paper.BUFFER == 0.1
