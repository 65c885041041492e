"""benchmarks/all_models.py, which writes the table of docs/supported-models.md, on a part of the models."""

import importlib

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
def test_models_of_each_form_work_or_are_refused(monkeypatch, tiny_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script = importlib.import_module("all_models")
    given = ["--dataset=tiny", f"--data_path={tiny_path}"]
    found = {name: script.attempt(name, 120, given) for name in ("ConvNCF", "GCMC", "DSSM", "RaCT")}
    found["FM"] = script.attempt("FM", 1, given)
    states = {name: one["state"] for name, one in found.items()}
    assert states == dict.fromkeys(found, "works") | {"RaCT": "refused", "FM": "stopped"}
    assert "| context | DSSM" in script.table(found)
    assert "FM (stopped)" in script.table(found)
    assert "- RaCT cannot be unlearned: it is trained in three stages" in script.table(found)
