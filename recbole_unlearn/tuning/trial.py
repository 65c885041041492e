r"""A trial of a sweep, and the objective that it is judged by: on training and validation interactions only.

    utility  = (1 − a) · metric of all users + a · metric of affected users          a: tune_affected
    distance = |demotion rate − target|
    score    = utility / utility of the original − w · distance                      w: tune_weight

The target is the demotion rate of a retrained model, which is trained for it unless `--compare=retrain` asks for it.
Deleted interactions of a sequential model are scored at their cleaned prefixes.

The *front* are the candidates that no other beats in both utility and distance; for any weight, the best is on it.

:func:`prepare` makes the common start of all trials in the process that drives the sweep; workers get it as data:
the config, the divided data, the original's weights. A trial reads no file and leaves none.
"""

import dataclasses
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from recbole.evaluator.register import metrics_dict

from recbole_unlearn import measures, settings
from recbole_unlearn.data import SequenceSplits, UnlearnData, loaders
from recbole_unlearn.errors import UnlearnError, nearest
from recbole_unlearn.files import Trained
from recbole_unlearn.methods import UnlearnTrainer
from recbole_unlearn.pipeline import Pipeline, begin, checked_settings
from recbole_unlearn.registry import METHODS
from recbole_unlearn.settings import TuneSettings, UnlearnConfig
from recbole_unlearn.training import PhaseTrainer, Trainings, loaded
from recbole_unlearn.training.threads import of_one_process

logger = logging.getLogger(__name__)

Candidate = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures of a model."""

    everyone: float  # the metric over all users
    affected: float | None  # over affected users; None when none of them has validation interactions
    demotion: float | None  # None when no deleted pair can be compared


class Goal(NamedTuple):
    """The objective: which of two candidates is better."""

    metric: str  # as RecBole's results name it: ndcg@20
    affected: float  # a
    weight: float  # w
    original: float = 1.0  # utility of the original
    target: float | None = None  # the demotion rate to reach; None when there is none to measure

    def utility(self, figures: Figures) -> float:
        """(1 − a) · all + a · affected; only all users when no affected user can be measured."""
        if figures.affected is None:
            return figures.everyone
        return (1.0 - self.affected) * figures.everyone + self.affected * figures.affected

    def judge(self, figures: Figures) -> dict[str, float | None]:
        """Figures with utility, distance (0 with nothing to compare) and score, as in `tune.json`."""
        utility, distance = self.utility(figures), 0.0
        if figures.demotion is not None and self.target is not None:
            distance = abs(figures.demotion - self.target)
        score = utility / (self.original or 1.0) - self.weight * distance
        values = {**dataclasses.asdict(figures), "utility": utility, "distance": distance, "score": score}
        return {key: None if value is None else round(value, measures.DECIMALS) for key, value in values.items()}


def read_metric(options: TuneSettings, config: UnlearnConfig, item_num: int = sys.maxsize) -> str:
    """The metric of a sweep as results name it, refused when it is not measured."""
    measured = measures.report_config(config, item_num)
    names = {f"{metric.lower()}@{k}" for metric in measured["metrics"] for k in measured["topk"]}
    asked = options.tune_metric.lower()
    if asked not in names:
        raise UnlearnError(
            f"tune_metric={options.tune_metric} is not measured.{nearest(asked, names)} "
            f"Choose from {', '.join(sorted(names))}; --metrics and --topk add others."
        )
    if getattr(metrics_dict[asked.split("@")[0]], "smaller", False):
        raise UnlearnError(
            f"tune_metric={options.tune_metric} is better when smaller; a sweep looks for larger values."
        )
    return asked


def validation_only(data: UnlearnData) -> UnlearnData:
    """The same request with the validation interactions also as test interactions; the test interactions are gone."""
    return dataclasses.replace(data, full=data.full.validated(), retain=data.retain.validated())


class Bench:
    """Measures models on validation interactions: one scoring pass for utility, another for the affected users."""

    def __init__(self, config: UnlearnConfig, data: UnlearnData, metric: str) -> None:
        """``data`` as :func:`validation_only` gives it."""
        if len(data.retain.valid) == 0:
            raise UnlearnError("There are no validation interactions to tune on; change eval_args.")
        self.config, self.data, self.metric = config, data, metric
        self.loaders = loaders(config, data.retain)
        asked = data, config["demotion_negatives"], config["seed"]
        self.windows: measures.Windows | None = None  # of the deleted pairs of a sequential model
        if isinstance(data.retain, SequenceSplits):
            self.deleted, self.windows = measures.deleted_windows(*asked)
        else:
            self.deleted = measures.deleted_pairs(*asked)

    def measure(self, trainer: PhaseTrainer) -> Figures:
        """The figures of a trainer's model."""
        found, _ = measures.utility(trainer, self.config, self.loaders, self.data.affected_users)
        return Figures(
            float(found["metrics"][self.metric]),
            float(found["affected"][self.metric]) if found["affected"] else None,
            float(self._demoted(trainer).mean()) if len(self.deleted) else None,
        )

    def _demoted(self, trainer: PhaseTrainer) -> torch.Tensor:
        """The share of compared items that score higher than a deleted one (m,); for sequences, at its window."""
        pairs, splits = self.deleted, self.data.retain
        if self.windows is not None:
            return measures.standing(trainer, pairs, self.windows, splits).demoted.double()
        batches = torch.unique(pairs.users).split(max(1, trainer.test_batch_size // splits.train.item_num))
        below = [measures.compared(trainer.scores(users, splits.train), users, pairs)[1] for users in batches]
        return torch.cat([part.double().mean(dim=1) for part in below])


def best(candidates: Sequence[Candidate]) -> Candidate:
    """The highest score; of equals the nearest to the target, then the first trial."""
    return max(candidates, key=lambda c: (c["score"], -c["distance"], -c["trial"]))


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that no other beats in both utility and distance; nearest to the target first."""
    ordered = sorted(candidates, key=lambda c: (c["distance"], -c["utility"], c["trial"]))
    found: list[Candidate] = []
    for candidate in ordered:
        if not found or candidate["utility"] > found[-1]["utility"]:
            found.append(candidate)
    return found


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
    read_metric(options, pipeline.config)
    for other in others:
        if not other.reference:
            raise UnlearnError(
                f"A sweep compares with retrain, not with {other.name}: leave it out, and compare when "
                "you run the best settings."
            )


def prepare(pipeline: Pipeline, options: TuneSettings) -> tuple[Shared, dict[str, Candidate]]:
    """The common start of trials, and the figures of the original and of the retrained model."""
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
    original = bench.measure(loaded(config, data.full, "original", pipeline.original))
    exact = METHODS.get("retrain")
    trainer, task = begin(
        exact,
        checked_settings(exact, config),
        config,
        pipeline.data,
        pipeline.original,
        pipeline.trainings,
        "retrained",
    )
    trainer.run(task)
    retrained = bench.measure(trainer)
    target = retrained.demotion
    goal = Goal(metric, options.tune_affected, options.tune_weight)
    if target is not None:
        target = round(target, measures.DECIMALS)  # the last bits of another machine do not make another sweep of it
        logger.info("Demotion rate to reach: %.3f (the retrained model's).", target)
    goal = goal._replace(original=round(goal.utility(original), measures.DECIMALS), target=target)
    shared = Shared(config, data, pipeline.original, method, config.method_values(method.name), goal)
    return shared, {"original": goal.judge(original), "retrained": goal.judge(retrained)}


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
