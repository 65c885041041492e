"""`requests rebuild`: the same bits as on data that never had what was deleted; and since when a model is exact."""

import json
import re
from unittest import mock

import pytest
import torch

from recbole_unlearn.cli import main
from recbole_unlearn.state import init_state
from recbole_unlearn.state.status import status_text
from tests.state.conftest import about, done, some
from tests.state.crash_cases import picture

A, B, C = {"user_id": ["u3", "u5"]}, {"item_id": "i7"}, some("u9", 3)


def content(state):
    """Weights, second moments and fitted counts."""
    now = picture(state)
    return now["weights"], now["moments"], now["fitted"]


@pytest.mark.parametrize("model", ["BPR", "LightGCN", "EASE"])
def test_rebuilt_to_the_bit_as_where_it_never_was(make_state, key_file, tmp_path, model):
    """Whatever was done before: in one go, by several requests, undone and published, with NaN for weights."""
    clean = make_state(model, "clean")
    for request in (A, B, C):
        clean.submit(request)
    clean.retrain()
    retrained = content(clean)
    clean.export(tmp_path / "out")
    with init_state(tmp_path / "never", tmp_path / "out" / f"{model}-unlearned.pth", hash_key=key_file) as never:
        never.rebuild()  # its data never had A, B and C
        expected, scores = content(never), never.recommend("u1", 20)
        never.rebuild()
        assert content(never) == expected
    assert (expected == retrained, expected[2]) == (model == "EASE", None)

    state = make_state(model)
    done(state, a=A, b=B, x=some("u20", 4))
    state.rollback("x")
    state.publish()
    state.submit(C, id="c")
    state.run()
    if model != "EASE":
        assert content(state) != expected
        with torch.no_grad():
            for value in state.model.parameters():
                value.fill_(torch.nan)
    state.rebuild()
    assert content(state) == expected
    assert state.recommend("u1", 20).equals(scores)
    clean.rebuild()
    assert content(clean) == expected
    state.verify()


@pytest.mark.parametrize("model", ["BPR", "EASE"])
def test_exact_or_approximate_along_the_life_of_a_state(make_state, key_file, tmp_path, model):
    """The model, its requests and their receipts; a closed form is always exact."""
    state, closed, outs = make_state(model), model == "EASE", iter(range(99))

    def seen(exact, approximate=0, **requests):
        """What the ledger, `status`, and an export say of the model and of its requests; returns since when."""
        now, by_id = state.core.database.exactness()
        found = state.status()
        assert (found.exact, found.since, found.approximate) == (*now, approximate)
        assert now.exact is exact
        assert {id: one.exact for id, one in by_id.items()} == requests
        frame = found.requests.set_index("id")
        told = [*zip(frame["exact"], frame["since"], strict=True)]
        assert told == [by_id.get(id, (None, None)) for id in frame.index]
        text = " ".join(status_text(found, "S").split())
        words = r"exact since [-\d]+ [:\d]+: it comes from the retained data alone"
        if not exact:
            words = rf"approximate since [-\d]+ [:\d]+ \({approximate:d} requests? by obliviate\); `requests rebuild"
        assert re.search(rf"The model is {words}", text)
        out = tmp_path / f"out-{next(outs)}"
        state.export(out)
        assert (about(out)["exact"], about(out)["since"]) == now
        return now.since

    first = seen(True)
    state.submit(A, id="a")
    assert state.run()[0][-2:] == (closed, state.core.database.value("SELECT finished FROM requests"))
    since = seen(closed, not closed, a=closed)
    assert (since == first) is closed
    state.rollback("a")
    assert seen(True) >= since
    done(state, b=B, c=C)
    since = seen(closed, 2 * (not closed), b=closed, c=closed)
    state.publish()
    assert seen(closed, 2 * (not closed), b=closed, c=closed) == since
    assert state.submit(B)[-2:] == state.core.database.exactness()[1]["b"]
    state.export(tmp_path / "approximate")
    state.submit(some("u20", 2), id="d")
    state.rebuild()
    rebuilt = seen(True, b=True, c=True, d=True)
    assert rebuilt > since
    assert closed or set(state.status().requests["since"][1:]) == {rebuilt}
    assert state.submit(B).since == state.core.database.exactness()[1]["b"].since
    done(state, e=some("u21", 4))
    seen(closed, not closed, b=True, c=True, d=True, e=closed)
    state.retrain()
    assert seen(True, b=True, c=True, d=True, e=True) > rebuilt
    state.verify()
    entries = [json.loads(line) for line in state.ledger().splitlines()]
    told = [(one["what"], one["exact"]) for one in entries if "exact" in one]
    words = ("done",) * 3 + ("done", "rebuilt", "done", "retrained")
    assert told == [("taken under care", True), *((word, closed or word != "done") for word in words)]
    assert {one["method"] for one in entries if one["what"] == "done"} == {"closed form" if closed else "obliviate"}
    # A state of an approximate model begins as one, and its closed form is exact.
    checkpoint = tmp_path / "approximate" / f"{model}-unlearned.pth"
    with init_state(tmp_path / "next", checkpoint, hash_key=key_file) as state:
        assert state.core.database.exactness()[0].exact is closed
        state.rebuild()
        assert state.core.database.exactness()[0].exact


@pytest.mark.parametrize("model", ["BPR", "EASE"])
def test_run_rebuilds_when_the_budget_is_spent(make_state, key_file, monkeypatch, capsys, model):
    """Requests within the budget leave the model; a closed form is exact, and needs no training."""
    state = make_state(model)
    command = ["requests", "run", str(state.core.folder), "--rebuild", f"--hash_key={key_file}"]
    said = "The budget is spent.\nFinal by this training: "
    for limit, id, what, rebuilt in ((0.9, "a", some("u3", 2), False), (1e-9, "b", C, model == "BPR")):
        monkeypatch.setattr("recbole_unlearn.state.status.MOST_DELETED", limit)
        monkeypatch.setattr("recbole_unlearn.state.status.MOST_DRIFT", 1e9)
        state.submit(what, id=id)
        assert main(command) == 0
        assert (said in capsys.readouterr().out) is rebuilt
        status = state.status()
        assert (status.retraining_is_due, status.exact) == (False, rebuilt or model == "EASE")
    stop = mock.Mock(side_effect=[None, KeyboardInterrupt])  # after a request, and when there is none
    monkeypatch.setattr("recbole_unlearn.state.commands.time.sleep", stop)
    state.submit(some("u20", 2), id="c")
    assert main([*command, "--watch"]) == 0
    assert (said in capsys.readouterr().out) is (model == "BPR")
    assert state.status().requests["status"].tolist() == ["published" if model == "BPR" else "done"] * 3
