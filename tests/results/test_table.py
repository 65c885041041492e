"""The table of a run: the metrics that were asked for, every method beside retraining, and nothing but sense."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recbole_unlearn import run_unlearn
from recbole_unlearn.measures import SHORT
from recbole_unlearn.measures.verdict import verdict
from recbole_unlearn.results import (
    LEVELS,
    Forgotten,
    PhaseResult,
    Placebo,
    RunResult,
    method_phases,
    seen_from,
)
from recbole_unlearn.results.disclosure import Crowd, Discretion
from recbole_unlearn.results.record import judged, speedup
from recbole_unlearn.results.table import table
from tests.test_text import FACTORS, FIGURES, NONSENSE

METRICS = [f"{name}@{k}" for name in ("recall", "ndcg", "hit", "mrr") for k in (5, 10, 20, 50)]
RATES = st.floats(0, 1) | st.sampled_from([0.995, 0.9999, 1.0, 0.5])


@st.composite
def phase_results(draw):
    auc = draw(RATES)
    half = draw(st.floats(0, 0.02))
    figures = {metric: draw(RATES) for metric in ("ndcg@20", "hit@5")}
    return PhaseResult(
        seconds=draw(st.none() | st.floats(0.001, 500)),
        metrics=figures,
        affected=figures,
        forgetting={
            "demotion_rate": draw(RATES),
            "demotion_gap": {"mean": draw(FIGURES), "error": draw(st.floats(0, 0.1))},
            "attack": {"auc": round(auc, 4), "low": max(0.0, auc - half), "high": min(1.0, auc + half)},
        },
    )


@st.composite
def results(draw):
    names = ["original", "unlearned", "retrained", "finetune", "sisa"]
    phases = {name: draw(phase_results()) for name in names}
    phases["retrained"] = dataclasses.replace(
        phases["retrained"], seconds_from_cache=True
    )  # no other model is it
    phases["sisa"] = dataclasses.replace(phases["sisa"], before=draw(phase_results()))
    phases = judged(phases, {name: {"ndcg@20": 0.01} for name in names}, 1)
    small = st.integers(0, 2)
    placebo = Placebo(0.5, *({"demotion": draw(FIGURES), "ks": draw(FIGURES)} for _ in range(2)))
    first = phases["unlearned"]
    return RunResult(
        "BPR", "x", "obliviate", 1, {"metrics": ["Hit"], "topk": [5]},
        Forgotten("file", draw(small), draw(small), draw(small)), phases, placebo=placebo,
        recovered=first.recovered, speedup=draw(st.none() | FACTORS), verdict=first.verdict,
    )  # fmt: skip


@hypothesis_settings(max_examples=60, deadline=None)
@given(results(), st.booleans())
def test_whatever_the_figures_are_the_table_makes_sense(result, rounded):
    if rounded:
        crowd = Crowd(users=40, compared=40, matched=40, measured=40, tested=900, usual=200)
        result = Discretion(10, crowd).shown(result)
    text = table(result)
    assert not NONSENSE.search(text), NONSENSE.search(text)
    assert max(map(len, text.splitlines())) <= 110
    for name in method_phases(result.phases):
        said = result.phases[name].verdict
        assert SHORT[said.level] in text
        assert not NONSENSE.search(said.text), said.text


def measured(names=METRICS, **more):
    figures = {name: 0.1 + 0.001 * n for n, name in enumerate(names)}
    return PhaseResult(1.0, metrics=figures, affected=figures, forgetting={"demotion_rate": 0.5}, **more)


def run_of(phases, **settings):
    return RunResult("BPR", "x", "obliviate", 1, settings, Forgotten("file", 1, 1, 1), phases)


def test_the_metrics_that_were_asked_for_are_shown():
    text = table(run_of({"original": measured()}, metrics=["Hit", "MRR"], topk=[5]))
    head = text.splitlines()[0].split()
    assert head == ["phase", "users", "H@5", "MRR@5", "demotion", "seconds"]
    assert "H Hit" in text
    flat = " ".join(text.split())
    assert "Also measured, in result.json: R@5, R@10" in flat
    assert "Forgotten: 1 interaction of 1 user and 1 item (file)." in flat


@pytest.mark.parametrize("settings", [{}, {"metrics": "nonsense", "topk": None}])
def test_a_file_that_does_not_say_shows_all_that_was_measured(settings):
    text = table(run_of({"original": measured()}, **settings))
    shown = [word for line in text.splitlines() if line.startswith("phase") for word in line.split()[2:]]
    assert len([word for word in shown if "@" in word]) == len(METRICS)
    assert max(map(len, text.splitlines())) <= 110
    assert "Also measured" not in text


def test_a_method_with_an_original_of_its_own_is_judged_from_there():
    one, other = measured(), measured(["ndcg@20"])
    phases = {"original": one, "unlearned": one, "retrained": one, "sisa": measured(before=other)}
    assert seen_from(phases, "sisa")["original"] == other
    assert seen_from(phases, "unlearned")["original"] == one
    assert method_phases([*phases, "retrained_2", "retrained_3"]) == ["unlearned", "sisa"]


def test_without_retraining_no_phase_is_judged():
    phases = {"original": measured(), "unlearned": measured(), "finetune": measured()}
    assert judged(phases, {}, 3) == phases


def test_a_retrained_model_is_not_judged_by_itself():
    same = measured()
    found = judged({"original": measured(["ndcg@20"]), "unlearned": same, "retrained": same}, {}, 3)
    assert found["unlearned"].verdict is None


def test_speed_ups_below_one_keep_their_digits():
    def of(fast, slow):
        return speedup({"unlearned": PhaseResult(fast), "retrained": PhaseResult(slow)})

    assert [of(1, 29.138), of(79, 27), of(1000, 1.234), of(0, 3)] == [29.14, 0.34, 0.0012, None]


def attacked(auc, half=0.0001):
    return PhaseResult(forgetting={"attack": {"auc": auc, "low": auc - half, "high": auc + half}})


def test_an_attack_that_does_as_well_is_not_said_to_differ():
    """Near 1 the intervals are so narrow that 0.9999 and 0.9962 were told apart, both shown as 1.00."""
    phases = {"original": attacked(0.6), "unlearned": attacked(0.9962), "retrained": attacked(0.9999)}
    said = verdict(phases, {})
    assert said.level == "near"
    assert "about as well as on the retrained model (AUC 1.00, retrained 1.00)" in said.text


def test_ranks_are_not_blamed_where_the_attack_decides():
    def phase(gap, auc):
        own = {"demotion_rate": 0.8 + gap, "demotion_gap": {"mean": gap, "error": 0.005}}
        return PhaseResult(forgetting=own | attacked(auc, 0.01).forgetting)

    phases = {"original": phase(-0.6, 0.9), "unlearned": phase(-0.01, 0.7), "retrained": phase(0.0, 0.5)}
    said = verdict(phases, {})
    assert said.level == "under"
    assert said.text.startswith(
        "Not fully forgotten: deleted items rank about where a retrained model puts them"
    )
    assert ", but an attacker does better than on the retrained model (AUC 0.70, retrained 0.50)" in said.text


def test_every_compared_method_has_a_verdict_in_the_file_and_the_table(settings):
    values = settings | {"inject_users": 0.5, "report": "none"}
    outcome = run_unlearn(
        "BPR",
        "tiny",
        unlearn="obliviate",
        compare=["finetune", "sisa", "retrain", "retrain"],
        config_dict=values,
    )
    phases = outcome.result["phases"]
    assert [name for name in phases if "verdict" in phases[name]] == ["unlearned", "finetune", "sisa"]
    for name in ("unlearned", "finetune", "sisa"):
        assert phases[name]["verdict"]["level"] in LEVELS
        assert phases[name]["speedup"] > 0
        assert set(phases[name]["recovered"]) <= set(phases[name]["metrics"])
    assert "demotion_gap" in phases["sisa"]["before"]["forgetting"]
    assert phases["unlearned"]["verdict"] == outcome.result["verdict"]
    assert phases["unlearned"]["recovered"] == outcome.result["recovered"]
    rows = {
        line.split()[0]: line for line in str(outcome).split("against retraining")[1].splitlines() if line
    }
    for name in ("unlearned", "finetune", "sisa"):
        assert SHORT[phases[name]["verdict"]["level"]] in rows[name]


def test_few_users_have_no_figures_in_any_verdict():
    names = ["original", "unlearned", "retrained", "finetune"]
    phases = {name: dataclasses.replace(measured(), seconds=1.0 + n) for n, name in enumerate(names)}
    phases = judged(phases, {name: {"ndcg@20": 0.0} for name in phases}, 3)
    result = run_of(phases)
    few = Discretion(10, Crowd(users=3, compared=3, matched=3, measured=3, tested=900, usual=200)).shown(
        result
    )
    for name in ("unlearned", "finetune"):
        shown = few.phases[name]
        assert shown.verdict.level == phases[name].verdict.level
        assert "0." not in shown.verdict.text
        assert shown.recovered is None
        assert shown.speedup == phases[name].speedup
    enough = Crowd(users=40, compared=40, matched=40, measured=40, tested=900, usual=200)
    share = dataclasses.replace(phases["finetune"], recovered={"ndcg@20": 0.4321})
    shown = Discretion(10, enough).shown(run_of({**phases, "finetune": share})).phases["finetune"]
    assert shown.recovered == {"ndcg@20": 0.4}
    assert "40% of what retraining does" in shown.verdict.text
