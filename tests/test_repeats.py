"""The same request twice, requests that change no weight, and what result.json says about a run, from end to end."""

import dataclasses
import json
import os
import pickle
import re
import shutil

import pytest

from recbole_unlearn import cli, run_unlearn
from recbole_unlearn.data import Fields, carry_out, load, read_request
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import load_torch
from tests.conftest import quick_settings
from tests.parts import same

QUICK = {"show_progress": False, "tensorboard": False, "report": "none", "cache": False, "epochs": 2}
ASKED = "user_id,item_id,reason\nu7,,moved\n,i3,\nu9,,\n"


@pytest.fixture
def values(settings):
    del settings["min_group"]
    return settings | QUICK


@pytest.fixture(scope="module")
def carried_out(tiny_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    (folder / "r.csv").write_text(ASKED)
    values = quick_settings(tiny_path, folder) | QUICK
    del values["min_group"]
    return run_unlearn("BPR", "tiny", forget=folder / "r.csv", config_dict=values)


@pytest.fixture
def first(carried_out, tmp_path):
    """A request that was carried out, with its result in a directory of the test."""
    (tmp_path / "r.csv").write_text(ASKED)
    return dataclasses.replace(carried_out, output_dir=shutil.copytree(carried_out.output_dir, tmp_path / "first"))


def again(folder, forget, out, **more):
    return run_unlearn(
        checkpoint=folder / "BPR-unlearned.pth", forget=forget, output_dir=out, config_dict=QUICK | more
    )


def saved(folder):
    with open(folder / "tiny-Dataset.pth", "rb") as stream:
        return pickle.load(stream)


def test_a_request_that_comes_again_is_done(first, tmp_path, capsys):
    """From the command line, in another order and another kind of file; nothing is trained, not even to compare."""
    (tmp_path / "again.jsonl").write_text(
        '{"user_id": "u9"}\n{"item_id": "i3"}\n{"user_id": "u7"}\n{"user_id": "u7"}\n'
    )
    flags = [f"--{key}={value}" for key, value in QUICK.items() if key != "epochs"]
    done = cli.main([
        f"--checkpoint={first.output_dir / 'BPR-unlearned.pth'}", f"--forget={tmp_path / 'again.jsonl'}",
        f"--output_dir={tmp_path / 'second'}", "--compare=retrain", *flags,
    ])  # fmt: skip
    assert done == 0
    shown = capsys.readouterr()
    day = first.result["date"][:10]
    assert f"carried out on {day}" in shown.out
    log = (tmp_path / "second" / "run.log").read_text()
    assert f"carried out earlier ({day})" in log
    assert "Train" not in log
    result = json.loads((tmp_path / "second" / "result.json").read_text())
    assert list(result["phases"]) == ["original", "unlearned"]
    assert result["done_earlier"] == day
    assert result["verdict"]["text"].startswith("This request was carried out earlier")
    assert result["forget"]["interactions"] == 0
    assert result["hashes"]["request"] == first.result["hashes"]["request"]
    assert result["hashes"]["original"] == result["hashes"]["result"] == first.result["hashes"]["result"]
    folders = first.output_dir, tmp_path / "second"
    assert same(*(load_torch(folder / "BPR-unlearned.pth")["state_dict"] for folder in folders))
    before, after = saved(first.output_dir), saved(tmp_path / "second")
    assert before.inter_feat.equals(after.inter_feat)
    assert before.unlearn_done == after.unlearn_done == [(result["hashes"]["request"], day)]


def test_earlier_requests_stay_known(first, tmp_path):
    second = again(first.output_dir, {"user_id": "u11"}, tmp_path / "second", unlearn="finetune", finetune_epochs=1)
    assert "done_earlier" not in second.result
    assert second.result["hashes"]["original"] == first.result["hashes"]["result"]  # a chain
    for name, forget in (("third", tmp_path / "r.csv"), ("fourth", {"user_id": ["u11"]})):
        repeated = again(second.output_dir, forget, tmp_path / name)
        assert repeated.result["done_earlier"] == first.result["date"][:10]
        assert len(saved(tmp_path / name).unlearn_done) == 2


def test_ensembles_know_them_too(values, tmp_path):
    common = {"sisa_shards": 2, "unlearn": "sisa"}
    made = run_unlearn("BPR", "tiny", forget={"user_id": "u7"}, config_dict=values | common | {"output_dir": "a"})
    repeated = run_unlearn(
        checkpoint=made.output_dir / "BPR-unlearned", forget={"user_id": "u7"}, output_dir=tmp_path / "b",
        unlearn="sisa", config_dict={key: value for key, value in QUICK.items() if key != "epochs"},
    )  # fmt: skip
    assert repeated.record.done_earlier is not None
    assert repeated.record.hashes["original"] == made.record.hashes["result"]


def test_parts_of_a_request_and_other_keys_make_other_requests(first, tmp_path):
    (tmp_path / "key").write_text("another" * 9)
    message = r"3 of 3 requests name .*1 request was carried out.*--hash_key"
    with pytest.raises(UnlearnError, match=message) as error:
        again(first.output_dir, tmp_path / "r.csv", tmp_path / "second", hash_key=str(tmp_path / "key"))
    assert "u7" not in str(error.value)
    for on_missing in ("error", "skip"):
        with pytest.raises(UnlearnError, match="given as a whole"):
            again(first.output_dir, {"user_id": "u7"}, tmp_path / "second", on_missing=on_missing)


def test_interactions_that_are_there_are_deleted_despite_the_list(first, tmp_path):
    """A hash in the list is not believed over the data."""
    other = again(first.output_dir, {"user_id": "u11"}, tmp_path / "second", unlearn="finetune", finetune_epochs=1)
    entry = saved(other.output_dir).unlearn_done[1]
    path = first.output_dir / "tiny-Dataset.pth"
    dataset = saved(first.output_dir)
    dataset.unlearn_done.append(entry)
    path.write_bytes(pickle.dumps(dataset))
    source = load(first.config, path)
    request = read_request({"user_id": "u11"}, Fields.of(first.config))
    data = carry_out(request, source, "python", "error", entry[0])
    assert data.done_earlier is None
    assert len(data.forget) > 0


ODD = [7, ["x"], [("x", "2026-01-01")], [("a" * 64, "today")], [("a" * 64,)], {"a": 1}, [["a" * 64, "2026-01-01"]]]


def test_an_odd_list_is_refused(first):
    path = first.output_dir / "tiny-Dataset.pth"
    dataset = saved(first.output_dir)
    for odd in ODD:
        dataset.unlearn_done = odd
        path.write_bytes(pickle.dumps(dataset))
        with pytest.raises(UnlearnError, match="list of earlier requests is odd"):
            load(first.config, path)
    del dataset.unlearn_done  # a file of an earlier version
    path.write_bytes(pickle.dumps(dataset))
    assert load(first.config, path).done == ()


# ---- date, id and hashes ----


def test_every_run_has_a_date_and_an_id(first, values):
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first.result["date"])
    assert re.fullmatch(r"[0-9a-f-]{36}", first.result["request"])
    for path in first.output_dir.rglob("*"):  # and no file names a user of the request
        assert path.is_dir() or not re.search(rb"\bu7\b|\bu9\b|\bmoved\b", path.read_bytes()), path.name
    noise = run_unlearn("BPR", "tiny", config_dict=values | {"inject_mode": "random", "request_id": "T-1.b_2"})
    assert noise.result["request"] == "T-1.b_2"
    assert "hashes" not in noise.result  # there is no request
    assert not {"request_id", "hash_key"} & set(noise.result["settings"])


def test_the_hashes_are_those_of_the_key(values, tmp_path):
    (tmp_path / "key").write_text("k" * 40 + "\n")
    os.chmod(tmp_path / "key", 0o600)
    values = values | {"unlearn": "finetune", "finetune_epochs": 1}
    first, second = (
        run_unlearn("BPR", "tiny", forget={"user_id": "u7"}, config_dict=values | {"hash_key": key}).result["hashes"]
        for key in (str(tmp_path / "key"), None)
    )
    assert set(first) == {"request", "original", "result"}
    assert len({*first.values(), *second.values()}) == 6


def test_a_bad_key_or_id_is_refused_before_anything_is_trained(values, tmp_path, caplog):
    (tmp_path / "short").write_text("short")
    key = {"none": "There is no file", "short": "has 5 characters; it needs 32"}
    given = [({"hash_key": str(tmp_path / name)}, message) for name, message in key.items()]
    given += [({"request_id": name}, "request_id is not valid: expected up to 64")
              for name in ("", "a b", "x" * 65, "é", "../up", "a\nb")]  # fmt: skip
    for own, message in given:
        with pytest.raises(UnlearnError, match=message):
            run_unlearn("BPR", "tiny", forget={"user_id": "u7"}, config_dict=values | own)
    assert "Train" not in caplog.text
