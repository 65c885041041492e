"""The saved model: plain RecBole can use it, and nothing that was deleted is in it."""

import pickle
import re
import shutil

import numpy as np
import pytest
import torch

from recbole_unlearn import run_unlearn
from tests.files import RUN, strings
from tests.parts import check_plain_recbole, refused

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
    graph = result.model.norm_adj_matrix.to_sparse_coo()
    assert not np.isin(graph.indices()[0].numpy(), rows).any()
    assert result.model.interaction_matrix.nnz == len(result.data.retain.train)


def test_no_file_names_the_people(unlearn):
    """Every string of every file: no deleted user's token, no list of requests, nothing of the plugin."""
    for path in unlearn("LightGCN").output_dir.rglob("*"):
        if path.suffix == ".pth":
            assert not set(GONE) & strings(path), path
            assert not any("recbole_unlearn" in text for text in strings(path)), path
        elif path.is_file():
            text = path.read_text()
            if path.suffix == ".html":  # without plotly.js itself, whose variables have short names
                text = text.replace(max(re.findall(r"<script.*?</script>", text, re.S), key=len), "")
            assert not set(GONE) & set(text.replace('"', " ").replace(",", " ").split()), path


def test_the_dataset_holds_the_retained_rows_only(unlearn):
    result = unlearn("LightGCN")
    dataset = pickle.loads((result.output_dir / "tiny-Dataset.pth").read_bytes())
    rows = result.data.full.train.token2id("user_id", GONE)
    assert not dataset.inter_feat["user_id"].isin(rows).any()
    assert len(dataset.inter_feat) == sum(len(part) for part in result.data.retain)
    assert dataset.field2id_token["user_id"][rows].tolist() == [f"[removed-{row}]" for row in rows]
    assert not set(GONE) & set(dataset.field2token_id["user_id"])
    assert (dataset.user_feat["city"].iloc[rows] == 0).all()
    assert (dataset.user_feat["city"].drop(index=[0, *rows]) > 0).all()
    # The live objects still know them: only the copy that is written was blanked.
    assert set(GONE) <= set(result.data.full.train.field2token_id["user_id"])


@pytest.mark.slow
def test_plain_recbole_loads_it_and_gets_the_same_figures(unlearn, tmp_path):
    check_plain_recbole([unlearn(model) for model in ("LightGCN", "FM")], tmp_path)


def test_the_next_request_starts_where_the_last_one_ended(unlearn, copied, tmp_path):
    """Both files are found where they were moved together."""
    first = unlearn("BPR")
    train = first.data.retain.train
    user, item = (int(train.inter_feat[field][0]) for field in ("user_id", "item_id"))
    pair = (train.id2token("user_id", [user]), train.id2token("item_id", [item]))
    given = {"checkpoint": copied / "BPR-unlearned.pth", "config_dict": RUN}
    second = run_unlearn(forget=pair, output_dir=tmp_path / "second", **given)
    before, after = first.result["phases"]["unlearned"], second.result["phases"]["original"]
    assert after["metrics"]["ndcg@20"] == pytest.approx(before["metrics"]["ndcg@20"], abs=1e-6)
    assert len(second.data.full.train) == len(train)
    assert second.result["forget"]["interactions"] == 1
    assert second.data.full.train.user_num == train.user_num
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


def test_nothing_is_saved_when_not_asked(unlearn):
    names = {path.name for path in unlearn("BPR", save_unlearned=False).output_dir.iterdir()}
    assert names == {"report.html", "result.json", "run.log"}


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
