"""What a run looks like without retraining, from the expected level; doing nothing never looks forgotten."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recbole_unlearn import run_unlearn
from recbole_unlearn.data import Located, divide, load
from recbole_unlearn.measures import EXACT, NOTHING_LEFT, UNSURE, Questions, deleted_pairs, looks
from recbole_unlearn.measures import provisional as module
from recbole_unlearn.measures.provisional import provisional
from recbole_unlearn.measures.scores import observe
from recbole_unlearn.measures.verdict import verdict
from recbole_unlearn.results import Forgotten, PhaseResult, Provisional, RunResult, Verdict
from recbole_unlearn.results.disclosure import Crowd, Discretion
from recbole_unlearn.rows import ClosedFormRanker
from tests.conftest import QUICK
from tests.measures.test_measures import NOTHING, FixedScores
from tests.parts import divided


@pytest.mark.parametrize(
    ("start", "end", "level"),
    [
        (-0.6, -0.05, "near"),
        (-0.6, 0.05, "near"),
        (-0.6, -0.6, "under"),  # nothing was done
        (-0.6, -0.2, "under"),
        (-0.6, 0.2, "over"),
        (-0.15, -0.15, "cannot_tell"),  # the original is too near to the expected level
        (-0.15, 0.0, "cannot_tell"),
        (0.3, 0.3, "cannot_tell"),  # above it from the start: no memory to be seen
        (0.0, 0.4, "over"),
        (-0.05, -0.4, "under"),  # deleted items were brought up
    ],
)
def test_how_it_looks(start, end, level):
    assert looks(start, end, 0.1) == level


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.floats(-1, 1), st.floats(-0.99, 0.99), st.floats(0.01, 0.5))
def test_a_model_that_hardly_moved_never_looks_forgotten(start, step, unsure):
    """Whatever the original is like: within what the expected level may be off, nothing has happened."""
    assert looks(start, start + step * unsure, unsure) not in ("near", "over")


@pytest.fixture
def data(make_config):
    return divided(make_config())


@pytest.fixture
def plan(data):
    return Questions.of(data, deleted_pairs(data, 10, 0), 0)


def seen_as(data, plan, push):
    """Scores of the closed-form ranker, with deleted pairs pushed up or down."""
    ranker = ClosedFormRanker(module._retained(data))
    users, size = data.full.train.user_num, data.full.train.item_num
    table = ranker.scores(torch.arange(users), torch.arange(size).expand(users, -1))
    table[plan.deleted.users, plan.deleted.items] += push
    return observe(FixedScores(table), plan, data.retain)


def test_the_expected_level_is_that_of_the_same_comparisons(data, plan):
    same = seen_as(data, plan, 0.0)
    found = provisional(plan, data, seen_as(data, plan, 100.0), same)
    assert found.looks == "near"
    assert found.expected == pytest.approx(float(same.deleted.demoted.double().mean()), abs=1e-6)
    assert found.users == len(data.affected_users)


def test_what_was_done_is_seen(data, plan):
    up, down = seen_as(data, plan, 100.0), seen_as(data, plan, -100.0)
    assert provisional(plan, data, up, up).looks == "under"
    assert provisional(plan, data, up, down).looks == "over"
    same = seen_as(data, plan, 0.0)
    assert provisional(plan, data, same, same).looks == "cannot_tell"


def test_a_model_of_another_kind_cannot_be_judged(data, plan):
    """It ranks held-out pairs last, and the ranker does not: what the ranker expects is not of this model."""
    up = seen_as(data, plan, 100.0)
    last = dataclasses.replace(up.held_out, demoted=torch.ones_like(up.held_out.demoted))
    assert provisional(plan, data, up, up).looks == "under"
    assert provisional(plan, data, dataclasses.replace(up, held_out=last), up).looks == "cannot_tell"


def test_a_sample_of_very_many_pairs_is_enough(data, plan, monkeypatch):
    monkeypatch.setattr(module, "PAIRS", 20)
    assert len(module._known(plan.deleted, module._retained(data), 0)) == 20
    up = seen_as(data, plan, 100.0)
    assert provisional(plan, data, up, up).looks == "under"


def test_users_without_anything_left_say_nothing(make_config):
    """Whole users: the ranker has no idea of them, and all its scores are equal."""
    splits = load(make_config()).splits
    nothing = [np.zeros(len(part), bool) for part in (splits.valid, splits.test)]
    data = divide(splits, Located((splits.train.inter_feat["user_id"] <= 3).numpy(), *nothing), "x")
    plan = Questions.of(data, deleted_pairs(data, 10, 0), 0)
    seen = observe(
        FixedScores(torch.rand(data.full.train.user_num, data.full.train.item_num)), plan, data.retain
    )
    assert provisional(plan, data, seen, seen) is NOTHING_LEFT


def test_fewer_users_than_may_be_shown_are_not_spoken_of(data, plan):
    up = seen_as(data, plan, 100.0)
    number = len(data.affected_users)
    assert provisional(plan, data, up, up, least=number).looks == "under"
    assert provisional(plan, data, up, up, least=number + 1) is NOTHING_LEFT


def rates(**demotion):
    return {name: PhaseResult(forgetting={"demotion_rate": rate}) for name, rate in demotion.items()}


FOUND = Provisional("under", "a closed-form ranker", 0.83456, 40)


def test_the_sentence_says_what_it_rests_on():
    phases = rates(original=0.21, unlearned=0.22)
    found = verdict(phases, {}, 5, FOUND)
    assert (found.level, found.provisional) == ("unknown", FOUND)
    assert found.text == (
        "Looks not fully forgotten: deleted items rank higher than a model that never saw them should put them "
        "(demotion rate: unlearned 0.220, original 0.210, expected 0.835); provisional: it rests on a closed-form "
        "ranker. Only --compare=retrain can confirm it."
    )
    assert verdict(phases, {}, 5, NOTHING_LEFT).text == (
        f"Cannot tell without retraining: {NOTHING_LEFT.rests_on}. Only --compare=retrain can tell."
    )
    assert "not known" in verdict(phases, {}, 5).text
    assert verdict(phases, {}, 0, FOUND).provisional is None  # nothing was trained on it


def test_with_retraining_nothing_is_provisional():
    found = verdict(rates(original=0.2, unlearned=0.8, retrained=0.8), {}, 5, FOUND)
    assert (found.level != "unknown", found.provisional) == (True, None)


def test_it_comes_back_from_a_file():
    for one in (FOUND, EXACT, NOTHING_LEFT, None):
        given_ = Verdict("unknown", "text", one)
        assert Verdict.from_json(json.loads(json.dumps(given_.to_json()))) == given_
    for broken in (3, [], {"looks": "well", "rests_on": "x"}, {"looks": "near"}):
        assert Verdict.from_json({"text": "x", "provisional": broken}).provisional is None


CROWD = Crowd(users=40, compared=40, matched=40, measured=40, tested=900, usual=200)


def shown(found, crowd):
    phases = rates(original=0.2123, unlearned=0.2234)
    own = verdict(phases, {}, 90, found)
    result = RunResult("BPR", "x", "finetune", 1, {}, Forgotten("file", 90, 40, 9), phases, verdict=own)
    return Discretion(10, crowd).shown(result).verdict


def test_it_is_rounded_as_other_figures_are():
    found = shown(FOUND, CROWD)
    assert (found.level, found.provisional) == ("unknown", dataclasses.replace(FOUND, expected=0.85))
    assert "unlearned 0.200, original 0.200, expected 0.850" in found.text
    assert shown(dataclasses.replace(FOUND, users=9), CROWD).provisional is None
    assert shown(NOTHING_LEFT, CROWD).provisional == NOTHING_LEFT


@pytest.mark.parametrize("found", [FOUND, NOTHING_LEFT])
def test_of_few_users_nothing_is_said(found):
    few = shown(found, CROWD._replace(users=3, compared=3))
    assert few.provisional is None
    assert "not known" in few.text
    assert shown(EXACT, CROWD._replace(users=3, compared=3)).provisional == EXACT  # nobody's figure


def test_a_run_without_retraining_has_it(settings, tmp_path):
    outcome = run_unlearn("BPR", "tiny", unlearn="finetune", config_dict=settings)
    written = json.loads((tmp_path / "out" / "result.json").read_text())["verdict"]
    assert written["level"] == "unknown"
    assert set(written["provisional"]) == {"looks", "rests_on", "expected", "users"}
    assert "Only --compare=retrain can " in written["text"]
    assert written["text"] in " ".join(str(outcome).split())
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Provisional: no retrained model" in page
    assert "No verdict" not in page


def test_a_small_request_has_none(settings, monkeypatch):
    """And the closed form is not even fitted."""
    monkeypatch.setattr(module, "ClosedFormRanker", None)
    outcome = run_unlearn(
        "BPR", "tiny", forget={"item_id": ["i1"]}, unlearn="finetune",
        config_dict=settings | {"min_group": 30, "report": "none"},
    )  # fmt: skip
    assert "provisional" not in outcome.result["verdict"]


def test_with_retraining_the_closed_form_is_not_fitted(settings, monkeypatch):
    monkeypatch.setattr(module, "ClosedFormRanker", None)
    outcome = run_unlearn(
        "BPR", "tiny", unlearn="finetune", compare="retrain", config_dict=settings | {"report": "none"}
    )
    assert "provisional" not in outcome.result["verdict"]


def test_a_closed_form_that_is_fitted_again_looks_forgotten(settings):
    outcome = run_unlearn("EASE", "tiny", unlearn="obliviate", config_dict=settings | {"report": "none"})
    assert outcome.result["verdict"]["provisional"] == EXACT.to_json()
    assert "which is exact" in outcome.result["verdict"]["text"]


@pytest.mark.slow
@pytest.mark.parametrize("model", QUICK)
def test_on_ml_100k_doing_nothing_does_not_look_forgotten(ml_100k, model):
    """Noise: with both stages switched off the run looks as the original is; retraining looks forgotten."""
    values = ml_100k(model)
    nothing = run_unlearn(model, "ml-100k", unlearn="obliviate", config_dict=values | NOTHING)
    found = nothing.record.verdict.provisional
    assert found.looks == "under"
    again = run_unlearn(
        model, "ml-100k", unlearn="retrain", config_dict=values | {"output_dir": f"{values['output_dir']}/b"}
    ).record.phases
    unsure = UNSURE * found.expected
    assert abs(again["retrained"].demotion_rate - found.expected) < unsure
    gaps = (again[name].demotion_rate - found.expected for name in ("original", "retrained"))
    assert looks(*gaps, unsure) == "near"
