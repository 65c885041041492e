"""The saved model, which has nothing that was deleted; checkpoints of plain RecBole and of own classes as a start."""

import os
import pickle
import shutil
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from recbole.model.general_recommender import BPR

from recbole_unlearn import load_unlearned, run_unlearn
from recbole_unlearn.files import StandIn, load_torch, only, read_checkpoint
from tests.conftest import PLAIN, train_plain
from tests.files import RUN, Trap, strings
from tests.parts import refused, same

GONE = ["u3", "u8"]


@pytest.fixture(scope="module")
def unlearn(tiny_path, tmp_path_factory):
    """``unlearn("BPR")``: the outcome of a run, the same one for all tests."""
    found, features = {}, {"user": ["user_id", "city"], "item": ["item_id", "kind"]}
    values = RUN | {
        "data_path": str(tiny_path), "epochs": 2, "eval_step": 1, "embedding_size": 8, "report": "html",
        "load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"], **features},
    }  # fmt: skip

    def run(model, **more):
        if (model, *more) not in found:
            given = {"forget": {"user_id": GONE}, "output_dir": tmp_path_factory.mktemp("run")}
            found[model, *more] = run_unlearn(model, "tiny", config_dict=values | more, **given)
        return found[model, *more]

    return run


@pytest.fixture
def copied(unlearn, tmp_path):
    """The files of an unlearned BPR, to be moved or damaged."""
    return shutil.copytree(unlearn("BPR").output_dir, tmp_path / "copy")


def open_checkpoint(result, name):
    return torch.load(result.output_dir / f"{name}-unlearned.pth", weights_only=False)


def test_the_checkpoint_keeps_nothing_of_what_was_deleted(unlearn):
    result = unlearn("LightGCN")
    content = open_checkpoint(result, "LightGCN")
    assert content["optimizer"]["state"] == {}  # no moments
    assert content["other_parameter"] == {}  # no cached embeddings
    assert set(content) == {
        "config", "epoch", "cur_step", "best_valid_score", "state_dict", "other_parameter", "optimizer",
        "unlearn_dataset_sha256",
    }  # fmt: skip
    rows = result.data.full.train.token2id("user_id", GONE)
    assert not np.isin(result.model.norm_adj_matrix.to_sparse_coo().indices()[0].numpy(), rows).any()
    assert result.model.interaction_matrix.nnz == len(result.data.retain.train)
    dataset = pickle.loads((result.output_dir / "tiny-Dataset.pth").read_bytes())
    assert not dataset.inter_feat["user_id"].isin(rows).any()
    assert len(dataset.inter_feat) == sum(len(part) for part in result.data.retain)
    assert dataset.field2id_token["user_id"][rows].tolist() == [f"[removed-{row}]" for row in rows]
    assert not set(GONE) & set(dataset.field2token_id["user_id"])
    assert (dataset.user_feat["city"].iloc[rows] == 0).all()
    assert (dataset.user_feat["city"].drop(index=[0, *rows]) > 0).all()
    # The live objects still know them: only the copy that is written was blanked.
    assert set(GONE) <= set(result.data.full.train.field2token_id["user_id"])


def test_no_file_names_the_people(unlearn):
    """Every string of every file: no deleted user's token, no list of requests, nothing of the plugin."""
    for path in unlearn("LightGCN").output_dir.rglob("*"):
        if path.suffix == ".pth":
            assert not set(GONE) & strings(path), path
            assert not any("recbole_unlearn" in text for text in strings(path)), path
        elif path.is_file():
            text = path.read_text()
            assert not set(GONE) & set(text.replace('"', " ").replace(",", " ").split()), path


def test_the_next_request_starts_where_the_last_one_ended(unlearn, copied, tmp_path):
    first, given = unlearn("BPR"), {"checkpoint": copied / "BPR-unlearned.pth", "config_dict": RUN}
    second = run_unlearn(forget={"user_id": ["u1"]}, output_dir=tmp_path / "second", **given)
    before, after = first.data.retain.train, second.data.full.train
    assert (len(before), before.user_num) == (len(after), after.user_num)
    assert second.result["hashes"]["original"] == first.result["hashes"]["result"]
    said = "name a user or an item that is not in the dataset"
    refused(said, run_unlearn, forget={"user_id": GONE[:1]}, output_dir=tmp_path / "third", **given)
    whole, said = (copied / "BPR-unlearned.pth").read_bytes(), "would overwrite the checkpoint you passed"
    refused(said, run_unlearn, forget={"user_id": ["u1"]}, output_dir=copied, **given)
    assert (copied / "BPR-unlearned.pth").read_bytes() == whole


def test_a_damaged_dataset_is_refused(copied, tmp_path):
    path = copied / "tiny-Dataset.pth"
    whole, given = path.read_bytes(), {"forget": {"user_id": ["u1"]}, "output_dir": tmp_path / "o"}
    dataset = pickle.loads(whole)
    dataset.inter_feat = dataset.inter_feat.iloc[:-1]
    for content in (pickle.dumps(dataset), whole[:1000], pickle.dumps({"a": 1})):
        path.write_bytes(content)
        refused(r"tiny-Dataset\.pth", run_unlearn, checkpoint=copied / "BPR-unlearned.pth", **given)


KEPT = {
    "EASE": lambda model, other, rows: other["interaction_matrix"].tocsr()[rows].nnz,
    "ItemKNN": lambda model, other, rows: other["pred_mat"][rows].nnz,
    "MultiVAE": lambda model, other, rows: int(model.history_item_id[rows].sum()),
    "DMF": lambda model, other, rows: model.interaction_matrix.tocsr()[rows].nnz,
}


@pytest.mark.parametrize("model", KEPT)
def test_models_that_keep_data_are_rebuilt_on_the_retained_data(unlearn, model):
    result = unlearn(model)
    rows = result.data.full.train.token2id("user_id", GONE)
    other = open_checkpoint(result, model)["other_parameter"]
    assert "i_embedding" not in other
    assert KEPT[model](result.model, other, rows) == 0


NAMED = {"final_config_dict": {"model": "BPR", "dataset": "t"}}
FORGET = {"user_id": ["u3", "u8"]}


def test_the_original_is_the_model_recbole_saved(plain_checkpoint, tmp_path, tiny_path):
    """From the checkpoint alone: the same split, and RecBole's own figures for the same weights.

    The user's checkpoint and its directory are never written to.
    """

    def seen():
        files = [path for path in plain_checkpoint.parent.rglob("*") if path.is_file()]
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = seen()
    places = {"cache_dir": str(tmp_path / "c"), "data_path": str(tiny_path), "output_dir": str(tmp_path / "out")}
    result = run_unlearn(checkpoint=plain_checkpoint, forget=FORGET, config_dict=RUN | places)
    phases = result.result["phases"]
    assert phases["original"]["seconds"] is None
    assert result.config["epochs"] == 3
    assert result.result["forget"]["orphan_users"] == 2
    assert {"mrr@10", "recall@50"} <= set(phases["unlearned"]["metrics"])
    assert seen() == before


@pytest.mark.parametrize(("arguments", "message"), [
    ({"model": "LightGCN"}, "is of the model BPR, not LightGCN"),
    ({"dataset": "ml-1m"}, "is of the dataset tiny, not ml-1m"),
    ({"config_dict": RUN | {"seed": 1}}, "seed=1 differs from the checkpoint's 2020"),
    ({"config_dict": RUN | {"eval_args": {"split": {"RS": [6, 2, 2]}}}}, "eval_args"),
    ({"config_dict": RUN | {"embedding_size": 16}}, "size mismatch for user_embedding.weight"),
    ({"forget": "injected"}, "cannot start from a checkpoint"),
])  # fmt: skip
def test_runs_that_do_not_fit_the_checkpoint(plain_checkpoint, tmp_path, tiny_path, arguments, message):
    given = {"checkpoint": plain_checkpoint, "forget": FORGET, "config_dict": RUN} | arguments
    given["config_dict"] = given["config_dict"] | {"cache_dir": str(tmp_path / "c"), "data_path": str(tiny_path)}
    refused(message, run_unlearn, output_dir=tmp_path / "out", **given)
    assert not (tmp_path / "out" / "result.json").exists()


@pytest.mark.parametrize(("content", "message"), [
    ({"weights": 1}, "no state_dict"),
    ([1, 2], "no state_dict"),
    ({"state_dict": {"w": torch.zeros(1)}}, "does not say which model"),
    ({"state_dict": {"w": 3}, "config": NAMED}, "tensor"),
    ({"state_dict": {"w": torch.tensor([float("nan")])}, "config": NAMED}, "not finite"),
])  # fmt: skip
def test_other_files_are_no_checkpoints(tmp_path, content, message):
    torch.save(content, tmp_path / "x.pth")
    refused(message, read_checkpoint, tmp_path / "x.pth")


def own_class(monkeypatch, module):
    """A model class that lives in ``module``, as pickle sees it."""

    def __init__(self, config, dataset):
        super(cls, self).__init__(config, dataset)
        self.strength = config["own_strength"]

    cls = type("OwnBPR", (BPR,), {"__module__": module, "__init__": __init__})
    home = sys.modules.get(module) or ModuleType(module)
    monkeypatch.setitem(sys.modules, module, home)
    monkeypatch.setattr(home, "OwnBPR", cls, raising=False)
    return cls


def train_own(cls, folder, tiny_path):
    return train_plain(cls, folder, **PLAIN | {"data_path": str(tiny_path), "epochs": 2, "own_strength": 3})


@pytest.mark.parametrize("module", ["__main__", "own_models"])
def test_from_recbole_to_the_second_request_and_back(monkeypatch, tmp_path, tiny_path, module):
    cls = own_class(monkeypatch, module)
    path = train_own(cls, tmp_path / "saved", tiny_path)
    refused(r"If OwnBPR is a model class of yours, give it: --model=package\.", read_checkpoint, path)
    given = {"output_dir": tmp_path / "one", "config_dict": RUN | {"data_path": str(tiny_path)}}
    first = run_unlearn(cls, checkpoint=path, forget=FORGET, **given)
    # A setting that only the class reads, though it has no source to look at.
    assert first.model.strength == 3
    given = {"unlearn": "obliviate", "output_dir": tmp_path / "two", "config_dict": RUN}
    start = tmp_path / "one" / "OwnBPR-unlearned.pth"
    second = run_unlearn(cls, checkpoint=start, forget={"user_id": ["u5", "u6"]}, **given)
    loaded = load_unlearned(tmp_path / "two", model=cls)
    assert type(loaded.model) is cls
    assert same(second.model.state_dict(), loaded.model.state_dict())
    refused("If OwnBPR is a model class of yours", load_unlearned, tmp_path / "two")


def test_another_class_is_not_the_one_of_the_checkpoint(monkeypatch, tmp_path, tiny_path, plain_checkpoint):
    cls, given = own_class(monkeypatch, "own_models"), {"forget": FORGET, "output_dir": tmp_path / "o"}
    path = train_own(cls, tmp_path / "saved", tiny_path)
    # Consent to one name is not to another.
    refused(r"own_models\.OwnBPR", run_unlearn, BPR, checkpoint=path, **given)
    refused("is of the model BPR, not OwnBPR", run_unlearn, cls, checkpoint=plain_checkpoint, **given)
    refused("is not a model class of RecBole", run_unlearn, dict, "tiny", output_dir=tmp_path / "o")


def test_a_consented_name_is_never_imported_or_called(tmp_path):
    """Not even when the class that is given has the name of something dangerous."""
    torch.save({"config": Trap(os.mkdir, str(tmp_path / "ran"))}, tmp_path / "x.pth", pickle_protocol=4)
    mkdir = type("mkdir", (BPR,), {})
    for model in (None, BPR):
        assert "model class of yours" not in refused("mkdir", read_checkpoint, tmp_path / "x.pth", model)
    assert isinstance(load_torch(tmp_path / "x.pth", only(mkdir))["config"], StandIn)
    assert not (tmp_path / "ran").exists()
