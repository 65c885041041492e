"""Sequential models from the request to the saved model; what is deleted is in no data, history, cache or file."""

import gc
import logging
import pickle
import random
from types import FunctionType, ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from recbole.config import Config
from recbole.data.interaction import Interaction
from torch import nn

from recbole_unlearn import run_unlearn, unlearn_model
from recbole_unlearn.data import load, loaders
from recbole_unlearn.methods import UnlearnTask, UnlearnTrainer, WindowLosses
from recbole_unlearn.rows import find_tables, rarest
from recbole_unlearn.settings import SEQUENTIAL, UnlearnConfig
from recbole_unlearn.training import build_model
from tests.conftest import write_tiny
from tests.parts import loaded, refused, request_of, request_of_all_kinds, without

GONE = ["u3", "u4"]


def pairs_of(feat):
    return set(zip(feat["user_id"].tolist(), feat["item_id"].tolist(), strict=True))


def test_whole_users_are_judged_at_uncleaned_histories(quick):
    """Nothing is left of their own; the text says so, the page shows the figures."""
    values = quick("SASRec", report="html", unlearn="finetune", compare="retrain")
    result = run_unlearn("SASRec", "tiny", forget={"user_id": GONE}, config_dict=values)
    mine, target = (result.result["phases"][name]["forgetting"] for name in ("unlearned", "retrained"))
    assert mine["demotion_rate"] is None
    rates = mine["emptied"]["demotion_rate"], target["emptied"]["demotion_rate"]
    assert f"(demotion rate {rates[0]:.3f}, retrained {rates[1]:.3f})" in result.result["verdict"]["text"]
    control = mine["emptied"]["held_out"] - target["emptied"]["held_out"]
    assert mine["emptied_gap"]["mean"] == pytest.approx(rates[0] - rates[1] - control, abs=4e-6)
    assert "Emptied histories: demotion rate" in (result.output_dir / "report.html").read_text()


@pytest.mark.parametrize("loss", ["CE", "BPR"])
def test_orphan_items_start_again(quick, loss):
    """Whatever a deleted item's row was: a loss over all items makes it one of the rarest, another never reads it."""
    values = quick("SASRec", gradient_ascent_steps=1, loss_type=loss, unlearn="gradient_ascent")
    result = run_unlearn(model="SASRec", dataset="tiny", forget={"item_id": ["i5"]}, config_dict=values)
    row, rows = result.data.full.train.token2id("item_id", "i5"), result.model.item_embedding.weight
    fresh = build_model(result.config, result.data.retain).item_embedding.weight[row]
    expected = rows[rarest(result.data.retain.train)].mean(dim=0) if loss == "CE" else fresh
    assert torch.allclose(rows[row], expected)


def test_users_without_a_window_start_again_and_are_not_measured(quick):
    """u7 keeps its first training interaction, which no window has any more, and held-out ones; u3 keeps nothing."""
    splits = load(UnlearnConfig("HGN", "tiny", config_dict=quick("HGN"))).splits
    ids = splits.train.token2id("user_id", ["u7", "u3"])
    own = splits.train.inter_feat["item_id"][splits.train.inter_feat["user_id"] == ids[0]][1:]
    items = splits.train.id2token("item_id", own.numpy())
    request = pd.DataFrame({"user_id": ["u7"] * len(items) + ["u3"], "item_id": [*items, None]})
    values = quick("HGN", gradient_ascent_steps=1)
    result = run_unlearn(model="HGN", dataset="tiny", forget=request, unlearn="gradient_ascent", config_dict=values)
    fresh = build_model(result.config, result.data.retain).user_embedding.weight
    same = (result.model.user_embedding.weight == fresh).all(dim=1)
    assert same.nonzero().flatten().tolist() == sorted({0, *ids.tolist()})
    shown = {}
    for model in ("SASRec", "HGN"):
        splits = load(UnlearnConfig(model, "tiny", config_dict=quick(model))).splits
        user = splits.train.token2id("user_id", "u7")
        own = (splits.train.inter_feat["user_id"] == user).numpy()
        own[np.flatnonzero(own)[0]] = False
        windows = without(splits, own).retain.for_model()
        shown[model] = [(part.inter_feat["user_id"] == user).any().item() for part in windows]
    assert shown["SASRec"][0] is shown["HGN"][0] is False
    assert (shown["SASRec"][1:], shown["HGN"][1:]) == ([True, True], [False, False])


def test_masks_of_the_measures_are_the_same_every_time(quick):
    splits = load(UnlearnConfig("BERT4Rec", "tiny", config_dict=quick("BERT4Rec"))).splits
    users = torch.arange(1, 9)
    random.seed(1)
    first, after = splits.batch(users), random.random()
    random.seed(2)
    again = splits.batch(users)
    assert all(torch.equal(first[field], again[field]) for field in first.columns)
    assert (first["MASK_INDEX"] > 0).any()
    random.seed(1)
    assert random.random() == after


def test_bert4rec_masks_the_deleted_item_in_a_history(quick):
    """The deleted item is the one that is masked, as the last of the history of the next training window."""
    values = quick("BERT4Rec", unlearn="gradient_ascent")
    config, splits = loaded(UnlearnConfig("BERT4Rec", "tiny", config_dict=values))
    data = without(splits, slice(None, None, 7))
    losses = WindowLosses(UnlearnTask(config, data, None, {}, None, None), build_model(config, data.retain))
    batch = losses._deleted.collate_fn(losses.deleted_rows())
    masked = zip(batch["user_id"].tolist(), batch["Pos_item_id"][:, -1].tolist(), strict=True)
    feat = data.forget.inter_feat
    users, items = (splits.train.inter_feat[field] for field in ("user_id", "item_id"))
    last = {int(user): int(items[users == user][-1]) for user in feat["user_id"].unique()}
    first = splits.train.inter_feat[splits.sequences.lengths()[: len(splits.train)] == 0]
    assert set(masked) == pairs_of(feat) - set(last.items()) - pairs_of(first)
    assert torch.isfinite(losses.deleted_loss(losses.deleted_rows()))


def test_a_request_of_first_interactions_has_no_loss_to_climb(quick):
    values = quick("SASRec", unlearn="gradient_ascent")
    splits = load(UnlearnConfig("SASRec", "tiny", config_dict=values)).splits
    feat = splits.sequences.raw.inter_feat[splits.sequences.lengths() == 0]
    tokens = [list(splits.train.id2token(field, feat[field][:3].numpy())) for field in ("user_id", "item_id")]
    result = run_unlearn(model="SASRec", dataset="tiny", forget=tuple(tokens), config_dict=values)
    assert result.result["certificates"]["steps"] == 0


@pytest.mark.parametrize("model", ["SASRec", "GRU4Rec", "BERT4Rec", "HGN", "FPMC"])
def test_obliviate_changes_rows_of_the_request_alone(quick, model):
    """Layers that all windows share, and rows without a deleted interaction, stay the same bit for bit."""
    values = quick(model)
    ours, splits = loaded(UnlearnConfig(model, "tiny", config_dict=values))
    original, held = build_model(ours, splits), loaders(ours, splits)
    done = unlearn_model(ours.to_recbole(), original, held, request_of(values, model), method="obliviate")
    gone = torch.as_tensor(splits.train.token2id("user_id", GONE))
    assert not torch.isin(done.loaders.train._dataset.inter_feat["user_id"], gone).any()
    forget, now = done.data.forget.inter_feat, done.model.state_dict()
    tables = find_tables(original, splits.train)
    touched = {table.parameter: forget[f"{table.side}_id"] for table in tables}
    assert ("user" in {table.side for table in tables}) is (model in ("HGN", "FPMC"))
    changed = [name for name, before in original.state_dict().items() if not torch.equal(before, now[name])]
    assert set(changed) == set(touched)
    for name in changed:
        differs = (original.state_dict()[name] != now[name]).reshape(len(now[name]), -1)
        assert torch.isin(differs.any(dim=1).nonzero().flatten(), touched[name]).all(), name


def test_data_without_times_or_with_windows_of_its_own_is_refused(quick, tmp_path):
    write_tiny(tmp_path / "own")
    for name in "abc":
        lines = ["user_id:token\titem_id_list:token_seq\titem_id:token", "u1\ti1 i2\ti3"]
        (tmp_path / "own" / "tiny" / f"tiny.{name}.inter").write_text("\n".join(lines) + "\n")
    for changes, message in (
        ({"benchmark_filename": ["a", "b", "c"], "load_col": None}, "leave benchmark_filename out"),
        ({"load_col": {"inter": ["user_id", "item_id"]}}, "need the times"),
    ):
        values = quick("SASRec", data_path=str(tmp_path / "own"), **changes)
        refused(message, run_unlearn, "SASRec", "tiny", forget={"user_id": ["u1"]}, config_dict=values)


METHODS = ("obliviate", "gradient_ascent", "finetune", "retrain")  # of which the first is saved
HOLD_DATA = ("SASRecF", "GRU4RecF", "FDSA", "FEARec")  # their training data, next to weights
ONE_LOSS = ("CORE", "RepeatNet", "FPMC", "TransRec")


@pytest.fixture
def left(monkeypatch):
    """By method: what the model holds that it left, and the pairs in it."""
    found, run = {}, UnlearnTrainer.run

    def recorded(self, task):
        finished = run(self, task)
        found[self.name] = content(self.model), held_pairs(self.model)
        return finished

    monkeypatch.setattr(UnlearnTrainer, "run", recorded)
    return found


def request_and_pairs(splits):
    """A whole user, a whole item, and some interactions of three users; their pairs in all splits."""
    train, feat = splits.train, splits.sequences.raw.inter_feat
    users = torch.unique(train.inter_feat["user_id"])
    item = int(torch.bincount(train.inter_feat["item_id"]).argmax())
    first, *some = train.id2token("user_id", users[:4].numpy())
    request = request_of_all_kinds(splits, some, [first], train.id2token("item_id", item))
    rows = request.dropna()
    whole = (feat["user_id"] == users[0]) | (feat["item_id"] == item)
    pairs = set(zip(feat["user_id"][whole].tolist(), feat["item_id"][whole].tolist(), strict=True))
    named = (train.token2id(field, rows[field].to_numpy()).tolist() for field in ("user_id", "item_id"))
    return request, pairs | set(zip(*named, strict=True))


# A model that unlearned may hold nothing that a model built without the deleted interactions does not hold.


def reachable(root):
    """All objects that ``root`` leads to; settings and classes are not data."""
    seen, todo = {}, [root]
    while todo:
        value = todo.pop()
        if id(value) not in seen and not isinstance(value, (logging.Logger, Config, type, ModuleType, FunctionType)):
            seen[id(value)] = value
            todo += [] if isinstance(value, (np.ndarray, torch.Tensor)) else gc.get_referents(value)
    return seen.values()


def content(root):
    """All arrays and tables that ``root`` leads to, as texts; of weights the shape alone."""
    found = [value for value in reachable(root) if isinstance(value, (torch.Tensor, np.ndarray, pd.DataFrame))]
    return sorted(str(v.shape if isinstance(v, nn.Parameter) else np.asarray(v).tolist()) for v in found)


def tables(root):
    """Every table of interactions that can be reached from ``root``: those with a column of users."""
    found = [value for value in reachable(root) if isinstance(value, (Interaction, pd.DataFrame))]
    return [table for table in found if {"user_id", "item_id"} <= set(table.columns)]


def pairs_in(table):
    """The pairs of a user and an item in a table, as targets and in histories; padding is left out."""
    users, columns = np.asarray(table["user_id"]), [np.asarray(table["item_id"])[:, None]]
    if "item_id_list" in table.columns:
        columns.append(np.stack(list(np.asarray(table["item_id_list"]))))
    items = np.concatenate(columns, axis=1)
    pairs = np.stack([np.broadcast_to(users[:, None], items.shape), items], axis=-1).reshape(-1, 2)
    return {(user, item) for user, item in pairs.tolist() if item}


def held_pairs(root):
    return set().union(*map(pairs_in, tables(root)))


def check_nothing_is_left(result, left, request, pairs):
    """No deleted pair is in what is retained, held by a model, or saved; the same search finds them in D."""
    data, config = result.data, result.config
    assert pairs & set().union(*(pairs_in(part.inter_feat) for part in data.full.for_model()))
    for part in [*data.retain.for_model(), *data.retain, *data.retain.everything()]:
        assert not pairs & pairs_in(part.inter_feat)
    for before, after in zip(data.full.everything(), data.retain.everything(), strict=True):  # none changes its split
        assert pairs_in(after.inter_feat) == pairs_in(before.inter_feat) - pairs
    original, fresh = (build_model(config, splits) for splits in (data.full, data.retain))
    held = config["model"] in HOLD_DATA
    assert (content(original) != content(fresh)) is held
    assert bool(pairs & held_pairs(original)) is held
    for holds, contains in left.values():
        assert holds == content(fresh)
        assert not pairs & contains
    saved = pickle.loads((result.output_dir / f"{config['dataset']}-SequentialDataset.pth").read_bytes())
    assert len(tables(saved)) > 1
    assert not pairs & held_pairs(saved)
    for field, tokens in request.items():  # those of a whole user and a whole item
        assert not set(tokens[request.isna().any(axis=1)].dropna()) & set(saved.field2token_id[field])
    checkpoint = torch.load(result.output_dir / f"{config['model']}-unlearned.pth", weights_only=False)
    assert set(checkpoint["state_dict"]) == set(fresh.state_dict())
    assert not checkpoint["other_parameter"]
    assert not checkpoint["optimizer"]["state"]
    assert not tables(checkpoint)


def run(quick, model, **changes):
    own = {"unlearn": METHODS[0], "compare": list(METHODS[1:]), "epochs": 1, "finetune_epochs": 1}
    values = quick(model, **own | {"gradient_ascent_steps": 2} | changes)
    request, pairs = request_and_pairs(load(UnlearnConfig(model, "tiny", config_dict=values)).splits)
    result = run_unlearn(model=model, dataset="tiny", forget=request, config_dict=values)
    for phase in result.result["phases"].values():
        assert 0 <= phase["metrics"]["ndcg@20"] <= 1
        assert 0 <= phase["forgetting"]["demotion_rate"] <= 1
    return result, request, pairs


@pytest.mark.parametrize("model", SEQUENTIAL)
def test_nothing_of_the_request_is_left(quick, left, model):
    result, *asked = run(quick, model)
    assert set(left) == set(METHODS)
    check_nothing_is_left(result, left, *asked)


@pytest.mark.parametrize("model", [name for name in SEQUENTIAL if name not in ONE_LOSS])
def test_losses_with_negatives(quick, left, model):
    result, *asked = run(quick, model, loss_type="BPR", compare=["finetune", "gradient_ascent"])
    assert result.config["train_neg_sample_args"]["distribution"] == "uniform"
    assert "neg_item_id" in next(iter(loaders(result.config, result.data.retain).train))
    check_nothing_is_left(result, left, *asked)
