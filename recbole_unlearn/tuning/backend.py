"""Ray Tune, in both its generations: it runs trials and passes their reports to the process that drives the sweep.

Trials get what they share through Ray's object store, once a process. They report plain figures and no checkpoints,
so Ray needs no disk that the nodes share; its own files go to a temporary folder and are removed. Ray's tables, log
files and signal handler are off: the sweep has a progress bar and a journal of its own. (Ray's own record of an
experiment is saved every few seconds only, and an experiment that is restored cannot have more trials.)
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from recbole_unlearn.cluster import import_tune
from recbole_unlearn.errors import UnlearnError, one_line
from recbole_unlearn.settings import TuneSettings
from recbole_unlearn.tuning.journal import Journal, Record
from recbole_unlearn.tuning.space import Settings, Space, identity
from recbole_unlearn.tuning.trial import Bench, Report, Shared, run_trial

WORST = -1e6  # the score that Ray gets for a failed trial; it needs a number
DEATHS = 1  # how often a trial whose process died is tried again
REDUCTION = 2  # ASHA lets one trial in so many continue

# The classes of Ray, and how they call their seed.
_SEARCHERS = {"optuna": ("OptunaSearch", "seed"), "hyperopt": ("HyperOptSearch", "random_state_seed")}
_QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "TUNE_DISABLE_AUTO_CALLBACK_SYNCER": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1", "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600", "TUNE_WARN_THRESHOLD_S": "60", "RAY_AIR_NEW_OUTPUT": "0",
}  # fmt: skip


def check(searcher: str, address: str | None) -> None:
    """Refuse a sweep that Ray cannot run, before anything is trained."""
    import_tune()
    if searcher in _SEARCHERS and not is_installed(searcher):
        raise UnlearnError(
            f"searcher={searcher} needs the package {searcher}: pip install {searcher}, or use --searcher=random."
        )
    if address is not None and address.startswith("ray://"):
        raise UnlearnError(
            "A sweep is driven from a machine of the cluster, not through a Ray client: start it there with "
            "--ray_address=auto (or HOST:6379)."
        )


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def run_trials(
    ray: Any,
    shared: Shared,
    space: Space,
    listed: Sequence[Settings] | None,
    journal: Journal,
    options: TuneSettings,
    workers: int | None,
) -> None:
    """Run the trials ``listed``; None: as many as a model-based searcher may suggest.

    The journal gets every report and every end; an error of it ends the sweep. Trials that it knows are not done
    again: their reports are passed on to scheduler and searcher. ``workers`` None: as many as the cluster has CPUs.
    """
    from ray import tune

    configs = importlib.import_module("ray.tune" if hasattr(tune, "RunConfig") else "ray.air")
    driver, known = _driver(tune, journal, space, listed), journal.known
    parts = {"reference": [ray.put(shared)], "space": space, "listed": listed, "known": known}
    how: dict[str, Any] = {"metric": "score", "mode": "max", "reuse_actors": True}
    how["max_concurrent_trials"] = workers or int(ray.cluster_resources().get("CPU", 1))
    if listed is None:
        points = [record["settings"] for record in known.values()]
        name, seed_key = _SEARCHERS[options.searcher]
        searcher = getattr(importlib.import_module(f"ray.tune.search.{options.searcher}"), name)
        # With the seed of the first part, a resumed sweep would suggest what that part suggested.
        seed = {seed_key: shared.config["seed"] + len(points)}
        how |= {"search_alg": searcher(points_to_evaluate=points or None, **seed), "num_samples": options.trials}
        domains = {key: space.domain(key) for key in space.lines}
    else:
        domains = {"position": tune.grid_search(list(range(len(listed))))}
    if options.scheduler == "asha":
        how["scheduler"] = tune.schedulers.ASHAScheduler(
            max_t=options.tune_looks, grace_period=1, reduction_factor=REDUCTION
        )
    with _quiet(), tempfile.TemporaryDirectory(prefix="recbole-unlearn-") as folder:
        tuner = tune.Tuner(
            tune.with_resources(tune.with_parameters(_trainable, **parts), {"cpu": 1}),
            param_space=domains,
            tune_config=tune.TuneConfig(**how),
            run_config=configs.RunConfig(
                name="sweep", storage_path=folder, verbose=0, callbacks=[driver], stop=driver,
                failure_config=configs.FailureConfig(max_failures=DEATHS),
            ),
        )  # fmt: skip
        try:
            tuner.fit()
        except (tune.TuneError, ray.exceptions.RayError, RuntimeError, OSError) as error:
            if driver.error is None:
                line = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise UnlearnError(
                    f"Ray Tune stopped: {line}. Finished trials are kept; continue with --resume."
                ) from error
    if driver.error is not None:
        raise driver.error


def _driver(tune: Any, journal: Journal, space: Space, listed: Sequence[Settings] | None) -> Any:
    """A callback and stopper of Ray Tune that calls ``journal``; made here because its base classes are Ray's."""

    class Driver(tune.Callback, tune.Stopper):
        """Numbers the trials, passes on what they report, and stops all when the journal has failed."""

        error: UnlearnError | None = None

        def __init__(self) -> None:
            self.numbers: dict[str, int] = {}
            self.failures: dict[str, str] = {}

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return self.error is not None

        def on_trial_start(self, trial: Any, **info: Any) -> None:
            self.numbers.setdefault(trial.trial_id, trial.config.get("position", len(self.numbers)))

        def on_trial_result(self, trial: Any, result: dict, **info: Any) -> None:
            name, index = trial.trial_id, result["training_iteration"]
            if "failure" in result:
                self.failures[name] = result["failure"]
            elif "report" in result:  # Ray repeats the last result at the end, with the same index
                self._tell(journal.reported, self.numbers[name], index, result["report"], result["node"])

        def on_trial_complete(self, trial: Any, **info: Any) -> None:
            values = _settings(space, listed, trial.config)
            self._tell(journal.ended, self.numbers[trial.trial_id], values, self.failures.get(trial.trial_id))

        def on_trial_error(self, trial: Any, **info: Any) -> None:
            self.failures.setdefault(trial.trial_id, "its process died (out of memory, or a node that was lost)")
            self.on_trial_complete(trial)

        def _tell(self, method: Any, *arguments: Any) -> None:
            try:
                if self.error is None:
                    method(*arguments)
            except UnlearnError as error:  # Ray would take it for an error of the trial
                self.error = error

        def __getstate__(self) -> dict[str, Any]:
            return {}  # Ray pickles callbacks with its own state, which is never read

    return Driver()


def _settings(space: Space, listed: Sequence[Settings] | None, config: Mapping[str, Any]) -> Settings:
    """The settings of a trial: its place in the list, or the suggestion of a searcher."""
    return space.plain(config) if listed is None else listed[config["position"]]


def _trainable(
    config: dict[str, Any],
    reference: list[Any],
    space: Space,
    listed: Sequence[Settings] | None,
    known: Mapping[str, Record],
) -> None:
    """One trial in a process of Ray."""
    from ray import get_runtime_context, tune

    # Ray moved the function in its second generation.
    place = tune if hasattr(tune, "RunConfig") else importlib.import_module("ray.air.session")
    values, node = _settings(space, listed, config), get_runtime_context().get_node_id()

    def tell(report: Report) -> None:
        place.report({"score": report["score"], "report": report, "node": node})

    if identity(values) in known:
        for report in known[identity(values)]["reports"]:
            tell(report)
        return
    try:
        run_trial(*_received(reference[0]), values, tell)
    except Exception as error:  # of any kind: the sweep continues, and the table names it
        place.report({"score": WORST, "failure": one_line(error), "node": node})


@functools.lru_cache(maxsize=1)
def _received(reference: Any) -> tuple[Shared, Bench]:
    """The common start of all trials, and the measurement; fetched and made once a process."""
    shared = importlib.import_module("ray").get(reference)
    # Torch imports its compiler with the first step of an optimizer: seconds that are not the first trial's work.
    weight = torch.zeros(1, requires_grad=True)
    weight.sum().backward()
    torch.optim.Adam([weight]).step()
    return shared, shared.bench()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray Tune without its tables, log files, signal handler and warnings."""
    loggers = map(logging.getLogger, ("ray", "ray.tune", "ray.train", "optuna", "hyperopt"))
    levels = {logger: logger.level for logger in loggers}
    before = {name: os.environ[name] for name in _QUIET if name in os.environ}
    os.environ.update(_QUIET)
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name in _QUIET:
            del os.environ[name]
        os.environ.update(before)
        for logger, level in levels.items():
            logger.setLevel(level)
