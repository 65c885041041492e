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

from recbole_unlearn.cluster import import_ray
from recbole_unlearn.errors import UnlearnError, one_line, reason
from recbole_unlearn.settings import TuneSettings
from recbole_unlearn.tuning.journal import Journal, Record
from recbole_unlearn.tuning.objective import Bench
from recbole_unlearn.tuning.space import Settings, Space, identity
from recbole_unlearn.tuning.trial import Report, Shared, run_trial

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
    import_ray("ray.tune")
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

    The journal gets every trial that has ended; an error of it ends the sweep. Trials that it knows are not done
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
                why = f"Ray Tune stopped: {reason(error)}. Finished trials are kept; continue with --resume."
                raise UnlearnError(why) from error
    if driver.error is not None:
        raise driver.error


def _driver(tune: Any, journal: Journal, space: Space, listed: Sequence[Settings] | None) -> Any:
    """A callback and stopper of Ray Tune that calls ``journal``; made here because its base classes are Ray's."""

    class Driver(tune.Callback, tune.Stopper):
        """Passes on the trials that have ended, and stops all when the journal has failed."""

        error: UnlearnError | None = None

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return self.error is not None

        def on_trial_complete(self, trial: Any, died: str | None = None, **info: Any) -> None:
            last, position = trial.last_result, trial.config.get("position")
            reports, node, error = last.get("reports", []), last.get("node"), last.get("failure", died)
            try:
                if self.error is None:
                    journal.ended(position, _settings(space, listed, trial.config), reports, node, error)
            except UnlearnError as failure:  # Ray would take it for an error of the trial
                self.error = failure

        def on_trial_error(self, trial: Any, **info: Any) -> None:
            self.on_trial_complete(trial, "its process died (out of memory, or a node that was lost)")

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
    reports: list[Report] = []

    def tell(report: Report) -> None:
        reports.append(report)
        place.report({"score": report["score"], "reports": reports, "node": node})

    if identity(values) in known:
        for report in known[identity(values)]["reports"]:
            tell(report)
        return
    try:
        run_trial(*_received(reference[0]), values, tell)
    except Exception as error:  # of any kind: the sweep continues, and the table names it
        place.report({"score": WORST, "failure": one_line(error), "reports": reports, "node": node})


@functools.lru_cache(maxsize=1)
def _received(reference: Any) -> tuple[Shared, Bench]:
    """The common start of all trials, and the measurement; fetched and made once a process."""
    shared: Shared = importlib.import_module("ray").get(reference)
    importlib.import_module(
        "torch._dynamo"
    )  # optimizers import it in their first step, for seconds of the first trial
    return shared, Bench(shared.config, shared.data, shared.goal.metric)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray Tune without its tables, log files, signal handler and warnings."""
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
