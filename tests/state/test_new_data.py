"""`requests learn` and `requests adopt`: a new week's data, from which what was deleted stays out."""

import json
import time

import pandas as pd
import pytest
import torch

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.state import init_state, learn, open_state, publish
from recbole_unlearn.state.database import REBUILT
from tests.conftest import PLAIN, tiny_rows, train_plain
from tests.state.conftest import pairs_of, some
from tests.state.crash_cases import picture

HEAD = ["user_id", "item_id", "rating", "timestamp"]
NOW = time.time()


def week(*rows, path="week.csv", head=HEAD):
    """A file of interactions, all of them now unless they say when."""
    table = pd.DataFrame([(*row, 4.0, NOW)[:4] if len(row) < 4 else row for row in rows], columns=HEAD)[head]
    table.to_csv(path, index=False, sep="\t" if path.endswith(".inter") else ",")
    return path


@pytest.mark.parametrize(("model", "by"), [("BPR", "rebuilt"), ("EASE", "retrained")])
def test_a_week_is_learned_and_what_was_deleted_stays_out(make_state, model, by):
    state = make_state(model)
    state.submit({"user_id": "u8"}, id="a")
    state.run()
    state.publish()
    state.submit({"user_id": "u9", "item_id": None} | some("u9", 3), id="b")  # waits
    state.submit({"user_id": "u10"}, id="c")  # waits
    before, names = pairs_of(state), list(state.core.live.base.splits.train.field2id_token["item_id"])
    new = [("n1", "i3"), ("n1", "new1"), ("u1", "new1"), ("u1", "new2")]
    out = [("u8", "i1"), ("u8", "new1"), ("u10", "new2"), ("u9", some("u9", 3)["item_id"][0])]
    old = [row for row in tiny_rows() if row[0] in ("u1", "u2")]
    found = state.learn(week(*new, *out, *old, new[0]))
    assert found[:7] == (4, 1, 2, len(old) + 1, 4, 0, by)
    assert pairs_of(state) == before | set(new)
    assert list(state.core.live.base.splits.train.field2id_token["item_id"][: len(names)]) == names
    status, entry = state.status(), state.core.database.entries()[-1]
    assert (status.exact, entry["what"], entry["by"], entry["requests"]) == (True, "learned", by, 0)
    names = ("new", "users", "items", "known", "deleted", "filtered")
    assert [entry["data"][f"{name}_up_to"] for name in names] == [5, 1, 2, 50, 5, 0]
    weights = state.core.live.state()
    if by == "rebuilt":  # a model of the data as it is stored, and of nothing else
        publish.retrain(state.core, REBUILT)
        assert all(torch.equal(weights[name], value) for name, value in state.core.live.state().items())
    assert [one.id for one in state.run()] == ["b", "c"]
    gone = {*zip(*some("u9", 3).values(), strict=True), *(pair for pair in before if pair[0] == "u10")}
    assert pairs_of(state) == (before | set(new)) - gone
    assert "new1" not in set(state.recommend("n1", 99)["item_id"])
    state.publish()
    state.verify()
    assert state.core.database.entries()[-1]["ids"] == ["b", "c"]
    ledger = state.ledger()
    assert state.learn(week(*new, *out)).new == 0  # the same week again: nothing happens
    assert state.ledger() == ledger


@pytest.mark.parametrize("user", ["u12", "u11"])
def test_a_request_that_is_submitted_during_the_training_is_not_passed_over(make_state, monkeypatch, key_file, user):
    state, train = make_state(), learn.trained

    def meanwhile(core, *given):
        with open_state(core.folder, key_file) as other:
            other.submit({"user_id": user}, id="late")
        return train(core, *given)

    monkeypatch.setattr(learn, "trained", meanwhile)
    if user == "u11":
        assert state.learn(week(("u12", "new"))).new == 1
    else:
        before = pairs_of(state)
        with pytest.raises(UnlearnError, match="A request was submitted meanwhile"):
            state.learn(week(("u12", "new")))
        assert (pairs_of(state), state.core.database.entries()[-1]["what"]) == (before, "submitted")
    state.run()
    state.verify()
    assert not {pair for pair in pairs_of(state) if pair[0] == user}


@pytest.mark.parametrize(("given", "changes", "what"), [
    (week, {"head": HEAD[:2]}, "week.csv has no column rating, timestamp"),
    (week, {"rows": [("u1", "i1", "four", NOW)]}, "rating is not a number in 1 rows"),
    (week, {"rows": [("", "i1")]}, "user_id is empty, or a reserved name in 1 rows"),
    (week, {"rows": [("[removed-3]", "i1")]}, "a reserved name"),
    (week, {"by": "magic"}, "by=magic is not known; give rebuild or retrain"),
    (lambda: "nowhere.csv", {}, "nowhere.csv cannot be read"),
])  # fmt: skip
def test_what_cannot_be_learned_is_refused_before_anything_is_trained(make_state, given, changes, what):
    state = make_state()
    before = picture(state)
    rows, head = changes.pop("rows", [("u1", "new")]), changes.pop("head", HEAD)
    path = given(*rows, head=head) if given is week else given()
    with pytest.raises(UnlearnError, match=what):
        state.learn(path, **changes)
    assert picture(state) == before


def test_columns_that_recbole_scaled_are_recognised_and_continued(tiny_path, key_file, tmp_path):
    path = train_plain("BPR", tmp_path / "saved", **{**PLAIN, "data_path": str(tiny_path), "normalize_all": True})
    with init_state(tmp_path / "S", path, hash_key=key_file, data_path=str(tiny_path)) as state:
        rows = [*tiny_rows(), ("u1", "new", 2.0, 8.9e8), ("u2", "new", 4.0, 8.9e8)]
        for new, known in ((2, len(rows) - 2), (0, len(rows))):
            assert state.learn(week(*rows))[:4] == (new, 0, new // 2, known)
        times = torch.cat([part.inter_feat["timestamp"] for part in state.core.live.base.splits])
        clock = state.core.live.base.clock
        assert float(times.max()) == pytest.approx(clock(8.9e8))
        assert times.max() > 9  # the others are within a range of 10⁶


def test_a_model_with_features_learns_elsewhere(make_state):
    with pytest.raises(UnlearnError, match="FM has data with features"):
        make_state("FM").learn(week(("u1", "new")))


def trained_elsewhere(folder, *without, **settings):
    """A checkpoint that RecBole trained on `tiny` without some users and with a new one, and its data_path."""
    (folder / "tiny").mkdir(parents=True)
    rows = [row for row in tiny_rows() if row[0] not in without]
    rows += [("n1", item, *more) for _, item, *more in rows[:12]]
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float", *("\t".join(map(str, r)) for r in rows)]
    (folder / "tiny" / "tiny.inter").write_text("\n".join(lines) + "\n")
    return train_plain("BPR", folder / "saved", **{**PLAIN, "data_path": str(folder), **settings})


def test_a_model_that_was_trained_elsewhere_is_adopted_if_nothing_deleted_is_in_its_data(make_state, tmp_path):
    state = make_state()
    for id, user in (("a", "u8"), ("b", "u9"), ("c", "u10")):
        state.submit({"user_id": user}, id=id)
    state.run()
    state.rollback("c")
    state.submit({"user_id": "u10"}, id="d")  # waits
    before = picture(state)
    with pytest.raises(UnlearnError, match="has 17 pairs that were deleted or are asked for"):
        state.adopt(trained_elsewhere(tmp_path / "dirty", "u8", "u9"), tmp_path / "dirty")
    assert picture(state) == before
    path = trained_elsewhere(tmp_path / "clean", "u8", "u9", "u10", embedding_size=4)
    assert state.adopt(path, tmp_path / "clean") == 3
    weights = torch.load(path, weights_only=False)["state_dict"]
    assert torch.equal(state.core.live.state()["user_embedding.weight"], weights["user_embedding.weight"])
    entry, rows = state.core.database.entries()[-1], state.status().requests.set_index("id")
    assert (entry["what"], entry["ids"], entry["exact"]) == ("adopted", ["a", "b", "d"], True)
    assert list(rows["status"]) == ["published", "published", "rolled back", "published"]
    assert list(rows.loc[["a", "b", "d"], "exact"]) == [True] * 3
    assert len(state.recommend("n1", 3)) == 3
    state.verify()
    state.submit(some("u3", 2), id="e")
    assert state.run()[0].status == "done"
    assert "u8" not in json.dumps(state.core.database.entries())
    assert state.learn(week(("u10", "i1"), ("n2", "i1")))[:5] == (1, 1, 0, 0, 1)
