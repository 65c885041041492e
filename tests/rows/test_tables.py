"""Which rows belong to whom, and giving them back their initial values."""

import pytest
import torch

from recbole_unlearn.data import load
from recbole_unlearn.rows import Table, as_rows, find_tables, reset_rows
from recbole_unlearn.training import build_model


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("BPR", {("user_embedding.weight", "user", 0), ("item_embedding.weight", "item", 0)}),
        ("LightGCN", {("user_embedding.weight", "user", 0), ("item_embedding.weight", "item", 0)}),
        (
            "NeuMF",
            {
                (f"{side}_{part}_embedding.weight", side, 0)
                for side in ("user", "item")
                for part in ("mf", "mlp")
            },
        ),
        (
            "MultiVAE",
            {
                ("encoder.0.weight", "item", 0, 1),
                ("decoder.2.weight", "item", 0, 0),
                ("decoder.2.bias", "item", 0, 0),
            },
        ),
        ("DMF", {("user_linear.weight", "item", 0, 1), ("item_linear.weight", "user", 0, 1)}),
    ],
)
def test_tables_are_found(make_config, model, expected):
    config = make_config(model)
    splits = load(config).splits
    assert set(find_tables(build_model(config, splits), splits.train)) == {Table(*row) for row in expected}


def test_equally_many_users_and_items_are_told_apart_by_name(make_config, monkeypatch):
    config = make_config()
    dataset = load(config).splits.train
    same = type(
        "Same", (), {"user_num": 50, "item_num": 50, "uid_field": "user_id", "iid_field": "item_id"}
    )()
    model = build_model(config, load(config).splits)
    model.user_embedding = torch.nn.Embedding(50, 2)
    model.item_embedding = torch.nn.Embedding(50, 2)
    assert {table.side for table in find_tables(model, same)} == {"user", "item"}
    assert dataset.user_num != dataset.item_num


def test_matrices_are_seen_along_the_right_axis():
    matrix, bias = torch.arange(6.0).reshape(2, 3), torch.zeros(4)
    as_rows(matrix, 1)[2] = 9.0
    as_rows(bias)[1] = 5.0
    assert matrix.tolist() == [[0.0, 1.0, 9.0], [3.0, 4.0, 9.0]]
    assert bias.tolist() == [0.0, 5.0, 0.0, 0.0]


@pytest.mark.parametrize("model", ["BPR", "NeuMF", "FM"])
def test_only_the_named_rows_are_reset(make_config, model):
    config = make_config(model, load_col={"inter": ["user_id", "item_id"], "user": ["user_id", "city"]})
    splits = load(config).splits
    changed, fresh = build_model(config, splits), build_model(config, splits)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter += 1.0
    users, items = torch.tensor([2, 5]), torch.tensor([7])
    reset_rows(changed, dict(fresh.named_parameters()), splits.train, users, items)
    tables = find_tables(changed, splits.train)
    assert {table.side for table in tables} == {"user", "item"}
    now, then = dict(changed.named_parameters()), dict(fresh.named_parameters())
    for name, value in now.items():
        difference = value - then[name]
        expected = torch.ones_like(difference)
        for table in tables:
            if table.parameter == name:
                ids = users if table.side == "user" else items
                expected[ids + table.offset] = 0.0
        assert torch.allclose(difference, expected), name
