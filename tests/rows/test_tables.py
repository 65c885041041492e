"""The rows of users and items in all kinds of models, and giving them back their initial values."""

import pytest
import torch

from recbole_unlearn.data import load
from recbole_unlearn.rows import SIDES, Table, find_features, find_tables, reset_rows
from recbole_unlearn.settings import SEQUENTIAL, UnlearnConfig
from recbole_unlearn.training import build_model
from tests.conftest import USERS
from tests.parts import Rows, loaded


@pytest.mark.parametrize(("model", "expected"), [
    ("BPR", {("user_embedding.weight", "user"), ("item_embedding.weight", "item")}),
    ("LightGCN", {("user_embedding.weight", "user"), ("item_embedding.weight", "item")}),
    ("NeuMF", {(f"{side}_{part}_embedding.weight", side, 0) for side in SIDES for part in ("mf", "mlp")}),
    ("MultiVAE", {("encoder.0.weight", "item", 0, 1), ("decoder.2.weight", "item"), ("decoder.2.bias", "item")}),
    ("GCMC", {("GcEncoder.weights_u.0", "user"), ("GcEncoder.weights_u.0", "item", USERS + 1)}),
    ("DMF", {("user_linear.weight", "item", 0, 1), ("item_linear.weight", "user", 0, 1)}),
])  # fmt: skip
def test_tables_are_found(make_config, model, expected):
    config, splits = loaded(make_config(model))
    assert set(find_tables(build_model(config, splits), splits.train)) == {Table(*row) for row in expected}


def test_equally_many_users_and_items_are_told_apart_by_name(make_config):
    model = build_model(make_config(), load(make_config()).splits)
    model.user_embedding, model.item_embedding = torch.nn.Embedding(50, 2), torch.nn.Embedding(50, 2)
    found = find_tables(model, Rows([], users=50, items=50))
    assert {(table.parameter, table.side) for table in found} == set(BOTH.items())


@pytest.mark.parametrize("model", ["BPR", "NeuMF", "FM"])
def test_only_the_named_rows_are_reset(make_config, model):
    config = make_config(model, load_col={"inter": ["user_id", "item_id"], "user": ["user_id", "city"]})
    splits = load(config).splits
    changed, fresh = build_model(config, splits), build_model(config, splits)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter += 1.0
    users, items = torch.tensor([2, 5]), torch.tensor([7])
    ids = {"user": users, "item": items}
    reset_rows(changed, dict(fresh.named_parameters()), find_tables(changed, splits.train), ids)
    tables = find_tables(changed, splits.train)
    assert {table.side for table in tables} == set(SIDES)
    expected = {name: torch.ones_like(value) for name, value in fresh.named_parameters()}
    for table in tables:
        expected[table.parameter][(users if table.side == "user" else items) + table.offset] = 0.0
    for name, value in changed.named_parameters():
        assert torch.allclose(value - fresh.get_parameter(name), expected[name]), name


# Sequential models, whatever else is as long as there are users or items

ITEMS = {"item_embedding.weight": "item"}
BOTH = ITEMS | {"user_embedding.weight": "user"}
EXPECTED = {
    "BERT4Rec": ITEMS | {"output_bias": "item"},
    "RepeatNet": dict.fromkeys(
        ["item_matrix.weight", "explore_recommendation_decoder.matrix_for_explore.weight"], "item"
    ),
    "FPMC": {f"{name}_emb.weight": "user" if name == "UI" else "item" for name in ("UI", "IU", "LI", "IL")},
    "TransRec": BOTH | {"bias.weight": "item"},
    "HGN": BOTH | {"item_embedding_for_prediction.weight": "item"},
    "NPE": BOTH | {"embedding_seq_item.weight": "item"},
} | dict.fromkeys(["Caser", "HRM", "SHAN"], BOTH)
WIDTHS = ("hidden_size", "embedding_size", "inner_size", "prototype_size")
FEATURES = ("SASRecF", "GRU4RecF", "FDSA")


@pytest.fixture
def built(settings):
    """A model on `tiny` all of whose layers, and histories, are as long as there are users; and its data."""

    def build(model):
        plain = {key: value for key, value in settings.items() if key != "embedding_size"}
        if model in FEATURES:
            plain |= {"load_col": None, "selected_features": ["kind"]}
        known = UnlearnConfig(model, "tiny", config_dict=plain).final_config_dict
        sizes = dict.fromkeys(WIDTHS, USERS + 1) | {"n_heads": 1, "block_num": 1, "dilations": [1]}
        plain |= {key: value for key, value in sizes.items() if key in known}
        config, splits = loaded(UnlearnConfig(model, "tiny", config_dict=plain | {"MAX_ITEM_LIST_LENGTH": USERS + 1}))
        assert splits.train.user_num == USERS + 1
        return build_model(config, splits), splits.train

    return build


def sides(model, data):
    return {table.parameter: table.side for table in find_tables(model, data)}


@pytest.mark.parametrize("model", SEQUENTIAL)
def test_all_rows_are_found_and_no_others(built, model):
    assert sides(*built(model)) == EXPECTED.get(model, ITEMS)


@pytest.mark.parametrize("model", FEATURES)
def test_values_of_features_have_rows(built, model):
    found = find_features(*built(model))
    assert {table.field for table in found} == {"kind"}
    assert all(table.offset == 0 for table in found)


def test_tables_of_a_derived_model(built):
    model, data = built("SASRec")
    users, items = data.user_num, data.item_num
    model.memory = torch.nn.Embedding(items, 3)
    model.item_bias = torch.nn.Parameter(torch.zeros(items))
    model.user_scale = torch.nn.Linear(4, users)
    model.item_encoder = torch.nn.Sequential(torch.nn.Linear(4, items))
    model.warmth = torch.nn.Parameter(torch.tensor(1.0))
    added = {"memory.weight": "item", "item_bias": "item"}
    assert sides(model, data) == ITEMS | added | {"user_scale.weight": "user", "user_scale.bias": "user"}
