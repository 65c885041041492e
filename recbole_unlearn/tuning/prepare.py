"""What all trials of a sweep share: the original, the data without test interactions, and what to look for."""

from __future__ import annotations

import dataclasses
import logging
from typing import NamedTuple

from recbole.utils import ModelType

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Trained
from recbole_unlearn.measures import DECIMALS
from recbole_unlearn.pipeline import Pipeline, begin
from recbole_unlearn.settings import TuneSettings
from recbole_unlearn.training import PhaseTrainer, build_model, compose
from recbole_unlearn.tuning.objective import (
    Bench,
    Figures,
    Goal,
    expected_demotion,
    read_metric,
    validation_only,
)
from recbole_unlearn.tuning.trial import Shared

logger = logging.getLogger(__name__)


class Prepared(NamedTuple):
    """What trials share, and the two models they are compared with."""

    shared: Shared
    original: Figures
    retrained: Figures | None


def refuse_unprepared(pipeline: Pipeline, options: TuneSettings) -> None:
    """Refuse what no sweep could be made of, before anything is trained."""
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
    for key in ("log_wandb", "log_mlflow"):
        if pipeline.config[key]:
            raise UnlearnError(
                f"A sweep is not logged run by run: leave --{key} out, and give it to the run of the best settings."
            )
    read_metric(options, pipeline.config)
    for other in others:
        if not other.exact:
            raise UnlearnError(
                f"A sweep compares with retrain, not with {other.name}: leave it out, and compare when "
                "you run the best settings."
            )


def prepare(pipeline: Pipeline, options: TuneSettings) -> Prepared:
    """Make what is shared; the goal has the original's utility, and the demotion rate to reach."""
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
    data, negatives = validation_only(pipeline.data), pipeline.evaluation.demotion_negatives
    metric = read_metric(options, config, data.full.train.item_num)
    bench = Bench(config, data, metric, negatives)
    goal = Goal(metric, options.tune_affected, options.tune_weight)
    before, retrained = _original(pipeline, bench, pipeline.original), _retrained(pipeline, bench)
    target = expected_demotion(config, data) if retrained is None else retrained.demotion
    # Rounded, so that the last bits of another machine do not make another sweep of it.
    target = None if target is None else round(target, DECIMALS)
    goal = dataclasses.replace(goal, original=round(goal.utility(before), DECIMALS), target=target)
    if target is not None:
        source = "the level of never-seen items" if retrained is None else "the retrained model's"
        logger.info("Demotion rate to reach: %.3f (%s).", target, source)
    shared = Shared(
        config, data, pipeline.original, method, config.method_values(method.name), goal,
        options.tune_looks, negatives, pipeline.run_settings.threads,
    )  # fmt: skip
    return Prepared(shared, before, retrained)


def _original(pipeline: Pipeline, bench: Bench, trained: Trained) -> Figures:
    """The figures of the original: a model of D, measured as every other."""
    model = build_model(pipeline.config, bench.data.full)
    trained.load_into(model)
    return bench.measure(compose(PhaseTrainer, pipeline.config, model, "original"))


def _retrained(pipeline: Pipeline, bench: Bench) -> Figures | None:
    """The figures of the retrained model, when it was asked for."""
    if len(pipeline.methods) == 1:
        return None
    trainer, task = begin(
        pipeline.methods[1].method, pipeline.methods[1].settings, pipeline.config, pipeline.data,
        pipeline.original, pipeline.trainings, "retrained",
    )  # fmt: skip
    trainer.run(task)
    return bench.measure(trainer)
