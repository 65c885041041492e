"""The contract of result.json: what is written is read back, and whatever is in a file is read or left out."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recbole_unlearn import run_unlearn
from recbole_unlearn.results import LEVELS, PhaseResult, RunResult
from recbole_unlearn.results.table import table

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
KEYS = (
    "schema", "model", "dataset", "method", "seed", "settings", "forget", "phases", "difficulty", "certificates",
    "curves", "environment", "recovered", "recovered_left_out", "speedup", "verdict",
    "withheld",
)  # fmt: skip
PARTS = ("seconds", "metrics", "affected", "masked", "forgetting", "groups", "distribution", "before")


@pytest.mark.parametrize("compare", [None, "retrain", ["sisa", "retrain", "retrain"]])
def test_a_result_comes_back_from_its_file(settings, tmp_path, compare):
    outcome = run_unlearn("BPR", "tiny", unlearn="obliviate", compare=compare, config_dict=settings)
    written = json.loads((tmp_path / "out" / "result.json").read_text())
    assert written == json.loads(json.dumps(outcome.result))
    again = RunResult.from_json(written)
    assert json.loads(json.dumps(again.to_json())) == written
    assert again.verdict.level in LEVELS
    # Phases every run may have come first when a file is read; the lines are the same.
    assert len(table(again).splitlines()) == len(str(outcome).splitlines())
    assert table(again).splitlines()[-2:] == str(outcome).splitlines()[-2:]


@hypothesis_settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), TREES), st.dictionaries(st.sampled_from(PARTS), TREES))
def test_whatever_is_in_a_file_is_read_or_left_out(tree, phase):
    found = RunResult.from_json({**tree, "phases": {"original": phase, "unlearned": tree}})
    for one in found.phases.values():
        for group in (one.metrics, one.affected, one.unaffected, one.masked):
            assert all(math.isfinite(value) for value in group.values())
        assert one.demotion_rate is None or math.isfinite(one.demotion_rate)
    json.dumps(PhaseResult.from_json(phase).to_json(), allow_nan=False)
    assert str(table(found)) if found.phases else True
