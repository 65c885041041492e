"""Trackers: what W&B and MLflow are sent, what they are not, and what happens without them."""

import re
import sys
import types
from unittest import mock

import pytest

from recbole_unlearn import UnlearnError, cli, run_unlearn, tune_unlearn
from recbole_unlearn.results import trackers
from tests.parts import refused


@pytest.fixture
def wandb(monkeypatch):
    """As much of wandb as is called: ``run`` is the open run, ``summary`` what it was sent."""
    module = mock.MagicMock(run=None, summary={})
    module.init.side_effect = lambda **given: module.configure_mock(run=module)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def mlflow(monkeypatch):
    """As much of mlflow as is called, with its limits on names and on the number of parameters."""
    module = mock.MagicMock(params={}, metrics={}, **{"active_run.return_value": None})

    def log_params(params):
        assert len(params) <= 100
        module.params.update(params)

    def log_metrics(metrics):
        assert all(re.fullmatch(r"[\w\-. /]+", key) for key in metrics)
        module.metrics.update(metrics)

    module.log_params, module.log_metrics = log_params, log_metrics
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return module


def run(settings, forget=None, compare=None, **changes):
    quick = {"epochs": 2, "eval_step": 1, "finetune_epochs": 1}
    values = settings | quick | {"report": "none", "inject_mode": "random", **changes}
    return run_unlearn("BPR", "tiny", forget=forget, unlearn="finetune", compare=compare, config_dict=values)


def test_both_get_settings_and_figures_of_each_phase(settings, wandb, mlflow, tmp_path):
    own = {"log_wandb": True, "wandb_project": "mine", "log_mlflow": True, "inject_users": 0.5}
    outcome = run(settings, compare="retrain", **own)
    (started,) = (call.kwargs for call in wandb.init.call_args_list)
    assert (started["project"], started["config"]["learning_rate"]) == ("mine", 0.01)
    mlflow.start_run.assert_called_once_with(run_name="finetune BPR tiny")
    assert (mlflow.params["learning_rate"], mlflow.params["model"]) == ("0.01", "BPR")
    sent = [*started["config"].values(), *mlflow.params.values()]
    assert not [value for value in sent if str(tmp_path) in str(value)]
    phases, level = outcome.result["phases"], outcome.result["verdict"]["level"]
    for name, value in {
        "unlearned/ndcg@20": phases["unlearned"]["metrics"]["ndcg@20"],
        "retrained/affected/ndcg@20": phases["retrained"]["affected"]["ndcg@20"],
        "original/demotion_rate": phases["original"]["forgetting"]["demotion_rate"],
        "unlearned/demotion_gap/mean": phases["unlearned"]["forgetting"]["demotion_gap"]["mean"],
        "unlearned/attack/auc": phases["unlearned"]["forgetting"]["attack"]["auc"],
        "unlearned/seconds": phases["unlearned"]["seconds"],
    }.items():
        assert wandb.summary[name] == mlflow.metrics[name.replace("@", "_at_")] == value
    assert {"unlearned/attack/tpr_at_1_fpr", "unlearned/seconds"} <= set(mlflow.metrics)
    assert wandb.summary["verdict"] == level
    mlflow.set_tag.assert_called_once_with("verdict", level)
    wandb.log.assert_not_called()  # RecBole sends figures of every evaluation
    wandb.finish.assert_called_once_with(exit_code=0)
    mlflow.end_run.assert_called_once_with("FINISHED")


def test_small_requests_are_sent_as_result_json_has_them(settings, wandb, mlflow):
    own = {"min_group": 10, "log_wandb": True, "log_mlflow": True, "cache": False}
    outcome = run(settings, forget={"user_id": ["u1"]}, compare="retrain", **own)
    wandb.log.assert_not_called()
    assert not [key for key in {**wandb.summary, **mlflow.metrics} if "affected" in key or "attack" in key]
    assert wandb.summary["original/demotion_rate"] in (0.0, 0.5, 1.0)
    assert wandb.summary == trackers.figures(outcome.record) | {"verdict": outcome.result["verdict"]["level"]}


def test_a_run_of_the_users_is_used_and_left_open_and_a_late_failure_loses_nothing(
    settings, wandb, mlflow, tmp_path, monkeypatch, caplog
):
    fail = mock.Mock(side_effect=ConnectionError("no route to host\nmore"))
    wandb.run, mlflow.active_run.return_value = wandb, "mine"
    monkeypatch.setattr(mlflow, "log_metrics", fail)
    run(settings, log_wandb=True, log_mlflow=True)
    for call in (wandb.init, wandb.finish, mlflow.start_run, mlflow.end_run):
        call.assert_not_called()
    assert "unlearned/ndcg@20" in wandb.summary
    assert (tmp_path / "out" / "result.json").exists()
    assert "The figures are not in MLflow: ConnectionError: no route to host." in caplog.messages


def test_a_failed_run_is_closed_as_failed(settings, wandb, mlflow):
    refused("", run, settings, forget={"user_id": ["unknown"]}, log_wandb=True, log_mlflow=True)
    wandb.finish.assert_called_once_with(exit_code=1)
    mlflow.end_run.assert_called_once_with("FAILED")


@pytest.mark.parametrize("key", ["log_wandb", "log_mlflow"])
def test_a_missing_package_is_one_line_before_anything_is_done(flags, tmp_path, monkeypatch, capsys, key):
    package = key.removeprefix("log_")
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(["--model=BPR", "--dataset=tiny", f"--{key}", *flags()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"pip install {package}" in line
    assert f"leave --{key} out" in line
    assert not (tmp_path / "out").exists()


def test_a_folder_named_wandb_is_no_package(make_config, monkeypatch):
    """W&B leaves a folder of its name where it ran, and Python imports it as an empty package."""
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    refused("pip install wandb", trackers.asked, make_config(log_wandb=True))


def test_a_tracker_that_cannot_start_is_refused_before_training(settings, wandb):
    wandb.init.side_effect = RuntimeError("api_key not configured (no-tty). call wandb.login(key=[your_api_key])")
    refused(r"api_key not.*WANDB_MODE=offline, or leave --log_wandb out", run, settings, log_wandb=True)


def test_a_sweep_logs_no_run(settings, wandb):
    with pytest.raises(UnlearnError, match="leave --log_wandb out"):
        tune_unlearn("BPR", "tiny", config_dict=settings | {"log_wandb": True, "unlearn": "finetune"})
