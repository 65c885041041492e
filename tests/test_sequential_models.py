"""Every sequential model once on some of ml-100k: what is deleted is in no data, history, cache or file after it."""

import gc
import logging
import pickle
from types import FunctionType, ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from recbole.config import Config
from recbole.data.interaction import Interaction
from torch import nn

from recbole_unlearn import run_unlearn
from recbole_unlearn.data import load, loaders
from recbole_unlearn.methods import UnlearnTrainer
from recbole_unlearn.settings import SEQUENTIAL, UnlearnConfig
from recbole_unlearn.training import build_model
from tests.parts import request_of_all_kinds

METHODS = ("obliviate", "gradient_ascent", "finetune", "retrain")  # of which the first is saved
SMALL = {
    "hidden_size": 8, "embedding_size": 8, "inner_size": 8, "n_heads": 1, "n_layers": 1, "block_num": 1,
    "dilations": [1], "prototype_size": 4,
}  # fmt: skip
FEATURES = ("SASRecF", "GRU4RecF", "FDSA")
HOLD_DATA = (*FEATURES, "FEARec")  # their training data, next to weights
ONE_LOSS = ("CORE", "RepeatNet", "FPMC", "TransRec")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def values(cache, tmp_path):
    """``values("SASRec")``: settings of a run of two seconds."""

    def make(model, **changes):
        columns = {"inter": ["user_id", "item_id", "rating", "timestamp"]}
        plain = {
            "load_col": columns | ({"item": ["item_id", "class"]} if model in FEATURES else {}),
            "val_interval": {"rating": "[5,inf)"}, "user_inter_num_interval": "[60,70]", "epochs": 1,
            "MAX_ITEM_LIST_LENGTH": 5, "show_progress": False, "tensorboard": False, "report": "none",
            "output_dir": str(tmp_path / "out"), "cache_dir": cache, "min_group": 1, "demotion_negatives": 10,
        }  # fmt: skip
        known = UnlearnConfig(model, "ml-100k", config_dict=plain).final_config_dict
        small = {key: value for key, value in SMALL.items() if key in known}
        small |= {"n_layers": 2} if model == "FEARec" else {}
        chosen = {"unlearn": METHODS[0], "compare": list(METHODS[1:])}
        return plain | small | chosen | {"finetune_epochs": 1, "gradient_ascent_steps": 2} | changes

    return make


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


def request_of(splits):
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
    users = np.asarray(table["user_id"])
    columns = [np.asarray(table["item_id"])[:, None]]
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
    checkpoint = torch.load(
        result.output_dir / f"{config['model']}-unlearned.pth", weights_only=False, map_location="cpu"
    )
    assert set(checkpoint["state_dict"]) == set(fresh.state_dict())
    assert not checkpoint["other_parameter"]
    assert not checkpoint["optimizer"]["state"]
    assert not tables(checkpoint)


def run(values, model, dataset="ml-100k", **changes):
    values = values(model, **changes)
    request, pairs = request_of(load(UnlearnConfig(model, dataset, config_dict=values)).splits)
    result = run_unlearn(model=model, dataset=dataset, forget=request, config_dict=values)
    for phase in result.result["phases"].values():
        assert 0 <= phase["metrics"]["ndcg@20"] <= 1
        assert 0 <= phase["forgetting"]["demotion_rate"] <= 1
    return result, request, pairs


@pytest.mark.parametrize("model", SEQUENTIAL)
def test_nothing_of_the_request_is_left(values, left, model):
    result, *asked = run(values, model)
    assert set(left) == set(METHODS)
    check_nothing_is_left(result, left, *asked)


@pytest.mark.parametrize("model", [name for name in SEQUENTIAL if name not in ONE_LOSS])
def test_losses_with_negatives(values, left, tiny_path, model):
    features = {"load_col": None, "selected_features": ["kind"]} if model in FEATURES else {}
    changes = {
        "loss_type": "BPR", "compare": ["finetune", "gradient_ascent"], "data_path": str(tiny_path),
        "val_interval": None, "user_inter_num_interval": None,
    }  # fmt: skip
    result, *asked = run(values, model, "tiny", **changes, **features)
    assert result.config["train_neg_sample_args"]["distribution"] == "uniform"
    assert "neg_item_id" in next(iter(loaders(result.config, result.data.retain).train))
    check_nothing_is_left(result, left, *asked)
