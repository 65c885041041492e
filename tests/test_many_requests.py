"""Requests one after the other: what they take from an item adds up, and the same one again is done already."""

import dataclasses
import json
import os
import pickle
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recbole_unlearn import UnlearnConfig, cli, run_unlearn
from recbole_unlearn.data import carry_out, coarse, fitted_after, load, lost_at_least, lost_since
from recbole_unlearn.data.requests import Fields, read_request
from recbole_unlearn.files import load_torch
from recbole_unlearn.methods import RequestLosses
from recbole_unlearn.methods.ifru import losing
from recbole_unlearn.rows import TrainIndex, find_region
from recbole_unlearn.training import train
from tests.conftest import quick_settings, tiny_rows
from tests.methods.conftest import make_task
from tests.parts import Rows, divided, refused, same

HIT, NUMBER = "hit", 30  # an item, and how many training interactions it has
ASKED = "user_id,item_id,reason\nu7,,moved\n,i3,\nu9,,\n"
QUICK = {"show_progress": False, "tensorboard": False, "report": "none", "cache": False}


@pytest.fixture(scope="module")
def popular_path(tmp_path_factory):
    """`tiny` with an item that 30 users have in the training split, and a user who is held out; splits are files."""
    root = tmp_path_factory.mktemp("data")
    folder = root / "popular"
    folder.mkdir()
    rows = [(user, item) for user, item, _, _ in tiny_rows()]
    train = rows[:520] + [(f"u{n}", HIT) for n in range(NUMBER)]
    late = [("newcomer", "i1"), ("newcomer", "i2")]
    for name, pairs in {"train": train, "valid": rows[520:600], "test": rows[600:] + late}.items():
        frame = pd.DataFrame(pairs, columns=["user_id:token", "item_id:token"])
        frame.to_csv(folder / f"popular.{name}.inter", sep="\t", index=False)
    return root


@pytest.fixture(scope="module")
def values(popular_path, tmp_path_factory):
    return quick_settings(popular_path, tmp_path_factory.mktemp("popular")) | QUICK | {
        "load_col": {"inter": ["user_id", "item_id"]}, "epochs": 2,
        "benchmark_filename": ["train", "valid", "test"],
    }  # fmt: skip


def saved(folder):
    return pickle.loads((folder / "popular-Dataset.pth").read_bytes())


def rewritten(folder, **changes):
    """The file of a saved dataset with other attributes; one that becomes ... is left out, as in older files."""
    dataset, path = saved(folder), folder / "popular-Dataset.pth"
    dataset.__dict__ = {k: v for k, v in (dataset.__dict__ | changes).items() if v is not ...}
    path.write_bytes(pickle.dumps(dataset))
    return path


def told(folder):
    """The counts in a saved dataset by item id, and how many interactions each item has left."""
    dataset = saved(folder)
    train_items = dataset.inter_feat["item_id"].to_numpy()[: dataset.file_size_list[0]]
    return dataset.unlearn_fitted, np.bincount(train_items, minlength=dataset.item_num)


def shown(folder):
    """Items whose count shows that they lost interactions."""
    fitted, left = told(folder)
    return np.flatnonzero(fitted > coarse(torch.from_numpy(left)).numpy()).tolist()


@pytest.fixture(scope="module")
def trained(values):
    held_out = pd.read_csv(f"{values['data_path']}/popular/popular.test.inter", sep="\t").iloc[:1]
    request = held_out["user_id:token"], held_out["item_id:token"]
    outcome = run_unlearn("BPR", "popular", forget=request, unlearn="retrain", config_dict=values)
    assert outcome.result["forget"]["interactions"] == 0
    return outcome


@pytest.fixture
def start(trained, tmp_path):
    """The model that all requests below start from, in a directory of the test: nothing of it is forgotten yet."""
    return dataclasses.replace(trained, output_dir=shutil.copytree(trained.output_dir, tmp_path / "start"))


@pytest.fixture(scope="module")
def carried_out(values, tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    (folder / "r.csv").write_text(ASKED)
    values = {key: value for key, value in values.items() if key != "min_group"} | {"output_dir": str(folder / "out")}
    return run_unlearn("BPR", "popular", forget=folder / "r.csv", config_dict=values)


@pytest.fixture
def first(carried_out, tmp_path):
    """A request that was carried out, with its result in a directory of the test."""
    (tmp_path / "r.csv").write_text(ASKED)
    return dataclasses.replace(carried_out, output_dir=shutil.copytree(carried_out.output_dir, tmp_path / "first"))


def hits(*users):
    """A request of users, by number, for the item HIT."""
    return [f"u{n}" for n in users], [HIT] * len(users)


def forget(before, request, folder, unlearn="obliviate", **changes):
    more = {"lac_steps": 2} if unlearn == "obliviate" else {}
    values = QUICK | more | changes | {"unlearn": unlearn, "output_dir": str(folder)}
    return run_unlearn(checkpoint=before / "BPR-unlearned.pth", forget=request, config_dict=values)


def forget_counts(folder):
    """Take the counts out of a saved dataset, as in a checkpoint of plain RecBole."""
    rewritten(folder, unlearn_fitted=...)
    checkpoint = torch.load(folder / "BPR-unlearned.pth", weights_only=False)
    checkpoint.pop("unlearn_dataset_sha256", None)
    torch.save(checkpoint, folder / "BPR-unlearned.pth", pickle_protocol=4)


@pytest.mark.parametrize(("first", "requests"), [("trained", 4), ("saved", 15)])
def test_fifteen_requests_of_one_are_one_of_fifteen(start, tmp_path, first, requests):
    """The attack: delete one by one. The item starts again when one request of that many makes it start again."""
    hit = start.data.full.train.token2id("item_id", HIT)
    folder, fitted, made = start.output_dir, NUMBER, []
    if first == "trained":
        forget_counts(folder)
    for number in range(1, requests + 1):
        after = tmp_path / f"one-{number}"
        forget(folder, hits(number - 1), after)
        old, new = (load_torch(one / "BPR-unlearned.pth")["state_dict"] for one in (folder, after))
        assert not torch.equal(old["item_embedding.weight"][hit], new["item_embedding.weight"][hit])
        if told(after)[0][hit] < fitted:
            made.append(number)
            fitted = told(after)[0][hit]
        folder = after
    # A tenth of 30 is 3. Since its row started again an item has lost nothing, and has that much less to lose.
    assert made == [number for number in (3, 6, 9, 12, 15) if number <= requests]
    for number in (2, 3):
        at_once = tmp_path / f"at-once-{number}"
        forget(start.output_dir, hits(*range(number)), at_once)
        assert (told(at_once)[0][hit] < NUMBER) == (number >= 3)


def test_every_method_counts(start, tmp_path):
    hit = start.data.full.train.token2id("item_id", HIT)
    folder = start.output_dir
    asked = {"finetune": range(3), "ifru": [3, 4], "gradient_ascent": [5], "rrl": [6]}
    for name, users in asked.items():
        extra = {"finetune": {"finetune_epochs": 1}, "ifru": {}}.get(name, {f"{name}_steps": 2})
        forget(folder, hits(*users), tmp_path / name, unlearn=name, **extra)
        folder = tmp_path / name
    fitted, left = told(folder)
    assert (fitted[hit], left[hit]) == (NUMBER, NUMBER - 7)
    forget(folder, hits(7), tmp_path / "eighth")
    assert told(tmp_path / "eighth")[0][hit] < NUMBER  # 8 of 30, where 1 of 23 would not do
    forget(folder, hits(7), tmp_path / "retrained", unlearn="retrain")
    assert told(tmp_path / "retrained")[0] is None  # a model that never saw them


def test_the_saved_counts_name_no_user(start, tmp_path):
    """The attack: read the deleted items from the file. A number by item, nothing of users, rounded."""
    hit = start.data.full.train.token2id("item_id", HIT)
    assert shown(start.output_dir) == []
    forget(start.output_dir, hits(0), tmp_path / "one")
    assert shown(tmp_path / "one") == []  # 29 of 30 round to the same
    own = {key: value for key, value in saved(tmp_path / "one").__dict__.items() if key.startswith("unlearn")}
    assert set(own) == {"unlearn_clock", "unlearn_fitted", "unlearn_done"}
    assert own["unlearn_fitted"].shape == (start.data.full.train.item_num,)
    test = start.data.retain.test
    pair = [test.id2token(field, [int(test.inter_feat[field][0])]) for field in ("user_id", "item_id")]
    forget(tmp_path / "one", tuple(pair), tmp_path / "held")  # of the test split: counts stay
    assert told(tmp_path / "held")[0].tolist() == told(tmp_path / "one")[0].tolist()
    forget(tmp_path / "one", hits(1, 2), tmp_path / "three")
    assert shown(tmp_path / "three") == []  # its row got a new start
    forget(tmp_path / "one", hits(1, 2), tmp_path / "unmoved", unlearn="finetune", finetune_epochs=1)
    assert shown(tmp_path / "unmoved") == [hit]  # what has to be known is: it was fitted to more
    forget(tmp_path / "unmoved", {"item_id": [HIT]}, tmp_path / "gone", "finetune", finetune_epochs=1)
    assert told(tmp_path / "gone")[0][hit] == 0


def test_a_users_items_cannot_be_read_from_the_file(ml_100k):
    """The attack on real data: with exact counts, 95 % of a deleted user's items could be read."""
    splits = load(UnlearnConfig("BPR", "ml-100k", config_dict=ml_100k("BPR"))).splits
    users, items = (splits.train.inter_feat[field] for field in ("user_id", "item_id"))
    before = torch.bincount(items, minlength=splits.train.item_num)
    exact, rounded, later = [], [], []
    for user in torch.unique(users)[::20]:
        gone = torch.bincount(items[users == user], minlength=len(before))
        mine, after = gone > 0, before - gone
        kept = (gone / before.clamp(min=1)) < 0.1  # less than half of them starts again
        fitted = fitted_after(None, before, after, (mine & ~kept).nonzero().flatten())
        exact.append((mine & kept).sum() / mine.sum())
        rounded.append((mine & (fitted > coarse(after))).sum() / mine.sum())
        # The next request counts with what is kept, so whatever comes below a step gets its new start.
        known = coarse(before)
        moves = (lost_since(known, before) + gone) / known.clamp(min=1) >= 0.1
        again = fitted_after(known, before, after, (mine & moves).nonzero().flatten())
        later.append(int((again > coarse(after)).sum()))
    assert torch.stack(exact).mean() > 0.9
    assert torch.stack(rounded).mean() < 0.13
    assert sum(later) == 0


def test_odd_counts_and_odd_lists_are_refused(start):
    odd_counts = [
        [1, 2], np.zeros(3, np.int64), np.full(62, -1), np.full(62, 0.5), np.zeros((62, 1), np.int64), 7,
        np.full(62, 2**62), {"hit": 2},
    ]  # fmt: skip
    day = "2026-01-01"
    odd_lists = [7, ["x"], [("x", day)], [("a" * 64, "today")], [("a" * 64,)], {"a": 1}, [["a" * 64, day]]]
    assert saved(start.output_dir).item_num == 62
    for key, some, message in (
        ("unlearn_fitted", odd_counts, r"popular-Dataset\.pth"),
        ("unlearn_done", odd_lists, "list of earlier requests is odd"),
    ):
        for odd in some:
            path = rewritten(start.output_dir, **{key: odd})
            refused(message, load, start.config, path)
        rewritten(start.output_dir, **{key: ...})
    source = load(start.config, path)  # files of earlier versions
    assert (source.fitted, source.done) == (None, ())


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=30))
def test_numbers_are_rounded_up_by_a_step(numbers):
    given = torch.tensor(numbers)
    rounded = coarse(given)
    assert (rounded >= given).all()
    assert (rounded - given <= torch.maximum(torch.tensor(2), rounded // 9)).all()
    assert torch.equal(coarse(rounded), rounded)


@given(st.integers(1, 400), st.data())
def test_one_by_one_is_never_later_and_the_same_from_one_file(number, data):
    """Requests of any sizes, a row that moves at the threshold, and what is kept between them."""
    sizes = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=20))
    threshold = data.draw(st.sampled_from([0.05, 0.1, 0.3, 0.5]))
    for fitted in (None, coarse(torch.tensor([0, number]))):
        kept, left, total = fitted, number, 0
        start = 0 if fitted is None else int(fitted[1]) - number
        for size in sizes:
            if size >= left:
                break
            before, after = torch.tensor([0, left]), torch.tensor([0, left - size])
            lost = 0 if kept is None else int(lost_since(kept, before)[1])
            total, left = total + size, left - size
            one_by_one = (lost + size) / (lost + left + size) >= threshold
            exactly = total / number >= threshold
            at_once = (start + total) / (start + number) >= threshold
            assert one_by_one or not exactly  # never later
            if fitted is not None:
                assert one_by_one == at_once
            if one_by_one:
                break
            kept = fitted_after(kept, before, after, None)


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000)), min_size=1, max_size=30))
def test_what_is_lost_is_between_two_bounds(numbers):
    """Never less is counted for whether a row is fitted again, never more for how far it starts again."""
    before = torch.tensor([n for n, _ in numbers])
    after = torch.tensor([max(0, n - gone) for n, gone in numbers])
    fitted = coarse(before)
    assert (lost_at_least(fitted, after) <= before - after).all()
    assert (before - after <= lost_since(fitted, after)).all()
    assert (lost_at_least(fitted, before) == 0).all()


def test_the_share_is_of_what_there_was():
    """ρ = (L + gone) / (L + had), for items only."""
    index = TrainIndex(Rows([(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2)]))
    users, items = torch.tensor([1, 1]), torch.tensor([1, 2])
    region = find_region(index, users, items, torch.tensor([0, 6, 0, 5, 0, 0, 0, 0, 0]))
    assert region["item"].ids.tolist() == [1, 2]  # item 3 is not in this request
    assert (region["item"].share.tolist(), region["user"].share.tolist()) == (pytest.approx([7 / 10, 1 / 2]), [1.0])
    assert find_region(index, users, items)["item"].share.tolist() == pytest.approx([1 / 4, 1 / 2])


def test_influence_weighs_what_was_lost_before(make_config):
    """IFRU's spillover: an item that lost a little each time is a loser all the same."""
    config, found = make_config(epochs=1), []
    data = divided(config, lambda users: [0])
    original = train(config, data.full, "original")
    item = int(data.full.train.inter_feat["item_id"][0])
    fitted = torch.zeros(data.full.train.item_num, dtype=torch.long)
    fitted[item] = 60
    for before in (None, fitted):
        trainer, task = make_task(config, dataclasses.replace(data, fitted=before), "ifru", original)
        found.append(losing(RequestLosses(task, trainer.model).region, more_than=0.5)["item"].ids.tolist())
    assert found == [[], [item]]


def test_a_request_that_comes_again_is_done(first, tmp_path, capsys):
    """From the command line, in another order and another kind of file; nothing is trained, not even to compare."""
    (tmp_path / "again.jsonl").write_text('{"user_id": "u9"}\n{"item_id": "i3"}\n' + '{"user_id": "u7"}\n' * 2)
    flags = [f"--{key}={value}" for key, value in QUICK.items()]
    flags += [f"--checkpoint={first.output_dir / 'BPR-unlearned.pth'}", f"--forget={tmp_path / 'again.jsonl'}"]
    assert cli.main([*flags, f"--output_dir={tmp_path / 'second'}", "--compare=retrain"]) == 0
    day, log = first.result["date"][:10], (tmp_path / "second" / "run.log").read_text()
    assert f"carried out on {day}" in capsys.readouterr().out
    assert f"carried out earlier ({day})" in log
    assert "Train" not in log
    result = json.loads((tmp_path / "second" / "result.json").read_text())
    assert (list(result["phases"]), result["done_earlier"]) == (["original", "unlearned"], day)
    assert result["verdict"]["text"].startswith("This request was carried out earlier")
    assert (result["forget"]["interactions"], result["hashes"]["request"]) == (0, first.result["hashes"]["request"])
    assert result["hashes"]["original"] == result["hashes"]["result"] == first.result["hashes"]["result"]
    folders = first.output_dir, tmp_path / "second"
    assert same(*(load_torch(folder / "BPR-unlearned.pth")["state_dict"] for folder in folders))
    before, after = saved(first.output_dir), saved(tmp_path / "second")
    assert before.inter_feat.equals(after.inter_feat)
    assert before.unlearn_done == after.unlearn_done == [(result["hashes"]["request"], day)]


def test_earlier_requests_stay_known_but_are_not_believed_over_the_data(first, tmp_path):
    second = forget(first.output_dir, {"user_id": "u11"}, tmp_path / "second", "finetune", finetune_epochs=1)
    assert "done_earlier" not in second.result
    assert second.result["hashes"]["original"] == first.result["hashes"]["result"]  # a chain
    for name, request in (("third", tmp_path / "r.csv"), ("fourth", {"user_id": ["u11"]})):
        repeated = forget(second.output_dir, request, tmp_path / name)
        assert repeated.result["done_earlier"] == first.result["date"][:10]
        assert len(saved(tmp_path / name).unlearn_done) == 2
    # A hash in the list is not believed over the data: interactions that are there are deleted.
    entry = saved(second.output_dir).unlearn_done[1]
    path = rewritten(first.output_dir, unlearn_done=[*saved(first.output_dir).unlearn_done, entry])
    request = read_request({"user_id": "u11"}, Fields.of(first.config))
    data = carry_out(request, load(first.config, path), "python", "error", entry[0])
    assert data.done_earlier is None
    assert len(data.forget) > 0


def test_ensembles_know_them_too(values, tmp_path):
    asked, own = {"forget": {"user_id": "u7"}, "unlearn": "sisa"}, {"sisa_shards": 2, "output_dir": "a"}
    made = run_unlearn("BPR", "popular", **asked, config_dict=values | own)
    start = {"checkpoint": made.output_dir / "BPR-unlearned", "output_dir": tmp_path / "b"}
    repeated = run_unlearn(**start, **asked, config_dict=QUICK)
    assert repeated.record.done_earlier is not None
    assert repeated.record.hashes["original"] == made.record.hashes["result"]


def test_a_user_with_held_out_interactions_alone_is_gone_by_name(start, tmp_path):
    outcome = forget(start.output_dir, {"user_id": ["newcomer"]}, tmp_path / "late", min_group=1)
    keys = ("interactions", "test_rows_removed", "orphan_users")
    assert [outcome.result["forget"][key] for key in keys] == [0, 2, 0]
    before, after = (
        (folder / "popular-Dataset.pth").read_bytes() for folder in (start.output_dir, tmp_path / "late")
    )
    assert (b"newcomer" in before, b"newcomer" in after) == (True, False)


def test_parts_of_a_request_and_other_keys_make_other_requests(first, tmp_path):
    (tmp_path / "key").write_text("another" * 9)
    message = r"3 of 3 requests name .*1 request was carried out.*--hash_key"
    asked = first.output_dir, tmp_path / "r.csv", tmp_path / "second"
    assert "u7" not in refused(message, forget, *asked, hash_key=str(tmp_path / "key"))
    asked = first.output_dir, {"user_id": "u7"}, tmp_path / "second"
    for on_missing in ("error", "skip"):
        refused("given as a whole", forget, *asked, on_missing=on_missing)


def test_every_run_has_a_date_and_an_id(first, values):
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first.result["date"])
    assert re.fullmatch(r"[0-9a-f-]{36}", first.result["request"])
    for path in first.output_dir.rglob("*"):  # and no file names a user of the request
        assert path.is_dir() or not re.search(rb"\bu7\b|\bu9\b|\bmoved\b", path.read_bytes()), path.name
    values = values | {"inject_mode": "random", "unlearn": "finetune", "finetune_epochs": 1, "request_id": "T-1.b_2"}
    noise = run_unlearn("BPR", "popular", config_dict=values)
    assert len(noise.data.forget) > 0
    assert told(noise.output_dir)[0] is None  # noise of the protocol is not counted
    assert noise.result["request"] == "T-1.b_2"
    assert "hashes" not in noise.result  # there is no request
    assert not {"request_id", "hash_key"} & set(noise.result["settings"])


def test_the_hashes_are_those_of_the_key(values, tmp_path):
    (tmp_path / "key").write_text("k" * 40 + "\n")
    os.chmod(tmp_path / "key", 0o600)
    values = values | {"unlearn": "finetune", "finetune_epochs": 1}
    given = (values | {"hash_key": key} for key in (str(tmp_path / "key"), None))
    runs = (run_unlearn("BPR", "popular", forget={"user_id": "u7"}, config_dict=own) for own in given)
    first, second = (run.result["hashes"] for run in runs)
    assert (set(first), len({*first.values(), *second.values()})) == ({"request", "original", "result"}, 6)


def test_a_bad_key_or_id_is_refused_before_anything_is_trained(values, tmp_path, caplog):
    (tmp_path / "short").write_text("short")
    key = {"none": "There is no file", "short": "has 5 characters; it needs 32"}
    given = [({"hash_key": str(tmp_path / name)}, message) for name, message in key.items()]
    given += [({"request_id": name}, "request_id is not valid: expected up to 64")
              for name in ("", "a b", "x" * 65, "é", "../up", "a\nb")]  # fmt: skip
    for own, message in given:
        refused(message, run_unlearn, "BPR", "popular", forget={"user_id": "u7"}, config_dict=values | own)
    assert "Train" not in caplog.text
