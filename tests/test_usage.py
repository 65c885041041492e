"""`--help` and `--unlearn=?`: quick, and true to what a run does."""

import inspect
import re
import subprocess
import sys

import pytest
from recbole.utils import ModelType, get_model

from recbole_unlearn import cli, unlearn_model, usage
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.methods import registry
from recbole_unlearn.methods.obliviate import SCHEDULES, ObliviateSettings
from recbole_unlearn.settings import (
    GROUPS,
    UnlearnConfig,
    catalogue,
    declared,
    described,
    knowledge,
    model_names,
    own_settings,
    parse_value,
    sequential,
)
from tests.conftest import ROOT


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--help", "--model=LightGCN"],
        ["--help", "--model=SASRec"],
        ["--unlearn=?"],
        ["--version"],
    ],
)
def test_neither_torch_nor_recbole_is_waited_for(arguments):
    """What took three seconds; the help itself needs a few tenths of one."""
    code = (
        "import sys; from recbole_unlearn.cli import main; code = main(sys.argv[1:]);"
        "sys.exit(code or 'torch' in sys.modules or 'recbole' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-500:]


def test_methods_are_described_as_they_are_registered():
    ours = [method for method in catalogue.methods() if method.is_ours]
    assert {one.name: one for one in described.from_source()} == {
        method.name: described.Description.of(method) for method in ours
    }
    for method in ours:
        trainer = registry.get(method.name)
        assert (method.result == "exact") == trainer.exact
        assert (method.models == "all") <= (not trainer.needs_gradients)


def test_choices_that_are_written_out_are_those_there_are():
    assert declared(ObliviateSettings)["lac_schedule"].choices == tuple(SCHEDULES)


@pytest.mark.parametrize(
    ("model", "dataset"),
    [
        ("LightGCN", "ml-100k"), ("FM", "ml-100k"), ("BPR", "ml-1m"), ("EASE", "x"), ("MultiVAE", "x"),
        ("SASRec", "ml-100k"), ("HGN", "x"), ("GRU4RecF", "ml-100k"), ("TransRec", "x"), ("CKE", "ml-100k"),
    ],
)  # fmt: skip
def test_defaults_are_those_of_a_run(model, dataset):
    config, shown = UnlearnConfig(model, dataset), usage.default_values(model, dataset)
    keys = {key for group in GROUPS.values() for key in declared(group)}
    keys |= {key for some in usage.recbole_keys().values() for key in some} | set(usage._model_values(model))
    # RecBole adds the dataset's name to the first, writes out all of the second; bars need a terminal.
    different = {key: (shown.get(key), config[key]) for key in keys if shown.get(key) != config[key]}
    if config["train_neg_sample_args"]["distribution"] == "none":  # RecBole writes that out as well
        assert different.pop("train_neg_sample_args")[0] is None
    assert set(different) == {"data_path", "eval_args", "show_progress"}
    assert different["show_progress"] == (True, False)
    written_out = {"group_by": "user"} | shown["eval_args"] | {"mode": config["eval_args"]["mode"]}
    assert written_out == config["eval_args"]


@pytest.mark.parametrize("model", ["BPR", "SASRec", "CKE"])
def test_settings_of_methods_are_those_of_a_run(model):
    """One block for each method, of a preset with what differs."""
    shown = usage.help_text({"model": model, "dataset": "ml-100k"})
    config = UnlearnConfig(model, "ml-100k")
    for one in described.methods():
        block = shown[shown.index(f"\nMethod {usage._marked(one)}:") :].split("\n\n", 1)[0]
        values, above = (config.method_values(name) for name in (one.name, one.base or one.name))
        typed = {f"{key}={usage.typed(value)}" for key, value in values.items() if value != above[key]}
        if one.base is None:
            typed = {
                key if value in (None, []) else f"{key}={usage.typed(value)}" for key, value in values.items()
            }
        assert {line.split(" ")[0] for line in re.findall(r"^  --(\S.*)$", block, re.M)} == typed
    assert ("--lac_steps=100" in shown) == (model == "SASRec")


def test_without_a_model_no_default_is_that_of_one():
    """300 epochs, not the 200 of BPR on ml-100k; no filter of ml-100k's ratings."""
    text = usage.help_text({})
    for line in (
        "--epochs=300",
        "--finetune_epochs=10",
        "--data_path=dataset/ ",
        "--metrics='[Recall, NDCG]'",
    ):
        assert line in text, line
    for line in ("None", "val_interval=", "=/", "site-packages"):
        assert line not in text, line
    assert "--epochs=200" in usage.help_text({"model": "BPR", "dataset": "ml-100k"})


def test_it_starts_with_five_examples():
    text = usage.help_text({})
    assert len(usage.EXAMPLES) == 5
    assert text.index("Examples:") < 200
    known = {*own_settings(), "model", "dataset"}
    for commands in usage.EXAMPLES.values():
        for command in commands:
            assert f"python run_unlearn.py {command}\n" in text
            assert set(cli.parse(command.split())) <= known
            assert len(command) < 110


def test_the_default_and_the_recommended_method_are_said(capsys):
    assert cli.main(["--unlearn=?"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[2].startswith("retrain (default)")
    assert "exact" in lines[2]
    assert any(line.startswith("obliviate (recommended)") for line in lines)
    assert "obliviate is recommended when retraining takes too long" in text
    assert "obliviate is recommended when retraining takes too long" in " ".join(usage.help_text({}).split())
    for method in catalogue.methods():
        assert any(line.startswith(method.name) for line in lines)
    assert max(map(len, lines)) <= 110


def test_all_ways_to_start_have_the_same_default():
    assert UnlearnConfig("BPR", "ml-100k")["unlearn"] == "retrain"
    assert inspect.signature(unlearn_model).parameters["method"].default == "retrain"
    assert usage._default() == "retrain"


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("Ligthgcn", "Did you mean LightGCN"),
        ("DIEN", "it makes windows of its own. These can: SASRec"),
        ("KGAT", "it needs dgl"),
        ("xgboost", "cannot be unlearned yet"),
    ],
)
def test_models_that_cannot_be_used_are_refused(model, why):
    with pytest.raises(UnlearnError, match=model) as error:
        usage.help_text({"model": model})
    assert why in str(error.value)


def test_help_refuses_the_models_that_a_run_refuses():
    """In the same words; those of decision trees cannot be imported everywhere."""
    for name in set(model_names()) - {"lightgbm", "xgboost"}:
        words = []
        for attempt in (usage._kind, refuse):
            try:
                attempt(name)
            except UnlearnError as error:
                words.append(str(error))
        assert len(set(words)) == len(words) // 2, (name, words)


def refuse(name):
    """As a run does, by the class."""
    model = get_model(name)
    if model.type is ModelType.SEQUENTIAL:
        sequential.refuse_model(name, model)
    if model.type is ModelType.KNOWLEDGE:
        knowledge.refuse_model(name, model)


@pytest.mark.parametrize(
    "value",
    [
        "[0,inf)",
        {"rating": "[4,inf)"},
        ["Recall", "NDCG"],
        {"split": {"RS": [0.8, 0.1, 0.1]}},
        0.5,
        True,
        "a b",
    ],
)
def test_what_is_shown_can_be_typed(value):
    done = subprocess.run(
        ["bash", "-c", f"printf %s {usage.typed(value)}"], capture_output=True, text=True, check=True
    )
    assert (done.stdout if isinstance(value, str) else parse_value(done.stdout)) == value
