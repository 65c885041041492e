"""Closed forms without a refit: downdates against fits, the method, a live state."""

import inspect
import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from recbole.model.general_recommender import EASE
from recbole.model.general_recommender.itemknn import ComputeSimilarity

from recbole_unlearn import run_unlearn
from recbole_unlearn.recbole_compat import other_parameters
from recbole_unlearn.serving import load_unlearned
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import build_model, downdate, downdate_model, train
from tests.conftest import train_plain
from tests.files import strings
from tests.parts import loaded, refused, without

USERS, ITEMS, PENALTY = 9, 14, 3.0
BY_USER = "method" in inspect.signature(ComputeSimilarity).parameters  # RecBole 1.2.0 compares items only
KINDS = ["item", "user"] if BY_USER else ["item"]


@st.composite
def requests(draw, number=1):
    """X with repeated interactions, and X after each of some requests for users, items and single interactions."""
    cells = st.lists(st.sampled_from([0, 0, 1, 1, 2]), min_size=USERS * ITEMS, max_size=USERS * ITEMS)
    found = [np.array(draw(cells), float).reshape(USERS, ITEMS)]
    for _ in range(number):
        x = found[-1].copy()
        x[draw(st.lists(st.integers(0, USERS - 1), max_size=3))] = 0
        x[:, draw(st.lists(st.integers(0, ITEMS - 1), max_size=3))] = 0
        for user, item in draw(st.lists(st.tuples(st.integers(0, USERS - 1), st.integers(0, ITEMS - 1)), max_size=6)):
            x[user, item] = max(0, x[user, item] - 1)
        found.append(x)
    return [sp.csr_matrix(x) for x in found]


def fitted(x, kind=np.float64):
    """B and diag(P), by an inversion in ``kind``."""
    inverse = np.linalg.inv((x.T @ x).toarray().astype(kind) + PENALTY * np.eye(x.shape[1], dtype=kind))
    b = inverse / -np.diag(inverse)
    np.fill_diagonal(b, 0.0)
    return b, np.diag(inverse)


@pytest.fixture
def any_rank(monkeypatch):
    """Downdates however much a request changes, which is much on a few items."""
    monkeypatch.setattr(downdate, "LARGEST_RANK", 10.0)
    monkeypatch.setattr(downdate, "BLOCK", 5)


with_any_rank = examples(max_examples=40, suppress_health_check=["function_scoped_fixture"])


@with_any_rank
@given(requests(3))
def test_ease_is_a_fit(any_rank, matrices):
    """One request after another with P resident, or all at once from B and X alone."""
    b, d = fitted(matrices[0])
    assert np.allclose(downdate.inverse_diagonal(b, matrices[0], PENALTY), d, rtol=1e-10)
    for before, after in itertools.pairwise(matrices):
        b, d = downdate.downdate_ease(b, before, after, PENALTY, d)
    for found in ((b, d), downdate.downdate_ease(fitted(matrices[0])[0], matrices[0], matrices[-1], PENALTY)):
        for value, expected in zip(found, fitted(matrices[-1]), strict=True):
            assert np.abs(value - expected).max() <= 1e-10 * np.abs(expected).max()
        empty = np.diff(matrices[-1].tocsc().indptr) == 0
        assert not found[0][empty].any()
        assert not found[0][:, empty].any()  # zeros, and nothing that rounds to them


@with_any_rank
@given(requests())
def test_ease_in_float32_is_as_near_as_a_fit_in_float32(any_rank, matrices):
    b, _ = downdate.downdate_ease(fitted(matrices[0], np.float32)[0], *matrices, PENALTY)
    assert b.dtype == np.float32
    assert np.abs(b - fitted(matrices[1])[0]).max() < 2e-6


def test_what_no_user_connects_any_more_is_zero(any_rank):
    """As in a fit; what rounding leaves would show that a user had both."""
    x = np.zeros((5, 6))
    x[:2, :3] = x[2:4, 3:] = x[4, [0, 5]] = 1
    before, after = sp.csr_matrix(x), sp.csr_matrix(x * [[1], [1], [1], [1], [0]])
    b, _ = downdate.downdate_ease(fitted(before)[0], before, after, PENALTY)
    assert np.array_equal(b == 0, fitted(after)[0] == 0)
    assert (b == 0).sum() == 18 + 6


def same(first, second):
    """Whether two sparse matrices are the same in all their arrays, bit for bit."""
    names = ("rows", "data") if sp.isspmatrix_lil(first) else ("data", "indices", "indptr")
    kinds = [getattr(one, name).dtype for one in (first, second) for name in names]
    values = all(np.array_equal(getattr(first, name), getattr(second, name)) for name in names)
    return values and kinds[: len(names)] == kinds[len(names) :] and first.shape == second.shape


@with_any_rank
@given(requests(), st.sampled_from(KINDS), st.integers(1, 20), st.sampled_from([0.0, 1, 2.5]))
def test_item_knn_is_a_fit_bit_for_bit(any_rank, matrices, method, k, shrink):
    before, after = (x.astype(np.float32) for x in matrices)
    early, late = ([method], []) if BY_USER else ([], [method])
    w, expected = (ComputeSimilarity(x, k, shrink, *early).compute_similarity(*late)[1] for x in (before, after))
    assert same(downdate.downdate_knn(w, before, after, k, shrink, method == "user"), expected)


def test_what_is_fitted_instead(caplog):
    caplog.set_level("INFO")
    x = sp.csr_matrix(np.random.default_rng(0).integers(0, 2, (30, 40)).astype(float))
    after, (b, _) = x.copy().tolil(), fitted(x)
    after[3] = 0
    after = after.tocsr()
    assert downdate.downdate_ease(b, x, after, PENALTY) is not None
    assert downdate.downdate_ease(b * (1 + 1e-3), x, after, PENALTY) is None
    assert downdate.downdate_ease(b * np.nan, x, after, PENALTY) is None
    assert "not accurate enough" in caplog.text
    assert downdate.downdate_ease(b, x, sp.csr_matrix(x.shape), PENALTY) is None
    assert "too much" in caplog.text
    x = sp.csr_matrix(np.full((2, 3), 4096, np.float32))
    assert downdate.downdate_knn(sp.csc_matrix((3, 3), dtype=np.float32), x, x, 2, 0.0, False) is None


MODELS = {"EASE": {}, "ItemKNN": {"k": 5, "shrink": 1.0}}
MODELS |= {"ItemKNN by user": {"k": 5, "knn_method": "user"}} if BY_USER else {}


@pytest.mark.parametrize("name", MODELS)
def test_models_are_what_a_fit_makes_them(make_config, name, monkeypatch):
    """All that RecBole saves of them; none is fitted on the way."""
    config, splits = loaded(make_config(name.split()[0], **MODELS[name]))
    full = build_model(config, splits)
    users, items = (splits.train.inter_feat[field].numpy() for field in ("user_id", "item_id"))
    for chosen in (users == 3, (users < 4) & (items % 3 > 0), items == 9, (items == 9) | (users == 3)):
        data = without(splits, chosen)
        expected = other_parameters(build_model(config, data.retain))
        with monkeypatch.context() as patch:
            patch.setattr(np.linalg, "inv", None)
            patch.setattr(ComputeSimilarity, "compute_similarity", None)
            model = build_model(config, data.retain, other_parameters(full))
            assert downdate_model(model, other_parameters(full), splits.train, config)
        found = other_parameters(model)
        assert {key: type(value) for key, value in found.items()} == {key: type(v) for key, v in expected.items()}
        for key, value in expected.items():
            if sp.issparse(value):
                assert same(found[key], value)
            else:
                assert (value.dtype, np.abs(found[key] - value).max() < 1e-6) == (np.float32, True)


@pytest.mark.parametrize(("model", "refitted"), [("EASE", False), ("EASE", True), ("ItemKNN", False), ("Pop", True)])
def test_the_method_and_a_second_request(settings, tiny_path, tmp_path, monkeypatch, model, refitted):
    """From a checkpoint of plain RecBole; the saved file is read again and has nothing of the request."""
    monkeypatch.setattr(downdate, "TOLERANCE", 0.0 if refitted else 1e-4)  # drift
    start = train_plain(model, tmp_path / "plain", data_path=str(tiny_path), load_col=settings["load_col"])
    values = {name: settings[name] for name in ("tensorboard", "show_progress", "min_group")}
    values |= {"report": "none", "cache": False}
    for user in ("u3", "u8"):
        source = {"data_path": str(tiny_path)} if user == "u3" else {}
        given = {"checkpoint": start, "forget": {"user_id": [user]}, "output_dir": tmp_path / user}
        outcome = run_unlearn(**given, unlearn="downdate", config_dict=values | source)
        start = outcome.output_dir / f"{model}-unlearned.pth"
        assert outcome.result["certificates"] == {"exact": True, "refitted": refitted}
        assert not any(strings(path) & {"u3", user} for path in outcome.output_dir.glob("*.pth"))
    expected = train(outcome.config, outcome.data.retain, "x").other_parameter
    row = outcome.data.full.train.token2id("user_id", "u8")
    for name, value in other_parameters(load_unlearned(start).model).items():
        if sp.issparse(value):
            assert same(value, expected[name])
            assert name == "w" or value[row].nnz == 0
        else:
            assert np.abs(np.asarray(value) - np.asarray(expected[name])).max() < 1e-6


def test_only_the_models_of_recbole(settings):
    """A user's subclass may compute something else."""
    mine = type("MyEASE", (EASE,), {})
    given = {"unlearn": "downdate", "config_dict": settings | {"reg_weight": 2.0}}
    refused("MyEASE has no downdate.*rebuild.*retrain", run_unlearn, mine, "tiny", **given)
    config, splits = loaded(UnlearnConfig(mine, "tiny", config_dict=given["config_dict"]))
    model = build_model(config, splits)
    assert not downdate_model(model, other_parameters(model), splits.train, config)
