"""Whole sweeps with their trials in this process, bad input, and the page of a sweep."""

import contextlib
import dataclasses
import errno
import json
import os
from pathlib import Path
from unittest import mock

import pytest
import yaml

from recbole_unlearn import cli, run_unlearn, tune_unlearn
from recbole_unlearn.errors import UnlearnError, one_line
from recbole_unlearn.training import PhaseTrainer, compose
from recbole_unlearn.tuning import Bench, backend, identity, trial, validation_only
from tests.parts import refused


def in_this_process(ray, shared, listed, kept):
    """As `backend.run_trials`, without Ray."""
    bench = Bench(shared.config, shared.data, shared.goal.metric)
    for number, values in enumerate(listed):
        figures, error = None, None
        if identity(values) in kept.known:
            continue
        try:
            figures = trial.run_trial(shared, bench, values)
        except UnlearnError as failure:
            error = one_line(failure)
        kept.ended(number, values, json.loads(json.dumps(figures)), "here", error)


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(backend, "run_trials", in_this_process)
    monkeypatch.setattr("recbole_unlearn.cluster.session", lambda *args: contextlib.nullcontext(True))


def space(text):
    """The path of a search space."""
    path = Path("space.yaml").resolve()
    path.write_text(text)
    return str(path)


@pytest.fixture
def small(settings):
    """Settings of a small sweep of obliviate."""
    text = "rank: {choice: [2, full]}\nlac_steps: {choice: [4, 8]}\nlac_learning_rate: {loguniform: [0.001, 0.1]}\n"
    return settings | {"tune": True, "space": space(text), "trials": 3, "unlearn": "obliviate", "report": "none"}


def sweep(config, model="BPR", **changes):
    return tune_unlearn(model, "tiny", config_dict=config | changes)


def assert_gives(file, candidate, model, own):
    """A run with the settings in ``file`` has the figures for which they were chosen."""
    run = run_unlearn(model, "tiny", config_files=[str(file)], config_dict=own | {"output_dir": "again"})
    trainer = compose(PhaseTrainer, run.config, run.model, "x")
    figures = Bench(run.config, validation_only(run.data), "ndcg@20").measure(trainer)
    chosen = {key: candidate[key] for key in ("everyone", "affected", "demotion")}
    assert {key: round(value, 6) for key, value in dataclasses.asdict(figures).items()} == chosen


def test_a_sweep_and_the_way_back_from_its_settings(here, small, tmp_path):
    outcome = sweep(small, lac_forget=0.5)
    result, out = outcome.result, tmp_path / "out"
    assert result == json.loads((out / "tune.json").read_text())
    assert [record["state"] for record in result["trials"]] == ["finished"] * 3
    assert max(record["figures"]["score"] for record in result["trials"]) == result["best"]["score"]
    # The retrained model is made though nothing asked for it: it is the goal.
    assert (result["objective"]["target"], result["retrained"]["distance"]) == (result["retrained"]["demotion"], 0)
    assert "Best, on validation interactions" in str(outcome)
    assert result["beats_original"] == (result["best"]["score"] > result["original"]["score"])
    assert str(tmp_path) not in json.dumps(result)
    assert result["best"] in result["front"]
    own = {k: v for k, v in small.items() if k not in ("tune", "space", "trials", "unlearn")}
    values = yaml.safe_load((out / "best.yaml").read_text())
    # A setting that was fixed for the sweep belongs to its result.
    assert (values["unlearn"], values["lac_forget"]) == ("obliviate", 0.5)
    assert_gives(out / "best.yaml", result["best"], "BPR", own)


def test_a_sweep_that_is_no_better_than_the_untouched_original_says_so_first(here, small, tmp_path):
    untouched = {"lua_target": "none", "lua_scale": 0.0}  # with no step, the method does nothing
    outcome = sweep(small, space=space("lac_steps: {choice: [0]}"), searcher="grid", **untouched)
    assert outcome.result["best"]["score"] == outcome.result["original"]["score"]
    assert str(outcome).startswith("No trial is better than the untouched original")
    assert "# No trial is better" in (tmp_path / "out" / "best.yaml").read_text()


@pytest.mark.parametrize(
    ("method", "text"),
    [("finetune", "finetune_epochs: {choice: [1, 3]}"), ("obliviate", "lac_steps: {choice: [4, 8]}")],
)
def test_a_sweep_of_a_sequential_model(here, settings, tmp_path, method, text):
    del settings["embedding_size"]
    own = settings | {
        "MAX_ITEM_LIST_LENGTH": 6, "hidden_size": 8, "epochs": 2, "inject_mode": "random",
    }  # fmt: skip
    asked = {"space": space(text), "searcher": "grid", "unlearn": method}
    result = sweep(own, "GRU4Rec", tune=True, **asked).result
    assert [record["state"] for record in result["trials"]] == ["finished"] * 2
    assert (result["objective"]["target"], result["retrained"]["distance"]) == (result["retrained"]["demotion"], 0)
    assert_gives(tmp_path / "out" / "best.yaml", result["best"], "GRU4Rec", own)


def untimed(value):
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if "seconds" not in k}
    return [untimed(v) for v in value] if isinstance(value, list) else value


def test_the_same_seed_gives_the_same_sweep_also_when_it_was_cut_short(here, small, tmp_path, monkeypatch):
    whole = sweep(small).result
    calls, real = [], trial.run_trial
    monkeypatch.setattr(trial, "run_trial", lambda *args: calls.append(args) or real(*args))
    halved = small | {"output_dir": "cut"}
    sweep(halved, trials=2)
    path = tmp_path / "cut" / backend.NAME
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"trials": kept["trials"][:1]}))  # as it was before the second trial
    for _ in range(2):  # the second time, nothing is left to do
        assert untimed(sweep(halved, resume=True).result) == untimed(whole)
        assert len(calls) == 2 + 2  # the first of the trials was not done again


def test_failing_trials_are_named_and_the_others_count(here, small, tmp_path):
    small |= {"searcher": "grid", "lac_batch_size": 64}
    outcome = sweep(small, space=space("lac_learning_rate: {choice: [0.01, 1.0e+30]}\n"))
    assert [record["state"] for record in outcome.result["trials"]] == ["finished", "failed"]
    assert "Trial 1 failed: " in str(outcome)
    assert outcome.result["best"]["trial"] == 0
    small |= {"space": space("lac_learning_rate: {choice: [1.0e+30, 1.0e+31]}\n"), "output_dir": "bad"}
    refused("All 2 trials failed; the first one: ", sweep, small)


def test_a_full_disk_keeps_finished_trials(here, small, tmp_path, monkeypatch):
    real, calls = backend.write_json, []
    no_space = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))

    def full(path, content):
        calls.append(path)
        with monkeypatch.context() as patch:
            if len(calls) == 3 + 1:  # the head, two trials, and then no more
                patch.setattr(os, "fsync", no_space)
            real(path, content)

    monkeypatch.setattr(backend, "write_json", full)
    refused(r"No space left on device.*Finished trials are kept.*--resume", sweep, small)
    assert len(json.loads((tmp_path / "out" / backend.NAME).read_text())["trials"]) == 2
    assert len(sweep(small, resume=True).result["trials"]) == 3


def test_a_sweep_is_not_mixed_with_another(here, small, tmp_path):
    refused(r"no sweep in .* to resume", sweep, small, resume=True)
    sweep(small, trials=1)
    refused("holds a sweep already", sweep, small)
    for changed in ({"tune_weight": 2.0}, {"epochs": 3}, {"lac_batch_size": 64}):
        refused("another original, data, space or objective", sweep, small, resume=True, **changed)
    (tmp_path / "out" / backend.NAME).write_text('{"sweep": 1}\nnonsense\n')
    refused("damaged", sweep, small, resume=True)
    refused("tune_unlearn", run_unlearn, "BPR", "tiny", config_dict=small)


@pytest.mark.parametrize(("changes", "said"), [
    ({"tune_metric": "NDCG@15"}, "tune_metric=NDCG@15 is not measured"),
    ({"searcher": "grid"}, "Grid search cannot go through the range of lac_learning_rate"),
    ({"compare": "obliviate_paper"}, "compares with retrain, not with obliviate_paper"),
    ({"unlearn": "retrain", "space": None}, "retrain has no search space of its own"),
    ({"unlearn": "sisa", "space": None}, "sisa trains an original of its own"),
    ({"ray_address": "127.0.0.1:1"}, "Cannot connect to the Ray cluster at 127.0.0.1:1"),
    ({"ray_address": "ray://127.0.0.1:1"}, "not through a Ray client"),
    ({"space": "nowhere.yaml"}, "Cannot read the search space nowhere.yaml"),
    ({"space": "oblivate"}, "neither a file here nor one of"),
])  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_trained(small, tmp_path, monkeypatch, capsys, changes, said):
    monkeypatch.setattr("recbole_unlearn.pipeline.Pipeline.prepare", lambda *args: pytest.fail("too late"))
    flags = [f"--{key}={value}" for key, value in (small | changes).items() if value is not None]
    assert cli.main(["--model=BPR", "--dataset=tiny", *flags]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("Error: ")
    assert said in error
