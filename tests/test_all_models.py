"""benchmarks/all_models.py, which writes the table of docs/supported-models.md, on a part of the models."""

import importlib
import re

import pytest

from recbole_unlearn.settings import model_names
from tests.conftest import ROOT


@pytest.mark.slow
def test_models_of_each_form_work_or_are_refused(monkeypatch, tiny_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script = importlib.import_module("all_models")
    given = ["--dataset=tiny", f"--data_path={tiny_path}"]
    found = {name: script.attempt(name, 120, given) for name in ("ConvNCF", "GCMC", "DSSM", "RaCT")}
    found["FM"] = script.attempt("FM", 1, ["--dataset=ml-100k"])
    states = {name: one["state"] for name, one in found.items()}
    assert states == dict.fromkeys(found, "works") | {"RaCT": "refused", "FM": "stopped"}
    assert "| context | DSSM" in script.table(found)
    assert "FM (stopped)" in script.table(found)
    assert "- RaCT cannot be unlearned: it is trained in three stages" in script.table(found)


def test_the_page_has_every_model_once():
    """By name, in a table of those that work or of those that are refused."""
    tables = [line for line in (ROOT / "docs" / "supported-models.md").read_text().splitlines() if line[:1] == "|"]
    words = [word for line in tables for word in re.findall(r"[\w]+", line.replace("NCL's", ""))]
    assert [name for name in model_names() if words.count(name) != 1] == []
