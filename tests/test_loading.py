"""`load_unlearned`: the result of a run, wherever it is by now."""

import os
import re
import shutil

import pytest
import torch
from recbole.config import Config
from recbole.data import create_dataset
from recbole.data.dataset import Dataset

from recbole_unlearn import load_unlearned, run_unlearn, unlearn_model
from recbole_unlearn.errors import UnlearnError
from tests.conftest import ROOT

GONE = ["u3", "u8"]


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny_path):
    """``made("BPR", "retrain")``: the result of a run, and a copy of its directory under another name."""
    done = {}

    def make(model, method):
        if (model, method) not in done:
            folder = tmp_path_factory.mktemp("loading")
            values = {
                "data_path": str(tiny_path), "load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"]},
                "epochs": 2, "eval_step": 2, "embedding_size": 8, "train_batch_size": 64, "show_progress": False,
                "tensorboard": False, "cache": False, "report": "none", "min_group": 1,
            }  # fmt: skip
            result = run_unlearn(
                model, "tiny", forget={"user_id": GONE}, unlearn=method, output_dir=folder / "out",
                config_dict=values,
            )  # fmt: skip
            done[model, method] = result, (folder / "out").rename(folder / "moved and renamed")
        return done[model, method]

    return make


@pytest.mark.parametrize(("model", "method"), [("BPR", "retrain"), ("FM", "retrain"), ("BPR", "sisa")])
def test_a_moved_directory_loads_as_it_was_measured(made, model, method, monkeypatch):
    result, moved = made(model, method)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    monkeypatch.setattr("pickle.load", lambda *args: pytest.fail("a careless reader was called"))
    monkeypatch.setattr("torch.load", lambda *args: pytest.fail("a careless reader was called"))
    before = torch.get_rng_state()
    loaded = load_unlearned(moved)
    assert torch.equal(torch.get_rng_state(), before)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,6"
    config, model_again, dataset, train, valid, test = loaded
    assert type(config) is Config
    assert isinstance(dataset, Dataset)
    assert [len(part._dataset) for part in (train, valid, test)] == [len(part) for part in result.data.retain]
    assert len(dataset) == sum(len(part) for part in result.data.retain)
    assert not model_again.training
    for name, value in result.model.state_dict().items():
        assert torch.equal(value, model_again.state_dict()[name]), name
    assert not set(GONE) & set(dataset.field2token_id["user_id"])


def test_any_way_to_name_it(made, tmp_path, monkeypatch):
    _, moved = made("BPR", "retrain")
    shutil.copytree(moved, tmp_path / "a" / "b")
    monkeypatch.chdir(tmp_path / "a")
    weights = [
        load_unlearned(place).model.item_embedding.weight
        for place in (
            "b",
            "b/BPR-unlearned.pth",
            tmp_path / "a" / "b",
            str(tmp_path / "a" / "b" / "BPR-unlearned.pth"),
        )
    ]
    monkeypatch.chdir(tmp_path / "a" / "b")
    weights += [load_unlearned(place).model.item_embedding.weight for place in (".", "BPR-unlearned.pth")]
    assert all(torch.equal(weight, weights[0]) for weight in weights)
    _, ensemble = made("BPR", "sisa")
    assert load_unlearned(ensemble / "BPR-unlearned").model is not None


def test_what_cannot_be_loaded_is_said_in_one_line(made, tmp_path, plain_checkpoint):
    _, moved = made("BPR", "retrain")
    copy = shutil.copytree(moved, tmp_path / "copy")

    def refused(place, message):
        with pytest.raises(UnlearnError, match=message) as error:
            load_unlearned(place)
        assert "\n" not in str(error.value)

    refused(tmp_path / "nowhere", "There is no file or directory")
    refused(plain_checkpoint.parent, "holds no unlearned model")
    refused(plain_checkpoint, "not an unlearned model of this plugin")
    shutil.copy(copy / "BPR-unlearned.pth", copy / "NeuMF-unlearned.pth")
    refused(copy, "holds 2 unlearned models")
    (copy / "NeuMF-unlearned.pth").unlink()
    dataset = copy / "tiny-Dataset.pth"
    dataset.write_bytes(dataset.read_bytes() + b"x")
    refused(copy, "is not the dataset that BPR-unlearned.pth was written with")
    dataset.unlink()
    refused(copy, "which is not in its directory")


def test_what_is_loaded_can_forget_again(made):
    _, moved = made("BPR", "retrain")
    config, model, _, *data = load_unlearned(moved)
    again = unlearn_model(config, model, data, {"user_id": ["u5"]}, "obliviate")
    assert len(again.data.forget) > 0


def test_the_page_on_results_is_true(made, tmp_path, monkeypatch):
    """docs/deletion-requests.md: its snippets run, and plain RecBole finds the data at its new place, or stops."""
    page = (ROOT / "docs" / "deletion-requests.md").read_text()
    _, use, mask, relocate = re.findall(r"```python\n(.*?)```", page, re.S)
    result, moved = made("BPR", "retrain")
    shutil.copytree(moved, tmp_path / "out")
    shutil.copytree(moved, tmp_path / "moved")
    names = {}
    for snippet in (use, mask):
        exec(
            re.sub(r'"(9|50|244|298)"', r'"u\1"', snippet).replace("u244", "u1").replace("u298", "u2"), names
        )
    monkeypatch.setattr("recbole.data.dataset.dataset.download_url", lambda *args: pytest.fail("a download"))
    plain = torch.load(moved / "BPR-unlearned.pth", weights_only=False)["config"]
    with pytest.raises(ValueError, match=r"\./tiny\.train\.inter not exist"):
        create_dataset(plain)
    exec(relocate.replace("/new/place", str(tmp_path)).replace("ml-100k", "tiny"))
    plain = torch.load("moved/BPR-unlearned.pth", weights_only=False)["config"]
    assert len(create_dataset(plain)) == sum(len(part) for part in result.data.retain)
    load_unlearned("moved")  # and for us it is what it was
