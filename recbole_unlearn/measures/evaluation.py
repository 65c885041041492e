"""Measuring a phase: utility by RecBole's evaluator, and forgetting by the measures of `measures/`.

Every phase is measured on the same interactions with the same masks: the retained data's. Deleted items are *not*
masked, so a forgotten item that is still recommended costs utility. Utility is reported for all users, for affected
users (those with a deleted interaction) and for the others; one scoring pass serves all three.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping

import numpy as np
import torch
from recbole.evaluator import Evaluator, metric_types
from recbole.evaluator.base_metric import TopkMetric
from recbole.evaluator.collector import DataStruct
from recbole.utils import EvaluatorType

from recbole_unlearn import recbole_compat
from recbole_unlearn.data import Loaders, SequenceSplits, UnlearnData
from recbole_unlearn.measures.base import DECIMALS, Measure, View, measures, rounded
from recbole_unlearn.measures.distribution import common_edges, histogram
from recbole_unlearn.measures.groups import by_group
from recbole_unlearn.measures.histories import HistoryQuestions, observe_histories
from recbole_unlearn.measures.scores import Observation, Questions, deleted_pairs, observe
from recbole_unlearn.results.schema import Distribution, Figure, Metrics
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import PhaseTrainer

REPORTED_METRICS = ("Recall", "NDCG")
REPORTED_TOPK = (10, 20, 50)


class _KeepingEvaluator(Evaluator):
    """RecBole's evaluator; keeps what was collected, so that groups of users can be evaluated too."""

    kept: DataStruct

    def evaluate(self, dataobject: DataStruct) -> dict[str, float]:
        self.kept = dataobject
        return super().evaluate(dataobject)

    def by_user(self, dataobject: DataStruct) -> dict[str, torch.Tensor]:
        """The values (n,) of each user, of those metrics that are means over users."""
        found: dict[str, torch.Tensor] = {}
        for name, metric in self.metric_class.items():
            if isinstance(metric, TopkMetric):
                # Hits, and for some metrics how many there could be.
                needs = len(inspect.signature(metric.metric_info).parameters)
                values = torch.from_numpy(metric.metric_info(*metric.used_info(dataobject)[:needs]))
                found |= {f"{name}@{k}": values[:, k - 1].double() for k in metric.topk}
        return found


def report_config(config: UnlearnConfig, item_num: int) -> UnlearnConfig:
    """The config with the metrics every result has, beside those the user asked for."""
    asked = [m for m in config["metrics"] if metric_types.get(m.lower()) == EvaluatorType.RANKING]
    names = {metric.lower(): metric for metric in [*REPORTED_METRICS, *asked]}
    topk = sorted(k for k in {*REPORTED_TOPK, *config["topk"]} if k < item_num)
    return config.replace(metrics=list(names.values()), topk=topk, metric_decimal_place=DECIMALS)


def utility(
    trainer: PhaseTrainer, config: UnlearnConfig, data: Loaders, affected: torch.Tensor
) -> dict[str, Metrics]:
    """RecBole's metrics on the test interactions: "metrics" (all users), "affected" and "unaffected"."""
    return _utility(trainer, config, data, affected)[0]


def _utility(
    trainer: PhaseTrainer, config: UnlearnConfig, data: Loaders, affected: torch.Tensor
) -> tuple[dict[str, Metrics], dict[str, torch.Tensor]]:
    """As :func:`utility`, and the values of each affected user, in the loader's order."""
    config = report_config(config, data.test._dataset.item_num)
    evaluator = _KeepingEvaluator(config)
    held = trainer.eval_collector, trainer.evaluator
    trainer.eval_collector, trainer.evaluator = recbole_compat.TensorCollector(config), evaluator
    try:
        trainer.eval_collector.data_collect(data.train)
        everyone = trainer.evaluate(
            data.test, load_best_model=False, show_progress=bool(config["show_progress"])
        )
    finally:
        trainer.eval_collector, trainer.evaluator = held
    struct = evaluator.kept
    users = _evaluated(data)
    is_affected = torch.isin(users, affected)
    groups = {"affected": is_affected, "unaffected": ~is_affected}
    means = {"metrics": dict(everyone)} | {
        name: dict(evaluator.evaluate(_only(struct, mask))) if mask.any() else {}
        for name, mask in groups.items()
    }
    return means, evaluator.by_user(_only(struct, is_affected)) if is_affected.any() else {}


def _evaluated(data: Loaders) -> torch.Tensor:
    """The user of each line that RecBole evaluates: one for each user, or of a sequential model for each window."""
    if data.test.is_sequential:
        return data.test._dataset.inter_feat[data.test.uid_field]
    return torch.as_tensor(np.asarray(data.test.uid_list))


def _only(struct: DataStruct, users: torch.Tensor) -> DataStruct:
    """The collected values of some of the users (a mask in the loader's order)."""
    part = DataStruct()
    for key, value in struct._data_dict.items():
        per_user = isinstance(value, torch.Tensor) and len(value) == len(users)
        part._data_dict[key] = value[users] if per_user else value
    return part


@dataclasses.dataclass(frozen=True)
class Measured:
    """The figures of one model by itself, and what it answered."""

    utility: dict[str, Metrics]  # "metrics" (all users), "affected" and "unaffected"
    masked: Metrics
    forgetting: dict[str, Figure]
    groups: dict[str, dict[str, Metrics]]
    seen: Observation
    affected: dict[str, torch.Tensor]  # by metric, the values of each affected user


def paired_errors(before: Measured, after: Measured) -> Metrics:
    """For each metric, the standard error of how far affected users moved from one model to another.

    With d_u = after_u − before_u of the n affected users: error = √(Σ (d_u − mean)² / (n − 1)) / √n. Of a single
    user nothing is known, and the error is infinite.
    """
    moves = {key: after.affected[key] - values for key, values in before.affected.items()}
    return {
        key: float(move.std() / math.sqrt(len(move))) if len(move) > 1 else math.inf
        for key, move in moves.items()
    }


class Measurement:
    """All measures of one run: the same questions to every model, and its distances to the retrained one."""

    def __init__(self, config: UnlearnConfig, data: UnlearnData, test: Loaders, negatives: int) -> None:
        self.config, self.data, self.test = config, data, test
        self.questions: Questions
        if isinstance(data.retain, SequenceSplits):
            self.questions = HistoryQuestions.ask(data, negatives, config["seed"])
        else:
            self.questions = Questions.of(
                data, deleted_pairs(data, negatives, config["seed"]), config["seed"]
            )

    def measure(self, trainer: PhaseTrainer, before: Measured | None = None) -> Measured:
        """The figures of a model by itself, and of it together with the model it started from."""
        seen = self._observe(trainer)
        found, affected = _utility(trainer, self.config, self.test, self.data.affected_users)
        view = View(self.questions, seen, None if before is None else before.seen)
        return Measured(
            found,
            self.masked(seen, found["unaffected"]),
            {
                key: value
                for one in self._measures()
                if not one.is_distance
                for key, value in one.of(view).items()
            },
            by_group(self.questions, self.data, seen.top),
            seen,
            affected,
        )

    def _observe(self, trainer: PhaseTrainer) -> Observation:
        if isinstance(self.questions, HistoryQuestions):
            return observe_histories(trainer, self.questions, self.data.retain)
        return observe(trainer, self.questions, self.data.retain)

    def _measures(self) -> list[Measure]:
        """All measures of this kind of model."""
        is_sequential = isinstance(self.questions, HistoryQuestions)
        return [one for one in measures() if is_sequential or not one.of_sequences]

    def distances(self, mine: Measured, retrained: Measured | None) -> dict[str, Figure]:
        """How far a model is from the retrained one; empty for the retrained one itself, or when there is none."""
        if retrained is None or mine.seen is retrained.seen:
            return {}
        view = View(self.questions, mine.seen, retrained=retrained.seen)
        taken = [one for one in self._measures() if one.is_distance]
        if len(self.questions.deleted) == 0:  # sequences may have other deleted pairs
            taken = [one for one in taken if one.of_sequences]
        return {key: value for one in taken for key, value in one.of(view).items()}

    def distributions(self, models: Mapping[str, Measured]) -> dict[str, Distribution]:
        """Histograms of the deleted pairs' scores, with the same edges for all models."""
        if len(self.questions.deleted) == 0:
            return {}
        scores = {name: one.seen.deleted.score for name, one in models.items()}
        edges = common_edges(list(scores.values()))
        return {name: histogram(score, edges) for name, score in scores.items()}

    def masked(self, seen: Observation, unaffected: dict[str, float]) -> dict[str, float]:
        """Recall and NDCG over all users when deleted items are masked too.

        Both are means over users, and for those without deleted items the mask changes nothing.
        """
        test = self.data.retain.test
        keys = torch.unique(test.inter_feat[test.uid_field] * test.item_num + test.inter_feat[test.iid_field])
        tested, number = torch.unique(keys // test.item_num, return_counts=True)
        mine = torch.isin(tested, self.data.affected_users)
        users, number = tested[mine], number[mine]
        config = report_config(self.config, test.item_num)
        topk = [k for k in config["topk"] if k <= seen.top_masked.shape[1]]
        names = [f"{metric.lower()}@{k}" for metric in REPORTED_METRICS for k in topk]
        if len(users) == 0:
            return {name: unaffected[name] for name in names}
        lists = seen.top_masked[torch.searchsorted(self.questions.users, users), : max(topk)]
        hits = torch.isin(users[:, None] * test.item_num + lists, keys)
        struct = DataStruct()
        struct.set("rec.topk", torch.cat([hits.int(), number[:, None].int()], dim=1))
        config = config.replace(metrics=list(REPORTED_METRICS), topk=topk)
        masked = Evaluator(config).evaluate(struct)
        share = len(users) / len(tested)
        return {
            name: rounded(share * masked[name] + (1 - share) * unaffected.get(name, 0.0)) for name in names
        }
