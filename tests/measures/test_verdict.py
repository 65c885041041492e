"""Verdicts, with retraining and without, and the placebo: doing nothing never passes."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recbole_unlearn import UnlearnConfig, run_unlearn
from recbole_unlearn.data import load, loaders
from recbole_unlearn.measures import Measurement
from recbole_unlearn.measures import verdict as module
from recbole_unlearn.measures.verdict import verdict
from recbole_unlearn.results import PhaseResult
from recbole_unlearn.results.table import table
from recbole_unlearn.training import PhaseTrainer, compose
from tests.conftest import QUICK
from tests.measures.conftest import NOTHING
from tests.parts import same


@pytest.fixture(scope="module", params=QUICK)
def judged(request, ml_100k):
    """Retraining against itself with another seed on ml-100k, and next to it a method that does nothing."""
    values, compare = ml_100k(request.param) | NOTHING, ["obliviate", "retrain"]
    return run_unlearn(request.param, "ml-100k", unlearn="retrain", compare=compare, config_dict=values)


def inexact(phases):
    """Judged by their figures, as an approximate method is."""
    return {name: dataclasses.replace(phase, exact=False) for name, phase in phases.items()}


@pytest.mark.slow
def test_retraining_against_itself_is_near_and_the_original_is_caught(judged):
    """A measure that cannot tell these apart is a defect."""
    phases = judged.result["phases"]
    original, again, target = (phases[name]["forgetting"] for name in ("original", "unlearned", "retrained"))
    assert abs(again["demotion_rate"] - target["demotion_rate"]) < 0.05
    assert original["demotion_rate"] < target["demotion_rate"] - 0.3
    assert again["ks"] < 0.15
    assert original["ks"] > max(0.5, 3 * again["ks"])
    assert original["overlap@20"]["affected"] < again["overlap@20"]["affected"] - 0.1
    assert original["resurfacing@20"] > 5 * max(target["resurfacing@20"], again["resurfacing@20"])
    assert again["attack"]["low"] <= target["attack"]["high"]
    assert target["attack"]["low"] <= again["attack"]["high"]
    apart = original["attack"]
    assert apart["high"] < target["attack"]["low"] or apart["low"] > target["attack"]["high"]
    assert phases["original"]["affected"]["ndcg@20"] < phases["retrained"]["affected"]["ndcg@20"]
    assert judged.result["verdict"]["level"] == "exact"
    assert verdict(inexact(judged.record.phases), {}).level == "near"
    assert judged.record.phases["obliviate"].verdict.level == "under"


@pytest.mark.slow
def test_over_forgetting_is_flagged(judged, monkeypatch):
    """Deleted scores pushed to the bottom: forgotten too well, and an attacker who saw the model before knows."""
    measurement = Measurement(judged.config, judged.data, loaders(judged.config, judged.data.retain), 100)
    trainer = compose(PhaseTrainer, judged.config, judged.model, "x")
    retrained = measurement.measure(trainer)
    pairs, plain = measurement.questions.deleted, trainer.scores

    def pushed(users, dataset):
        found = plain(users, dataset)
        mine = torch.isin(pairs.users, users)
        found[torch.searchsorted(users, pairs.users[mine]), pairs.items[mine]] = found[:, 1:].min() - 1.0
        return found

    monkeypatch.setattr(trainer, "scores", pushed)
    low = measurement.measure(trainer)
    assert low.forgetting["demotion_rate"] == 1.0
    assert measurement.distances(low, retrained)["ks"] > 0.5
    assert low.forgetting["attack"]["low"] > judged.record.retrained.figure("attack", "high")
    found = low.forgetting | measurement.distances(low, retrained)
    others = {name: judged.record.phases[name] for name in ("original", "retrained")}
    assert verdict({**others, "unlearned": PhaseResult(forgetting=found)}, {}).level == "over"


def placed(gap, auc, error=0.005, half=0.01):
    """A phase at a distance from the retrained model (demotion rate .8, AUC .5)."""
    return PhaseResult(
        forgetting={
            "demotion_rate": 0.8 + gap, "demotion_gap": {"mean": gap, "error": error},
            "attack": {"auc": auc, "low": auc - half, "high": auc + half},
        }
    )  # fmt: skip


@pytest.mark.parametrize(("gap", "auc", "level"), [
    (-0.02, 0.52, "near"), (-0.2, 0.52, "under"), (-0.02, 0.7, "under"), (0.2, 0.5, "near"),
])  # fmt: skip
def test_what_comes_back_when_training_goes_on_was_not_forgotten(gap, auc, level):
    def trained_on(phase, later):
        figures = {"demotion_rate": later["demotion_rate"], **later["attack"]}
        more = {"relearning": figures, "relearning_gap": later["demotion_gap"]}
        return dataclasses.replace(phase, forgetting=phase.forgetting | more)

    phases = {"original": placed(-0.6, 0.9), "unlearned": placed(-0.05, 0.52), "retrained": placed(0.0, 0.5)}
    phases["unlearned"] = trained_on(phases["unlearned"], placed(gap, auc).forgetting)
    phases["retrained"] = trained_on(phases["retrained"], placed(0.0, 0.5).forgetting)
    found = verdict(phases, {})
    assert found.level == level
    assert ("training goes on" in found.text) == (level == "under")
    assert module.restated(found, phases, {}) == found


@pytest.mark.parametrize(("original", "unlearned", "second", "level"), [
    ((-0.6, 0.9), (-0.05, 0.52), None, "near"), ((-0.6, 0.9), (-0.2, 0.52), None, "under"),
    ((-0.6, 0.9), (0.15, 0.5), None, "over"), ((-0.6, 0.9), (0.0, 0.38), None, "over"),
    ((-0.6, 0.9), (-0.6, 0.9), None, "under"),  # nothing was done
    ((-0.6, 0.9), (-0.05, 0.68), None, "under"),  # the attacker disagrees
    ((-0.05, 0.9), (-0.04, 0.9), None, "under"),  # within .1 of retraining, as the original is
    ((-0.004, 0.505), (-0.004, 0.505), None, "cannot_tell"),
    ((-0.004, 0.9), (-0.004, 0.51), None, "near"),  # only the attacker can tell
    ((-0.05, 0.9), (-0.03, 0.51), 0.02, "near"),  # two retrained models differ as much
    ((-0.05, 0.51), (-0.05, 0.51), 0.03, "cannot_tell"),
])  # fmt: skip
def test_a_verdict_can_fail(original, unlearned, second, level):
    phases = {"original": placed(*original), "unlearned": placed(*unlearned), "retrained": placed(0.0, 0.5)}
    if second is not None:
        phases["retrained_2"] = placed(second, 0.5)
    assert verdict(phases, {}).level == level


@pytest.mark.parametrize(("original", "unlearned", "retrained", "half", "level", "text"), [
    # Near 1 the intervals are so narrow that 0.9962 and 0.9999 were told apart, both shown as 1.00.
    ((-0.6, 0.6), (0.0, 0.9962), (0.0, 0.9999), 1e-4, "near",
     "an attacker does about as well as on the retrained model (AUC 1.00, retrained 1.00)."),
    # The attack decides, so ranks are not blamed.
    ((-0.6, 0.9), (-0.01, 0.7), (0.0, 0.5), 0.01, "under",
     "Not fully forgotten: deleted items rank about where a retrained model puts them (demotion rate 0.790, "
     "retrained 0.800), but an attacker does better than on the retrained model (AUC 0.70, retrained 0.50)."),
])  # fmt: skip
def test_a_verdict_names_the_figure_that_decided(original, unlearned, retrained, half, level, text):
    names = {"original": original, "unlearned": unlearned, "retrained": retrained}
    said = verdict({name: placed(*at, half=half) for name, at in names.items()}, {})
    assert said.level == level
    assert said.text.endswith(text)


@hypothesis_settings(max_examples=200, deadline=None)
@given(st.floats(-0.8, 0.2), st.floats(0.0, 1.0), st.floats(0.0, 0.2), st.floats(0.0, 0.2))
def test_a_model_that_did_nothing_never_passes(gap, auc, error, half):
    """Whatever the original is like: the same figures are never near."""
    own = placed(gap, auc, error, half)
    phases = {"original": own, "unlearned": own, "retrained": placed(0.0, 0.5, 0.0, half)}
    assert verdict(phases, {}).level != "near"


@pytest.mark.slow
@pytest.mark.parametrize("model", QUICK)
def test_nothing_fails_and_retraining_passes_on_genuine_interactions_of_ml_100k(ml_100k, model):
    """Both stages switched off never pass where the original does not; another retrained seed always does."""
    values = ml_100k(model)
    request = genuine_request(load(UnlearnConfig(model, "ml-100k", config_dict=values)).splits.train)
    asked = {"forget": request, "unlearn": "obliviate", "compare": ["retrain", "retrain"]}
    record = run_unlearn(model, "ml-100k", **asked, config_dict=values | NOTHING).record
    assert record.verdict.level == "under"
    phases = record.phases
    floor = {name: phases[name] for name in ("original", "retrained")} | {"unlearned": phases["retrained_2"]}
    assert verdict(inexact(floor), {}).level == "near"


def genuine_request(train, share=0.2):
    """A fifth of the interactions of a fifth of the users, by their tokens."""
    rng = np.random.default_rng(0)
    users, items = (train.inter_feat[field].numpy() for field in ("user_id", "item_id"))
    chosen = rng.choice(np.unique(users), round(share * len(np.unique(users))), replace=False)
    mask = np.isin(users, chosen) & (rng.random(len(users)) < share)
    return {
        "user_id": train.id2token("user_id", users[mask]).tolist(),
        "item_id": train.id2token("item_id", items[mask]).tolist(),
    }


def test_the_placebo_tells_memory_from_the_methods_own_mark(settings):
    """A method that does nothing leaves no mark, and all of the original's memory."""
    values = settings | NOTHING | {"inject_users": 0.5, "report": "none"}
    result = run_unlearn("LightGCN", "tiny", unlearn="obliviate", compare="retrain", config_dict=values).record
    placebo, phases = result.placebo, result.phases
    assert placebo.mark["demotion"] == placebo.mark["ks"] == placebo.mark["attack"] == 0.0
    assert placebo.demotion_rate == phases["retrained"].demotion_rate
    left = phases["unlearned"].demotion_rate - phases["retrained"].demotion_rate
    assert placebo.memory["demotion"] == pytest.approx(left, abs=1e-6)
    assert "Memory, by the placebo" in table(result)


def test_a_placebo_can_be_left_out_and_changes_nothing_else(settings):
    """It comes last, leaves no file, and the unlearned model is the same with and without it."""
    values = settings | {"report": "none"}
    with_one, without = (
        run_unlearn("BPR", "tiny", unlearn="obliviate", compare="retrain", config_dict=values | {"placebo": on})
        for on in (True, False)
    )
    assert "placebo" in with_one.result
    assert "placebo" not in without.result
    assert same(with_one.model.state_dict(), without.model.state_dict())
    first, second = (outcome.record.phases for outcome in (with_one, without))
    assert first.keys() == second.keys()
    assert all(phase.forgetting == second[name].forgetting for name, phase in first.items())


def test_figures_that_decide_nothing():
    """First interactions of a sequential model: the retrained model is there, and no deleted pair can be ranked."""
    found = verdict({name: PhaseResult() for name in ("original", "unlearned", "retrained")}, {})
    assert (found.level, found.text) == ("cannot_tell", module.NOTHING)
    assert verdict({name: PhaseResult() for name in ("original", "unlearned")}, {}).level == "unknown"
    cleaned = {"demotion_rate": 0.4, "demotion_gap": {"mean": 0.0, "error": 0.01}}
    phases = {name: emptied(0.1) for name in ("original", "unlearned", "retrained")}
    phases = {name: PhaseResult(forgetting={**phase.forgetting, **cleaned}) for name, phase in phases.items()}
    found = verdict(phases, {})
    assert "(demotion rate 0.400, retrained 0.400)" in found.text
    assert module.EMPTIED not in found.text


def emptied(rate, retrained=0.5, error=0.01):
    """A phase with the figures of emptied histories alone."""
    gap = {} if rate == retrained else {"emptied_gap": {"mean": rate - retrained, "error": error}}
    return PhaseResult(forgetting={"demotion_rate": None, "emptied": {"demotion_rate": rate}, **gap})


@pytest.mark.parametrize(("original", "unlearned", "level"), [
    (0.1, 0.1, "under"), (0.1, 0.495, "near"), (0.1, 0.7, "over"), (0.49, 0.49, "cannot_tell"),
    (0.47, 0.485, "cannot_tell"), (0.45, 0.495, "near"),  # half of a short way is not near
])  # fmt: skip
def test_whole_users_of_a_sequential_model_are_judged_at_uncleaned_histories(original, unlearned, level):
    """A model that did nothing never passes."""
    found = verdict({"original": emptied(original), "unlearned": emptied(unlearned), "retrained": emptied(0.5)}, {})
    assert found.level == level
    assert f"(demotion rate {unlearned:.3f}, retrained 0.500)" in found.text
    assert found.text.endswith(module.EMPTIED)


# Without retraining


def test_an_exact_model_is_said_to_be_exact_whatever_its_figures_are():
    """Its distance to the retrained model is one of recipes: as an approximate model it would be `under`."""
    phases = {"original": placed(-0.8, 0.9, 0.01, 0.01), "unlearned": placed(-0.2, 0.6, 0.01, 0.01)}
    phases["retrained"] = placed(0.0, 0.5, 0.0, 0.01)
    assert verdict(phases, {}, 5).level == "under"
    exact = phases | {"unlearned": dataclasses.replace(phases["unlearned"], exact=True)}
    said = verdict(exact, {}, 5)
    assert said.level == "exact"
    assert said.text.startswith("Exact: trained without these interactions; ")
    assert "attack AUC 0.600, retrained 0.500, original 0.900" in said.text
    alone = {key: one for key, one in exact.items() if key != "retrained"}
    assert "retrained" not in verdict(alone, {}, 5).text
    assert "original" not in module.restated(said, {}, {}).text  # of few users no figures


@pytest.mark.parametrize(("model", "method"), [("EASE", "obliviate"), ("BPR", "retrain"), ("BPR", "rebuild")])
def test_exact_runs_have_no_estimate_and_no_control(settings, model, method):
    compare = [] if method == "retrain" else ["retrain"]
    outcome = run_unlearn(model, "tiny", unlearn=method, compare=compare, config_dict=settings | {"report": "none"})
    assert outcome.result["verdict"]["level"] == "exact"
    assert outcome.result["phases"]["unlearned"]["exact"] is outcome.result["certificates"]["exact"] is True
    assert not {"placebo", "control"} & {*outcome.result}
    assert "exact" not in outcome.result["phases"]["original"]


def test_without_retraining_nothing_is_known(settings):
    said = run_unlearn("BPR", "tiny", unlearn="finetune", config_dict=settings | {"report": "none"}).record.verdict
    assert (said.level, "--compare=retrain" in said.text) == ("unknown", True)
