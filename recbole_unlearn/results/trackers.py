"""Experiment trackers: the final figures of a run for Weights & Biases (`log_wandb`) and MLflow (`log_mlflow`).

They get the content of `result.json` and nothing else: settings without paths, and the figures of each phase as
`unlearned/ndcg@20`, after disclosure. An open run of the user is used and left open; otherwise one is opened for the
run and closed at its end. A tracker that fails at the end gives a warning and never fails the run.
"""

import contextlib
import importlib
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

from recbole_unlearn.errors import UnlearnError, one_line
from recbole_unlearn.results.record import plain_values
from recbole_unlearn.results.schema import RunResult, flat
from recbole_unlearn.settings import UnlearnConfig

logger = logging.getLogger(__name__)

_BATCH, _LONGEST = 90, 500  # MLflow takes 100 parameters at a time, and as many characters of one
_NOT_IN_NAMES = re.compile(r"[^\w\-. /]")  # of MLflow


class _Tracker:
    title, package, wanted, way_out = "", "", "", ""

    def __init__(self, config: UnlearnConfig) -> None:
        self.project, self.opened = config["wandb_project"], False
        try:
            self.module: Any = importlib.import_module(self.package)
            getattr(self.module, self.wanted)  # a folder of the package's name, as W&B leaves one, has none
        except (ImportError, AttributeError) as error:
            raise UnlearnError(
                f"--log_{self.package} needs the package {self.package}, which is not installed: use pip install "
                f"{self.package}, or leave --log_{self.package} out."
            ) from error


class _Wandb(_Tracker):
    title, package, wanted = "Weights & Biases", "wandb", "init"
    way_out = "Use wandb login or WANDB_MODE=offline"

    def start(self, title: str, params: dict[str, Any]) -> None:
        if self.module.run is None:
            self.opened = True
            self.module.init(project=self.project, name=title, config=params)

    def send(self, figures: dict[str, float], verdict: str | None) -> None:
        self.module.run.summary.update(figures | ({} if verdict is None else {"verdict": verdict}))

    def close(self, failed: bool) -> None:
        self.module.finish(exit_code=int(failed))


class _MLflow(_Tracker):
    title, package, wanted = "MLflow", "mlflow", "start_run"
    way_out = "Check MLFLOW_TRACKING_URI"

    def start(self, title: str, params: dict[str, Any]) -> None:
        if self.module.active_run() is None:
            self.opened = True
            self.module.start_run(run_name=title)
        known = [(key, str(value)[:_LONGEST]) for key, value in params.items()]
        for first in range(0, len(known), _BATCH):
            self.module.log_params(dict(known[first : first + _BATCH]))

    def send(self, figures: dict[str, float], verdict: str | None) -> None:
        self.module.log_metrics({_NOT_IN_NAMES.sub("_", key.replace("@", "_at_")): figures[key] for key in figures})
        if verdict is not None:
            self.module.set_tag("verdict", verdict)

    def close(self, failed: bool) -> None:
        self.module.end_run("FAILED" if failed else "FINISHED")


def asked(config: UnlearnConfig) -> list[_Wandb | _MLflow]:
    """The trackers of a run; one whose package is not installed is refused, before anything is loaded."""
    return [tracker(config) for tracker in (_Wandb, _MLflow) if config[f"log_{tracker.package}"]]


@contextlib.contextmanager
def tracked(config: UnlearnConfig) -> Iterator[Callable[[RunResult], None]]:
    """Open the trackers that are asked for during the block; yields a function to call with the result."""
    used = asked(config)
    title = f"{config['unlearn']} {config['model']} {config['dataset']}"
    params = {key: config[key] for key in ("model", "dataset", "unlearn", "seed")} | plain_values(config)

    def send(result: RunResult) -> None:
        for tracker in used:
            with _warned(f"The figures are not in {tracker.title}"):
                tracker.send(figures(result), None if result.verdict is None else result.verdict.level)

    failed = True
    try:
        for tracker in used:
            try:
                tracker.start(title, params)
            except Exception as error:
                why = f"{tracker.title} cannot be used: {one_line(error).rstrip('.')}"
                raise UnlearnError(f"{why}. {tracker.way_out}, or leave --log_{tracker.package} out.") from error
        yield send
        failed = False
    finally:
        for tracker in used:
            with _warned(f"The run in {tracker.title} may still be open"):
                if tracker.opened:
                    tracker.close(failed)


@contextlib.contextmanager
def _warned(what: str) -> Iterator[None]:
    """Whatever a service does, a run that is done stays done."""
    try:
        yield
    except Exception as error:
        logger.warning("%s: %s.", what, one_line(error).rstrip("."))


def figures(result: RunResult) -> dict[str, float]:
    """All figures of a result by name: `unlearned/ndcg@20`, `unlearned/affected/ndcg@20`, `recovered/ndcg@20`."""
    tree: dict[str, Any] = {}
    for name, phase in result.phases.items():
        groups = {key: getattr(phase, key) for key in ("affected", "unaffected", "masked")}
        tree[name] = {**phase.metrics, **groups, **phase.forgetting, "seconds": phase.seconds}
    placebo = None if result.placebo is None else result.placebo.to_json()
    tree |= {"recovered": result.recovered, "speedup": result.speedup, "placebo": placebo}
    return {name: float(value) for name, value in flat(tree, "/") if isinstance(value, (int, float))}
