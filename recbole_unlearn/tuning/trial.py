"""One trial: the method with some settings on the shared original, measured on validation interactions.

:func:`prepare` makes the common start of all trials in the process that drives the sweep; workers get it as data:
the config, the divided data, the original's weights. A trial reads no file and leaves none.
"""

import dataclasses
import logging
import tempfile
import time
from typing import Any, NamedTuple

import torch
from recbole.utils import ModelType

from recbole_unlearn import settings
from recbole_unlearn.data import UnlearnData
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Trained
from recbole_unlearn.measures import DECIMALS
from recbole_unlearn.methods import UnlearnTrainer
from recbole_unlearn.pipeline import Pipeline, begin
from recbole_unlearn.settings import TuneSettings, UnlearnConfig
from recbole_unlearn.training import Trainings, loaded
from recbole_unlearn.training.threads import of_one_process
from recbole_unlearn.tuning.objective import Bench, Candidate, Goal, read_metric, validation_only

logger = logging.getLogger(__name__)


class Shared(NamedTuple):
    """The common start of all trials; it is never written to."""

    config: UnlearnConfig
    data: UnlearnData  # without test interactions
    original: Trained
    method: type[UnlearnTrainer]
    values: dict[str, Any]  # of the method's settings, where a trial has no other
    goal: Goal


def refuse_untunable(pipeline: Pipeline, options: TuneSettings) -> None:
    """Refuse runs that cannot be tuned, before anything is trained."""
    method, *others = [phase.method for phase in pipeline.methods]
    if method.own_original:
        raise UnlearnError(
            f"{method.name} trains an original of its own, so trials have none to share: it cannot be tuned."
        )
    if pipeline.config["MODEL_TYPE"] == ModelType.SEQUENTIAL and not others:
        raise UnlearnError(
            f"{pipeline.config['model']} is a sequential model, and only a retrained one shows where its deleted "
            "items belong: add --compare=retrain."
        )
    read_metric(options, pipeline.config)
    for other in others:
        if not other.reference:
            raise UnlearnError(
                f"A sweep compares with retrain, not with {other.name}: leave it out, and compare when "
                "you run the best settings."
            )


def prepare(pipeline: Pipeline, options: TuneSettings) -> tuple[Shared, dict[str, Candidate | None]]:
    """The common start of trials, and the figures of the original and of the retrained model, None without one."""
    config, method = pipeline.config, pipeline.methods[0].method
    if len(pipeline.data.forget) == 0:
        raise UnlearnError(
            "The request hits no training interaction, so no weight has to change and there is nothing to tune. "
            "Leave --tune out."
        )
    if pipeline.discretion.few:
        raise UnlearnError(
            f"Fewer than {pipeline.discretion.min_group} users have a deleted interaction, and a sweep would show "
            "their figures. Tune on --forget=injected, or give --min_group=1."
        )
    data = validation_only(pipeline.data)
    metric = read_metric(options, config, data.full.train.item_num)
    bench = Bench(config, data, metric)
    least = 1 if pipeline.discretion.shows_all else pipeline.discretion.min_group
    if len(pipeline.methods) == 1 and len(torch.unique(bench.deleted.users)) < least:
        raise UnlearnError(
            "Too few users of the request keep an interaction, so nothing tells where their deleted items belong: "
            "add --compare=retrain."
        )
    original, retrained = bench.measure(loaded(config, data.full, "original", pipeline.original)), None
    for exact in pipeline.methods[1:2]:
        trainer, task = begin(
            exact.method, exact.settings, config, pipeline.data, pipeline.original, pipeline.trainings, "retrained"
        )
        trainer.run(task)
        retrained = bench.measure(trainer)
    target = bench.expected if retrained is None else retrained.demotion
    goal = Goal(metric, options.tune_affected, options.tune_weight)
    if target is not None:
        target = round(target, DECIMALS)  # the last bits of another machine do not make another sweep of it
        source = "the level of never-seen items" if retrained is None else "the retrained model's"
        logger.info("Demotion rate to reach: %.3f (%s).", target, source)
    goal = goal._replace(original=round(goal.utility(original), DECIMALS), target=target)
    shared = Shared(config, data, pipeline.original, method, config.method_values(method.name), goal)
    judged = None if retrained is None else goal.judge(retrained)
    return shared, {"original": goal.judge(original), "retrained": judged}


def run_trial(shared: Shared, bench: Bench, values: dict[str, Any]) -> dict[str, Any]:
    """Unlearn with ``values`` instead of the method's settings; the figures, and seconds of the method and of all."""
    start, method, threads = time.perf_counter(), shared.method, of_one_process(shared.config["threads"])
    torch.set_num_threads(threads)
    logging.getLogger().setLevel(logging.WARNING)
    options: Any = settings.read(method.Settings, shared.values | values)
    method.check(options, shared.config)
    with tempfile.TemporaryDirectory() as work:
        quiet = {"checkpoint_dir": work, "output_dir": None, "show_progress": False}
        config = shared.config.replace(**quiet).without_curves()
        models = Trainings(dataclasses.replace(settings.read(settings.CacheSettings, config), cache=False), threads)
        trainer, task = begin(method, options, config, shared.data, shared.original, models, "unlearned")
        finished = trainer.run(task)
        figures = shared.goal.judge(bench.measure(trainer))
        took = time.perf_counter() - start
        return {**figures, "seconds": round(finished.seconds or 0.0, 4), "work_seconds": round(took, 4)}
