"""Whole sweeps with their trials in this process, bad input, and the page of a sweep."""

import contextlib
import dataclasses
import errno
import html
import json
import os
import re
import sys

import plotly.graph_objects as go
import pytest
import yaml

from recbole_unlearn import cli, run_unlearn, tune_unlearn
from recbole_unlearn.errors import UnlearnError, one_line
from recbole_unlearn.report import sweep as sweep_page
from recbole_unlearn.report import write_sweep
from recbole_unlearn.training import PhaseTrainer, compose
from recbole_unlearn.tuning import (
    Bench,
    Figures,
    Goal,
    backend,
    identity,
    journal,
    objective,
    trial,
    validation_only,
)


def in_this_process(ray, shared, drawn, listed, kept, *options):
    """As `backend.run_trials`, without Ray; for random and grid search."""
    bench = shared.bench()
    for number, values in enumerate(listed):
        if identity(values) in kept.known:
            kept.ended(number, values, None)
            continue
        reports = []
        try:
            trial.run_trial(shared, bench, values, reports.append)
            error = None
        except UnlearnError as failure:
            error = one_line(failure)
        for index, report in enumerate(reports):
            kept.reported(number, index, json.loads(json.dumps(report)), "here")
        kept.ended(number, values, error)


@pytest.fixture
def here(monkeypatch):
    pytest.importorskip("ray.tune")
    monkeypatch.setattr(backend, "run_trials", in_this_process)
    monkeypatch.setattr("recbole_unlearn.cluster.session", lambda *args: contextlib.nullcontext(True))


@pytest.fixture
def small(settings, tmp_path):
    """Settings of a small sweep of obliviate."""
    file = tmp_path / "small.yaml"
    file.write_text(
        "rank: {choice: [2, full]}\nlac_steps: {choice: [4, 8]}\nlac_learning_rate: {loguniform: [0.001, 0.1]}\n"
    )
    sweep = {"tune": True, "space": str(file), "trials": 3, "unlearn": "obliviate", "report": "none"}
    return settings | sweep


def assert_gives(file, candidate, model, own):
    """A run with the settings in ``file`` has the figures for which they were chosen."""
    run = run_unlearn(model, "tiny", config_files=[str(file)], config_dict=own | {"output_dir": "again"})
    trainer = compose(PhaseTrainer, run.config, run.model, "x")
    figures = Bench(run.config, validation_only(run.data), "ndcg@20", 10).measure(trainer)
    assert {key: round(value, 6) for key, value in dataclasses.asdict(figures).items()} == {
        key: candidate[key] for key in ("everyone", "affected", "demotion")
    }


def test_a_sweep_and_the_way_back_from_its_settings(here, small, tmp_path):
    outcome = tune_unlearn("BPR", "tiny", config_dict=small | {"lac_negatives": 0.5})
    result, out = outcome.result, tmp_path / "out"
    assert result == json.loads((out / "tune.json").read_text())
    assert [record["state"] for record in result["trials"]] == ["finished"] * 3
    reports = [report for record in result["trials"] for report in record["reports"]]
    assert max(report["score"] for report in reports) == result["best"]["score"]
    steps = [[report["step"] for report in record["reports"]] for record in result["trials"]]
    assert all(found in ([1, 2, 3, 4], [2, 4, 6, 8]) for found in steps)
    assert result["objective"]["target_source"] == "expected"
    assert "Best, on validation interactions" in str(outcome)
    assert result["settings"]["lac_negatives"] == 0.5
    assert str(tmp_path) not in json.dumps(result)
    assert len(list((out / "front").glob("*.yaml"))) == len(result["front"])
    own = {k: v for k, v in small.items() if k not in ("tune", "space", "trials", "unlearn")}
    front = [(out / "front" / f"{place:02d}.yaml", each) for place, each in enumerate(result["front"], 1)]
    for file, candidate in [(out / "best.yaml", result["best"]), *front]:
        values = yaml.safe_load(file.read_text())
        # A setting that was fixed for the sweep belongs to its result.
        assert (values["unlearn"], values["lac_negatives"]) == ("obliviate", 0.5)
        assert_gives(file, candidate, "BPR", own)


@pytest.mark.parametrize(
    ("method", "space"),
    [("finetune", "finetune_epochs: {grid: [1, 3]}"), ("obliviate", "lac_steps: {grid: [4, 8]}")],
)
def test_a_sweep_of_a_sequential_model(here, settings, tmp_path, method, space):
    """Chosen by validation windows; best.yaml gives the figures it was chosen for."""
    file = tmp_path / "space.yaml"
    file.write_text(f"{space}\n")
    own = {key: value for key, value in settings.items() if key != "embedding_size"} | {
        "MAX_ITEM_LIST_LENGTH": 6, "hidden_size": 8, "epochs": 2, "report": "none", "inject_mode": "random",
    }  # fmt: skip
    sweep = {"tune": True, "space": str(file), "searcher": "grid", "unlearn": method, "compare": ["retrain"]}
    result = tune_unlearn("GRU4Rec", "tiny", config_dict=own | sweep).result
    assert [record["state"] for record in result["trials"]] == ["finished"] * 2
    assert result["objective"]["target_source"] == "retrained"
    assert result["objective"]["target"] == result["retrained"]["demotion"]
    assert_gives(tmp_path / "out" / "best.yaml", result["best"], "GRU4Rec", own)


def untimed(value):
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if "seconds" not in k}
    return [untimed(v) for v in value] if isinstance(value, list) else value


def test_the_same_seed_gives_the_same_sweep_also_when_it_was_cut_short(here, small, tmp_path, monkeypatch):
    whole = tune_unlearn("BPR", "tiny", config_dict=small).result
    calls, real = [], trial.run_trial
    monkeypatch.setattr(trial, "run_trial", lambda *args: calls.append(args) or real(*args))
    halved = small | {"output_dir": "cut"}
    tune_unlearn("BPR", "tiny", config_dict=halved | {"trials": 2})
    path = tmp_path / "cut" / journal.NAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:40])  # half of the second trial's line
    again = tune_unlearn("BPR", "tiny", config_dict=halved | {"resume": True}).result
    assert untimed(again) == untimed(whole)
    assert len(calls) == 2 + 2  # the first of them was not done again
    finished = tune_unlearn("BPR", "tiny", config_dict=halved | {"resume": True}).result
    assert untimed(finished) == untimed(again)
    assert len(calls) == 4


def test_grid_search_with_the_retrained_models_target(here, small, tmp_path):
    file = tmp_path / "grid.yaml"
    file.write_text("rank: {choice: [2, full]}\nlac_steps: {grid: [4, 8]}\n")
    found = tune_unlearn(
        "BPR", "tiny", compare="retrain",
        config_dict=small | {"space": str(file), "searcher": "grid", "tune_looks": 1, "report": "html"},
    ).result  # fmt: skip
    assert len(found["trials"]) == 4
    assert [len(record["reports"]) for record in found["trials"]] == [1] * 4
    assert found["objective"]["target_source"] == "retrained"
    assert found["objective"]["target"] == pytest.approx(found["retrained"]["demotion"], abs=1e-6)
    assert found["retrained"]["distance"] == 0
    page = (tmp_path / "out" / "tune.html").read_text()
    assert "Share of retraining recovered by rank and steps" in page
    assert "Content-Security-Policy" in page


def test_failing_trials_are_named_and_the_others_count(here, small, tmp_path, capsys):
    file = tmp_path / "fail.yaml"
    file.write_text("lac_learning_rate: {grid: [0.01, 1.0e+30]}\n")
    small |= {"space": str(file), "searcher": "grid", "lac_batch_size": 64}
    outcome = tune_unlearn("BPR", "tiny", config_dict=small)
    assert [record["state"] for record in outcome.result["trials"]] == ["finished", "failed"]
    assert "Trial 1 failed: " in str(outcome)
    assert outcome.result["best"]["trial"] == 0
    write_sweep(outcome.result, tmp_path)
    assert "Trials that failed." in (tmp_path / "tune.html").read_text()
    file.write_text("lac_learning_rate: {grid: [1.0e+30, 1.0e+31]}\n")
    with pytest.raises(UnlearnError, match="All 2 trials failed; the first one: "):
        tune_unlearn("BPR", "tiny", config_dict=small | {"output_dir": "bad"})


def test_a_full_disk_keeps_finished_trials(here, small, tmp_path, monkeypatch):
    real, calls = journal.write_bytes, []

    def no_space(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    def full(path, content):
        calls.append(path)
        with monkeypatch.context() as patch:
            if len(calls) == 3 + 1:  # the head, two trials, and then no more
                patch.setattr(os, "fsync", no_space)
            real(path, content)

    monkeypatch.setattr(journal, "write_bytes", full)
    with pytest.raises(UnlearnError, match=r"No space left on device.*Finished trials are kept.*--resume"):
        tune_unlearn("BPR", "tiny", config_dict=small)
    lines = (tmp_path / "out" / journal.NAME).read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == 3
    found = tune_unlearn("BPR", "tiny", config_dict=small | {"resume": True}).result
    assert len(found["trials"]) == 3


def test_a_sweep_is_not_mixed_with_another(here, small, tmp_path):
    with pytest.raises(UnlearnError, match=r"no sweep in .* to resume"):
        tune_unlearn("BPR", "tiny", config_dict=small | {"resume": True})
    tune_unlearn("BPR", "tiny", config_dict=small | {"trials": 1})
    with pytest.raises(UnlearnError, match="holds a sweep already"):
        tune_unlearn("BPR", "tiny", config_dict=small)
    for changed in ({"tune_weight": 2.0}, {"epochs": 3}, {"lac_batch_size": 64}, {"tune_looks": 2}):
        with pytest.raises(UnlearnError, match="another original, data, space or objective"):
            tune_unlearn("BPR", "tiny", config_dict=small | {"resume": True} | changed)
    (tmp_path / "out" / journal.NAME).write_text('{"sweep": 1}\nnonsense\n')
    with pytest.raises(UnlearnError, match="damaged"):
        tune_unlearn("BPR", "tiny", config_dict=small | {"resume": True})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tune_metric": "NDCG@15"}, "tune_metric=NDCG@15 is not measured"),
        ({"searcher": "grid"}, "Grid search cannot go through the range of lac_learning_rate"),
        ({"searcher": "genetic"}, "searcher='genetic' is not valid"),
        ({"compare": "obliviate_paper"}, "compares with retrain, not with obliviate_paper"),
        ({"unlearn": "retrain", "space": None}, "retrain has no search space"),
        ({"unlearn": "sisa", "space": None}, "sisa trains an original of its own"),
        ({"ray_address": "127.0.0.1:1"}, "Cannot connect to the Ray cluster at 127.0.0.1:1"),
        ({"ray_address": "ray://127.0.0.1:1"}, "not through a Ray client"),
        ({"trials": 0}, "trials=0 is not valid"),
        ({"space": "nowhere.yaml"}, "Cannot read the search space nowhere.yaml"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_trained(small, monkeypatch, capsys, changes, said):
    pytest.importorskip("ray")
    monkeypatch.setattr("recbole_unlearn.pipeline.Pipeline.prepare", lambda *args: pytest.fail("too late"))
    flags = [f"--{key}={value}" for key, value in (small | changes).items() if value is not None]
    assert cli.main(["--model=BPR", "--dataset=tiny", *flags]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("Error: ")
    assert said in error


def test_ray_without_tune(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setitem(sys.modules, "ray.tune", None)
    with pytest.raises(UnlearnError, match=r"Ray Tune is not installed .*recbole-unlearn\[tune\]"):
        backend.check("random", None)


def test_ray_tune_that_does_not_fit_numpy_says_what_to_install(monkeypatch, tmp_path):
    """Plain `pip install` of the wheel brings Ray 2.6 and numpy 2, where `import ray.tune` ends in np.bool8."""
    pytest.importorskip("ray")
    broken = "import numpy\nraise AttributeError(\"module 'numpy' has no attribute 'bool8'.\\nMore.\")\n"
    (tmp_path / "tune.py").write_text(broken)
    monkeypatch.setattr(sys.modules["ray"], "__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "ray.tune", raising=False)
    with pytest.raises(UnlearnError, match="cannot be used here: module 'numpy' has no") as error:
        backend.check("random", None)
    assert 'pip install "recbole==1.2.0" "ray[tune]>=2.40"' in str(error.value)
    assert "\n" not in str(error.value)


def test_searchers_that_are_not_installed(monkeypatch):
    pytest.importorskip("ray.tune")
    monkeypatch.setattr(backend, "is_installed", lambda name: False)
    for name in ("optuna", "hyperopt"):
        with pytest.raises(UnlearnError, match=f"pip install {name}"):
            backend.check(name, None)


def test_a_run_is_not_a_sweep_and_model_based_searchers_have_no_grid(here, small, tmp_path, monkeypatch):
    with pytest.raises(UnlearnError, match="tune_unlearn"):
        run_unlearn("BPR", "tiny", config_dict=small)
    monkeypatch.setattr(backend, "is_installed", lambda name: True)
    (tmp_path / "grid.yaml").write_text("rank: {grid: [2, full]}\n")
    small |= {"space": str(tmp_path / "grid.yaml"), "searcher": "optuna"}
    with pytest.raises(UnlearnError, match=r"optuna draws .* rank: \{choice"):
        tune_unlearn("BPR", "tiny", config_dict=small)


def test_an_interrupt_says_how_many_trials_are_kept(small, monkeypatch, caplog, here):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(backend, "run_trials", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune_unlearn("BPR", "tiny", config_dict=small)
    assert "finished trials are kept (0 trials); continue with --resume" in caplog.text


# The page


def page_result(hostile="x"):
    judge = Goal("ndcg@20", 0.5, 1.0, 0.2, 0.9)
    records = []
    for k in range(30):
        rank = [4, 8, "full", hostile][k % 4]
        report = {
            "settings": {"rank": rank, "lac_steps": 20 + k}, "step": 20 + k, "seconds": 0.1 * k, "work_seconds": 0.3,
            "last": True, **judge.judge(Figures(0.2 + k / 300, 0.2, 0.5 + k / 100)),
        }  # fmt: skip
        record = {"number": k, "settings": report["settings"], "state": "finished", "error": None}
        records.append(record | {"node": "n", "reports": [report]})
    failed = {"number": 30, "settings": {"rank": 4, "lac_steps": 9}, "state": "failed", "error": hostile}
    records.append(failed | {"node": None, "reports": []})
    candidates = [{"trial": r["number"], **r["reports"][0]} for r in records[:-1]]
    figures = judge.judge(Figures(0.2, 0.2, 0.1))
    return {
        "model": "BPR", "dataset": hostile, "method": "obliviate", "seed": 1, "forget": {"interactions": 3},
        "objective": {
            "metric": "ndcg@20", "affected": 0.5, "weight": 1.0, "target": 0.9, "target_source": "expected",
        },
        "space": {"rank": {"choice": [4, 8, "full", hostile]}, "lac_steps": {"int": [20, 60, 1]}},
        "searcher": "random", "scheduler": "none", "original": figures, "retrained": None,
        "best": objective.best(candidates),
        "front": objective.front(candidates), "trials": records, "environment": {},
    }  # fmt: skip


def figures_of(page):
    return [json.loads(html.unescape(found)) for found in re.findall(r'data-figure="([^"]*)"', page)]


def test_the_page_has_the_front_and_the_heat_maps(tmp_path):
    page = write_sweep(page_result(), tmp_path).read_text()
    drawn = figures_of(page)
    assert [figure["data"][0]["type"] for figure in drawn] == ["scatter", "heatmap", "heatmap", "heatmap"]
    for figure in drawn:
        go.Figure(figure)  # plotly refuses what it does not know
    utility, demotion, seconds = (figure["data"][0] for figure in drawn[1:])
    assert utility["y"] == ["4", "8", "full", "x"]
    assert len(utility["x"]) == sweep_page.BINS  # thirty step counts are too many to be told apart
    assert utility["x"][0] == "20 to 24"
    # The cell of rank 4 and the first steps has what the best of trials 0 and 4 has.
    assert demotion["z"][0][0] == pytest.approx(0.54)
    assert seconds["z"][0][0] == pytest.approx(0.4)


def test_the_page_escapes_everything_in_a_sweep(tmp_path):
    hostile = "</script><script>window.hacked=1</script>\"'&<img src=x>"
    page = write_sweep(page_result(hostile), tmp_path).read_text()
    assert hostile not in page
    assert "<img src=x" not in page
    assert "script-src" in page
    assert all("<img" not in json.dumps(figure) for figure in figures_of(page))


def test_a_sweep_of_one_setting_has_no_map(tmp_path):
    result = page_result()
    result["space"] = {"rank": {"choice": [4]}}
    for record in result["trials"]:
        for report in record["reports"]:
            report["step"] = None
    result["objective"]["target"] = None
    assert figures_of(write_sweep(result, tmp_path).read_text()) == []
