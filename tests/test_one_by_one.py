"""Many small requests one after the other: what they take from an item adds up as if it were one request."""

import dataclasses
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

from recbole_unlearn import run_unlearn
from recbole_unlearn.data.requests import Located
from recbole_unlearn.data.splits import divide, load
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files.unpickle import load_torch
from recbole_unlearn.methods import registry
from recbole_unlearn.methods.request_losses import RequestLosses, losers
from recbole_unlearn.pipeline import begin, checked_settings
from recbole_unlearn.rows.index import TrainIndex
from recbole_unlearn.rows.region import find_region
from recbole_unlearn.settings import CacheSettings, read
from recbole_unlearn.training import Trainings, train
from tests.conftest import tiny_rows
from tests.parts import Rows

HIT, NUMBER = "hit", 30  # an item, and how many training interactions it has
QUICK = {"show_progress": False, "tensorboard": False, "report": "none", "cache": False}


@pytest.fixture(scope="module")
def popular_path(tmp_path_factory):
    """`tiny` with an item that 30 users have in the training split; the splits are files."""
    root = tmp_path_factory.mktemp("data")
    folder = root / "popular"
    folder.mkdir()
    rows = [(user, item) for user, item, _, _ in tiny_rows()]
    train = rows[:520] + [(f"u{n}", HIT) for n in range(NUMBER)]
    parts = {"train": train, "valid": rows[520:600], "test": rows[600:]}
    for name, pairs in parts.items():
        frame = pd.DataFrame(pairs, columns=["user_id:token", "item_id:token"])
        frame.to_csv(folder / f"popular.{name}.inter", sep="\t", index=False)
    return root


@pytest.fixture
def values(settings, popular_path):
    return settings | QUICK | {
        "data_path": str(popular_path), "load_col": {"inter": ["user_id", "item_id"]}, "epochs": 2,
        "benchmark_filename": ["train", "valid", "test"],
    }  # fmt: skip


def pairs(*users):
    return [f"u{n}" for n in users], [HIT] * len(users)


def state(folder):
    return load_torch(folder / "BPR-unlearned.pth")["state_dict"]


def counts(folder):
    """What the file of a request tells the next one, by item id."""
    with open(folder / "popular-Dataset.pth", "rb") as stream:
        return pickle.load(stream).unlearn_lost


@pytest.fixture
def start(values, tmp_path):
    """The model that all requests below start from: trained here, and nothing of it is forgotten yet."""
    values = values | {"output_dir": str(tmp_path / "start"), "unlearn": "retrain"}
    held_out = pd.read_csv(f"{values['data_path']}/popular/popular.test.inter", sep="\t").iloc[:1]
    outcome = run_unlearn(
        "BPR", "popular", forget=(held_out["user_id:token"], held_out["item_id:token"]), config_dict=values
    )
    assert outcome.result["forget"]["interactions"] == 0
    return outcome


def forget(before, users, folder, unlearn="obliviate", **changes):
    more = {"lac_steps": 2} if unlearn == "obliviate" else {}
    return run_unlearn(
        checkpoint=before / "BPR-unlearned.pth", forget=pairs(*users), unlearn=unlearn, output_dir=folder,
        config_dict=QUICK | more | changes,
    )  # fmt: skip


def moved(before, after, table="item_embedding.weight"):
    """Which rows of a table differ between two files."""
    old, new = (state(folder)[table] for folder in (before, after))
    return set((old != new).any(dim=1).nonzero().flatten().tolist())


@pytest.mark.parametrize(("threshold", "least"), [(0.1, 3), (0.5, 15)])
def test_fifteen_requests_of_one_are_one_of_fifteen(start, tmp_path, threshold, least):
    """The attack: delete one by one. The item's row must move at the request at which one of that many moves it."""
    hit = start.data.full.train.token2id("item_id", HIT)
    folder, reached = start.output_dir, {"item": set(), "user": set()}
    first_move, expected, lost, had = None, [], 0, NUMBER
    for number in range(1, 16):
        after = tmp_path / f"one-{number}"
        forget(folder, [number - 1], after, lua_threshold=threshold)
        changed = moved(folder, after)
        first_move = first_move or (number if hit in changed else None)
        # Since its row was made again an item has lost nothing, and has that much less to lose.
        lost += 1
        if lost / had >= threshold:
            expected.append(number)
            lost, had = 0, had - lost
        assert (hit in changed) == (number in expected), number
        told = counts(after)
        assert (told[hit] if told is not None else 0) == lost
        reached["item"] |= changed
        reached["user"] |= moved(folder, after, "user_embedding.weight")
        folder = after
    assert first_move == least
    for number in (least - 1, least):
        at_once = tmp_path / f"at-once-{number}"
        forget(start.output_dir, range(number), at_once, lua_threshold=threshold)
        assert (hit in moved(start.output_dir, at_once)) == (number >= least)
    whole = tmp_path / "whole"
    forget(start.output_dir, range(15), whole, lua_threshold=threshold)
    assert reached["item"] == moved(start.output_dir, whole)
    assert reached["user"] == moved(start.output_dir, whole, "user_embedding.weight")


def test_every_method_counts(start, tmp_path):
    """Other methods have no threshold; what they took counts when one with a threshold comes after them."""
    hit = start.data.full.train.token2id("item_id", HIT)
    folder = start.output_dir
    for name in ("finetune", "scif", "ifru", "gradient_ascent", "rrl"):
        extra = {f"{name}_epochs": 1} if name == "finetune" else {f"{name}_steps": 2}
        users = (
            range(3) if name == "finetune" else [{"scif": 3, "ifru": 4, "gradient_ascent": 5, "rrl": 6}[name]]
        )
        forget(folder, users, tmp_path / name, unlearn=name, **extra)
        folder = tmp_path / name
    assert counts(folder)[hit] == 7
    forget(folder, [7], tmp_path / "eighth", lua_threshold=8 / NUMBER)
    assert hit in moved(folder, tmp_path / "eighth")
    forget(folder, [7], tmp_path / "retrained", unlearn="retrain")
    assert counts(tmp_path / "retrained") is None  # nothing is counted of a model that never saw them


def test_held_out_requests_keep_the_count(start, tmp_path):
    forget(start.output_dir, range(2), tmp_path / "two")
    test = start.data.retain.test
    pair = [test.id2token(field, [int(test.inter_feat[field][0])]) for field in ("user_id", "item_id")]
    run_unlearn(
        checkpoint=tmp_path / "two" / "BPR-unlearned.pth", forget=tuple(pair), unlearn="obliviate",
        output_dir=tmp_path / "held", config_dict=QUICK,
    )  # fmt: skip
    assert counts(tmp_path / "held").tolist() == counts(tmp_path / "two").tolist()
    assert counts(tmp_path / "two").sum() == 2


def test_what_is_kept_names_nobody(start, tmp_path):
    """Counts by item id, whole numbers, nothing of users, and nothing of an item that is gone or was made again."""
    forget(start.output_dir, range(2), tmp_path / "two")
    told = counts(tmp_path / "two")
    train = start.data.full.train
    assert told.shape == (train.item_num,)
    assert told.dtype == np.int64
    assert np.flatnonzero(told).tolist() == [train.token2id("item_id", HIT)]
    with open(tmp_path / "two" / "popular-Dataset.pth", "rb") as stream:
        own = {key: value for key, value in pickle.load(stream).__dict__.items() if key.startswith("unlearn")}
    assert set(own) == {"unlearn_clock", "unlearn_lost"}
    run_unlearn(
        checkpoint=tmp_path / "two" / "BPR-unlearned.pth", forget={"item_id": [HIT]}, unlearn="finetune",
        output_dir=tmp_path / "gone", config_dict=QUICK | {"finetune_epochs": 1},
    )  # fmt: skip
    assert counts(tmp_path / "gone") is None


def test_noise_of_the_protocol_is_not_counted(values, tmp_path):
    values = values | {"inject_mode": "random", "unlearn": "finetune", "finetune_epochs": 1}
    outcome = run_unlearn("BPR", "popular", config_dict=values)
    assert len(outcome.data.forget) > 0
    assert counts(outcome.output_dir) is None


@pytest.mark.parametrize(
    "odd",
    [[1, 2], np.zeros(3, np.int64), np.full(62, -1), np.full(62, 0.5), np.zeros((62, 1), np.int64), 7,
     np.full(62, 2**62), {"hit": 2}],
    ids=["list", "short", "negative", "fractions", "table", "number", "huge", "mapping"],
)  # fmt: skip
def test_odd_counts_are_refused(start, tmp_path, odd):
    path = start.output_dir / "popular-Dataset.pth"
    dataset = pickle.loads(path.read_bytes())
    assert dataset.item_num == 62
    dataset.unlearn_lost = odd
    path.write_bytes(pickle.dumps(dataset))
    with pytest.raises(UnlearnError, match=r"popular-Dataset\.pth"):
        load(start.config, path)
    del dataset.unlearn_lost
    path.write_bytes(pickle.dumps(dataset))
    assert load(start.config, path).lost is None  # files of earlier versions


def test_the_share_is_of_what_there_was():
    """ρ = (L + gone) / (L + had), for items only."""
    index = TrainIndex(Rows([(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2)]))
    users, items = torch.tensor([1, 1]), torch.tensor([1, 2])
    lost = torch.tensor([0, 6, 0, 5, 0, 0, 0, 0, 0])
    region = find_region(index, users, items, 0.0, lost)
    assert region["item"].ids.tolist() == [1, 2]  # item 3 is not in this request
    assert region["item"].share.tolist() == pytest.approx([7 / 10, 1 / 2])
    assert region["user"].share.tolist() == [1.0]
    assert find_region(index, users, items, 0.6, lost)["item"].ids.tolist() == [1]
    assert find_region(index, users, items, 0.6)["item"].ids.tolist() == []


def test_influence_weighs_what_was_lost_before(make_config):
    """IFRU's spillover: an item that lost a little each time is a loser all the same."""
    config = make_config(unlearn="ifru")
    splits = load(config).splits
    mask = np.arange(len(splits.train)) == 0
    nothing = [np.zeros(len(part), bool) for part in (splits.valid, splits.test)]
    item = int(splits.train.inter_feat["item_id"][0])
    lost = torch.zeros(splits.train.item_num, dtype=torch.long)
    lost[item] = 50
    method, original = registry.get("ifru"), train(config, splits, "x")
    options, models = checked_settings(method, config), Trainings(read(CacheSettings, config), 1)
    found = []
    for before in (None, lost):
        data = divide(splits, Located(mask, *nothing), "python", None, before)
        trainer, task = begin(method, options, config, data, original, models, "x")
        task = dataclasses.replace(task, prepared_index=TrainIndex(splits.train).complete())
        found.append(losers(RequestLosses(task, trainer.model).region, 0.5)["item"].ids.tolist())
    assert found == [[], [item]]
