"""Results in Python: data frames, and what a notebook shows."""

import re

import pandas as pd

from recbole_unlearn import run_unlearn
from recbole_unlearn.results import Forgotten, PhaseResult, RunResult, Verdict
from recbole_unlearn.results.table import frame, notebook_html
from recbole_unlearn.tuning import TuneResult


def test_a_run_as_a_frame_and_in_a_notebook(settings):
    outcome = run_unlearn("BPR", "tiny", unlearn="obliviate", compare="retrain", config_dict=settings)
    found = outcome.to_frame()
    assert list(found) == ["phase", "group", "metric", "value"]
    assert found["value"].notna().all()
    assert not found.duplicated(["phase", "group", "metric"]).any()
    wide = found.pivot(index=["phase", "group"], columns="metric", values="value")
    phases = outcome.result["phases"]
    for name, phase in phases.items():
        assert wide.loc[(name, "all"), "ndcg@20"] == phase["metrics"]["ndcg@20"]
        assert wide.loc[(name, "forgetting"), "demotion_rate"] == phase["forgetting"]["demotion_rate"]
        assert wide.loc[(name, "time"), "seconds"] == phase["seconds"]
    assert (
        wide.loc[("unlearned", "forgetting"), "demotion_gap.mean"]
        == phases["unlearned"]["forgetting"]["demotion_gap"]["mean"]
    )
    shown = outcome._repr_html_()
    assert outcome.result["verdict"]["text"].split(" (")[0] in shown
    assert shown.count("<table") == shown.count("</table>") == 2


def test_an_original_of_a_methods_own_has_rows():
    before = PhaseResult(metrics={"ndcg@20": 0.1})
    result = RunResult("BPR", "x", "y", 1, {}, Forgotten(), {"sisa": PhaseResult(before=before)})
    assert frame(result).values.tolist() == [["sisa before", "all", "ndcg@20", 0.1]]
    nothing = frame(RunResult("BPR", "x", "y", 1, {}, Forgotten(), {}))
    assert len(nothing) == 0
    assert nothing["value"].dtype == float


def test_names_are_escaped_and_nothing_is_fetched():
    evil = "<script>alert(1)</script>"
    phases = {evil: PhaseResult(metrics={"ndcg@20": 0.1}, forgetting={"demotion_rate": 0.5})}
    shown = notebook_html(
        RunResult(evil, evil, evil, 1, {}, Forgotten(evil, 1, 1, 1), phases, verdict=Verdict(evil, evil))
    )
    assert "<script" not in shown
    assert not re.search(r"https?://|src=|href=", shown)


def test_a_sweep_as_a_frame(tmp_path):
    trials = [
        {"number": 0, "state": "finished", "settings": {"rank": 4},
         "reports": [{"step": 1, "score": 0.5}, {"step": 2, "score": 0.6}]},
        {"number": 1, "state": "failed", "settings": {"rank": 8}, "reports": []},
    ]  # fmt: skip
    found = TuneResult({"trials": trials}, tmp_path).to_frame()
    assert list(found) == ["trial", "state", "rank", "step", "score"]
    assert found["trial"].tolist() == [0, 0, 1]
    assert pd.isna(found["score"].iloc[-1])
