"""The spectral start, and rebuild: closed forms of the SVD, and the proof that nothing but retained data goes in."""

import contextlib
import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from recbole_unlearn import UnlearnConfig, run_unlearn
from recbole_unlearn.methods.rebuild import Rebuild
from recbole_unlearn.pipeline import begin, checked_settings
from recbole_unlearn.rows import pair_scores
from recbole_unlearn.settings import CacheSettings
from recbole_unlearn.training import SpectralStart, Trainings, build_model, train
from recbole_unlearn.training import spectral as module
from recbole_unlearn.training.spectral import GAP, RIDGE, UNSEEN, by_interactions, truncated_svd
from tests.parts import Rows, divided, loaded, same, without


@examples(max_examples=30)
@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 14), st.integers(0, 10**6))
def test_the_svd_is_that_of_lapack(users, items, rank, seed):
    """Also where a matrix has less rank than asked for, rows of zeros, or nothing in it but one value."""
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(users, items)) * (rng.random((users, items)) < 0.5)
    dense[0, 0] = 1.0
    matrix = torch.from_numpy(dense.astype(np.float32))
    left, values, right = truncated_svd(
        matrix.matmul, matrix.T.matmul, (users, items), rank, torch.Generator().manual_seed(0)
    )
    real = np.linalg.svd(dense, compute_uv=False)
    real = real[real > 2e-3 * real[0]][:rank]
    np.testing.assert_allclose(values[: len(real)], real, rtol=1e-3)
    for basis in (left, right):
        torch.testing.assert_close(basis.T @ basis, torch.eye(len(values)), atol=1e-3, rtol=0)
    if rank >= min(users, items):
        np.testing.assert_allclose((left * values) @ right.T, dense, atol=2e-3 * real[0])


def test_rows_solve_their_normal_equations(monkeypatch):
    """Sweeps end where neither side can do better, by a dense solution; a repeated pair counts once."""
    monkeypatch.setattr(module, "SWEEPS", 300)
    monkeypatch.setattr(module, "STEPS_OF_CG", 8)
    monkeypatch.setattr(module, "BLOCK", 3)  # rows are solved for in several blocks
    x = (np.random.default_rng(1).random((7, 6)) < 0.4).astype(float)
    x[0] = x[:, 0] = x[6] = 0  # padding, and a user without interactions
    x[1, 2] = x[3, 4] = 1
    pairs = np.argwhere(x).tolist()
    found = by_interactions(Rows(pairs + pairs[:3], users=7, items=6), 3, torch.Generator().manual_seed(0))
    p, q = (found[side].double().numpy() for side in ("user", "item"))
    assert not p[[0, 6]].any()
    w, m = UNSEEN * x.sum() / x.size, x.shape[1]
    for u in range(1, 6):
        own = x[u] > 0
        left = q[own].T @ q[own] + w * q.T @ q + RIDGE * (own.sum() + w * m) * np.eye(3)
        np.testing.assert_allclose(np.linalg.solve(left, q[own].sum(0)), p[u], atol=1e-3)
    losses = []
    for sweeps in (0, 1, 3):  # the objective falls
        monkeypatch.setattr(module, "SWEEPS", sweeps)
        found = by_interactions(Rows(pairs, users=7, items=6), 3, torch.Generator().manual_seed(0))
        p, q = (found[side].double().numpy() for side in ("user", "item"))
        s = p @ q.T
        ridge = RIDGE * ((x.sum(1) + w * 6) @ (p**2).sum(1) + (x.sum(0) + w * 7) @ (q**2).sum(1))
        losses.append(((1 - s)[x > 0] ** 2).sum() + w * (s**2).sum() + ridge)
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("number", [2, 3, 20])
def test_blocks_of_rows_have_the_bits_of_all_rows(monkeypatch, number):
    """Also more blocks than rows with interactions."""
    pairs = np.argwhere(np.random.default_rng(1).random((40, 9)) < 0.3).tolist()
    train = Rows(pairs, users=41, items=9)

    @contextlib.contextmanager
    def divided_into(kind, pieces, address):
        assert address == "there"
        objects = [kind(*piece) for piece in pieces(number)]
        yield lambda name, shared, own: [getattr(a, name)(*shared, b) for a, b in zip(objects, own, strict=True)]

    here = by_interactions(train, 5, torch.Generator().manual_seed(0))
    monkeypatch.setattr(module, "held", divided_into)
    assert same(here, by_interactions(train, 5, torch.Generator().manual_seed(0), "there"))


@pytest.mark.parametrize(
    ("model", "bilinear"), [("BPR", True), ("LightGCN", True), ("NGCF", True), ("NeuMF", False), ("SimpleX", False)]
)
def test_rows_have_their_scale_and_the_others_stay(make_config, model, bilinear):
    config, splits = loaded(make_config(model))
    net, plain = build_model(config, splits), build_model(config, splits)
    start = SpectralStart(net, splits, 7)
    assert start
    assert start.is_bilinear is bilinear
    named = dict(plain.named_parameters())
    moved = {name for name, value in net.named_parameters() if not torch.equal(value, named[name])}
    assert moved
    assert all("embedding" in name or "_emb" in name for name in moved)
    for name in moved:  # padding has no interactions
        assert torch.equal(net.get_parameter(name)[0], named[name][0])
    if bilinear:
        users, items, others = start._pairs
        scores = [pair_scores(net, splits.train, users, other) for other in (items, others)]
        rel = 0.05 if model == "NGCF" else 0.01  # normalised layers turn a little with the scale
        assert float((scores[0] - scores[1]).mean()) == pytest.approx(GAP, rel=rel)


def test_without_rows_of_users_it_is_trained_in_full(make_config, caplog):
    config, splits = loaded(make_config("MultiDAE", mlp_hidden_size=[8], latent_dimension=4, start="spectral"))
    with caplog.at_level("INFO"):
        found = train(config, splits, "x")
    assert "MultiDAE has no rows of users and items for a spectral start: it is trained in full." in caplog.text
    assert same(train(config.replace(start="random"), splits, "x").state_dict, found.state_dict)


def rebuilt(config, data, original=None, folder="c"):
    """The weights of a rebuilt model."""
    trainings = Trainings(CacheSettings(cache=False, cache_dir=folder, cache_size=1.0), 1)
    trainer, task = begin(Rebuild, checked_settings(Rebuild, config), config, data, original, trainings, "unlearned")
    assert trainer.run(task).certificates == {"exact": True}
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


MODELS = ["BPR", "LightGCN", "NeuMF", "SASRec"]


@pytest.mark.parametrize("model", MODELS)
def test_the_proof_that_rebuild_is_exact(make_config, quick, model):
    """The same bits whether S was deleted or never there, at once or in two requests, from any original."""
    changes = quick(model) if model == "SASRec" else {}
    config = make_config(model, **changes, unlearn="rebuild")
    data = divided(config)
    found = rebuilt(config, data)
    assert same(found, rebuilt(config, dataclasses.replace(data, full=data.retain)))
    if model != "SASRec":
        numbers = np.flatnonzero(data.deleted.numpy())
        first = without(data.full, numbers[::2])
        left = np.isin(np.delete(np.arange(len(data.full.train)), numbers[::2]), numbers[1::2])
        assert same(found, rebuilt(config, without(first.retain, left)))
    original = train(config.replace(seed=5), data.full, "original")
    assert same(found, rebuilt(config, data, original))
    for value in original.state_dict.values():  # nothing of its weights is read
        if value.is_floating_point():
            value.fill_(torch.nan)
    assert same(found, rebuilt(config, data, original))


def test_a_run_of_auto_is_exact_and_names_what_it_chose(settings, caplog):
    with caplog.at_level("INFO"):
        outcome = run_unlearn("BPR", "tiny", forget={"user_id": ["u3"]}, config_dict=settings | {"report": "none"})
    assert "--unlearn=auto: rebuild, the quickest exact method for BPR." in caplog.text
    assert (outcome.result["method"], outcome.result["verdict"]["level"]) == ("rebuild", "exact")
    assert "retrained" not in outcome.result["phases"]


@pytest.mark.parametrize("method", ["retrain", "sisa", "receraser"])
def test_every_training_of_a_run_can_have_a_spectral_start(settings, monkeypatch, method):
    """The clean model, the original, and a retrained model or shards, each from its own interactions."""
    sizes = []
    made = SpectralStart.__init__

    def init(self, model, splits, seed, address):
        sizes.append(len(splits.train))
        made(self, model, splits, seed)

    monkeypatch.setattr(SpectralStart, "__init__", init)
    values = settings | {"report": "none", "start": "spectral", "cache": False, "workers": 1}
    data = run_unlearn("BPR", "tiny", unlearn=method, config_dict=values).data
    full, retain = len(data.full.train), len(data.retain.train)
    assert sizes[0] == retain  # the clean model
    if method == "retrain":
        assert sizes[1:] == [full, retain]
    else:  # four shards of D, for the partition perhaps after a plain original
        first = 1 if method == "sisa" else 2
        assert sum(sizes[first : first + 4]) == full
        assert max(sizes[first:]) < retain


@pytest.mark.parametrize(("model", "method"), [
    ("BPR", "rebuild"), ("GRU4Rec", "rebuild"), ("SASRec", "retrain"), ("EASE", "downdate"),
    ("MultiVAE", "retrain"), ("FM", "retrain"), ("SLIMElastic", "retrain"),
])  # fmt: skip
def test_auto_is_the_quickest_exact_method_that_was_measured(model, method):
    assert UnlearnConfig(model, "ml-100k")["unlearn"] == method
    assert UnlearnConfig(model, "ml-100k", config_dict={"unlearn": "retrain"})["unlearn"] == "retrain"
