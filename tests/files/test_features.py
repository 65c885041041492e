"""Features that only a deleted user or item had: not in the saved files, and their rows initialized again."""

import pickle

import pytest
import torch
from torch import nn

from recbole_unlearn import run_unlearn
from recbole_unlearn.files import read_dataset
from recbole_unlearn.rows import find_features, find_tables
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import build_model, train
from tests.conftest import ITEMS, USERS, tiny_rows
from tests.files import RUN, strings
from tests.parts import loaded, refused

USER, ITEM = 5, 7  # the only ones with these values
SECRETS = {"zip-5", "tv-5", "word-7"}
FEATURES = {"user": ["user_id", "city", "age"], "item": ["item_id", "kind"]}
COLUMNS = {"inter": ["user_id", "item_id", "device", "timestamp"], **FEATURES}
CONTEXT = {"inter": ["user_id", "item_id", "timestamp"], **FEATURES}  # RecBole cannot rank by an interaction's column
FORGET = {"user": {"user_id": [f"u{USER}"]}, "item": {"item_id": [f"i{ITEM}"]}}
MODELS = [
    "AFM", "AutoInt", "DCN", "DCNV2", "DeepFM", "DSSM", "EulerNet", "FFM", "FiGNN", "FM", "FNN", "FwFM", "LR", "NFM",
    "PNN", "WideDeep", "xDeepFM",
]  # fmt: skip


@pytest.fixture(scope="module")
def telling_path(tmp_path_factory):
    """`tiny` with features: some that many have, and some that only one user or one item has."""
    root = tmp_path_factory.mktemp("data")
    users, rows = range(USERS), tiny_rows()
    device = ["tv-5" if user == f"u{USER}" else f"d{int(item[1:]) % 3}" for user, item, _, _ in rows]
    tables = {
        "inter:user_id:token item_id:token device:token timestamp:float": [
            f"{user}\t{item}\t{own}\t{when:.0f}" for (user, item, _, when), own in zip(rows, device, strict=True)
        ],
        "user:user_id:token city:token age:float": [
            f"u{n}\tzip-5\t90" if n == USER else f"u{n}\tc{n % 3}\t{20 + n % 9}" for n in users
        ],
        "item:item_id:token kind:token_seq": [
            f"i{n}\tk{n % 4} k{n % 5}{' word-7' if n == ITEM else ''}" for n in range(ITEMS)
        ],
        "net:source:token target:token": [f"u{n}\tu{(n + 1) % USERS}" for n in users],
        "vec:vid:token vector:float_seq": [f"u{n}\t{n} {n + 1}" for n in users],
    }  # fmt: skip
    (root / "telling").mkdir()
    for head, lines in tables.items():
        suffix, columns = head.split(":", 1)
        (root / "telling" / f"telling.{suffix}").write_text("\n".join([columns.replace(" ", "\t"), *lines]) + "\n")
    return root


@pytest.fixture
def values(settings, telling_path):
    return settings | {"data_path": str(telling_path), "load_col": COLUMNS, "report": "none", "epochs": 2}


def second_request(first, model, tmp_path, **more):
    """Forget an item in the unlearned model of ``first``."""
    given = {"forget": FORGET["item"], "output_dir": tmp_path / "second", "config_dict": RUN, **more}
    return run_unlearn(checkpoint=first.output_dir / f"{model}-unlearned.pth", **given)


def saved(outcome):
    return pickle.loads((outcome.output_dir / "telling-Dataset.pth").read_bytes())


@pytest.mark.parametrize("unlearn", ["retrain", "finetune"])
def test_no_file_has_a_value_that_only_the_deleted_had(values, tmp_path, unlearn):
    """The attack: read every string of the files. Placeholders keep the numbering, shared values stay."""
    for side, secrets in (("user", {"zip-5", "tv-5"}), ("item", {"word-7"})):
        own = values | {"output_dir": str(tmp_path / side)}
        outcome = run_unlearn("BPR", "telling", forget=FORGET[side], unlearn=unlearn, config_dict=own)
        before = outcome.data.full.train
        for path in outcome.output_dir.glob("*.pth"):
            assert not strings(path) & secrets, path
        dataset = saved(outcome)
        assert SECRETS - secrets <= strings(outcome.output_dir / "telling-Dataset.pth")  # those of others stay
        for field in ("city", "device", "kind"):
            tokens, old = dataset.field2id_token[field].tolist(), enumerate(before.field2id_token[field])
            assert tokens == [f"[removed-{number}]" if token in secrets else token for number, token in old]
            assert dataset.field2token_id[field] == {token: n for n, token in enumerate(tokens)}
        assert set(before.field2token_id["city"]) >= {"zip-5", "c1"}  # the live objects still know them


def test_the_mean_of_a_column_does_not_tell_the_missing_number(values, tmp_path):
    """The attack: line 0 holds the mean over all users, so n times it less all others is the number that is gone.

    The next request starts from the blanks.
    """
    outcome = run_unlearn("BPR", "telling", forget=FORGET["user"], config_dict=values)
    ages = saved(outcome).user_feat["age"]
    number = outcome.data.full.train.token2id("user_id", f"u{USER}")
    assert outcome.data.full.train.user_feat["age"][number] == 90
    guess = USERS * ages[0] - (ages.sum() - ages[0] - ages[number])
    assert ages[number] == 0
    assert abs(guess - 90) > 1
    second = second_request(outcome, "BPR", tmp_path)
    assert not strings(second.output_dir / "telling-Dataset.pth") & SECRETS
    assert second.data.full.train.num("city") == outcome.data.full.train.num("city")


METHODS = ["obliviate", "finetune", "gradient_ascent", "rrl", "ifru"]
SIDES = {"user": ("city", "zip-5", "c1"), "item": ("kind", "word-7", "k1")}


@pytest.mark.parametrize(("model", "unlearn", "side"), [
    *(("FM", method, "user") for method in METHODS),
    *((model, "obliviate", side) for model in ("DeepFM", "FFM", "WideDeep") for side in SIDES),
])  # fmt: skip
def test_rows_of_lost_values_are_as_they_were_initialized(values, model, unlearn, side):
    values |= {"load_col": CONTEXT}
    field, token, common = SIDES[side]
    outcome = run_unlearn(model, "telling", forget=FORGET[side], unlearn=unlearn, config_dict=values)
    data = outcome.data
    original = train(outcome.config, data.full, "x").state_dict
    initial = build_model(outcome.config, data.retain).state_dict()
    now = outcome.model.state_dict()
    tables = [table for table in find_features(outcome.model, data.full.train) if table.field == field]
    assert len(tables) >= 2  # the embedding, and the first-order weight
    trained = 0
    for table in tables:
        row = table.offset + data.full.train.token2id(field, token)
        assert torch.equal(now[table.parameter][row], initial[table.parameter][row]), table
        trained += not torch.equal(original[table.parameter][row], initial[table.parameter][row])
        shared = table.offset + data.full.train.token2id(field, common)
        was = original[table.parameter][shared]
        if not torch.equal(was, initial[table.parameter][shared]):  # FFM builds tables that it does not use
            assert not torch.equal(now[table.parameter][shared], initial[table.parameter][shared]), table
    assert trained >= 2


def test_buckets_of_numbers(values, tmp_path):
    """A number that only the deleted user had is alone in its bucket; the file is one RecBole can build from."""
    values |= {
        "load_col": CONTEXT, "numerical_features": ["age"], "discretization": {"age": {"method": "ED", "bucket": 8}},
    }  # fmt: skip
    outcome = run_unlearn("FM", "telling", forget=FORGET["user"], unlearn="obliviate", config_dict=values)
    train_data = outcome.data.full.train
    bucket = int(train_data.user_feat["age"][train_data.token2id("user_id", f"u{USER}"), 1])
    assert outcome.data.orphan_values["age"].tolist() == [bucket]
    initial = build_model(outcome.config, outcome.data.retain).state_dict()
    name = "float_embedding_table.embedding.weight"
    assert torch.equal(outcome.model.state_dict()[name][bucket], initial[name][bucket])
    before, dataset = train_data.user_feat["age"], saved(outcome)
    assert dataset.user_feat["age"].iloc[3].tolist() == before[3].tolist()
    second = second_request(outcome, "FM", tmp_path, unlearn="obliviate")
    assert torch.equal(second.data.full.train.user_feat["age"][3], before[3])
    dataset.build()
    assert torch.equal(dataset.user_feat["age"][3], before[3])
    path = outcome.output_dir / "telling-Dataset.pth"
    for odd in ([1.0, 99.0], [1.0, -1.0], [1.0], [float("nan"), 1.0], "age"):
        damaged = saved(outcome)
        damaged.user_feat.at[3, "age"] = odd
        path.write_bytes(pickle.dumps(damaged))
        refused("age", read_dataset, path, outcome.config)


@pytest.mark.parametrize("model", MODELS)
def test_all_tables_of_context_aware_models_are_known(values, model):
    """Every embedding of every model RecBole has: each row belongs to a user, an item or a value of a field."""
    values |= {"load_col": CONTEXT, "numerical_features": ["age"]}
    config, splits = loaded(UnlearnConfig(model, "telling", config_dict=values))
    built, dataset = build_model(config, splits), splits.train
    sizes = {"user": dataset.user_num, "item": dataset.item_num}
    tables = [(table, sizes[table.side]) for table in find_tables(built, dataset)]
    assert all(table.axis == 0 for table, _ in tables)
    tables += [(table, dataset.num(table.field)) for table in find_features(built, dataset)]
    known: dict[str, set[int]] = {}
    for table, size in tables:
        rows = set(range(table.offset, table.offset + size))
        assert not known.setdefault(table.parameter, set()) & rows
        known[table.parameter] |= rows
    embeddings = {id(module.weight) for module in built.modules() if isinstance(module, nn.Embedding)}
    for name, parameter in built.named_parameters():
        if id(parameter) in embeddings:
            assert known.get(name) == set(range(len(parameter))), name


def test_a_model_with_a_table_for_each_field(values):
    config, splits = loaded(UnlearnConfig("BPR", "telling", config_dict=values))
    model = build_model(config, splits)
    model.city_embedding = nn.Embedding(splits.train.num("city"), 4)
    model.side = nn.ModuleDict({"kind": nn.Embedding(splits.train.num("kind"), 4)})
    model.city_position = nn.Embedding(99, 4)
    found = {(table.parameter, table.field) for table in find_features(model, splits.train)}
    assert found == {("city_embedding.weight", "city"), ("side.kind.weight", "kind")}
    tables = {table.parameter for table in find_tables(model, splits.train)}
    assert tables == {"user_embedding.weight", "item_embedding.weight"}


@pytest.mark.parametrize("extra", [
    {"additional_feat_suffix": ["net"]}, {"alias_of_user_id": ["source"]}, {"preload_weight": {"vid": "vector"}},
])  # fmt: skip
def test_tables_that_are_not_unlearned_are_refused(values, extra):
    refused("besides those of interactions", UnlearnConfig, "BPR", "telling", config_dict=values | extra)
