"""Work on Ray: shards, cells of a grid and sweeps, here and on two nodes, and its failures.

Ray takes seconds to start, and its workers seconds to import torch: it is started once for all tests of this file.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from unittest import mock

import pytest
import ray
import torch
import yaml

from recbole_unlearn import cluster, run_grid, run_unlearn, tune_unlearn
from recbole_unlearn.cluster import Workers
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.grid import run as grid_run
from recbole_unlearn.methods import method
from recbole_unlearn.methods.obliviate import Obliviate
from recbole_unlearn.registry import METHODS
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.tuning import backend
from tests.conftest import ROOT
from tests.grid.test_grid import file, write
from tests.grid.test_grid import small as small_grid
from tests.parts import refused, same
from tests.test_cluster import Unreadable, all_done, dies, refuses, square, threads
from tests.tuning.test_sweep import in_this_process, small, space, untimed

__all__ = ["file", "small", "small_grid", "space"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def one_ray(tmp_path_factory):
    """No other process of the test suite has a Ray at the same time."""
    base = tmp_path_factory.getbasetemp()
    with open((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ray.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def two_workers(one_ray):
    """Ray on this machine for all tests of this file that do not start their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # its workers import tests/test_cluster.py
        with cluster.session(None, 2) as started:
            yield started


def test_independent_work(two_workers, settings, tmp_path, monkeypatch):
    config = settings | {"sisa_shards": 3, "epochs": 2, "report": "none", "cache": False}
    here = run_unlearn("BPR", "tiny", unlearn="sisa", config_dict=config | {"workers": 1})
    with cluster.session(cpus=2):
        assert all_done(Workers(2), square, [(2,), (3,)]) == {0: 4, 1: 9}
        found = all_done(Workers(2), threads, [(1,), (2,)])
        assert all(number == torch.get_num_threads() and pid != os.getpid() for number, pid in found.values())
        refused(r"^no 1$", all_done, Workers(2), refuses, [(1,), (1,)])
        refused("every node", all_done, Workers(2), square, [(Unreadable(),), (1,)])
        config |= {"workers": 2, "output_dir": str(tmp_path / "ray")}
        there = run_unlearn("BPR", "tiny", unlearn="sisa", config_dict=config)
        monkeypatch.setattr(cluster, "RETRIES", 0)
        refused("worker died", all_done, Workers(2), dies, [(1,), (1,)])
    assert ray.is_initialized()  # one that was there before is left running
    assert same(here.model.state_dict(), there.model.state_dict())


def test_a_grid(two_workers, small_grid, tmp_path, monkeypatch):
    path, given = small_grid
    run_grid(path, config_dict=given | {"output_dir": str(tmp_path / "here")})
    write(path, yaml.safe_load(path.read_text()) | {"seeds": [1, 2, 3]})

    def fragile(cell):  # local, so that Ray carries it to its workers by value
        if cell.seed == 3:
            os._exit(3)
        from recbole_unlearn.grid import run_cell

        return run_cell(cell)

    monkeypatch.setattr(grid_run, "run_cell", fragile)
    monkeypatch.setattr(cluster, "RETRIES", 0)
    relative = {"data_path": os.path.relpath(given["data_path"]), "cache_dir": "cache-of-workers"}
    result = run_grid(path, config_dict=given | relative | {"workers": 2})
    assert list(result.failed) == ["tiny-BPR-0.2-3"]
    assert "worker died" in result.failed["tiny-BPR-0.2-3"]
    for name in ("tiny-BPR-0.2-1", "tiny-BPR-0.2-2"):
        paths = (tmp_path / folder / name / "result.json" for folder in ("here", "grid"))
        here, there = (json.loads(path.read_text()) for path in paths)
        for phase in here["phases"]:
            assert here["phases"][phase]["metrics"] == there["phases"][phase]["metrics"]
        assert here["settings"] == there["settings"]
    assert list((tmp_path / "cache-of-workers").glob("*.pt"))
    assert ray.is_initialized()


def test_a_sweep_goes_on_after_a_kill(two_workers, small, tmp_path, monkeypatch):
    """A sweep in a process of its own is killed; the rest is done here, and equals a sweep without Ray or kill."""
    values = small | {"trials": 60, "output_dir": str(tmp_path / "killed")}
    flags = [f"--{key}={value}" for key, value in values.items()]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run_unlearn.py"), "--model=BPR", "--dataset=tiny", *flags],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    path = tmp_path / "killed" / backend.NAME
    try:
        deadline = time.monotonic() + 120
        while not path.exists() or len(json.loads(path.read_text())["trials"]) < 3:
            assert process.poll() is None, process.communicate()[0][-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = json.loads(path.read_text())["trials"]
    assert 3 <= len(done) < 60
    number = len(done) + 4
    rest = values | {"trials": number, "resume": True, "workers": 2}
    resumed = tune_unlearn("BPR", "tiny", config_dict=rest).result
    assert all(record in resumed["trials"] for record in done)  # times too: nothing was done twice
    monkeypatch.setattr(backend, "run_trials", in_this_process)
    whole = tune_unlearn("BPR", "tiny", config_dict=values | {"trials": number, "output_dir": "here", "workers": 2})
    there, here = ([{**one, "node": None} for one in untimed(found["trials"])] for found in (resumed, whole.result))
    assert (there, untimed(resumed["best"])) == (here, untimed(whole.result["best"]))


def test_trials_that_fail_and_trials_that_die(two_workers, small, tmp_path, monkeypatch):
    class Fragile(Obliviate):  # local, so that Ray carries it to its workers by value
        """Leaves the original as it is, or does worse."""

        def unlearn(self, task):
            if task.settings.lac_steps == 2:
                raise ZeroDivisionError("by accident\nand a long story")
            if task.settings.lac_steps == 1:
                os._exit(3)

    monkeypatch.setattr(METHODS, "entries", {known.name: known for known in METHODS.all()})
    method("fragile", "Fail.", Obliviate.Settings)(Fragile)
    values = UnlearnConfig("BPR", "tiny").method_values("obliviate")
    monkeypatch.setattr(UnlearnConfig, "method_values", lambda self, name: values)
    file = tmp_path / "fragile.yaml"
    file.write_text("lac_steps: {choice: [1, 2, 3]}\n")
    asked = small | {"unlearn": "fragile", "space": str(file), "searcher": "grid", "workers": 2}
    outcome = tune_unlearn("BPR", "tiny", config_dict=asked)
    died, failed, good = outcome.result["trials"]
    assert (died["state"], failed["state"], good["state"]) == ("failed", "failed", "finished")
    assert "its process died" in died["error"]
    assert failed["error"] == "ZeroDivisionError: by accident"
    for line in ("Trial 0 failed: its process died", "Trial 1 failed: ZeroDivisionError: by accident"):
        assert line in str(outcome)


def test_a_listener_that_fails_ends_the_sweep(two_workers, small, tmp_path, monkeypatch):
    full = mock.Mock(side_effect=UnlearnError("Cannot write trials.json: No space left on device."))
    monkeypatch.setattr(backend.Journal, "ended", full)
    refused("No space left", tune_unlearn, "BPR", "tiny", config_dict=small | {"workers": 2})
    assert not (tmp_path / "out" / "tune.json").exists()


def test_a_cluster_of_two_nodes(one_ray, small, small_grid, settings, monkeypatch):
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
    grid, given = small_grid
    write(grid, yaml.safe_load(grid.read_text()) | {"seeds": [1, 2, 3, 4]})
    shards = settings | {"sisa_shards": 6, "report": "none"}
    ray.shutdown()  # the Ray of the other tests
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        nodes.add_node(num_cpus=1)
        there = {"ray_address": nodes.address}
        found = tune_unlearn("BPR", "tiny", config_dict=small | there | {"trials": 8}).result
        assert not ray.is_initialized()  # the connection was the sweep's own
        with cluster.session(nodes.address):
            cells = run_grid(grid, config_dict=given | there | {"workers": None})
            of_cells, places = set(places), []
            run_unlearn("BPR", "tiny", unlearn="sisa", config_dict=shards | there)
            monkeypatch.setattr(cluster, "_outcome", outcome)

            class Here:  # local, so that Ray carries it to its workers by value
                def __init__(self, number):
                    self.number = number

                def node(self, shared, own):
                    return ray.get_runtime_context().get_node_id(), shared + own + self.number

            with cluster.held(Here, lambda n: [(k,) for k in range(n)], nodes.address) as call:
                of_objects = call("node", [10], [100, 200])
            far = run_unlearn("BPR", "tiny", unlearn="rebuild", config_dict=settings | there | {"report": "none"})
    finally:
        ray.shutdown()
        nodes.shutdown()
    near = run_unlearn("BPR", "tiny", unlearn="rebuild", config_dict=settings | {"report": "none"})
    assert same(near.model.state_dict(), far.model.state_dict())
    assert [number for _, number in of_objects] == [110, 211]
    assert len({node for node, _ in of_objects}) == 2
    assert [record["state"] for record in found["trials"]] == ["finished"] * 8
    assert not cells.failed
    assert len({record["node"] for record in found["trials"]}) == len(of_cells) == len(set(places)) == 2
