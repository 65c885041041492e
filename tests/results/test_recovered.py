"""The recovered share: given where retraining moves affected users by more than noise, and left out elsewhere."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recbole_unlearn import run_unlearn
from recbole_unlearn.report import Entry, write_comparison
from recbole_unlearn.report import recovered as recovered_by_runs
from recbole_unlearn.results import Forgotten, LeftOut, PhaseResult, RunResult
from recbole_unlearn.results.disclosure import Crowd, Discretion
from recbole_unlearn.results.record import left_out, recovered
from recbole_unlearn.results.table import table


def phases(before, after, target, second=None):
    values = {"original": before, "unlearned": after, "retrained": target, "retrained_2": second}
    return {
        name: PhaseResult(metrics={"ndcg@20": 0.3}, affected={"ndcg@20": value, "recall@10": 0.3})
        for name, value in values.items()
        if value is not None
    }


@pytest.mark.parametrize(
    ("before", "after", "target", "share"),
    [(0.1, 0.2, 0.2, 1.0), (0.1, 0.15, 0.2, 0.5), (0.2, 0.1, 0.3, -1.0)],
)
def test_the_share_recovered(before, after, target, share):
    found = phases(before, after, target)
    errors = {"ndcg@20": 0.01, "recall@10": 0.0}
    assert recovered(found, errors) == {"ndcg@20": pytest.approx(share)}  # recall did not move: no share
    assert left_out(found, recovered(found, errors)).metrics == ["recall@10"]


@pytest.mark.parametrize(
    ("second", "error", "given"),
    [
        (None, 0.004, True),  # a move of .01 is more than twice the error
        (None, 0.005, False),
        (0.215, 0.001, True),
        (0.225, 0.001, False),  # two seeds differ by .015
        (0.21, 0.02, False),  # two seeds agree, by luck: the users of this run do not
        (None, math.inf, False),  # one user
        (None, None, False),  # no mean over users, and no second retraining
        (0.215, None, True),
    ],
)
def test_a_share_of_noise_is_left_out(second, error, given):
    """The original is at .2, the retrained model at .21: a share of that was −1414 %."""
    found = phases(0.2, 0.0586, 0.21, second)
    errors = {"recall@10": 0.1} | ({} if error is None else {"ndcg@20": error})
    shares = recovered(found, errors)
    assert ("ndcg@20" in shares) == given
    why = left_out(found, shares)
    assert ("ndcg@20" in why.metrics) != given
    assert ("--compare=retrain,retrain" in why.why) == (second is None)


values = st.floats(0, 1)


@given(values, values, values, st.floats(0, 0.3), st.none() | values)
def test_a_share_that_is_given_is_of_a_move_beyond_noise(before, after, target, error, second):
    found = phases(before, after, target, second)
    shares = recovered(found, {"ndcg@20": error})
    moved = abs(target - before)
    if "ndcg@20" in shares:
        assert moved > 2 * error
        assert second is None or moved > abs(target - second)
        assert abs(shares["ndcg@20"]) <= abs(after - before) / moved + 1e-4
    named = left_out(found, shares)
    assert {*shares, *([] if named is None else named.metrics)} == {"ndcg@20", "recall@10"}


def result(**more):
    return RunResult(
        "BPR", "x", "obliviate", 1, {}, Forgotten("file", 3, 20, 1), phases(0.2, 0.1, 0.21), **more
    )


WHY = LeftOut(["ndcg@20"], "It would be noise.")


def test_it_is_said_in_the_file_and_the_table():
    shown = result(recovered={"recall@10": 0.5}, left_out=WHY)
    written = json.loads(json.dumps(shown.to_json()))
    assert written["recovered_left_out"] == {"metrics": ["ndcg@20"], "why": "It would be noise."}
    again = RunResult.from_json(written)
    assert again.left_out == WHY
    assert "left out for ndcg@20: It would be noise." in table(again)
    assert "recovered (NDCG@20" not in table(again)
    for broken in (None, 3, [], {"metrics": "ndcg@20", "why": "x"}, {"metrics": ["ndcg@20"]}):
        assert RunResult.from_json({"recovered_left_out": broken}).left_out is None
    assert RunResult.from_json({"recovered": {}}).recovered == {}


def test_where_utility_is_withheld_so_is_what_was_left_out():
    crowd = Crowd(users=40, compared=40, matched=40, measured=40, tested=900, usual=200)
    shown = Discretion(10, crowd).shown(result(recovered={}, left_out=WHY))
    assert shown.left_out == WHY
    for few in ({"users": 3, "compared": 3}, {"measured": 3}):
        hidden = Discretion(10, crowd._replace(**few)).shown(result(recovered={}, left_out=WHY))
        assert (hidden.recovered, hidden.left_out) == (None, None)


@pytest.mark.parametrize(
    ("moved", "share"), [([True], 0.5), ([False], None), ([True, False], None), ([True, True, False], 0.5)]
)
def test_several_runs_have_a_share_where_most_of_them_have(moved, share):
    before, after, target = phases(0.1, 0.15, 0.2).values()
    entries = [Entry("obliviate", str(n), after, before, target, one) for n, one in enumerate(moved)]
    assert recovered_by_runs(entries) == (None if share is None else pytest.approx(share))


def test_a_run_that_learned_nothing_has_no_share(settings, tmp_path):
    """One epoch at a small learning rate: original and retrained model differ by their seeds alone."""
    outcome = run_unlearn(
        "BPR", "tiny", unlearn="obliviate", compare=["retrain", "retrain"],
        config_dict=settings | {"epochs": 1, "learning_rate": 1e-5},
    )  # fmt: skip
    found = outcome.result
    assert len(found["recovered_left_out"]["metrics"]) > len(found["recovered"])
    assert "ndcg@20" in found["recovered_left_out"]["metrics"]
    assert "of what retraining does for affected users" not in found["verdict"]["text"]
    why = found["recovered_left_out"]["why"]
    assert why in " ".join(str(outcome).split())
    assert why in (tmp_path / "out" / "report.html").read_text()
    assert "is a dash where" in write_comparison([outcome.output_dir], tmp_path / "page.html").read_text()
