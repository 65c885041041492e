"""Features that only a deleted user or item had: not in the saved files, and their rows initialized again."""

import pickle
import pickletools
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from recbole_unlearn import run_unlearn
from recbole_unlearn.data import load
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import blank_unused, read_dataset, used_values
from recbole_unlearn.rows import find_features, find_tables
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import build_model, train
from tests.conftest import ITEMS, USERS, tiny_rows

USER, ITEM = 5, 7  # the only ones with these values
SECRETS = {"zip-5", "tv-5", "word-7"}
COLUMNS = {
    "inter": ["user_id", "item_id", "device", "timestamp"],
    "user": ["user_id", "city", "age"],
    "item": ["item_id", "kind"],
}
CONTEXT = COLUMNS | {
    "inter": ["user_id", "item_id", "timestamp"]
}  # RecBole cannot rank by a column of the interaction
MODELS = [
    "AFM", "AutoInt", "DCN", "DCNV2", "DeepFM", "DSSM", "EulerNet", "FFM", "FiGNN", "FM", "FNN", "FwFM", "LR", "NFM",
    "PNN", "WideDeep", "xDeepFM",
]  # fmt: skip


@pytest.fixture(scope="module")
def telling_path(tmp_path_factory):
    """`tiny` with features: some that many have, and some that only one user or one item has."""
    root = tmp_path_factory.mktemp("data")
    folder = root / "telling"
    folder.mkdir()
    lines = ["user_id:token\titem_id:token\tdevice:token\ttimestamp:float"]
    for user, item, _, when in tiny_rows():
        device = "tv-5" if user == f"u{USER}" else f"d{int(item[1:]) % 3}"
        lines.append(f"{user}\t{item}\t{device}\t{when:.0f}")
    (folder / "telling.inter").write_text("\n".join(lines) + "\n")
    users = [
        f"u{n}\t{'zip-5' if n == USER else f'c{n % 3}'}\t{90 if n == USER else 20 + n % 9}"
        for n in range(USERS)
    ]
    (folder / "telling.user").write_text("\n".join(["user_id:token\tcity:token\tage:float", *users]) + "\n")
    items = [f"i{n}\tk{n % 4} k{n % 5}{' word-7' if n == ITEM else ''}" for n in range(ITEMS)]
    (folder / "telling.item").write_text("\n".join(["item_id:token\tkind:token_seq", *items]) + "\n")
    links = [f"u{n}\tu{(n + 1) % USERS}" for n in range(USERS)]
    (folder / "telling.net").write_text("\n".join(["source:token\ttarget:token", *links]) + "\n")
    vectors = [f"u{n}\t{n} {n + 1}" for n in range(USERS)]
    (folder / "telling.vec").write_text("\n".join(["vid:token\tvector:float_seq", *vectors]) + "\n")
    return root


@pytest.fixture
def values(settings, telling_path):
    more = {"data_path": str(telling_path), "load_col": COLUMNS, "report": "none", "epochs": 2}
    return settings | more


FORGET = {"user": {"user_id": [f"u{USER}"]}, "item": {"item_id": [f"i{ITEM}"]}}


def strings(path):
    """All text in a file that is a pickle, or a zip with one."""
    raw = path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            raw = archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))
    return {arg for _, arg, _ in pickletools.genops(raw) if isinstance(arg, str)}


def saved(outcome):
    with open(outcome.output_dir / "telling-Dataset.pth", "rb") as stream:
        return pickle.load(stream)


@pytest.mark.parametrize("unlearn", ["retrain", "finetune"])
def test_no_file_has_a_value_that_only_the_deleted_had(values, tmp_path, unlearn):
    """The attack: read every string of the files. Placeholders keep the numbering, shared values stay."""
    for side, secrets in (("user", {"zip-5", "tv-5"}), ("item", {"word-7"})):
        own = values | {"output_dir": str(tmp_path / side)}
        outcome = run_unlearn("BPR", "telling", forget=FORGET[side], unlearn=unlearn, config_dict=own)
        before = outcome.data.full.train
        for path in outcome.output_dir.glob("*.pth"):
            found = strings(path)
            assert not found & secrets, path
        dataset = saved(outcome)
        assert SECRETS - secrets <= strings(
            outcome.output_dir / "telling-Dataset.pth"
        )  # those of others stay
        for field in ("city", "device", "kind"):
            tokens = dataset.field2id_token[field].tolist()
            expected = [
                f"[removed-{number}]" if token in secrets else token
                for number, token in enumerate(before.field2id_token[field])
            ]
            assert tokens == expected
            assert dataset.field2token_id[field] == {token: n for n, token in enumerate(tokens)}
        assert set(before.field2token_id["city"]) >= {"zip-5", "c1"}  # the live objects still know them


def test_the_next_request_starts_from_blanks(values, tmp_path):
    first = run_unlearn("BPR", "telling", forget=FORGET["user"], config_dict=values)
    second = run_unlearn(
        checkpoint=first.output_dir / "BPR-unlearned.pth", forget=FORGET["item"],
        output_dir=tmp_path / "second", config_dict={"show_progress": False, "tensorboard": False, "report": "none"},
    )  # fmt: skip
    assert not strings(second.output_dir / "telling-Dataset.pth") & SECRETS
    assert second.data.full.train.num("city") == first.data.full.train.num("city")


def test_the_mean_of_a_column_does_not_tell_the_missing_number(values):
    """The attack: line 0 holds the mean over all users, so n times it less all others is the number that is gone."""
    outcome = run_unlearn("BPR", "telling", forget=FORGET["user"], config_dict=values)
    ages = saved(outcome).user_feat["age"]
    number = outcome.data.full.train.token2id("user_id", f"u{USER}")
    assert outcome.data.full.train.user_feat["age"][number] == 90
    guess = USERS * ages[0] - (ages.sum() - ages[0] - ages[number])
    assert ages[number] == 0
    assert abs(guess - 90) > 1


@pytest.mark.parametrize("unlearn", ["obliviate", "finetune", "gradient_ascent", "rrl", "scif", "ifru"])
def test_their_rows_are_as_they_were_initialized(values, unlearn):
    """Every method that is not exact, on the embeddings and on the first-order weights."""
    check_rows("FM", values | {"load_col": CONTEXT}, unlearn, "user", {"city": "zip-5"})


@pytest.mark.parametrize("model", ["DeepFM", "FFM", "WideDeep"])
@pytest.mark.parametrize(("side", "secret"), [("user", {"city": "zip-5"}), ("item", {"kind": "word-7"})])
def test_rows_of_every_kind_of_model(values, model, side, secret):
    check_rows(model, values | {"load_col": CONTEXT}, "obliviate", side, secret)


def check_rows(model, values, unlearn, side, secret):
    outcome = run_unlearn(model, "telling", forget=FORGET[side], unlearn=unlearn, config_dict=values)
    data = outcome.data
    original = train(outcome.config, data.full, "x").state_dict
    initial = build_model(outcome.config, data.retain).state_dict()
    now = outcome.model.state_dict()
    ((field, token),) = secret.items()
    tables = [table for table in find_features(outcome.model, data.full.train) if table.field == field]
    assert len(tables) >= 2  # the embedding, and the first-order weight
    trained = 0
    for table in tables:
        row = table.offset + data.full.train.token2id(field, token)
        assert torch.equal(now[table.parameter][row], initial[table.parameter][row]), table
        trained += not torch.equal(original[table.parameter][row], initial[table.parameter][row])
        shared = table.offset + data.full.train.token2id(field, {"city": "c1", "kind": "k1"}[field])
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
    before = train_data.user_feat["age"]
    dataset = saved(outcome)
    assert dataset.user_feat["age"].iloc[3].tolist() == before[3].tolist()
    second = run_unlearn(
        checkpoint=outcome.output_dir / "FM-unlearned.pth", forget=FORGET["item"], unlearn="obliviate",
        output_dir=tmp_path / "second", config_dict={"show_progress": False, "tensorboard": False, "report": "none"},
    )  # fmt: skip
    assert torch.equal(second.data.full.train.user_feat["age"][3], before[3])
    dataset.build()
    assert torch.equal(dataset.user_feat["age"][3], before[3])
    path = outcome.output_dir / "telling-Dataset.pth"
    for odd in ([1.0, 99.0], [1.0, -1.0], [1.0], [float("nan"), 1.0], "age"):
        damaged = saved(outcome)
        damaged.user_feat.at[3, "age"] = odd
        path.write_bytes(pickle.dumps(damaged))
        with pytest.raises(UnlearnError, match="age"):
            read_dataset(path, outcome.config)


@pytest.mark.parametrize("model", MODELS)
def test_all_tables_of_context_aware_models_are_known(values, model):
    """Every embedding of every model RecBole has: each row belongs to a user, an item or a value of a field."""
    values |= {"load_col": CONTEXT, "numerical_features": ["age"]}
    config = UnlearnConfig(model, "telling", config_dict=values)
    splits = load(config).splits
    built, dataset = build_model(config, splits), splits.train
    sizes = {"user": dataset.user_num, "item": dataset.item_num}
    known: dict[str, set[int]] = {}
    for table in find_tables(built, dataset):
        rows = range(table.offset, table.offset + sizes[table.side])
        assert table.axis == 0
        assert not known.setdefault(table.parameter, set()) & set(rows)
        known[table.parameter] |= set(rows)
    for table in find_features(built, dataset):
        rows = range(table.offset, table.offset + dataset.num(table.field))
        assert not known.setdefault(table.parameter, set()) & set(rows)
        known[table.parameter] |= set(rows)
    named = dict(built.named_parameters())
    embeddings = {id(module.weight) for module in built.modules() if isinstance(module, nn.Embedding)}
    for name, parameter in named.items():
        if id(parameter) in embeddings:
            assert known.get(name) == set(range(len(parameter))), name


def test_a_model_with_a_table_for_each_field(values):
    """Models of other people: a table that is called after a field and has its size."""
    config = UnlearnConfig("BPR", "telling", config_dict=values)
    splits = load(config).splits
    model = build_model(config, splits)
    model.city_embedding = nn.Embedding(splits.train.num("city"), 4)
    model.side = nn.ModuleDict({"kind": nn.Embedding(splits.train.num("kind"), 4)})
    model.city_position = nn.Embedding(99, 4)
    found = {(table.parameter, table.field) for table in find_features(model, splits.train)}
    assert found == {("city_embedding.weight", "city"), ("side.kind.weight", "kind")}
    assert {t.parameter for t in find_tables(model, splits.train)} == {
        "user_embedding.weight",
        "item_embedding.weight",
    }


def test_additional_tables_do_not_name_the_deleted(values):
    """Links between users and vectors of users: lines about a user who is gone are dropped, weights are zero."""
    extra = {
        "additional_feat_suffix": ["net", "vec"], "alias_of_user_id": ["source", "target", "vid"],
        "load_col": COLUMNS | {"net": ["source", "target"], "vec": ["vid", "vector"]},
        "preload_weight": {"vid": "vector"},
    }  # fmt: skip
    config = UnlearnConfig("BPR", "telling", config_dict=values | extra)
    train_data = load(config).splits.train
    gone = train_data.token2id("user_id", f"u{USER}")
    kept = train_data.inter_feat[train_data.inter_feat["user_id"] != gone]
    dataset = train_data.copy(kept)
    blank_unused(dataset)
    for field in ("user_id", "source", "target", "vid"):
        assert f"u{USER}" not in dataset.field2token_id[field]
        assert dataset.field2id_token[field][gone] == f"[removed-{gone}]"
    assert len(dataset.net_feat) == USERS - 2
    assert len(dataset.vec_feat) == USERS - 1
    assert (dataset._preloaded_weight["vid"][gone] == 0).all()
    assert np.count_nonzero(dataset._preloaded_weight["vid"]) == 2 * USERS - 3
    assert len(train_data.net_feat) == USERS  # what was given is left as it is
    assert train_data._preloaded_weight["vid"][gone].any()


def test_used_values_are_those_a_loop_finds(values):
    config = UnlearnConfig("BPR", "telling", config_dict=values)
    train_data = load(config).splits.train
    dataset = train_data.copy(train_data.inter_feat[:40])
    used = used_values(dataset)
    rows = pd.DataFrame({name: dataset.inter_feat[name].numpy() for name in ("user_id", "item_id", "device")})
    expected = {
        "device": set(rows["device"]),
        "city": {int(dataset.user_feat["city"][user]) for user in rows["user_id"]},
        "kind": {int(kind) for item in rows["item_id"] for kind in dataset.item_feat["kind"][item] if kind},
        "user_id": set(rows["user_id"]),
        "item_id": set(rows["item_id"]),
    }
    assert {field: set(numbers.tolist()) for field, numbers in used.items()} == expected
