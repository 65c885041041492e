"""Ray Tune, in both its generations: it runs trials and passes their reports to the process that drives the sweep.

Trials get what they share through Ray's object store, once a process. They report plain figures and no checkpoints,
so Ray needs no disk that the nodes share; its own files go to a temporary folder and are removed. Ray's tables, log
files and signal handler are off: the sweep has a progress bar and a journal of its own. (Ray's own record of an
experiment is saved every few seconds only, and an experiment that is restored cannot have more trials.)
"""

from __future__ import annotations

import contextlib
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

_QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_SYNCER": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_WARN_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
}


def check(searcher: str, address: str | None) -> None:
    """Refuse a sweep that Ray cannot run, before anything is trained."""
    import_tune()
    if searcher in ("optuna", "hyperopt") and not is_installed(searcher):
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
    """Run the trials ``listed``, or as many as a model-based searcher may suggest.

    Args:
        ray: the module, connected.
        shared: the common start of all trials.
        space: the search space of a searcher.
        listed: the settings of all trials, None to let the searcher suggest them.
        journal: gets every report and every end; an error of it ends the sweep. The reports of trials that it knows
            are passed on again instead of doing the trials again, so that scheduler and searcher know of them.
        options: searcher, scheduler, trials and looks.
        workers: trials at a time; as many as the cluster has CPUs when None.

    """
    from ray import tune

    configs = importlib.import_module("ray.tune" if hasattr(tune, "RunConfig") else "ray.air")
    driver, known = _driver(tune, journal, space, listed), journal.known
    parts = {"reference": [ray.put(shared)], "space": space, "listed": listed, "known": known}
    how: dict[str, Any] = {"metric": "score", "mode": "max", "reuse_actors": True}
    how["max_concurrent_trials"] = workers or int(ray.cluster_resources().get("CPU", 1))
    if listed is None:
        points = [record["settings"] for record in known.values()]
        # With the seed of the first part, a resumed sweep would suggest what that part suggested.
        seed = shared.config["seed"] + len(points)
        how |= {"search_alg": _searcher(options.searcher, seed, points), "num_samples": options.trials}
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


def _searcher(name: str, seed: int, points: list[Settings]) -> Any:
    """A model-based searcher of Ray that begins with ``points``."""
    if name == "optuna":
        from ray.tune.search.optuna import OptunaSearch

        return OptunaSearch(seed=seed, points_to_evaluate=points or None)
    from ray.tune.search.hyperopt import HyperOptSearch

    return HyperOptSearch(random_state_seed=seed, points_to_evaluate=points or None)


def _driver(tune: Any, journal: Journal, space: Space, listed: Sequence[Settings] | None) -> Any:
    """A callback and stopper of Ray Tune that calls ``journal``; made here because its base classes are Ray's."""

    class Driver(tune.Callback, tune.Stopper):
        """Numbers the trials, passes on what they report, and stops all when the journal has failed."""

        error: UnlearnError | None = None

        def __init__(self) -> None:
            self.numbers: dict[str, int] = {}
            self.seen: dict[str, int] = {}
            self.failures: dict[str, str] = {}

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return self.error is not None

        def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
            self.numbers.setdefault(trial.trial_id, trial.config.get("position", len(self.numbers)))
            self.seen[trial.trial_id] = 0

        def on_trial_result(
            self, iteration: int, trials: list, trial: Any, result: dict, **info: Any
        ) -> None:
            name, index = trial.trial_id, result["training_iteration"]
            if "failure" in result:
                self.failures[name] = result["failure"]
            elif "report" in result and index > self.seen[name]:  # Ray repeats the last result at the end
                self.seen[name] = index
                self._tell(journal.reported, self.numbers[name], index - 1, result["report"], result["node"])

        def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
            values = _settings(space, listed, trial.config)
            self._tell(journal.ended, self.numbers[trial.trial_id], values, self.failures.get(trial.trial_id))

        def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
            reason = "its process died (out of memory, or a node that was lost)"
            self.failures.setdefault(trial.trial_id, reason)
            self.on_trial_complete(iteration, trials, trial)

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
    values = _settings(space, listed, config)
    node = importlib.import_module("ray").get_runtime_context().get_node_id()

    def tell(report: Report) -> None:
        _report({"score": report["score"], "report": report, "node": node})

    if identity(values) in known:
        for report in known[identity(values)]["reports"]:
            tell(report)
        return
    try:
        shared, bench = _received(reference[0])
        run_trial(shared, bench, values, tell)
    except Exception as error:  # of any kind: the sweep continues, and the table names it
        _report({"score": WORST, "failure": one_line(error), "node": node})


def _report(values: dict[str, Any]) -> None:
    """Report to the driver; Ray moved the function in its second generation."""
    from ray import tune

    if hasattr(tune, "RunConfig"):
        tune.report(values)
    else:
        from ray.air import session

        session.report(values)


_SHARED: dict[Any, tuple[Shared, Bench]] = {}


def _received(reference: Any) -> tuple[Shared, Bench]:
    """The common start of all trials, and the measurement; fetched and made once a process."""
    if reference not in _SHARED:
        shared = importlib.import_module("ray").get(reference)
        # Torch imports its compiler with the first step of an optimizer: seconds that are not the first trial's work.
        weight = torch.zeros(1, requires_grad=True)
        weight.sum().backward()
        torch.optim.Adam([weight]).step()
        _SHARED.clear()
        _SHARED[reference] = shared, shared.bench()
    return _SHARED[reference]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray Tune without its tables, log files, signal handler and warnings."""
    loggers = [logging.getLogger(name) for name in ("ray", "ray.tune", "ray.train", "optuna", "hyperopt")]
    levels = [logger.level for logger in loggers]
    before = {name: os.environ.get(name) for name in _QUIET}
    os.environ.update(_QUIET)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
