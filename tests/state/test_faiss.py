"""The indexes of examples/serve_with_faiss.py, after deltas: what a search over all vectors finds."""

import importlib

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.conftest import ROOT
from tests.state.conftest import done, items_of, some

pytest.importorskip("faiss")


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module("serve_with_faiss")


def brute_force(serving, export, user, k):
    """The first items by the vectors of an export."""
    tables = load_file(export / "embeddings.safetensors")
    scores = tables["items"] @ tables["users"][serving.rows_of_users[user]]
    order = [row for row in np.argsort(-scores, kind="stable").tolist() if row in serving.items]
    named = [serving.items[row] for row in order]
    return [item for item in named if (user, item) not in serving.hidden][:k]


@pytest.mark.parametrize("model", ["BPR", "LightGCN"])
def test_indexes_follow_deltas(make_state, key_file, tmp_path, example, model):
    state = make_state(model)
    state.export(tmp_path / "0")
    serving = example.Serving(tmp_path / "0", key_file)
    serving.ivf.nprobe = serving.ivf.nlist  # all cells, so that it is exact as well
    found = serving.recommend("u9", 60, serving.flat)
    pair = next(item for item in found if item in items_of("u9") and item != "i7")
    requests = {"a": some("u3", 6), "b": {"user_id": "u8"}, "c": {"item_id": "i7"}}
    steps = [lambda: state.submit({"user_id": "u9", "item_id": pair}), state.run]
    steps += [lambda id=id, r=r: done(state, **{id: r}) for id, r in requests.items()]
    steps += [lambda: state.rollback("b"), state.publish, state.rebuild]
    for number, step in enumerate(steps, 1):
        step()
        out = tmp_path / str(number)
        state.export(out, since=tmp_path / str(number - 1))
        if (out / "delta.safetensors").exists():
            serving.follow(out)
        else:
            assert number == len(steps)  # trained again
            serving = example.Serving(out, key_file)
            serving.ivf.nprobe = serving.ivf.nlist
        assert serving.flat.ntotal == serving.ivf.ntotal == serving.hnsw.ntotal == len(serving.items)
        for user in ("u1", "u3", "u9"):
            expected = brute_force(serving, out, user, 10)
            assert len(expected) == 10
            for index in (serving.flat, serving.ivf):
                assert serving.recommend(user, 10, index) == expected
        for index in (serving.flat, serving.ivf, serving.hnsw):
            assert pair not in serving.recommend("u9", 100, index)
        assert pair in serving.items.values()  # others may get it
    assert not set(items_of("u3")[:6]) & set(serving.recommend("u3", 100, serving.flat))
    assert "i7" not in serving.items.values()
    assert "u8" in serving.rows_of_users  # undone
