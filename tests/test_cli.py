"""The command line: what it parses, how it ends, and that `--help` shows what a run does."""

import inspect
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recbole_unlearn import cli, settings, unlearn_model
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.registry import METHODS
from recbole_unlearn.settings import UnlearnConfig, parse_value
from tests.parts import refused

KEYS = st.from_regex(r"[a-z][a-z_]{0,12}", fullmatch=True).filter(
    lambda key: not key.startswith("no_") and key not in cli._NAMES
)
VALUES = st.integers() | st.booleans() | st.none() | st.lists(st.integers(), max_size=3)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_any_settings_survive_the_command_line(values):
    assert cli.parse([f"--{key}={value}" for key, value in values.items()]) == values


def test_flags_and_spaces():
    parsed = cli.parse(["--cache", "--no_tensorboard", "--model", "BPR", "--forget=a=b.csv"])
    assert parsed == {"cache": True, "tensorboard": False, "model": "BPR", "forget": "a=b.csv"}


@pytest.mark.parametrize("arguments", [["BPR"], ["-m", "BPR"], ["--"], ["--a=1", "--a=2"]])
def test_arguments_that_cannot_be_read(arguments):
    refused("", cli.parse, arguments)


@pytest.mark.parametrize("name", ["config_files", "config_file_list"])
def test_names_that_look_like_numbers_stay_names(monkeypatch, name):
    seen = {}

    def run(model, dataset, **kwargs):
        seen.update(kwargs["config_dict"], dataset=dataset, files=kwargs["config_files"])
        raise UnlearnError("enough")

    monkeypatch.setattr("recbole_unlearn.quick_start.run_unlearn", run)
    cli.main(["--model=BPR", "--dataset=2024", "--output_dir=1e3", f"--{name}=a.yaml,b.yaml"])
    assert seen == {"dataset": "2024", "output_dir": "1e3", "files": ["a.yaml", "b.yaml"]}


@pytest.mark.parametrize(("model", "dataset"), [
    ("LightGCN", "ml-100k"), ("FM", "ml-100k"), ("BPR", "ml-1m"), ("EASE", "x"), ("SASRec", "ml-100k"),
    ("HGN", "x"), ("GRU4RecF", "ml-100k"), ("CKE", "ml-100k"),
])  # fmt: skip
def test_help_shows_the_defaults_of_a_run(model, dataset):
    config, text = UnlearnConfig(model, dataset), cli.help_text(model, dataset)
    shown = dict(re.findall(r"^  --(\w+)(?:=(\S.*?))?(?:   .*| $|$)", text, re.M))
    # RecBole adds the dataset's name to data_path and writes eval_args out; progress bars need a terminal.
    rewritten = {"data_path", "eval_args", "show_progress", "valid_metric_bigger", "unlearn"}  # auto is resolved
    if config["train_neg_sample_args"]["distribution"] == "none":  # RecBole writes that out as well
        assert shown["train_neg_sample_args"] == ""
        rewritten.add("train_neg_sample_args")
    keys = {key for group in settings.GROUPS.values() for key in settings.declared(group)}
    keys |= {key for group in config.parameters.values() for key in group}
    for key in keys - rewritten:
        value = config[key]
        assert shown[key].split("  ")[0] == ("" if value == [] else cli.typed(value)), key
    for one in METHODS.all():
        block = text[text.index(f"\nMethod {cli._marked(one)}:") :].split("\n\n", 1)[0]
        values, preset = config.method_values(one.name), settings.preset_of(one.name)
        shown = dict(re.findall(r"^  --(\w+)=?(\S*)", block, re.M))
        above = config.method_values(preset) if preset else {}
        own = {key: value for key, value in values.items() if not above or value != above[key]}
        empty = () if above else (None, [])
        assert shown == {key: "" if value in empty else cli.typed(value) for key, value in own.items()}


def test_help_without_a_model(capsys):
    """300 epochs, not the 200 of BPR on ml-100k; no filter of ml-100k's ratings; five examples that can be typed."""
    assert cli.main([]) == 0
    text = capsys.readouterr().out
    for line in ("--epochs=300", "--data_path=dataset/ ", "--metrics='[Recall, NDCG]'", "One of error, skip"):
        assert line in text, line
    for line in ("None", "val_interval=", "=/", "site-packages", "_AnyModel"):
        assert line not in text, line
    assert settings.default_config("BPR", "ml-100k")["epochs"] == 200
    assert text.index("Examples:") < 200
    opening = settings.read_yaml(settings.properties_dir() / "help.yaml")["opening"]
    commands = re.findall(r"^    python run_unlearn.py (.*)$", opening, re.M)
    assert len(commands) == 6
    assert opening in text
    for command in commands:
        assert set(cli.parse(command.split())) <= {*settings.own_settings(), "model", "dataset"}


def test_the_default_and_the_recommended_method_are_said(capsys):
    assert cli.main(["--unlearn=?"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = [line.split()[0] for line in lines[2:] if line[:1].strip()][:3]
    assert set(first) == {method.name for method in METHODS.all() if method.auto_order is not None}
    assert any(line.startswith("obliviate (recommended)") for line in lines)
    for method in METHODS.all():
        assert any(line.startswith(method.name) for line in lines)
        assert (method.result == "exact") == method.exact
        assert (method.models == "all") <= (not method.needs_gradients)
    assert max(map(len, lines)) <= 110
    assert inspect.signature(unlearn_model).parameters["method"].default == "auto"


@pytest.mark.parametrize(("model", "why"), [
    ("Ligthgcn", "Did you mean LightGCN"),
    ("DIEN", "it makes windows of its own. These can: SASRec"),
    ("KGAT", "it needs dgl"),
    ("xgboost", "RecBole cannot import xgboost"),
])  # fmt: skip
def test_help_refuses_the_models_that_a_run_refuses(model, why):
    said = refused(model, cli.help_text, model)
    assert why in said
    assert refused(model, UnlearnConfig, model, "ml-100k") == said


@pytest.mark.parametrize("value", [
    "[0,inf)", {"rating": "[4,inf)"}, ["Recall", "NDCG"], {"split": {"RS": [0.8, 0.1, 0.1]}}, 0.5, True, "a b",
])  # fmt: skip
def test_what_is_shown_can_be_typed(value):
    done = subprocess.run(["bash", "-c", f"printf %s {cli.typed(value)}"], capture_output=True, text=True, check=True)
    assert (done.stdout if isinstance(value, str) else parse_value(done.stdout)) == value
