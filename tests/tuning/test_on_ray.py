"""Sweeps on Ray: the same figures as without it, failing and dying trials, a kill, searchers, two nodes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from recbole_unlearn import cluster, run_grid, run_unlearn, tune_unlearn
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.methods.obliviate.method import Obliviate
from recbole_unlearn.methods.registry import method
from recbole_unlearn.settings import catalogue
from recbole_unlearn.settings.config import UnlearnConfig
from recbole_unlearn.tuning import backend, journal
from tests.conftest import ROOT
from tests.tuning.test_sweep import in_this_process, small, untimed

ray = pytest.importorskip("ray")
pytest.importorskip("ray.tune")
__all__ = ["small"]


@pytest.fixture(scope="module")
def two_workers():
    """Ray on this machine for all sweeps of this file that do not start their own."""
    with cluster.session(None, 2) as started:
        yield started


def without_nodes(result):
    return [{k: v for k, v in record.items() if k != "node"} for record in untimed(result["trials"])]


@pytest.mark.slow
def test_ray_changes_nothing_and_a_sweep_goes_on_after_a_kill(two_workers, small, tmp_path, monkeypatch):
    """A sweep in a process of its own is killed; the rest is done here, and equals a sweep without Ray or kill."""
    values = small | {"trials": 60, "output_dir": str(tmp_path / "killed")}
    flags = [f"--{key}={value}" for key, value in values.items()]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run_unlearn.py"), "--model=BPR", "--dataset=tiny", *flags],
        env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    path = tmp_path / "killed" / journal.NAME
    try:
        deadline = time.monotonic() + 120
        while not path.exists() or len(path.read_bytes().splitlines()) < 4:
            assert process.poll() is None, process.communicate()[0][-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = [json.loads(line) for line in path.read_text().rpartition("\n")[0].splitlines()][1:]
    assert 3 <= len(done) < 60
    number = len(done) + 4
    resumed = tune_unlearn(
        "BPR", "tiny", config_dict=values | {"trials": number, "resume": True, "workers": 2}
    ).result
    kept = {json.dumps(record, sort_keys=True) for record in resumed["trials"]}
    assert {
        json.dumps(record, sort_keys=True) for record in done
    } <= kept  # times too: nothing was done twice
    monkeypatch.setattr(backend, "sweep", in_this_process)
    whole = tune_unlearn(
        "BPR", "tiny", config_dict=values | {"trials": number, "output_dir": "here", "workers": 2}
    )
    assert without_nodes(resumed) == without_nodes(whole.result)
    assert untimed(resumed["best"]) == untimed(whole.result["best"])


@pytest.mark.slow
def test_trials_that_fail_and_trials_that_die(two_workers, small, tmp_path, monkeypatch):
    class Fragile(Obliviate):  # local, so that Ray carries it to its workers by value
        """Leaves the original as it is, or does worse."""

        def unlearn(self, task):
            if task.settings.lac_steps == 2:
                raise ZeroDivisionError("by accident\nand a long story")
            if task.settings.lac_steps == 1:
                os._exit(3)

        @classmethod
        def steps(cls, settings):
            return 0

    monkeypatch.setattr(catalogue, "_METHODS", {known.name: known for known in catalogue.methods()})
    method("fragile", "Fail.", Obliviate.Settings)(Fragile)
    values = UnlearnConfig("BPR", "tiny").method_values("obliviate")
    monkeypatch.setattr(UnlearnConfig, "method_values", lambda self, name: values)
    file = tmp_path / "fragile.yaml"
    file.write_text("lac_steps: {grid: [1, 2, 3]}\n")
    asked = small | {"unlearn": "fragile", "space": str(file), "searcher": "grid", "workers": 2}
    outcome = tune_unlearn("BPR", "tiny", config_dict=asked)
    died, failed, good = outcome.result["trials"]
    assert (died["state"], failed["state"], good["state"]) == ("failed", "failed", "finished")
    assert "its process died" in died["error"]
    assert failed["error"] == "ZeroDivisionError: by accident"
    assert good["reports"][0]["step"] is None  # a method without steps is measured once
    for line in ("Trial 0 failed: its process died", "Trial 1 failed: ZeroDivisionError: by accident"):
        assert line in str(outcome)


@pytest.mark.slow
def test_searchers_and_asha(two_workers, small):
    """Optuna (where it is installed) suggests and ASHA stops; going on with more trials repeats none of them."""
    searcher = "optuna" if backend._installed("optuna") else "random"
    values = small | {"searcher": searcher, "scheduler": "asha", "trials": 5, "workers": 2}
    first = tune_unlearn("BPR", "tiny", config_dict=values).result
    second = tune_unlearn("BPR", "tiny", config_dict=values | {"trials": 7, "resume": True}).result
    assert 1 <= len(first["trials"]) <= 5
    assert {record["state"] for record in first["trials"]} == {"finished", "stopped"}
    for record in first["trials"]:
        assert record["reports"][-1]["last"] == (record["state"] == "finished")
        assert record in second["trials"]
    assert len(second["trials"]) > len(first["trials"])


@pytest.mark.slow
def test_a_listener_that_fails_ends_the_sweep(two_workers, small, tmp_path, monkeypatch):
    def full(self, content):
        raise UnlearnError("Cannot write trials.jsonl: No space left on device.")

    monkeypatch.setattr(journal.Journal, "add", full)
    with pytest.raises(UnlearnError, match="No space left"):
        tune_unlearn("BPR", "tiny", config_dict=small | {"workers": 2})
    assert not (tmp_path / "out" / "tune.json").exists()


@pytest.mark.slow
def test_a_cluster_of_two_nodes(small, settings, tmp_path, monkeypatch):
    """Trials of a sweep, cells of a grid and shards of an ensemble are done on both nodes."""
    from ray.cluster_utils import Cluster

    places = []
    work, outcome = cluster._with_threads, cluster._outcome

    def placed(*arguments):  # local, so that Ray carries it to its workers by value
        return ray.get_runtime_context().get_node_id(), work(*arguments)

    def noted(module, task):
        node, result = outcome(module, task)
        places.append(node)
        return result

    monkeypatch.setattr(cluster, "_with_threads", placed)
    monkeypatch.setattr(cluster, "_outcome", noted)
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        "{datasets: [tiny], models: [BPR], methods: [retrain, finetune], seeds: [1, 2, 3, 4], ratios: [0.2], "
        "settings: {inject_mode: random, report: none}}"
    )
    given = {k: v for k, v in settings.items() if k not in ("checkpoint_dir", "tensorboard")}
    shards = settings | {"sisa_shards": 6, "report": "none"}
    ray.shutdown()  # the Ray of the other tests
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        nodes.add_node(num_cpus=1)
        there = {"ray_address": nodes.address}
        found = tune_unlearn("BPR", "tiny", config_dict=small | there | {"trials": 8}).result
        with cluster.session(nodes.address):
            cells = run_grid(grid, config_dict=given | there | {"output_dir": str(tmp_path / "grid")})
            of_cells, places = set(places), []
            run_unlearn("BPR", "tiny", unlearn="sisa", config_dict=shards | there)
    finally:
        ray.shutdown()
        nodes.shutdown()
    assert [record["state"] for record in found["trials"]] == ["finished"] * 8
    assert not cells.failed
    assert len({record["node"] for record in found["trials"]}) == len(of_cells) == len(set(places)) == 2
