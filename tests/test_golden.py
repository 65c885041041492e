"""What must not move while the code does: results, cache keys, options of the command line, public names.

A failing test here means that files people have, or commands they typed, would give something else than before.
When that is what a change is for, freeze again (`python -m tests.golden.runs --freeze`) in a commit of its own
that says why.
"""

import inspect
import json
import operator
import re
from importlib import metadata

import pytest
import torch

import recbole_unlearn
from recbole_unlearn import cli
from recbole_unlearn.data import load
from recbole_unlearn.settings import CacheSettings, UnlearnConfig
from recbole_unlearn.training import Trainings
from tests.conftest import ROOT
from tests.golden import runs

NAMES = json.loads((runs.HERE / "names.json").read_text())


PINNED = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
SAME_VERSIONS = all(
    metadata.version(package).split("+")[0] == PINNED[package]
    for package in ("torch", "recbole", "numpy", "scipy", "pandas")
)


@pytest.mark.slow
def test_results_are_the_same_to_the_last_digit(tmp_path):
    """One test, so that one worker does all golden runs."""
    here = runs.PROCESSOR.read_text().strip() == runs.processor()
    same = operator.eq if here else runs.close
    runs.run_apart(tmp_path)
    for name in runs.ALL:
        frozen, now = (json.loads((folder / f"{name}.json").read_text()) for folder in (runs.FROZEN, tmp_path))
        assert set(now) == set(frozen), name
        if SAME_VERSIONS:  # another RecBole or numpy gives other figures under the same keys
            # The last iterations of a conjugate gradient follow its rounding.
            keys = [key for key in frozen if here or not key.startswith("curves / ")]
            assert {key: (now[key], frozen[key]) for key in keys if not same(now[key], frozen[key])} == {}, name


def test_options_of_the_command_line_and_public_names():
    shown = set(re.findall(r"^  --(\w+)", cli.help_text(), re.M))
    missing = set(NAMES["options"]) - shown
    assert not missing
    assert not {key for key in shown - set(NAMES["options"]) if key not in NAMES["recbole_options"]}
    assert sorted(recbole_unlearn.__all__) == NAMES["public"]
    assert all(getattr(recbole_unlearn, name) is not None for name in NAMES["public"])
    assert not hasattr(recbole_unlearn, "nothing")
    for name, parameters in NAMES["signatures"].items():
        assert list(inspect.signature(getattr(recbole_unlearn, name)).parameters) == parameters


@pytest.mark.skipif(not SAME_VERSIONS, reason="versions are part of a key")
@pytest.mark.parametrize("model", ["BPR", "LightGCN", "NGCF", "FM"])
def test_cache_keys(model, tmp_path, monkeypatch):
    """What was trained before stays found. The frozen keys are of torch's CPU build, and another build has others."""
    monkeypatch.setattr(torch, "__version__", f"{PINNED['torch']}+cpu")
    values = {"cache_dir": str(tmp_path), "seed": 7, "epochs": 2, "output_dir": str(tmp_path), "rank": 4}
    config = UnlearnConfig(model, "ml-100k", config_dict={**values, "unlearn": "obliviate"})
    models = Trainings(CacheSettings(cache=True, cache_dir=str(tmp_path), cache_size=1.0), threads=1)
    assert models.key(config, load(config).splits) == NAMES["cache_keys"][model]
