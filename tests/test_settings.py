"""Settings: types and limits, the order of merging, what is refused, and the way to and from plain RecBole."""

import dataclasses
import json
import os
import pickle
import pickletools
import sys
from importlib import metadata

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recbole.config import Config
from recbole.utils import ModelType

from recbole_unlearn import cli, recbole_compat, run_unlearn, settings, unlearn_model
from recbole_unlearn.methods import UnlearnTrainer, method
from recbole_unlearn.registry import METHODS, Registry
from recbole_unlearn.settings import UnlearnConfig, parse_value, plain_settings, properties_dir, read_yaml, setting
from tests.parts import refused


@dataclasses.dataclass(frozen=True)
class Sample:
    share: float = setting("a share", low=0.0, high=1.0)
    count: int | None = setting("a count", low=1)
    mode: str = setting("a mode", choices=("fast", "slow"))
    names: list[str] = setting("names")
    on: bool = setting("a switch")


GOOD = {"share": 0.5, "count": None, "mode": "fast", "names": "a, b", "on": True}


@given(st.floats(0, 1) | st.integers(0, 1))
def test_values_within_limits_are_read(share):
    assert settings.read(Sample, GOOD | {"share": share}) == Sample(share, None, "fast", ["a", "b"], True)


@pytest.mark.parametrize(("key", "value"), [
    ("share", 1.01), ("share", -0.1), ("share", float("nan")), ("share", "much"), ("share", True),
    ("share", None), ("count", 0), ("count", 2.5), ("count", True), ("mode", "medium"), ("on", 1),
])  # fmt: skip
def test_bad_values_name_the_key(key, value):
    refused(f"^{key}=", settings.read, Sample, GOOD | {key: value})


def test_declarations_property_files_and_methods_name_the_same_keys(make_config):
    """METHOD, METHOD-TYPE, METHOD-MODEL, METHOD-DATASET and METHOD-MODEL-DATASET; no file is an orphan."""
    declared = [key for group in settings.GROUPS.values() for key in settings.names(group)]
    assert len(declared) == len(set(declared))
    assert set(declared) <= set(read_yaml(properties_dir() / "overall.yaml"))
    for key, about in settings.own_settings().items():
        assert set(about.types) <= {str, int, float, bool, list}, key
        assert about.types, key
        assert about.help, key
    keys = {method.name: set(settings.names(method.Settings)) for method in METHODS.all()}
    config = make_config()
    assert {name: set(config.method_values(name)) for name in keys} == keys
    files = {path.stem: read_yaml(path) for path in (properties_dir() / "method").glob("*.yaml")}
    datasets = {path.stem for path in (properties_dir() / "dataset").glob("*.yaml")}
    kinds = {kind.name.lower() for kind in settings.SUPPORTED_TYPES}
    models = settings.model_names()
    places = {*models, *datasets, *kinds, *(f"{model}-{name}" for model in models for name in datasets)}
    assert set(keys) <= set(files)
    for stem, values in files.items():
        method, _, place = stem.partition("-")
        assert not place or place in places
        assert values.pop("preset_of", method) in keys
        assert set(values) <= keys[method]
    assert {path.stem for path in (properties_dir() / "model").glob("*.yaml")} <= set(models)


def test_names_that_are_registered(monkeypatch, make_config):
    registry = Registry("thing", "recbole_unlearn.settings")
    registry.add("sample", Sample)
    registry.add("sample", Sample)  # a cell of a notebook that is run again
    with pytest.raises(ValueError, match="already a thing named 'sample'"):
        registry.add("sample", Registry)
    assert registry.get("sample") is Sample
    refused(r"Unknown thing 'simple'\. Did you mean sample\?", registry.get, "simple")
    broken = metadata.EntryPoint("broken", "nothing_of_this_name", "things")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [broken])
    said = "The thing broken of another package cannot be used: ModuleNotFoundError"
    refused(said, Registry("thing", "recbole_unlearn.settings", "things").get, "broken")
    monkeypatch.setattr(METHODS, "entries", {known.name: known for known in METHODS.all()})
    own = dataclasses.make_dataclass("Own", [("idle_level", int, setting("Nothing.", low=0, default=3))], frozen=True)
    method("idle", "Do nothing.", own)(type("Idle", (UnlearnTrainer,), {}))
    assert make_config(unlearn="idle").method_values("idle") == {"idle_level": 3}


def test_later_sources_win(tmp_path, settings):
    """RecBole, properties/overall.yaml, the model's file (the paper's settings), given files, a dict."""
    keys = ("embedding_size", "epochs", "learning_rate", "train_batch_size", "val_interval", "topk", "learner")
    for model, own in (("BPR", [100, 50, 1e-3, 2048]), ("LightGCN", [100, 100, 1e-4, 2048])):
        config = UnlearnConfig(model, "ml-1m")
        assert [config[key] for key in keys] == [*own, {"rating": "[4,inf)"}, [10, 20, 50], "adam"]
    file = tmp_path / "mine.yaml"
    file.write_text("learning_rate: 0.5\nthreads: 2\n")
    del settings["learning_rate"]
    config = UnlearnConfig("BPR", "tiny", [str(file)], settings | {"threads": 3})
    assert (config["learning_rate"], config["threads"]) == (0.5, 3)


def test_neither_sys_argv_nor_code_in_strings_is_read(monkeypatch, tmp_path, make_config):
    monkeypatch.setattr(sys, "argv", ["prog", "--learning_rate=9", "--cov=x", "stray"])
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')"
    config = make_config(encoding=trap, topk="[5, 10]", valid_metric="NDCG@10")
    assert (config["encoding"], config["topk"]) == (trap, [5, 10])
    assert config["learning_rate"] == 0.01
    file = tmp_path / "evil.yaml"
    file.write_text(f"a: !!python/object/apply:os.mkdir ['{tmp_path / 'ran'}']\n")
    refused("not valid YAML", read_yaml, file)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("text", "value"), [
    ("1e-4", 1e-4), ("1", 1), ("0.5", 0.5), ("True", True), ("None", None), ("[10, 20]", [10, 20]),
    ("{'RS':[0.8,0.1,0.1]}", {"RS": [0.8, 0.1, 0.1]}), ("NDCG@20", "NDCG@20"), ("a: b: c", "a: b: c"),
    (".5", 0.5), ("1.", 1.0), ("-2e3", -2000.0),
])  # fmt: skip
def test_values_are_read_as_yaml(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize(("model", "dataset", "changes", "message"), [
    (None, "ml-100k", {}, "No model given"),
    (dict, "ml-100k", {}, "not a model class"),
    ("BPR", None, {}, "No dataset given"),
    ("BPR", "../../etc", {}, "data_path"),
    ("BPR", "x y", {}, "data_path"),
    ("SASRec", "ml-100k", {"transform": "mask_itemseq"}, "leave it out"),
    ("BPR", "tiny", {"rrl_steps": 1}, "rrl_steps is a setting of rrl, but this run uses rebuild"),
    ("BPR", "tiny", {"compare": ["retrain", "magic"]}, "Unknown unlearning method 'magic'"),
    ("BPR", "tiny", {"metrics": ["AUC"], "eval_args": {"mode": "labeled"}, "valid_metric": "AUC"}, "ranking"),
    ("BPR", "tiny", {"metrics": ["Recal"]}, "There is no metric named 'Recal'"),
    ("BPR", "tiny", {"topk": [0]}, "topk"),
    ("BPR", "tiny", {"log_wandb": True}, "send result.json when the run has ended"),
    ("BPR", "tiny", {"benchmark_filename": ["../../etc/passwd"]}, "expected a list of names, without paths"),
])  # fmt: skip
def test_models_datasets_and_settings_that_are_refused(model, dataset, changes, message):
    assert message in refused("", UnlearnConfig, model, dataset, config_dict=changes)


def test_kinds_of_values_and_models(make_config):
    config = make_config("FM", epochs=np.int64(3), learning_rate=np.float32(0.5), weight_decay=0, shuffle=1,
                         eval_step=-1, train_batch_size="64")  # fmt: skip
    assert (config["epochs"], config["learning_rate"], config["train_batch_size"]) == (3, 0.5, 64)
    assert config["MODEL_TYPE"] == ModelType.CONTEXT  # ranked like the others
    assert config["eval_args"]["mode"] == {"valid": "full", "test": "full"}
    assert config["train_neg_sample_args"]["distribution"] == "uniform"
    make_config("SASRec")
    assert not torch.is_anomaly_enabled()  # RecBole's sine.py turns it on when it is imported


def test_settings_of_an_existing_config_are_never_replaced(settings, monkeypatch):
    """Nor the choices for this machine in a dict."""
    recbole_compat.restore_numpy_names()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # so that it is restored: RecBole writes to it
    chosen = {"gpu_id": 3, "eval_batch_size": 123, "show_progress": False, "state": "ERROR"}
    values = {k: settings[k] for k in ("data_path", "load_col", "epochs")}
    theirs = Config("BPR", "tiny", config_dict=values | chosen)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    ours = UnlearnConfig.from_recbole(theirs, on_missing="skip")
    assert {key: ours[key] for key in chosen} == chosen | {"gpu_id": "3"}
    for key in ("epochs", "metrics", "topk", "valid_metric", "embedding_size", "data_path", "seed", "device"):
        assert ours[key] == theirs[key], key
    assert (ours["on_missing"], os.environ["CUDA_VISIBLE_DEVICES"]) == ("skip", "7")
    theirs["eval_batch_size"], theirs["device"] = 456, torch.device("meta")  # set later, by hand
    ours = UnlearnConfig.from_recbole(theirs)
    assert (ours["eval_batch_size"], ours["device"]) == (456, torch.device("meta"))
    plain = UnlearnConfig.from_recbole(Config("BPR", "tiny", config_dict=values))
    assert plain["eval_batch_size"] == 4096000  # RecBole's default of 4096 is not a choice
    assert UnlearnConfig("FM", "tiny")["eval_batch_size"] == 4096  # it takes each pair through its layers
    read = UnlearnConfig("BPR", "tiny", config_dict=chosen)
    assert {key: read[key] for key in chosen} == chosen | {"gpu_id": "3"}


@pytest.mark.parametrize("visible", [None, "7", ""])
def test_the_environment_is_left_as_it_was(settings, monkeypatch, visible):
    """All variables but those that torch sets by itself when its compiler is first imported."""

    def environment():
        return {key: value for key, value in os.environ.items() if not key.startswith("TORCHINDUCTOR_")}

    recbole_compat.restore_numpy_names()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    before = environment()
    values = settings | {"epochs": 1, "eval_step": 1, "report": "none"}
    outcome = run_unlearn("BPR", "tiny", forget={"user_id": ["u3"]}, config_dict=values)
    assert environment() == before
    assert outcome.config["gpu_id"] == ("0" if visible is None else visible)  # visible devices stay visible
    unlearn_model(outcome.config, outcome.model, outcome.data.full, {"user_id": ["u3"]})
    assert environment() == before


def test_inherited_settings(make_config, settings):
    """No other split than the checkpoint's; RecBole derives the rest again."""
    other, own = ({"config_dict": settings | {"seed": seed}, "inherited": {"seed": 5}} for seed in (1, 5))
    refused("seed=1 differs from the checkpoint's 5", UnlearnConfig, "BPR", "tiny", **other)
    UnlearnConfig("BPR", "tiny", **own)
    trained = {"eval_args": make_config()["eval_args"]}
    for split, mode in (({"RS": [0.8, 0.1, 0.1]}, "full"), ({"RS": [8, 1, 1]}, {"valid": "full"})):
        short = settings | {"eval_args": {"split": split, "order": "RO", "group_by": "user", "mode": mode}}
        UnlearnConfig("BPR", "tiny", config_dict=short, inherited=trained)  # RecBole reads all of these alike
    short["eval_args"]["split"] = {"RS": [7, 2, 1]}
    refused("eval_args=.*differs", UnlearnConfig, "BPR", "tiny", config_dict=short, inherited=trained)
    config = make_config("MultiVAE", train_neg_sample_args=None)
    values = plain_settings(config.final_config_dict | {"odd": object(), "nested": {"x": {1: 2}}})
    assert not {"device", "local_rank", "MODEL_TYPE", "checkpoint_dir", "odd", "nested"} & set(values)
    again = UnlearnConfig("MultiVAE", "tiny", inherited=values)
    assert again["data_path"] == config["data_path"]
    assert again["train_neg_sample_args"] == config["train_neg_sample_args"]
    assert again["train_neg_sample_args"]["distribution"] == "none"


def test_a_plain_config_pickles_without_the_plugin(make_config):
    plain = make_config(forget="people.csv").to_recbole(data_path="elsewhere")
    assert type(plain) is Config
    assert (plain["data_path"], plain["epochs"]) == ("elsewhere", 4)
    data = pickle.dumps(plain)
    strings = {str(argument) for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)}
    assert not any("recbole_unlearn" in text or "people.csv" in text for text in strings)


TYPED = {
    "typed_models": "from recbole.model.general_recommender import BPR\nclass TypedBPR(BPR): ...\nclass Other: ...\n",
    "broken_models": "raise RuntimeError('out of\\nluck')\n",
    "needy_models": "import nothing_of_this_name\n",
}


@pytest.fixture
def own_modules(tmp_path, monkeypatch):
    """The working directory has modules, and is not on the path, as for the installed command."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    for name, source in TYPED.items():
        (tmp_path / f"{name}.py").write_text(source)
    yield
    for name in TYPED:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("typed", "message"), [
    ("no_models:X", "cannot be imported: ModuleNotFoundError: No module named 'no_models'"),
    ("typed_models.deeper:X", "No module named 'typed_models.deeper'; 'typed_models' is not a package"),
    ("needy_models:X", "cannot be imported: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
    ("broken_models:X", "cannot be imported: RuntimeError: out of"),
    ("typed_models:TypedBP", "has no class TypedBP. Did you mean TypedBPR?"),
    ("typed_models:Other", "typed_models:Other is not a model of RecBole"),
    ("os:system", "os:system is not a model of RecBole"),
    ("typed_models:", "is not package.module:Class"),
    ("a:b:c", "is not package.module:Class"),
])  # fmt: skip
def test_classes_that_cannot_be_imported(typed, message, capsys, own_modules):
    assert cli.main([f"--model={typed}", "--dataset=tiny"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert cli.main(["--help", f"--model={typed}"]) == 0  # the help does not need the class


def test_a_class_of_the_working_directory_runs(tmp_path, flags, capsys, own_modules):
    assert settings.typed_class("recbole.model.general_recommender:BPR").__name__ == "BPR"
    arguments = flags(epochs=1, eval_step=1, report="none")
    assert cli.main(["--model=typed_models:TypedBPR", "--dataset=tiny", *arguments]) == 0
    assert json.loads((tmp_path / "out" / "result.json").read_text())["model"] == "TypedBPR"
    assert cli.main([f"--checkpoint={tmp_path}/out/TypedBPR-unlearned.pth", *arguments]) == 2
    assert "--model=package.module:TypedBPR" in capsys.readouterr().err


def test_a_yaml_file_is_copied_for_each_reader(tmp_path):
    file = tmp_path / "my.yaml"
    for values in ([5], [7]):
        file.write_text(f"topk: {values}\n")
        read_yaml(file)["topk"].append(10)
        assert read_yaml(file) == {"topk": values}
