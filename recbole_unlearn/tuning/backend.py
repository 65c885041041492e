"""All that knows Ray Tune, in both its generations: it runs trials and passes their reports to the driver.

Trials get what they share through Ray's object store, once a process. They report plain figures and no checkpoints,
so Ray needs no disk that the nodes share; its own files go to a temporary folder and are removed. Ray's noise (its
tables, log files and signal handler) is off: the driver has a progress bar and a journal of its own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from recbole_unlearn.cluster import import_tune
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.settings import TuneSettings
from recbole_unlearn.tuning.space import Domain, Range, Settings, Space, Whole, identity
from recbole_unlearn.tuning.trial import Report, run_trial

WORST = -1e6  # the score that Ray gets for a failed trial; it needs a number
DEATHS = 1  # how often a trial whose process died is tried again
REDUCTION = 2  # ASHA lets one trial in so many continue

_QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_SYNCER": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # our journal is what a sweep resumes from
    "TUNE_WARN_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
}


class Listener(Protocol):
    """Who gets the reports of trials, in the process that drives them. An error of its own ends the sweep."""

    def reported(self, number: int, settings: Settings, index: int, report: Report, node: str) -> None:
        """The ``index``-th report of a trial has come; it comes again when its process died and it started again."""

    def ended(self, number: int, settings: Settings, error: str | None) -> None:
        """A trial has ended: by itself, stopped by the scheduler, or with an ``error``."""


def check(searcher: str, address: str | None) -> None:
    """Refuse what cannot work before anything is trained."""
    import_tune()
    if searcher in ("optuna", "hyperopt") and not _installed(searcher):
        raise UnlearnError(
            f"searcher={searcher} needs the package {searcher}: pip install {searcher}, or use --searcher=random."
        )
    if address is not None and address.startswith("ray://"):
        raise UnlearnError(
            "A sweep is driven from a machine of the cluster, not through a Ray client: start it there with "
            "--ray_address=auto (or HOST:6379)."
        )


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def sweep(
    ray: Any,
    shared: Any,
    space: Space,
    listed: Sequence[Settings] | None,
    known: Mapping[str, Mapping[str, Any]],
    listener: Listener,
    options: TuneSettings,
    workers: int | None,
) -> None:
    """Run the trials ``listed``, or as many as a model-based searcher may suggest.

    Args:
        ray: the module, connected.
        shared: a :class:`~recbole_unlearn.tuning.trial.Shared`.
        space: what a searcher searches.
        listed: the settings of all trials, None to let the searcher suggest them.
        known: records of trials that were done before, by the identity of their settings. Their reports are
            passed on again instead of doing the trials again, so that scheduler and searcher know of them.
        listener: gets every report and every end.
        options: searcher, scheduler, trials and looks.
        workers: trials at a time; as many as the cluster has CPUs when None.

    """
    from ray import tune

    configs = importlib.import_module("ray.tune" if hasattr(tune, "RunConfig") else "ray.air")
    driver = _driver(tune, listener, space, listed)
    parts = {"reference": [ray.put(shared)], "space": space, "listed": listed, "known": dict(known)}
    how: dict[str, Any] = {"metric": "score", "mode": "max", "reuse_actors": True}
    how["max_concurrent_trials"] = workers or int(ray.cluster_resources().get("CPU", 1))
    if listed is None:
        points = [
            _encoded(space, record["settings"])
            for record in known.values()
            if space.holds(record["settings"])
        ]
        # With the seed of the first part, a resumed sweep would suggest what that part suggested.
        seed = shared.config["seed"] + len(points)
        how |= {"search_alg": _searcher(options.searcher, seed, points), "num_samples": options.trials}
        parameters = {key: _ray_domain(tune, domain) for key, domain in space.domains.items()}
    else:
        parameters = {"position": tune.grid_search(list(range(len(listed))))}
    if options.scheduler == "asha":
        how["scheduler"] = tune.schedulers.ASHAScheduler(
            max_t=options.tune_looks, grace_period=1, reduction_factor=REDUCTION
        )
    with _quiet(), tempfile.TemporaryDirectory(prefix="recbole-unlearn-") as folder:
        tuner = tune.Tuner(
            tune.with_resources(tune.with_parameters(_trainable, **parts), {"cpu": 1}),
            param_space=parameters,
            tune_config=tune.TuneConfig(**how),
            run_config=configs.RunConfig(
                name="sweep", storage_path=folder, verbose=0, callbacks=[driver], stop=driver.stopper,
                failure_config=configs.FailureConfig(max_failures=DEATHS),
            ),
        )  # fmt: skip
        _fit(ray, tuner, driver)


def _fit(ray: Any, tuner: Any, driver: Any) -> None:
    """Run a tuner to its end. If the listener failed, its error is raised, whatever Ray makes of it."""
    try:
        tuner.fit()
    except (ray.tune.TuneError, ray.exceptions.RayError, RuntimeError, OSError) as error:
        if driver.error is None:
            line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UnlearnError(
                f"Ray Tune stopped: {line}. Finished trials are kept; continue with --resume."
            ) from error
    if driver.error is not None:
        raise driver.error


def _trainable(
    config: dict[str, Any],
    reference: list[Any],
    space: Space,
    listed: Sequence[Settings] | None,
    known: Mapping[str, Mapping[str, Any]],
) -> None:
    """What Ray runs in a process of its own."""
    values = listed[config["position"]] if listed is not None else _decoded(space, config)
    node = _ray().get_runtime_context().get_node_id()

    def tell(report: Report) -> None:
        _report({"score": report["score"], "report": report, "node": node})

    if identity(values) in known:
        for report in known[identity(values)]["reports"]:
            tell(report)
        return
    try:
        shared, bench = _received(reference[0])
        run_trial(shared, bench, values, tell)
    except Exception as error:  # whatever a method raises: the sweep continues, and the table names it
        _report({"score": WORST, "failure": _one_line(error), "node": node})


_SHARED: dict[Any, Any] = {}


def _received(reference: Any) -> tuple[Any, Any]:
    """What all trials share, with what measures it; fetched and made once a process."""
    if reference not in _SHARED:
        shared = _ray().get(reference)
        _import_everything()
        _SHARED.clear()
        _SHARED[reference] = shared, shared.bench()
    return _SHARED[reference]


def _import_everything() -> None:
    """Torch imports its compiler with the first step of an optimizer: seconds that are not the first trial's work."""
    weight = torch.zeros(1, requires_grad=True)
    weight.sum().backward()
    torch.optim.Adam([weight]).step()


def _ray() -> Any:
    return importlib.import_module("ray")


def _report(values: dict[str, Any]) -> None:
    """Report to the driver; Ray moved the function in its second generation."""
    from ray import tune

    if hasattr(tune, "RunConfig"):
        tune.report(values)
    else:
        from ray.air import session

        session.report(values)


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    first = text[0] if text else ""
    return (
        first
        if isinstance(error, UnlearnError) and first
        else f"{type(error).__name__}: {first}".rstrip(": ")
    )


def _driver(tune: Any, listener: Listener, space: Space, listed: Sequence[Settings] | None) -> Any:
    """A callback of Ray Tune that calls ``listener``; made here because its base class is Ray's."""

    class Stopper(tune.Stopper):
        """Ends everything once the listener has failed."""

        driver: Any = None

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return self.driver is not None and self.driver.error is not None

        def __getstate__(self) -> dict[str, Any]:
            return {}

    class Driver(tune.Callback):
        """Numbers the trials, and passes on what they report."""

        def __init__(self) -> None:
            self.error: UnlearnError | None = None
            self.numbers: dict[str, int] = {}
            self.seen: dict[str, int] = {}
            self.failures: dict[str, str] = {}
            self.stopper = Stopper()
            self.stopper.driver = self

        def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
            self.numbers.setdefault(trial.trial_id, trial.config.get("position", len(self.numbers)))
            self.seen[trial.trial_id] = 0

        def on_trial_result(
            self, iteration: int, trials: list, trial: Any, result: dict, **info: Any
        ) -> None:
            if "failure" in result:
                self.failures[trial.trial_id] = result["failure"]
            # Ray repeats the last result when a trial is done.
            elif "report" in result and result["training_iteration"] > self.seen[trial.trial_id]:
                index = self.seen[trial.trial_id] = result["training_iteration"]
                self._tell("reported", trial, index - 1, result["report"], result["node"])

        def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
            self._tell("ended", trial, self.failures.get(trial.trial_id))

        def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
            reason = "its process died (out of memory, or a node that was lost)"
            self._tell("ended", trial, self.failures.get(trial.trial_id, reason))

        def _tell(self, what: str, trial: Any, *rest: Any) -> None:
            if self.error is not None:
                return
            values = listed[trial.config["position"]] if listed is not None else _decoded(space, trial.config)
            try:
                getattr(listener, what)(self.numbers[trial.trial_id], values, *rest)
            except UnlearnError as error:
                self.error = error

        def __getstate__(self) -> dict[str, Any]:
            return {}  # Ray pickles callbacks with its own state, which nobody reads

    return Driver()


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


def _searcher(name: str, seed: int, points: list[dict[str, Any]]) -> Any:
    """A model-based searcher of Ray that begins with ``points``."""
    if name == "optuna":
        from ray.tune.search.optuna import OptunaSearch

        return OptunaSearch(seed=seed, points_to_evaluate=points or None)
    from ray.tune.search.hyperopt import HyperOptSearch

    return HyperOptSearch(random_state_seed=seed, points_to_evaluate=points or None)


def _ray_domain(tune: Any, domain: Domain) -> Any:
    """A domain in Ray's terms; lists and steps go by place, which every searcher can handle."""
    if isinstance(domain, Range):
        return (tune.loguniform if domain.logarithmic else tune.uniform)(domain.low, domain.high)
    return (
        tune.randint(0, len(domain.all()))
        if isinstance(domain, Whole)
        else tune.choice(range(len(domain.values)))
    )


def _decoded(space: Space, config: Mapping[str, Any]) -> Settings:
    """Settings from what a searcher suggests."""
    return {
        key: domain.tidy(float(config[key])) if isinstance(domain, Range) else domain.all()[int(config[key])]
        for key, domain in space.domains.items()
    }


def _encoded(space: Space, values: Settings) -> dict[str, Any]:
    """The reverse of :func:`_decoded`."""
    return {
        key: values[key] if isinstance(domain, Range) else domain.all().index(values[key])
        for key, domain in space.domains.items()
    }
