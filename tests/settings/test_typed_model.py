"""`--model=package.module:Class` on the command line."""

import json
import sys

import pytest

from recbole_unlearn import cli
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.settings import typed_class

SOURCE = """
from recbole.model.general_recommender import BPR

class TypedBPR(BPR):
    pass

class Other:
    pass
"""


@pytest.fixture(autouse=True)
def own_modules(tmp_path, monkeypatch):
    """The working directory has modules, and is not on the path, as for the installed command."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    (tmp_path / "typed_models.py").write_text(SOURCE)
    (tmp_path / "broken_models.py").write_text("raise RuntimeError('out of\\nluck')\n")
    (tmp_path / "needy_models.py").write_text("import nothing_of_this_name\n")
    yield
    for name in ("typed_models", "broken_models", "needy_models"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("no_models:X", "There is no module no_models in "),
        ("typed_models.deeper:X", "There is no module typed_models.deeper in "),
        ("needy_models:X", "needs nothing_of_this_name, which is not installed"),
        ("broken_models:X", "cannot be imported: RuntimeError: out of"),
        ("typed_models:TypedBP", "has no class TypedBP. Did you mean TypedBPR?"),
        ("typed_models:Other", "typed_models:Other is not a model of RecBole"),
        ("typed_models:", "is not package.module:Class"),
        ("a:b:c", "is not package.module:Class"),
    ],
)
def test_what_cannot_be_imported_is_one_line(typed, message, capsys):
    assert cli.main([f"--model={typed}", "--dataset=tiny"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_class_of_the_working_directory_runs(tmp_path, flags, capsys):
    arguments = flags(epochs=1, eval_step=1, report="none")
    assert cli.main(["--model=typed_models:TypedBPR", "--dataset=tiny", *arguments]) == 0
    assert json.loads((tmp_path / "out" / "result.json").read_text())["model"] == "TypedBPR"
    assert cli.main([f"--checkpoint={tmp_path}/out/TypedBPR-unlearned.pth", *arguments]) == 2
    assert "--model=package.module:TypedBPR" in capsys.readouterr().err


def test_a_class_of_recbole_can_be_typed_too():
    assert typed_class("recbole.model.general_recommender:BPR").__name__ == "BPR"
    with pytest.raises(UnlearnError):
        typed_class("os:system")


def test_help_does_not_need_the_class(capsys):
    assert cli.main(["--help", "--model=no_models:X"]) == 0
    assert "--unlearn=" in capsys.readouterr().out
