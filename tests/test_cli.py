"""The command line: what it parses, what it lists, and how it ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recbole_unlearn import __version__, cli
from recbole_unlearn.errors import UnlearnError

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
    with pytest.raises(UnlearnError):
        cli.parse(arguments)


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"recbole-unlearn {__version__}"


def test_methods_are_listed(capsys):
    assert cli.main(["--unlearn=?"]) == 0
    assert "retrain" in capsys.readouterr().out


def test_help_lists_every_group_with_defaults(capsys):
    assert cli.main(["--help", "--model=LightGCN", "--dataset=ml-100k"]) == 0
    text = capsys.readouterr().out
    for expected in (
        "--unlearn=retrain", "--on_missing=error", "One of error, skip", "--inject_users=0.2",
        "--cache_size=4.0", "Method retrain", "--retrain_seed", "--learning_rate=0.005",
        "The number of training epochs", "--n_layers=2", "RecBole, dataset:", "--config_files",
    ):  # fmt: skip
        assert expected in text, expected


def test_no_arguments_is_help(capsys):
    assert cli.main([]) == 0
    assert "usage:" in capsys.readouterr().out


def test_an_interrupt_is_not_a_traceback(monkeypatch, capsys):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("recbole_unlearn.quick_start.run_unlearn", interrupted)
    assert cli.main(["--model=BPR", "--dataset=tiny"]) == 130
    assert "no result was written" in capsys.readouterr().err


def test_names_that_look_like_numbers_stay_names(monkeypatch):
    seen = {}

    def run(model, dataset, **kwargs):
        seen.update(kwargs["config_dict"], dataset=dataset, files=kwargs["config_files"])
        raise UnlearnError("enough")

    monkeypatch.setattr("recbole_unlearn.quick_start.run_unlearn", run)
    cli.main(["--model=BPR", "--dataset=2024", "--output_dir=1e3", "--config_files=a.yaml,b.yaml"])
    assert seen == {"dataset": "2024", "output_dir": "1e3", "files": ["a.yaml", "b.yaml"]}
