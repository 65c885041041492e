"""`load_unlearned`: the result of a run from any directory, recommendations in tokens, and the mask."""

import os
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from recbole.config import Config
from recbole.data import create_dataset
from recbole.utils.case_study import full_sort_topk

from recbole_unlearn import load_unlearned, run_unlearn, unlearn_model
from tests.conftest import ITEMS, ROOT, USERS, quick_settings
from tests.files import RUN
from tests.parts import refused, same

GONE = ["u3", "u8"]


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny_path):
    """``made("BPR", "retrain")``: the result of a run, and a copy of its directory under another name."""
    done = {}

    def make(model, method):
        if (model, method) not in done:
            folder = tmp_path_factory.mktemp("loading")
            values = quick_settings(tiny_path, folder) | {"epochs": 2, "cache": False, "report": "none"}
            result = run_unlearn(model, "tiny", forget={"user_id": GONE}, unlearn=method, config_dict=values)
            done[model, method] = result, (folder / "out").rename(folder / "moved and renamed")
        return done[model, method]

    return make


@pytest.mark.parametrize(("model", "method"), [("BPR", "retrain"), ("FM", "retrain"), ("BPR", "sisa")])
def test_a_moved_directory_loads_as_it_was_measured(made, model, method, monkeypatch):
    result, moved = made(model, method)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    monkeypatch.setattr("pickle.load", lambda *args: pytest.fail("a careless reader was called"))
    monkeypatch.setattr("torch.load", lambda *args: pytest.fail("a careless reader was called"))
    before, loaded = torch.get_rng_state(), load_unlearned(moved)
    assert torch.equal(torch.get_rng_state(), before)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,6"
    config, model_again, dataset, train, valid, test = loaded
    assert type(config) is Config
    assert [len(part._dataset) for part in (train, valid, test)] == [len(part) for part in result.data.retain]
    assert len(dataset) == sum(len(part) for part in result.data.retain)
    assert not model_again.training
    assert same(result.model.state_dict(), model_again.state_dict())
    assert not set(GONE) & set(dataset.field2token_id["user_id"])
    if (model, method) == ("BPR", "retrain"):  # it can forget again
        again = unlearn_model(config, model_again, (train, valid, test), {"user_id": ["u5"]}, "obliviate")
        assert len(again.data.forget) > 0


def test_refusals_to_load_are_one_line(made, tmp_path, plain_checkpoint):
    _, moved = made("BPR", "retrain")
    copy = shutil.copytree(moved, tmp_path / "copy")
    for place, said in (
        (tmp_path / "nowhere", "There is no file or directory"),
        (plain_checkpoint.parent, "holds no unlearned model"),
        (plain_checkpoint, "not an unlearned model of this plugin"),
    ):
        refused(said, load_unlearned, place)
    shutil.copy(copy / "BPR-unlearned.pth", copy / "NeuMF-unlearned.pth")
    refused("holds 2 unlearned models", load_unlearned, copy)
    (copy / "NeuMF-unlearned.pth").unlink()
    dataset = copy / "tiny-Dataset.pth"
    dataset.write_bytes(dataset.read_bytes() + b"x")
    refused("is not the dataset that BPR-unlearned.pth was written with", load_unlearned, copy)
    dataset.unlink()
    refused("which is not in its directory", load_unlearned, copy)


def test_the_page_on_results_is_true(made, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "deletion-requests.md").read_text()
    _, use, mask = re.findall(r"```python\n(.*?)```", page, re.S)
    result, moved = made("BPR", "retrain")
    for name in ("out", "moved"):
        shutil.copytree(moved, tmp_path / name)
    names, tokens = {}, {"9": "u9", "50": "u50", "244": "u1", "298": "u2"}
    for snippet in (use, mask):
        exec(re.sub(r'"(9|50|244|298)"', lambda found: f'"{tokens[found[1]]}"', snippet), names)
    monkeypatch.setattr("recbole.data.dataset.dataset.download_url", lambda *args: pytest.fail("a download"))
    plain = torch.load(moved / "BPR-unlearned.pth", weights_only=False)["config"]
    with pytest.raises(ValueError, match=r"\./tiny\.train\.inter not exist"):
        create_dataset(plain)
    (relocate,) = re.findall(r"```python\n(import torch\n.*?)```", (ROOT / "docs" / "serving.md").read_text(), re.S)
    exec(relocate.replace("elsewhere", "moved").replace("ml-100k", "tiny"), names)
    assert len(create_dataset(names["config"])) == sum(len(part) for part in result.data.retain)


GONE_USER, GONE_ITEM = "u3", "i7"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, tiny_path):
    """A BPR that forgot a user, and an item after it."""
    out = tmp_path_factory.mktemp("recommend")
    values = quick_settings(tiny_path, out) | {"eval_step": 4, "cache": False, "report": "none"}
    run_unlearn("BPR", "tiny", forget={"user_id": [GONE_USER]}, output_dir=out / "one", config_dict=values)
    own = RUN | {"output_dir": str(out / "two")}
    run_unlearn(checkpoint=out / "one" / "BPR-unlearned.pth", forget={"item_id": [GONE_ITEM]}, config_dict=own)
    return load_unlearned(out / "two")


ALL_USERS = [f"u{n}" for n in range(USERS) if f"u{n}" != GONE_USER]


def test_they_are_those_of_recbole_without_seen_and_deleted_items(loaded):
    train, users = loaded.train_data._dataset, loaded.test_data.uid_list[:7]
    scores, items = full_sort_topk(users.tolist(), loaded.model, loaded.test_data, 10)
    found = loaded.recommend(train.id2token("user_id", users.numpy()), k=10)
    for place, (_, own) in enumerate(found.groupby("user", sort=False)):
        theirs = [token for token in train.id2token("item_id", items[place].numpy()) if not token.startswith("[")]
        assert (own["item"].tolist()[: len(theirs)], own["rank"].tolist()) == (theirs, list(range(1, 11)))
        assert own["score"].is_monotonic_decreasing
    assert list(found.columns) == ["user", "rank", "item", "score"]
    assert found["score"].iloc[0] == pytest.approx(scores[0, 0].item())
    found = loaded.recommend(ALL_USERS, k=1000)
    assert not found["item"].str.startswith("[").any()  # no padding, no placeholder of an item that is gone
    assert GONE_ITEM not in set(found["item"])
    seen = set()
    for data in (loaded.train_data, loaded.valid_data):
        part = data._dataset
        pairs = (part.id2token(f, part.inter_feat[f].numpy()) for f in ("user_id", "item_id"))
        seen |= set(zip(*pairs, strict=True))
    shown = set(zip(found["user"], found["item"], strict=True))
    assert not shown & seen
    assert len(shown | seen) == len(ALL_USERS) * (ITEMS - 1)  # everything else is: k is larger
    assert len(shown) == len(found)


def test_masked_items_are_never_shown(loaded, tmp_path):
    best = loaded.recommend("u1", k=2)["item"].tolist()
    pair = {"user_id": ["u1"], "item_id": [best[0]]}
    (tmp_path / "mask.csv").write_text(f"user_id,item_id\nu1,{best[0]}\n")
    for mask in (pair, pd.DataFrame(pair), tmp_path / "mask.csv", str(tmp_path / "mask.csv")):
        assert loaded.recommend("u1", k=1, mask=mask)["item"].tolist() == best[1:]
    other = loaded.recommend("u2", k=5)
    assert loaded.recommend("u2", k=5, mask=pair).equals(other)  # a pair is masked for its user
    assert best[0] not in set(loaded.recommend(ALL_USERS, k=60, mask={"item_id": [best[0]]})["item"])
    assert loaded.recommend("u1", k=2)["item"].tolist() == best  # a mask is not kept
    found = loaded.recommend(["u1", GONE_USER, "u2"], mask={"user_id": ["u1", GONE_USER]})
    assert set(found["user"]) == {"u2"}  # a masked user gets no items, deleted or not
    assert list(loaded.recommend(["u1"], mask={"user_id": ["u1"]}).columns) == list(found.columns)
    unknown = {"user_id": ["u1", "stranger"], "item_id": ["i-none", best[0]]}
    assert loaded.recommend("u1", k=2, mask=unknown)["item"].tolist() == best
    assert loaded.recommend("u1", k=2, mask=pd.DataFrame(pair).iloc[:0])["item"].tolist() == best


def test_ways_to_name_users(loaded):
    one = loaded.recommend("u12", k=3)
    assert set(one["user"]) == {"u12"}  # one token, not its letters
    for users in (["u12"], ("u12",), np.array(["u12"]), pd.Series(["u12"]), ["u12", "u12"]):
        assert loaded.recommend(users, k=3).equals(one)
    assert len(loaded.recommend([], k=3)) == 0


@pytest.mark.parametrize(("users", "k", "message"), [
    (["u1", GONE_USER], 3, "1 of 2 users have no interaction in the retained data, the first of them at"),
    (["[PAD]"], 3, "1 of 1 users"), (["[removed-1]", "stranger"], 3, "2 of 2 users"),
    ([("u1",)], 3, "1 of 1 users"), ([None], 3, "1 of 1 users"), ([True], 3, "1 of 1 users"),
    (["u1"], 0, "k=0"), (["u1"], True, "k=True"), (["u1"], "3", "k='3'"),
])  # fmt: skip
def test_questions_that_are_refused(loaded, users, k, message):
    said = refused("", loaded.recommend, users, k)
    assert message in said
    assert "stranger" not in said
