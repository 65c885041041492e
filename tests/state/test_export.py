"""Export for serving: plain RecBole, vectors, deltas, and suppressed pairs."""

import hashlib
import hmac
import json
import re
import shutil
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from examples.own_model import BiasedBPR
from recbole_unlearn import recbole_compat, run_unlearn
from recbole_unlearn.state import find_vectors, init_state, load_suppression, open_state
from tests.conftest import ROOT, train_plain
from tests.files import plain_recbole, strings
from tests.parts import refused
from tests.state.conftest import PLAIN, about, done, items_of, some


def scores_of(state, users):
    live = state.core.live
    return live.trainer.scores(torch.tensor(users), live.base.splits.train)


def strings_of(path):
    """Every string of a pickle, a checkpoint or a text."""
    if path.suffix == ".pth":
        return strings(path)
    if path.suffix == ".parquet":
        return set(pd.read_parquet(path)["token"])
    return set(path.read_bytes().decode("latin-1").replace('"', " ").replace(",", " ").split())


@pytest.mark.slow
def test_plain_recbole_loads_it_without_the_plugin(make_state, tmp_path):
    state = make_state("LightGCN")
    done(state, {"user_id": ["u3"]})
    state.export(tmp_path / "out")
    ((sizes, _),) = plain_recbole(tmp_path, tmp_path / "out" / "LightGCN-unlearned.pth")
    assert sizes == [len(part) for part in state.core.live.retained().retain]
    there, here = np.load(tmp_path / "scores.npy"), scores_of(state, [5, 9, 20]).numpy()
    assert np.allclose(there[:, 1:], here[:, 1:], atol=1e-6)


@pytest.mark.parametrize("model", ["BPR", "LightGCN", "NGCF", "SGL"])
def test_the_dot_product_of_the_vectors_is_the_score(make_state, tmp_path, model):
    state = make_state(model)
    done(state, {"user_id": ["u3"]}, {"item_id": "i7"})
    found = state.export(tmp_path / "out")
    assert (found.vectors, found.pending, found.delta) == (True, 0, None)
    assert getattr(state.model, "restore_user_e", None) is None  # left as it was
    tables = load_file(tmp_path / "out" / "embeddings.safetensors")
    with np.load(tmp_path / "out" / "embeddings.npz") as arrays:
        assert all(np.array_equal(arrays[side], tables[side]) for side in ("users", "items"))
    train, listed = state.core.live.base.splits.train, {}
    for side, field, gone in (("users", "user_id", "u3"), ("items", "item_id", "i7")):
        frame = pd.read_parquet(tmp_path / "out" / f"{side}.parquet")
        assert list(frame.columns) == ["row", "token"]
        assert train.field2id_token[field][frame["row"]].tolist() == frame["token"].tolist()
        others = np.setdiff1d(np.arange(len(tables[side])), frame["row"])
        assert not tables[side][others].any()
        assert train.token2id(field, gone) in others
        listed[side] = frame["row"].to_numpy()
    users, items = (torch.from_numpy(listed[side]) for side in ("users", "items"))
    expected = scores_of(state, users.tolist())[:, items]
    assert torch.allclose(tables["users"][users] @ tables["items"][items].T, expected, atol=1e-4)


class Biased(BiasedBPR):
    """With a bias of each user, which changes no ranking."""

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.user_bias = torch.nn.Embedding(self.n_users, 1)

    def predict(self, interaction):
        return super().predict(interaction) + self.user_bias(interaction[self.USER_ID]).squeeze(1)


def test_a_bias_of_each_item_is_one_more_dimension(tmp_path, tiny_path, key_file):
    checkpoint = train_plain(Biased, tmp_path / "plain", data_path=str(tiny_path), **PLAIN)
    given = {"model": Biased, "hash_key": key_file, "data_path": str(tiny_path)}
    with init_state(tmp_path / "S", checkpoint, **given) as state:
        done(state, {"user_id": ["u3"]})
        state.export(tmp_path / "out")
        tables, item_bias = load_file(tmp_path / "out" / "embeddings.safetensors"), state.model.item_bias.weight
        size = state.model.embedding_size + 1
        users, items = (torch.from_numpy(one.rows) for one in find_vectors(state.core.live))
        expected = scores_of(state, users.tolist())[:, items]
    assert tables["items"].shape[1] == size
    assert item_bias.abs().max() > 0.01
    found = tables["users"][users] @ tables["items"][items].T
    assert torch.allclose(
        found - found.mean(dim=1, keepdim=True), expected - expected.mean(dim=1, keepdim=True), atol=1e-4
    )


@pytest.mark.parametrize("model", ["NeuMF", "MultiVAE", "EASE"])
def test_models_without_vectors_export_the_checkpoint_and_say_so(make_state, tmp_path, caplog, model):
    state = make_state(model)
    assert not state.export(tmp_path / "out").vectors
    assert f"{model} has no vectors" in caplog.text
    files = {f"{model}-unlearned.pth", "tiny-Dataset.pth", "suppression.json", "export.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == files
    assert about(tmp_path / "out")["vectors"] is None
    refused("has no vectors, so there is no delta", state.export, tmp_path / "next", since=tmp_path / "out")
    assert not (tmp_path / "next").exists()


@pytest.mark.parametrize("model", ["BPR", "LightGCN"])
def test_a_delta_leads_from_one_export_to_the_next(make_state, tmp_path, caplog, model):
    state = make_state(model)
    u8, outs = state.core.live.base.splits.train.token2id("user_id", "u8"), [tmp_path / "0"]
    state.export(outs[0])

    def delta_after(step):
        step()
        outs.append(tmp_path / str(len(outs)))
        found = state.export(outs[-1], since=outs[-2])
        said, delta = about(outs[-1])["delta"], load_file(outs[-1] / "delta.safetensors")
        assert (said["before"], said["after"]) == tuple(about(out)["fingerprint"] for out in outs[-2:])
        assert said == found.delta
        assert said["users"] == {"moved": len(delta["users.rows"]), "removed": len(delta["users.removed"])}
        # The vectors before, with the delta, are those after to the bit.
        tables, expected = (load_file(out / "embeddings.safetensors") for out in outs[-2:])
        for side, table in tables.items():
            table[delta[f"{side}.removed"]] = 0.0
            table[delta[f"{side}.rows"]] = delta[f"{side}.vectors"]
            assert torch.equal(expected[side], table)
        return delta

    delta = delta_after(lambda: done(state, a={"user_id": ["u8"]}, b=some("u3", 4)))
    assert (delta["users.removed"].tolist(), delta["items.removed"].tolist()) == ([u8], [])
    assert u8 in delta_after(lambda: state.rollback("a"))["users.rows"].tolist()  # a change like others
    delta_after(lambda: done(state, again={"user_id": ["u8"]}))
    assert not any(part.numel() for part in delta_after(state.publish).values())
    for number, train in enumerate((state.rebuild, state.retrain)):  # rows are in a new space
        train()
        outs.append(tmp_path / f"trained-{number}")
        assert state.export(outs[-1], since=outs[-2]).delta is None
        assert about(outs[-1])["delta"] is None
        assert not (outs[-1] / "delta.safetensors").exists()
        assert "trained again since that export" in caplog.text
    assert not any(part.numel() for part in delta_after(lambda: None).values())
    rows = [pd.read_parquet(out / "users.parquet") for out in outs[3:]]
    assert all(frame.equals(rows[0]) for frame in rows)


def test_an_export_of_another_state_or_a_damaged_one_is_refused(make_state, tmp_path):
    state, other, third = make_state(name="a"), make_state("LightGCN", name="b"), make_state(name="c")
    done(third, some("u3", 2))
    for one, name in ((other, "other"), (third, "third"), (state, "first")):
        one.export(tmp_path / name)
    for since, what in (("other", "another state"), ("third", "another state"), ("nowhere", "no file")):
        refused(what, state.export, tmp_path / "out", since=tmp_path / since)
    for name in ("embeddings.safetensors", "users.parquet", "export.json"):
        path = tmp_path / "first" / name
        content = path.read_bytes()
        path.write_bytes(content[:-3] + b"xyz")
        refused("changed or damaged", state.export, tmp_path / "out", since=tmp_path / "first")
        path.write_bytes(content)
    (tmp_path / "first" / "export.json").write_text(json.dumps(about(tmp_path / "first") | {"schema": 2}))
    refused("newer version", state.export, tmp_path / "out", since=tmp_path / "first")
    assert not (tmp_path / "out").exists()


def test_only_a_new_directory_outside_the_state_is_written_to(make_state, tmp_path, monkeypatch):
    state = make_state()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        refused("exists already", state.export, tmp_path / name)
    refused("inside the state", state.export, state.core.folder / "out")
    refused("Cannot write", state.export, tmp_path / "file" / "out")
    assert (tmp_path / "full" / "mine").read_text() == "mine"
    before = {path.name for path in tmp_path.iterdir()}
    with monkeypatch.context() as patch:
        full = mock.Mock(side_effect=OSError(28, "No space left on device"))
        patch.setattr("recbole_unlearn.state.export.write_vectors", full)
        refused("No space left", state.export, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == before  # whole, or not at all
    (tmp_path / "empty").mkdir()
    state.export(tmp_path / "empty")
    assert (tmp_path / "empty" / "export.json").is_file()


def test_files_are_as_said_and_have_no_deleted_name(make_state, key_file, tmp_path):
    """And a run from the checkpoint recognizes the request, by its keyed hash."""
    state = make_state("LightGCN")
    done(state, **{"ticket-1": {"user_id": ["u3", "u8"]}})
    state.export(tmp_path / "out")
    said = about(tmp_path / "out")
    assert said["fingerprint"] == state.core.fingerprint()
    assert set(said["files"]) | {"export.json"} == {path.name for path in (tmp_path / "out").iterdir()}
    for name, one in said["files"].items():
        content = (tmp_path / "out" / name).read_bytes()
        assert (one["sha256"], one["bytes"]) == (hashlib.sha256(content).hexdigest(), len(content))
    live = state.core.live.retained()
    assert said["counts"]["interactions"] == len(live.retain.train)
    assert said["counts"]["held_out"] == len(live.retain.valid) + len(live.retain.test)
    for path in (tmp_path / "out").iterdir():
        texts = strings_of(path)
        assert not {"u3", "u8", "ticket-1"} & texts, path
        assert not any("recbole_unlearn" in text for text in texts) or path.name == "export.json", path
    checkpoint = tmp_path / "out" / "LightGCN-unlearned.pth"
    content = torch.load(checkpoint, weights_only=False)
    assert (content["optimizer"]["state"], content["other_parameter"]) == ({}, {})
    quiet = {"show_progress": False, "tensorboard": False, "cache": False, "report": "none"}
    given = {"output_dir": tmp_path / "next", "config_dict": {**quiet, "hash_key": str(key_file)}}
    again = run_unlearn(checkpoint=checkpoint, forget={"user_id": ["u3", "u8"]}, **given)
    assert again.data.done_earlier is not None


def test_pending_requests_are_suppressed_and_logged(make_state, key_file, tmp_path, caplog):
    state = make_state()
    before = state.export(tmp_path / "before")
    assert (caplog.text, len(load_suppression(tmp_path / "before" / "suppression.json", key_file))) == ("", 0)
    state.submit(some("u3", 3))
    state.submit({"item_id": "i5"})
    found = state.export(tmp_path / "pending", since=tmp_path / "before")
    assert (found.pending, found.fingerprint) == (2, before.fingerprint)
    assert "2 pending, 0 failed" in caplog.text
    lists = []
    for step in (lambda: None, state.run, state.publish):
        step()
        out = tmp_path / f"out-{len(lists)}"
        state.export(out)
        lists.append((out / "suppression.json").read_text())
        hidden = load_suppression(out / "suppression.json", key_file)
        assert all(("u3", item) in hidden for item in items_of("u3")[:3])
        assert all((user, "i5") in hidden for user in ("u3", "stranger"))
        assert ("u8", next(item for item in items_of("u8") if item != "i5")) not in hidden
    assert lists == [lists[0]] * 3
    assert about(tmp_path / "pending")["counts"]["suppressed"] == len(json.loads(lists[0])["hashes"])


def test_a_request_done_meanwhile_is_in_it_whole_or_not_at_all(make_state, key_file, tmp_path, monkeypatch):
    state = make_state()
    state.submit({"user_id": ["u8"]})
    _ = state.model
    other, begin = open_state(state.core.folder, key_file), state.core.database.transaction
    begun = []

    def late():
        begun.append(begun or other.run())
        return begin()

    monkeypatch.setattr(state.core.database, "transaction", late)
    found = state.export(tmp_path / "out")
    assert len(begun) == 2
    assert (found.pending, found.fingerprint) == (0, other.core.fingerprint())
    assert "u8" not in set(pd.read_parquet(tmp_path / "out" / "users.parquet")["token"])
    assert "u8" not in strings_of(tmp_path / "out" / "tiny-Dataset.pth")
    other.close()


def test_suppression_is_never_lost_by_a_wrong_key_or_a_changed_list(make_state, key_file, tmp_path):
    state = make_state()
    state.submit(some("u3", 3))
    state.export(tmp_path / "out")
    path, key = tmp_path / "out" / "suppression.json", key_file.read_bytes().strip()
    assert ("u3", items_of("u3")[0]) in load_suppression(path, key)
    refused("does not fit the key", load_suppression, path, b"x" * 64)
    content = json.loads(path.read_text())
    # As docs/serving.md explains a hash to readers without this package.
    pair = json.dumps(["u3", items_of("u3")[0]])
    assert hmac.new(key, b"pair\0" + pair.encode(), hashlib.sha256).hexdigest() in content["hashes"]
    for changed, what in (
        (json.dumps(content | {"hashes": content["hashes"][1:]}), "does not fit the key"),
        (json.dumps(content | {"schema": 2}), "newer version"),
        ("[]", "has no suppressed pairs"),
        ("{", "or is damaged"),
    ):
        path.write_text(changed)
        refused(what, load_suppression, path, key)
    refused("There is no file", load_suppression, tmp_path / "nowhere", key)


def test_a_model_that_only_seems_to_have_vectors_has_none(make_state, monkeypatch):
    live = make_state().core.live
    assert find_vectors(live) is not None
    monkeypatch.setattr(live.model, "predict", lambda batch: torch.rand(len(batch)))
    assert find_vectors(live) is None


def test_the_snippets_of_the_page_run(make_state, key_file, tmp_path, monkeypatch):
    """With the key where `init` puts it; without it they are refused, and no other is made."""
    make_state(name="care").close()
    for name in ("XDG_CONFIG_HOME", "RECBOLE_UNLEARN_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    refused("There is no key", open_state, "care")
    (tmp_path / "home" / ".config" / "recbole_unlearn").mkdir(parents=True)
    shutil.copy(key_file, tmp_path / "home" / ".config" / "recbole_unlearn" / "key")
    page = (ROOT / "docs" / "serving.md").read_text()
    names = {'"196"': '"u3"', '"242"': f'"{items_of("u3")[0]}"', "ml-100k": "tiny"}
    values = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        for old, new in names.items():
            block = block.replace(old, new)
        moved = "elsewhere" in block
        if moved:
            (tmp_path / "tuesday").rename(tmp_path / "elsewhere")
        with recbole_compat.dok_update():
            exec(block, values)
        if moved:
            (tmp_path / "elsewhere").rename(tmp_path / "tuesday")
    assert set(values["checkpoint"]["state_dict"]) == set(values["model"].state_dict())
    assert not values["is_hidden"]("u8", items_of("u8")[0])
