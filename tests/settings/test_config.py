"""The config: order of merging, what is refused, and the way to and from plain RecBole."""

import os
import pickle
import pickletools
import sys

import numpy as np
import pytest
import torch
from recbole.config import Config
from recbole.utils import ModelType

from recbole_unlearn import recbole_compat, run_unlearn, unlearn_model
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.settings import UnlearnConfig, parse_value, plain_settings, properties_dir, read_yaml


def test_later_sources_win(tmp_path, settings):
    file = tmp_path / "mine.yaml"
    file.write_text("learning_rate: 0.5\nthreads: 2\n")
    del settings["learning_rate"]
    config = UnlearnConfig("BPR", "tiny", [str(file)], settings | {"threads": 3})
    assert config["learning_rate"] == 0.5  # a file wins over properties/model/BPR.yaml
    assert config["threads"] == 3  # a dict wins over a file
    assert config["topk"] == [10, 20, 50]  # properties/overall.yaml wins over RecBole
    assert config["learner"] == "adam"  # RecBole's own default


def test_the_papers_settings_are_the_models_defaults():
    bpr, lightgcn = (UnlearnConfig(model, "ml-1m") for model in ("BPR", "LightGCN"))
    keys = ("embedding_size", "epochs", "learning_rate", "train_batch_size")
    assert [bpr[key] for key in keys] == [100, 50, 1e-3, 2048]
    assert [lightgcn[key] for key in keys] == [100, 100, 1e-4, 2048]
    assert bpr["val_interval"] == {"rating": "[4,inf)"}


def test_sys_argv_is_not_read(monkeypatch, make_config):
    monkeypatch.setattr(sys, "argv", ["prog", "--learning_rate=9", "--cov=x", "stray"])
    assert make_config()["learning_rate"] == 0.01


def test_strings_are_never_evaluated(tmp_path, make_config):
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')"
    config = make_config(encoding=trap, topk="[5, 10]", valid_metric="NDCG@10")
    assert config["encoding"] == trap
    assert config["topk"] == [5, 10]
    assert not (tmp_path / "ran").exists()


def test_numbers_and_flags_as_people_have_them(make_config):
    config = make_config(
        epochs=np.int64(3),
        learning_rate=np.float32(0.5),
        weight_decay=0,
        shuffle=1,
        eval_step=-1,
        train_batch_size="64",
    )
    assert (config["epochs"], config["learning_rate"], config["train_batch_size"]) == (3, 0.5, 64)


def test_yaml_cannot_build_python_objects(tmp_path):
    file = tmp_path / "evil.yaml"
    file.write_text(f"a: !!python/object/apply:os.mkdir ['{tmp_path / 'ran'}']\n")
    with pytest.raises(UnlearnError, match="not valid YAML"):
        read_yaml(file)
    assert not (tmp_path / "ran").exists()


def test_what_was_read_from_yaml_belongs_to_whoever_read_it(tmp_path):
    """A file is parsed once, but nobody sees what another made of it, nor an old content."""
    file = tmp_path / "my.yaml"
    file.write_text("topk: [5]\n")
    first = read_yaml(file)
    first["topk"].append(10)
    assert read_yaml(file) == {"topk": [5]}
    file.write_text("topk: [7]\n")
    assert read_yaml(file) == {"topk": [7]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4), ("1", 1), ("0.5", 0.5), ("True", True), ("None", None), ("[10, 20]", [10, 20]),
        ("{'RS':[0.8,0.1,0.1]}", {"RS": [0.8, 0.1, 0.1]}), ("NDCG@20", "NDCG@20"), ("a: b: c", "a: b: c"),
        (".5", 0.5), ("1.", 1.0), ("-2e3", -2000.0),
    ],
)  # fmt: skip
def test_values_are_read_as_yaml(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rat": 1}, "Unknown setting 'learning_rat'. Did you mean learning_rate?"),
        ({"unlearn": "retrian"}, "Unknown unlearning method 'retrian'. Did you mean retrain?"),
        ({"compare": ["retrain", "magic"]}, "Unknown unlearning method 'magic'"),
        ({"metrics": ["AUC"], "eval_args": {"mode": "labeled"}, "valid_metric": "AUC"}, "ranking"),
        ({"metrics": ["Recal"]}, "There is no metric named 'Recal'"),
        ({"topk": [0]}, "topk"),
    ],
)
def test_wrong_settings_are_refused(make_config, changes, message):
    with pytest.raises(UnlearnError) as error:
        make_config(**changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("lightgcn", "Did you mean LightGCN?"),
        ("Foo", "Unknown model 'Foo'"),
        ("FOSSIL", "sequential"),
        ("KGAT", "knowledge"),
        (None, "No model given"),
    ],
)
def test_models_that_cannot_be_unlearned_are_named(model, message):
    with pytest.raises(UnlearnError, match=message):
        UnlearnConfig(model, "ml-100k")


@pytest.mark.parametrize("dataset", ["../../etc", "a/b", "x y"])
def test_a_dataset_is_a_name_not_a_path(dataset):
    with pytest.raises(UnlearnError, match="data_path"):
        UnlearnConfig("BPR", dataset)


def test_context_models_are_ranked_like_the_others(make_config):
    config = make_config("FM")
    assert config["MODEL_TYPE"] == ModelType.CONTEXT
    assert config["eval_args"]["mode"] == {"valid": "full", "test": "full"}
    assert config["train_neg_sample_args"]["distribution"] == "uniform"


def test_replace_leaves_the_original_alone(make_config):
    config = make_config()
    assert config.replace(seed=7)["seed"] == 7
    assert config["seed"] == 2020


def test_an_existing_config_keeps_its_settings(settings):
    theirs = Config("BPR", "tiny", config_dict={k: settings[k] for k in ("data_path", "load_col", "epochs")})
    ours = UnlearnConfig.from_recbole(theirs, on_missing="skip")
    for key in ("epochs", "metrics", "topk", "valid_metric", "embedding_size", "data_path", "seed"):
        assert ours[key] == theirs[key], key
    assert ours["on_missing"] == "skip"


def test_what_somebody_set_is_never_replaced(settings, monkeypatch, tmp_path):
    """Neither from a config they hold, nor from their files or dict."""
    recbole_compat.restore_numpy_names()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # so that it is given back: RecBole writes to it
    chosen = {"gpu_id": 3, "eval_batch_size": 123, "show_progress": False, "state": "ERROR"}
    values = {k: settings[k] for k in ("data_path", "load_col")}
    theirs = Config("BPR", "tiny", config_dict=values | chosen)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    ours = UnlearnConfig.from_recbole(theirs)
    assert {key: ours[key] for key in chosen} == chosen | {"gpu_id": "3"}
    assert ours["device"] == theirs["device"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"
    theirs["eval_batch_size"], theirs["device"] = 456, torch.device("meta")  # set later, by hand
    ours = UnlearnConfig.from_recbole(theirs)
    assert (ours["eval_batch_size"], ours["device"]) == (456, torch.device("meta"))
    plain = UnlearnConfig.from_recbole(Config("BPR", "tiny", config_dict=values))
    assert plain["eval_batch_size"] == 4096000  # nobody chose RecBole's 4096
    file = tmp_path / "mine.yaml"
    file.write_text("gpu_id: 3\neval_batch_size: 123\nshow_progress: False\nstate: ERROR\n")
    for read in (UnlearnConfig("BPR", "tiny", [str(file)]), UnlearnConfig("BPR", "tiny", config_dict=chosen)):
        assert {key: read[key] for key in chosen} == chosen | {"gpu_id": "3"}


def environment():
    """All variables but those that torch sets by itself when its compiler is first imported."""
    return {key: value for key, value in os.environ.items() if not key.startswith("TORCHINDUCTOR_")}


@pytest.mark.parametrize("visible", [None, "7", ""])
def test_the_environment_is_left_as_it_was(settings, monkeypatch, visible):
    recbole_compat.restore_numpy_names()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    before = environment()
    values = settings | {"epochs": 1, "eval_step": 1, "report": "none"}
    outcome = run_unlearn("BPR", "tiny", forget={"user_id": ["u3"]}, config_dict=values)
    assert environment() == before
    assert outcome.config["gpu_id"] == ("0" if visible is None else visible)  # what is visible stays so
    unlearn_model(outcome.config, outcome.model, outcome.data.full, {"user_id": ["u3"]})
    assert environment() == before


def test_inherited_data_settings_cannot_be_changed(settings):
    with pytest.raises(UnlearnError, match="seed=1 differs from the checkpoint's 5"):
        UnlearnConfig("BPR", "tiny", config_dict=settings | {"seed": 1}, inherited={"seed": 5})
    UnlearnConfig("BPR", "tiny", config_dict=settings | {"seed": 5}, inherited={"seed": 5})


def test_plain_settings_drop_what_recbole_derives(make_config):
    config = make_config("MultiVAE")
    values = plain_settings(config.final_config_dict | {"odd": object(), "nested": {"x": {1: 2}}})
    assert not {"device", "local_rank", "MODEL_TYPE", "checkpoint_dir", "odd", "nested"} & set(values)
    again = UnlearnConfig("MultiVAE", "tiny", inherited=values)
    assert again["data_path"] == config["data_path"]
    assert again["train_neg_sample_args"] == config["train_neg_sample_args"]


def test_no_negative_sampling_survives_the_round_trip(make_config):
    config = make_config(train_neg_sample_args=None)
    values = plain_settings(config.final_config_dict)
    assert UnlearnConfig("BPR", "tiny", inherited=values)["train_neg_sample_args"]["distribution"] == "none"


def test_a_plain_config_pickles_without_the_plugin(make_config):
    config = make_config(forget="people.csv")
    plain = config.to_recbole(data_path="elsewhere")
    assert type(plain) is Config
    assert plain["data_path"] == "elsewhere"
    assert plain["epochs"] == 4
    data = pickle.dumps(plain)
    strings = {str(argument) for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)}
    assert not any("recbole_unlearn" in text or "people.csv" in text for text in strings)


def test_properties_are_found():
    assert (properties_dir() / "overall.yaml").is_file()


def test_looking_for_a_sequential_model_leaves_autograd_as_it_is(settings):
    """RecBole's sine.py turns anomaly mode on when it is imported."""
    UnlearnConfig("SASRec", "tiny", config_dict=settings)
    assert not torch.is_anomaly_enabled()
