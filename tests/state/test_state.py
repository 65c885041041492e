"""A state: requests are queued, carried out, undone, published and verified."""

import json
import random

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from recbole.model.general_recommender.bpr import BPR
from recbole.utils import init_seed

from recbole_unlearn.cli import main
from recbole_unlearn.data import Located, divide
from recbole_unlearn.files import read_checkpoint
from recbole_unlearn.methods.obliviate import Obliviate
from recbole_unlearn.pipeline import begin, checked_settings
from recbole_unlearn.recbole_compat import other_parameters, own_randomness, seed_again
from recbole_unlearn.rows import find_features
from recbole_unlearn.settings import CacheSettings
from recbole_unlearn.state import LiveModel, init_state, open_state
from recbole_unlearn.state.database import LINES, asked
from recbole_unlearn.state.deltas import Change
from recbole_unlearn.training import Trainings, build_model
from tests.conftest import tiny_rows, train_plain, write_tiny
from tests.parts import refused, same
from tests.state.conftest import CONTEXT, PLAIN, done, items_of, some

MODELS = ["BPR", "LightGCN"]
KINDS = ("weights", "moments")
THREE = {"a": some("u3", 4), "b": {"user_id": "u8"}, "c": some("u9", 2)}


def weights(state):
    return {name: value.detach().clone() for name, value in state.model.state_dict().items()}


def again(state, key_file):
    """The same state, opened a second time."""
    return open_state(state.core.folder, key_file)


def test_seeding_again_is_recboles():
    drawn = []
    for seed in (init_seed, seed_again):
        with own_randomness():
            seed(7, True)
            drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("model", MODELS)
def test_one_request_is_a_run_of_obliviate(make_state, checkpoints, model):
    """To the bit: changed in place or built again."""
    state = make_state(model)
    core, config = state.core, state.core.live.config
    state.submit({"user_id": ["u3", "u8"], "item_id": [None, None]})
    masks = [np.zeros(len(part), dtype=bool) for part in core.live.base.splits]
    for mask, numbers in zip(masks, asked(core.database.rows("SELECT asked FROM requests")), strict=True):
        mask[numbers] = True
    data = divide(core.live.base.splits, Located(*masks), "file")
    trainings = Trainings(CacheSettings(cache=False, cache_dir="", cache_size=0.0), 1)
    trainer, task = begin(
        Obliviate, checked_settings(Obliviate, config), config, data,
        read_checkpoint(checkpoints(model)).trained, trainings, "unlearned",
    )  # fmt: skip
    trainer.run(task)
    assert state.run()[0].status == "done"
    assert same(dict(trainer.model.state_dict()), weights(state))


@pytest.mark.parametrize("model", [*MODELS, "NGCF", "NeuMF", "SGL", "MultiVAE", "FM", "NFM", "DMF"])
def test_the_result_does_not_depend_on_the_process(make_state, key_file, model):
    """A model that stayed in memory for three requests, and one that was loaded for each from the files of changes.

    These have all that is new, by a comparison of the whole model.
    """
    stays, comes = make_state(model, "a"), make_state(model, "b")
    for request in (some("u3", 5), {"user_id": "u8"}, {"item_id": "i7"}):
        before = weights(stays), {name: value.clone() for name, value in stays.core.live.moments.items()}
        done(stays, request)
        file, drift = stays.core.database.rows("SELECT file, drift FROM changes ORDER BY number DESC LIMIT 1")[0]
        change, moved = Change.unpack(stays.core.store.read(file), drift), 0.0
        known = {name: rows.ids for name, rows in change.rows.items()}
        for kind, old, now in zip(KINDS, before, (weights(stays), stays.core.live.moments), strict=True):
            for name, value in now.items():
                differs = (value != old[name]).reshape(len(value) if value.dim() else 1, -1).any(dim=1)
                ids = differs.nonzero().flatten()
                assert torch.equal(known.pop(f"{kind}.{name}", ids.new_empty(0)), ids)
                if kind == "weights" and value.is_floating_point():  # not a counter
                    moved += (value - old[name]).square().sum().item()
        assert not known
        assert drift == pytest.approx(moved, rel=1e-5)
        with again(comes, key_file) as other:
            done(other, request)
    assert same(weights(stays), weights(again(comes, key_file)))
    assert stays.core.fingerprint() == comes.core.fingerprint()
    assert same(stays.core.live.moments, again(comes, key_file).core.live.moments)


def test_deleted_pairs_are_not_recommended_and_found_from_submission_on(make_state, tiny_path, tmp_path):
    """Through submission, change and publication; :meth:`State.check` finds them in data to be trained on."""
    state, data = make_state(), tiny_path / "tiny"
    before, wish = set(state.recommend("u3", 60)["item_id"]), set(items_of("u3")[:6])
    item = next(item for item in state.recommend("u5", 60)["item_id"] if item not in wish)
    assert state.check(data / "tiny.inter") == {"tiny.inter": 0}
    state.submit(some("u3", 6))
    state.submit({"item_id": item})  # for all users
    deleted = sum((one == "u3" and other in wish) or other == item for one, other, *_ in tiny_rows())
    for step in (lambda: None, state.run, state.publish):
        step()
        assert set(state.recommend("u3", 60)["item_id"]) == before - wish - {item}
        assert item not in set(state.recommend("u5", 60)["item_id"])
        assert state.check(data) == {"tiny.inter": deleted}
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    refused("has no columns user_id and item_id", state.check, tmp_path / "x.csv")


@pytest.mark.parametrize("model", MODELS)
def test_rolling_back_gives_the_model_before_to_the_bit(make_state, key_file, model):
    state, other = make_state(model, "a"), make_state(model, "b")
    first = weights(state)
    done(state, **THREE)
    assert not same(first, weights(state))
    assert [receipt.id for receipt in state.rollback("b")] == ["c"]
    done(other, a=THREE["a"], c=THREE["c"])
    assert same(weights(state), weights(other))
    state.rollback("c")
    state.rollback("a")
    assert same(first, weights(state))
    assert same(first, weights(again(state, key_file)))
    assert len(state.core.live.index) == len(state.core.live.base.splits.train)
    state.verify()
    assert set(items_of("u8")) & set(state.recommend("u3", 60)["item_id"])


@pytest.mark.parametrize("whole", [{"user_id": "u3"}, {"item_id": items_of("u3")[0]}])
@pytest.mark.parametrize("late", [False, True])
def test_undoing_restores_nothing_that_a_later_request_asked_for(make_state, whole, late):
    """All of u3 is asked for after one pair of theirs was deleted; then that pair is undone."""
    state, other = make_state(name="a"), make_state(name="b")
    done(state, pair=some("u3", 1))
    state.submit(whole, id="whole")
    if not late:
        state.run()
    state.rollback("pair")
    done(other, whole)
    assert same(weights(state), weights(other))
    assert all(map(np.array_equal, state.core.live.removed, other.core.live.removed))
    assert state.core.suppression().hashes == other.core.suppression().hashes
    state.publish()
    state.verify()


def test_publishing_is_final_and_changes_no_weight(make_state):
    state = make_state()
    done(state, a=some("u3", 4), b={"user_id": "u8"})
    state.submit(some("u9", 2), id="later")
    before, left = weights(state), len(state.core.live.index)
    assert state.publish() == 2
    assert same(before, weights(state))
    assert len(state.core.live.index) == left == state.core.live.index.total
    assert state.core.store.names() == set(state.core.version().base)
    refused("published", state.rollback, "a")
    # The pending request means the same interactions as before.
    assert [receipt.status for receipt in state.run()] == ["done"]
    index, names = state.core.live.index, state.core.live.base.splits.train
    mine = index.ends("user", torch.tensor([names.token2id("user_id", "u9")]))
    assert not set(items_of("u9")[:2]) & set(names.id2token("item_id", mine))
    state.verify()


@pytest.mark.parametrize("model", [*MODELS, "EASE"])
def test_what_is_younger_than_a_day_can_be_undone(make_state, key_file, model):
    """Changes are final in their order: one is held back by an earlier one with a younger request."""
    state, other = make_state(model, "a"), make_state(model, "b")
    database = state.core.database
    done(other, a=THREE["a"])
    done(state, **THREE, d=some("u10", 2), e=some("u11", 2))

    def aged(*ids):
        with database.transaction():
            marks = ", ".join("?" * len(ids))
            database.write(f"UPDATE requests SET submitted = '2020-01-01' WHERE id IN ({marks})", *ids)
            database.enter("failed")

    before, shown, spent = weights(state), state.recommend("u9", 5), state.status().deleted_share
    assert state.publish(older_than="1d") == 0
    aged("a", "c")  # c comes after b, which is young
    fingerprint = state.core.fingerprint()
    assert state.publish(older_than="1d") == 1
    assert [row["status"] for row in state.status().rows] == ["published", *["done"] * 4]
    assert (same(before, weights(state)), state.core.fingerprint()) == (True, fingerprint)
    assert (shown.equals(state.recommend("u9", 5)), state.status().deleted_share) == (True, pytest.approx(spent))
    state.verify()
    refused("published", state.rollback, "a")
    for id in "edcb":
        state.rollback(id)
    assert same(weights(other), weights(state))
    assert len(other.core.live.index) == len(state.core.live.index)
    state.submit({"user_id": "u3"}, id="f")
    aged("f")
    state.submit(some("u9", 2), id="g")
    state.rebuild(older_than="1d")  # f is carried out and final, g is done again on the new model
    assert [state.status(id).rows[0]["status"] for id in "fg"] == ["published", "done"]
    assert [state.status(id).rows[0]["exact"] for id in "fg"] == [True, model == "EASE"]
    state.rollback("g")
    assert state.status().exact
    state.verify()


def test_requests_of_a_window_are_one_change_and_one_entry_each(make_state):
    state, users = make_state(), ["u3", "u8", "u9"]
    for user in users:
        state.submit(some(user, 2), id=user)
    assert len(state.run(window="1h")) == 3
    changes = "SELECT count(*) FROM changes"
    assert state.core.database.value(changes) == 1
    entries = [entry for entry in map(json.loads, state.ledger().splitlines()) if entry["what"] == "done"]
    assert [(entry["id"], entry["together"]) for entry in entries] == [(user, 3) for user in users]
    assert [receipt.id for receipt in state.rollback("u8")] == ["u3", "u9"]
    assert state.core.database.value(changes) == 2


def test_held_out_interactions_alone_change_no_weight(make_state):
    state = make_state()
    names, test = state.core.live.base.splits.train, state.core.live.parts[2]
    user, item = (names.id2token(f"{side}_id", int(test.ids[side][0])) for side in ("user", "item"))
    before = weights(state)
    receipt = state.submit({"user_id": user, "item_id": item})
    assert (receipt.interactions, receipt.held_out) == (0, 1)
    assert state.run()[0].status == "done"
    assert same(before, weights(state))
    state.publish()
    state.verify()
    refused(
        "deleted before: rows 0-1",
        state.submit,
        {"user_id": [user] * 2, "item_id": [item] * 2, "timestamp": [1.0, 2.0]},
    )


def test_bad_requests_and_ids_leave_the_state_as_it_was(make_state):
    state, anyone = make_state(), [f"u{n}" for n in range(40)]
    before = state.ledger()
    for request, what in (
        ({"user_id": "stranger"}, "nothing is queued, .*unknown user_id: row 0"),
        ({"user_id": [], "item_id": []}, "asks for nothing"),
        ({"user_id": anyone}, "no training interaction would be left"),
        ({"user_id": "u1", "item_id": "i999"}, "unknown item_id: row 0"),
        (
            {"user_id": ["x", "u1"], "item_id": ["y", items_of("u2")[-1]]},
            "unknown user_id and item_id: row 0; unknown pair: row 1",
        ),
        ("nowhere.csv", "no such file"),
        *(
            ({"user_id": token}, "unknown user_id")
            for token in ("'; DROP TABLE requests; --", 'a"b', "a\nb", "ü𝔘", "\x00")
        ),
    ):
        refused(what, state.submit, request)
    for bad in ("", "a b", "x" * 65, "../x", "ü", "a'b", "a\nb"):
        refused("an id has letters", state.submit, some("u3", 1), id=bad)
    assert (state.ledger(), len(state.status().requests)) == (before, 0)


@pytest.mark.parametrize("published", [False, True])
def test_every_line_of_a_request_has_its_state(make_state, published):
    """A person who was deleted before, or a typo, does not hold up the others."""
    state = make_state()
    done(state, some("u3", 3), {"user_id": "u4"})
    _ = state.publish() if published else None
    users, items = ["u3"] * 5 + ["u4", "u4", "u5", "u9x"], [*items_of("u3")[:5], None, items_of("u4")[0], "i5x", None]
    before = state.ledger()
    for dry_run in (True, False):
        assert state.ledger() == before
        receipt = state.submit({"user_id": users, "item_id": items}, id="T-1", dry_run=dry_run)
        unknown = {"item_id": [7], "user_id": [8]}
        assert receipt.lines == ("row", [3, 4], unknown, [0, 1, 2, 5, 6])
        assert receipt.status == ("not submitted" if dry_run else "pending")
        assert receipt.unknown_up_to or receipt.deleted_before_up_to
    entry, row = json.loads(state.ledger().splitlines()[-1]), state.status("T-1").rows[0]
    assert [entry[name] for name in LINES] == [row[name] for name in LINES] == [2, 2, 5]
    assert receipt.interactions + receipt.held_out == 2
    refused("nothing is queued, .*deleted before: rows 0-1", state.submit, some("u3", 2))
    again = state.submit({"user_id": users, "item_id": items})  # recognized
    assert again.unknown_up_to or again.deleted_before_up_to


def test_the_same_request_under_a_second_id_is_recorded_under_it(make_state):
    state = make_state()
    for id in "ab":
        first = state.submit({"user_id": "u8"}, id=id, deadline="2030-12-01")
        assert (first.status, first.same_as) == ("pending", None if id == "a" else "a")
    state.run()
    spent, left = state.core.database.spent(), weights(state)
    third = state.submit({"user_id": "u8"}, id="c")
    assert (third.id, third.status, third.exact, third.same_as) == ("c", "done", False, "a")
    assert (state.core.database.spent(), state.submit({"user_id": "u8"}).id) == (spent, "a")
    assert [one.id for one in state.rollback("a")] == ["b", "c"]  # which ask for the same
    assert same(left, weights(state))
    assert set(state.status().requests["due"].dropna()) == {"2030-12-01T23:59:59+00:00"}
    state.rebuild()
    assert state.submit({"user_id": "u8"}, id="d")[:3] == ("d", "published", None)
    assert state.status("d").rows[0]["exact"]
    refused("another request with the id d", state.submit, some("u9", 1), id="d")
    state.verify()


def test_no_state_a_newer_one_and_no_new_one_over_an_old(make_state, checkpoints, key_file, tmp_path):
    refused("is not a state", open_state, tmp_path, key_file)
    state, new = make_state(), tmp_path / "new"
    refused("exists already", init_state, state.core.folder, checkpoints("BPR"), hash_key=key_file)
    refused("paths are not taken from files", init_state, new, checkpoints("BPR"), hash_key=key_file)
    assert not new.exists()
    state.core.database.connection.execute("PRAGMA user_version=99")
    refused("newer version", again, state, key_file)


@pytest.mark.parametrize("model", ["EASE", "ItemKNN", "Pop"])
def test_closed_forms_are_exact(make_state, key_file, model):
    """By downdates from the base, with the same bits in a process that did all requests and in one that did none."""
    state = make_state(model)
    done(state, {"user_id": "u3"}, some("u8", 4), {"item_id": "i7"})
    live, shown = state.core.live, state.recommend("u8", 5)
    new = again(state, key_file)
    assert new.recommend("u8", 5).equals(shown)
    fit, scores = other_parameters(build_model(live.config, live.retained().retain)), []
    for one in (live, new.core.live):
        scores.append(one.trainer.scores(torch.arange(1, 9), live.base.splits.train))
        for name, value in other_parameters(one.model).items() if model != "Pop" else ():
            dense = [matrix.toarray() if sp.issparse(matrix) else matrix for matrix in (value, fit[name])]
            assert np.abs(dense[0] - dense[1]).max() <= (1e-6 if model == "EASE" else 0.0)
    assert torch.equal(*scores)
    assert scores[0].isfinite()[:, 1:].all()
    state.publish()
    state.verify()


class MyBPR(BPR):
    """A model class that RecBole does not have."""


def test_a_model_class_of_your_own(tmp_path, tiny_path, key_file, capsys):
    """The class is given when the state is made and when it is opened, and never taken from a file."""
    checkpoint = train_plain(MyBPR, tmp_path / "plain", data_path=str(tiny_path), **PLAIN)
    folder, given = tmp_path / "S", {"hash_key": key_file, "data_path": str(tiny_path)}
    refused("MyBPR", init_state, folder, checkpoint, **given)
    with init_state(folder, checkpoint, model=MyBPR, **given) as state:
        done(state, some("u3", 3))
    for model, what in ((None, "model class of your own"), (BPR, "is a MyBPR")):
        with open_state(folder, key_file, model=model) as other:
            refused(what, other.recommend, "u3")
    given = [f"--hash_key={key_file}", f"--model={__name__}:MyBPR"]
    code = main(["requests", "recommend", str(folder), "u3", *given])
    assert (code, len(capsys.readouterr().out.splitlines())) == (0, 11)


def test_the_callers_threads_do_not_matter(make_state, monkeypatch):
    seen = []
    forget = LiveModel.forget
    monkeypatch.setattr(LiveModel, "forget", lambda *a: seen.append(torch.get_num_threads()) or forget(*a))
    torch.set_num_threads(2)
    try:
        done(make_state(), some("u3", 2))
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(1)


def test_a_value_that_only_a_deleted_user_had_starts_again(tmp_path, key_file):
    """As after a run: rows of features without a training interaction are initial ones."""
    write_tiny(tmp_path / "data")
    users = tmp_path / "data" / "tiny" / "tiny.user"
    users.write_text(users.read_text().replace("u3\tc0", "u3\tonly-there"))
    values = {**PLAIN, **CONTEXT, "epochs": 1, "data_path": str(tmp_path / "data")}
    checkpoint = train_plain("FM", tmp_path / "plain", **values)
    with init_state(tmp_path / "S", checkpoint, hash_key=key_file, data_path=values["data_path"]) as state:
        live = state.core.live
        train = live.base.splits.train
        table = next(table for table in find_features(live.model, train) if table.field == "city")
        place = table.offset + train.token2id("city", "only-there")
        before = live.model.get_parameter(table.parameter)[place].detach().clone()
        done(state, {"user_id": "u4"})
        assert torch.equal(live.model.get_parameter(table.parameter)[place], before)
        done(state, {"user_id": "u3"})
        after = live.model.get_parameter(table.parameter)[place]
        assert torch.equal(after, live._initial[table.parameter][place])
        assert not torch.equal(after, before)


def test_a_state_keeps_its_gpu_and_no_path(checkpoints, key_file, tiny_path, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # so that it is restored: RecBole writes to it
    given = {"data_path": str(tiny_path), "gpu_id": "3"}
    with init_state(tmp_path / "S", checkpoints("BPR"), hash_key=key_file, **given) as state:
        assert (state.core.about("own"), state.core.config["gpu_id"]) == ({"gpu_id": "3"}, "3")
