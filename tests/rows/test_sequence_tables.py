"""Rows of users and items in sequential models, whatever else happens to be as long as there are users or items."""

import pytest
import torch

from recbole_unlearn.data import load
from recbole_unlearn.rows import find_features, find_tables
from recbole_unlearn.settings import SEQUENTIAL, UnlearnConfig
from recbole_unlearn.training import build_model
from tests.conftest import USERS

ITEMS = {"item_embedding.weight": "item"}
BOTH = ITEMS | {"user_embedding.weight": "user"}
EXPECTED = {
    "BERT4Rec": ITEMS | {"output_bias": "item"},
    "RepeatNet": {
        "item_matrix.weight": "item",
        "explore_recommendation_decoder.matrix_for_explore.weight": "item",
    },
    "FPMC": {"UI_emb.weight": "user"}
    | dict.fromkeys(["IU_emb.weight", "LI_emb.weight", "IL_emb.weight"], "item"),
    "TransRec": BOTH | {"bias.weight": "item"},
    "HGN": BOTH | {"item_embedding_for_prediction.weight": "item"},
    "NPE": BOTH | {"embedding_seq_item.weight": "item"},
    "Caser": BOTH,
    "HRM": BOTH,
    "SHAN": BOTH,
}
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
        config = UnlearnConfig(model, "tiny", config_dict=plain | {"MAX_ITEM_LIST_LENGTH": USERS + 1})
        splits = load(config).splits
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


def test_tables_that_somebody_added(built):
    model, data = built("SASRec")
    users, items = data.user_num, data.item_num
    model.memory = torch.nn.Embedding(items, 3)
    model.item_bias = torch.nn.Parameter(torch.zeros(items))
    model.user_scale = torch.nn.Linear(4, users)
    model.item_encoder = torch.nn.Sequential(torch.nn.Linear(4, items))
    model.warmth = torch.nn.Parameter(torch.tensor(1.0))
    assert sides(model, data) == ITEMS | {
        "memory.weight": "item",
        "item_bias": "item",
        "user_scale.weight": "user",
        "user_scale.bias": "user",
    }
