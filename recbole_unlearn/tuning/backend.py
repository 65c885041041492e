"""The trials of a sweep on Ray Tune, in both its generations, and their journal, `trials.json`.

Trials get what they share through Ray's object store, once a process. They report plain figures and no checkpoints,
so Ray needs no disk that the nodes share; its own files go to a temporary folder and are removed. Ray's tables, log
files and signal handler are off. (Its record is saved every few seconds, and cannot be resumed with more trials.)

The journal has every trial that has ended, on disk before the next is counted. `--resume` continues from it, so it
has to survive a kill at any moment: each time, the whole file is replaced in one step. It has a digest of all that
the trials have in common; a sweep with another original, other data, another space or another objective is refused,
because its scores would not compare.
"""

import contextlib
import functools
import hashlib
import importlib
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import recbole
import torch
from tqdm import tqdm

from recbole_unlearn import __version__
from recbole_unlearn.cluster import gpu_share, import_ray
from recbole_unlearn.errors import UnlearnError, one_line, reason
from recbole_unlearn.files import write_json
from recbole_unlearn.settings import read_json
from recbole_unlearn.text import decimal
from recbole_unlearn.training import state_digest
from recbole_unlearn.tuning.space import Settings, Space, identity
from recbole_unlearn.tuning.trial import Bench, Shared, run_trial

NAME = "trials.json"
FINISHED, FAILED = "finished", "failed"
WORST = -1e6  # the score that Ray gets for a failed trial; it needs a number
DEATHS = 1  # how often a trial whose process died is tried again

_QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "TUNE_DISABLE_AUTO_CALLBACK_SYNCER": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1", "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600", "TUNE_WARN_THRESHOLD_S": "60", "RAY_AIR_NEW_OUTPUT": "0",
}  # fmt: skip

Record = dict[str, Any]  # number, settings, state, error, node, figures


def sweep_digest(shared: Shared, space: Space) -> str:
    """A digest of everything that a trial's figures depend on, other than its own settings."""
    config, goal = shared.config, shared.goal
    parts = {
        "versions": [__version__, recbole.__version__, torch.__version__],
        "method": shared.method.name,
        "settings": shared.values,
        "space": space.lines,
        "run": [config[key] for key in ("seed", "demotion_negatives", "threads", "device")],
        "objective": [goal.metric, goal.affected, goal.weight, goal.original, goal.target],
        "data": [shared.data.full.digest(), shared.data.retain.digest()],
        "original": state_digest(shared.original.state_dict),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def refuse(directory: Path, resume: bool, address: str | None) -> None:
    """Refuse a sweep that Ray cannot run, that would mix with the one in ``directory``, or has none to resume."""
    import_ray("ray.tune")
    if address is not None and address.startswith("ray://"):
        raise UnlearnError(
            "A sweep is driven from a machine of the cluster, not through a Ray client: start it there with "
            "--ray_address=auto (or HOST:6379)."
        )
    is_there = (directory / NAME).exists()
    if is_there and not resume:
        raise UnlearnError(
            f"{directory} holds a sweep already: continue with --resume, or choose another --output_dir."
        )
    if resume and not is_there:
        raise UnlearnError(f"There is no sweep in {directory} to resume; give the --output_dir of one.")


class Journal:
    """Keeps ended trials in memory and on disk."""

    def __init__(self, directory: Path, sweep: str) -> None:
        """Start a journal in ``directory``, or continue the one there; ``sweep`` is its digest."""
        self.path, self.sweep = directory / NAME, sweep
        self.records: dict[str, Record] = {}  # by the identity of their settings
        self.bar: tqdm | None = None
        if self.path.exists():
            self._read()
        else:
            self._write()
        # Trials that need not be done again; a failed trial is tried again.
        self.known = {name: record for name, record in self.records.items() if record["state"] != FAILED}

    def _read(self) -> None:
        try:
            found = read_json(self.path)
            self.records = {identity(record["settings"]): record for record in found["trials"]}
            sweep = found["sweep"]
        except (ValueError, LookupError, TypeError, UnlearnError) as error:
            raise UnlearnError(f"{self.path} is damaged; choose another --output_dir.") from error
        if sweep != self.sweep:
            raise UnlearnError(
                f"The sweep in {self.path.parent} was made with another original, data, space or objective, so "
                "its figures do not compare. Repeat its command, or choose another --output_dir."
            )

    def _write(self) -> None:
        try:
            write_json(self.path, {"sweep": self.sweep, "trials": [*self.records.values()]})
        except UnlearnError as error:
            raise UnlearnError(f"{error} Finished trials are kept; continue with --resume.") from error

    def ended(
        self, number: int, values: Settings, figures: dict[str, Any] | None, node: str | None, error: str | None
    ) -> None:
        """Keep a trial that has ended."""
        record = {"number": number, "settings": values, "state": FINISHED if figures else FAILED, "error": error}
        self.records[identity(values)] = {**record, "node": node, "figures": figures}
        self._write()
        if self.bar is not None:
            records = self.records.values()
            best = max((record["figures"]["score"] for record in records if record["figures"]), default=None)
            failed = sum(record["state"] == FAILED for record in records)
            self.bar.set_postfix_str(f"best {decimal(best)}" + (f", {failed} failed" if failed else ""))
            self.bar.update()


def run_trials(ray: Any, shared: Shared, listed: Sequence[Settings], journal: Journal) -> None:
    """Run the trials of ``listed`` that the journal does not know; it gets each that ends, and its error ends all."""
    from ray import tune

    configs = importlib.import_module("ray.tune" if hasattr(tune, "RunConfig") else "ray.air")
    driver = _driver(tune, journal, listed)
    at_once = shared.config["workers"] or int(ray.cluster_resources().get("CPU", 1))
    share = {"cpu": 1, "gpu": gpu_share(ray, shared.config["device"].type, at_once)}
    left = [position for position, values in enumerate(listed) if identity(values) not in journal.known]
    with _quiet(), tempfile.TemporaryDirectory(prefix="recbole-unlearn-") as folder:
        tuner = tune.Tuner(
            tune.with_resources(tune.with_parameters(_trainable, reference=[ray.put(shared)], listed=listed), share),
            param_space={"position": tune.grid_search(left)},
            tune_config=tune.TuneConfig(
                metric="score", mode="max", reuse_actors=True, max_concurrent_trials=at_once
            ),
            run_config=configs.RunConfig(
                name="sweep", storage_path=folder, verbose=0, callbacks=[driver], stop=driver,
                failure_config=configs.FailureConfig(max_failures=DEATHS),
            ),
        )  # fmt: skip
        try:
            tuner.fit()
        except (tune.TuneError, ray.exceptions.RayError, RuntimeError, OSError) as error:
            if driver.error is None:
                why = f"Ray Tune stopped: {reason(error)}. Finished trials are kept; continue with --resume."
                raise UnlearnError(why) from error
    if driver.error is not None:
        raise driver.error


def _driver(tune: Any, journal: Journal, listed: Sequence[Settings]) -> Any:
    """A callback and stopper of Ray Tune that calls ``journal``; made here because its base classes are Ray's."""

    class Driver(tune.Callback, tune.Stopper):
        """Passes on the trials that have ended, and stops all when the journal has failed."""

        error: UnlearnError | None = None

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return self.error is not None

        def on_trial_complete(self, trial: Any, died: str | None = None, **info: Any) -> None:
            last, position = trial.last_result, trial.config["position"]
            figures, node, error = last.get("figures"), last.get("node"), last.get("failure", died)
            try:
                if self.error is None:
                    journal.ended(position, listed[position], figures, node, error)
            except UnlearnError as failure:  # Ray would take it for an error of the trial
                self.error = failure

        def on_trial_error(self, trial: Any, **info: Any) -> None:
            self.on_trial_complete(trial, "its process died (out of memory, or a node that was lost)")

        def __getstate__(self) -> dict[str, Any]:
            return {}  # Ray pickles callbacks with its own state, which is never read

    return Driver()


def _trainable(config: dict[str, Any], reference: Any, listed: Sequence[Settings]) -> None:
    from ray import get_runtime_context, tune

    # Ray moved the function in its second generation.
    place = tune if hasattr(tune, "RunConfig") else importlib.import_module("ray.air.session")
    node = get_runtime_context().get_node_id()
    try:
        figures = run_trial(*_received(reference[0]), listed[config["position"]])
        place.report({"score": figures["score"], "figures": figures, "node": node})
    except Exception as error:  # of any kind: the sweep continues, and the table names it
        place.report({"score": WORST, "failure": one_line(error), "node": node})


@functools.lru_cache(maxsize=1)
def _received(reference: Any) -> tuple[Shared, Bench]:
    """The common start of all trials, and the measurement; fetched and made once a process."""
    shared: Shared = importlib.import_module("ray").get(reference)
    importlib.import_module("torch._dynamo")  # optimizers import it in their first step, which would be timed
    return shared, Bench(shared.config, shared.data, shared.goal.metric)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    before, level = dict(os.environ), logging.root.manager.disable
    os.environ.update(_QUIET)
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        for name in _QUIET.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
