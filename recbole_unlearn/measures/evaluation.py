"""Measuring a phase: utility by RecBole's evaluator, forgetting by our measures, and the placebo.

Every phase is measured on the same interactions with the same masks: the retained data's. Deleted items are *not*
masked, so a forgotten item that is still recommended costs utility. Utility is reported for all users, for affected
users (those with a deleted interaction) and for the others; one scoring pass serves all three.
"""

import dataclasses
import inspect
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from recbole.evaluator import Evaluator, metric_types
from recbole.evaluator.base_metric import TopkMetric
from recbole.evaluator.collector import DataStruct
from recbole.utils import EvaluatorType

from recbole_unlearn import recbole_compat
from recbole_unlearn.data import Loaders, SequenceSplits, UnlearnData
from recbole_unlearn.measures.base import DECIMALS, View, measures, rounded
from recbole_unlearn.measures.forgetting import histograms, kolmogorov_smirnov
from recbole_unlearn.measures.probe import Probes, probe
from recbole_unlearn.measures.relearning import curves, relearned
from recbole_unlearn.measures.scores import HistoryQuestions, Observation, Questions, deleted_pairs, observe
from recbole_unlearn.results.schema import Curve, Distribution, Figure, Metrics, PhaseResult, Placebo
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import PhaseTrainer

REPORTED_METRICS = ("Recall", "NDCG")
REPORTED_TOPK = (10, 20, 50)
EXTREME = 0.05  # of the tested users: those with the most interactions (core) and with the fewest (edge)


class _KeepingEvaluator(Evaluator):
    """RecBole's evaluator; keeps the collected values, so that groups of users can be evaluated too."""

    kept: DataStruct

    def evaluate(self, dataobject: DataStruct) -> dict[str, float]:
        self.kept = dataobject
        return super().evaluate(dataobject)

    def by_user(self, dataobject: DataStruct) -> dict[str, torch.Tensor]:
        """The values (n,) of each user, for metrics that are means over users."""
        found: dict[str, torch.Tensor] = {}
        for name, metric in self.metric_class.items():
            if isinstance(metric, TopkMetric):
                # Hits, and for some metrics the largest possible number of hits.
                needs = len(inspect.signature(metric.metric_info).parameters)
                values = torch.from_numpy(metric.metric_info(*metric.used_info(dataobject)[:needs]))
                found |= {f"{name}@{k}": values[:, k - 1].double() for k in metric.topk}
        return found


def report_config(config: UnlearnConfig, item_num: int) -> UnlearnConfig:
    """The config with the metrics that every result has, and those the user asked for."""
    asked = [m for m in config["metrics"] if metric_types.get(m.lower()) == EvaluatorType.RANKING]
    names = {metric.lower(): metric for metric in [*REPORTED_METRICS, *asked]}
    topk = sorted(k for k in {*REPORTED_TOPK, *config["topk"]} if k < item_num)
    return config.replace(metrics=list(names.values()), topk=topk, metric_decimal_place=DECIMALS)


def utility(
    trainer: PhaseTrainer, config: UnlearnConfig, data: Loaders, affected: torch.Tensor
) -> tuple[dict[str, Metrics], dict[str, torch.Tensor]]:
    """RecBole's metrics at test of all ("metrics"), affected and unaffected users, and of each affected user."""
    config = report_config(config, data.test._dataset.item_num)
    evaluator = _KeepingEvaluator(config)
    held = trainer.eval_collector, trainer.evaluator
    trainer.eval_collector, trainer.evaluator = recbole_compat.TensorCollector(config), evaluator
    try:
        trainer.eval_collector.data_collect(data.train)
        everyone = trainer.evaluate(data.test, load_best_model=False, show_progress=bool(config["show_progress"]))
    finally:
        trainer.eval_collector, trainer.evaluator = held
    struct = evaluator.kept
    if data.test.is_sequential:  # RecBole evaluates a line for each window, otherwise one for each user
        users = data.test._dataset.inter_feat[data.test.uid_field]
    else:
        users = torch.as_tensor(np.asarray(data.test.uid_list))
    is_affected = torch.isin(users, affected)
    means = {"metrics": dict(everyone)}
    for name, mask in (("affected", is_affected), ("unaffected", ~is_affected)):
        means[name] = dict(evaluator.evaluate(_only(struct, mask))) if mask.any() else {}
    return means, evaluator.by_user(_only(struct, is_affected)) if is_affected.any() else {}


def _only(struct: DataStruct, users: torch.Tensor) -> DataStruct:
    """The collected values of some of the users (a mask in the loader's order)."""
    part = DataStruct()
    for key, value in struct._data_dict.items():
        part.set(key, value[users] if isinstance(value, torch.Tensor) and len(value) == len(users) else value)
    return part


class Measured(NamedTuple):
    """The figures of one model by itself, and its answers."""

    utility: dict[str, Metrics]  # "metrics" (all users), "affected" and "unaffected"
    forgetting: dict[str, Figure]
    groups: dict[str, dict[str, Metrics]]
    seen: Observation
    affected: dict[str, torch.Tensor]  # by metric, the values of each affected user
    curves: dict[str, Curve]  # of relearning


def paired_errors(before: Measured, after: Measured) -> Metrics:
    """For each metric, the standard error of the mean change of affected users from one model to another.

    With d_u = after_u − before_u of the n affected users: error = √(Σ (d_u − mean)² / (n − 1)) / √n; ∞ for one.
    """
    moves = {key: after.affected[key] - own for key, own in before.affected.items()}
    return {key: float(d.std() / math.sqrt(len(d))) if len(d) > 1 else math.inf for key, d in moves.items()}


class Measurement:
    """All measures of one run: the same questions to every model, and the distances to the retrained one."""

    def __init__(self, config: UnlearnConfig, data: UnlearnData, test: Loaders, negatives: int) -> None:
        self.config, self.data, self.test, seed = config, data, test, config["seed"]
        self.questions: Questions
        if isinstance(data.retain, SequenceSplits):
            self.questions = HistoryQuestions.ask(data, negatives, seed)
        else:
            self.questions = Questions.of(data, deleted_pairs(data, negatives, seed), seed)
        self.probes = Probes.of(data, seed)

    def measure(self, trainer: PhaseTrainer, before: Measured | None = None, relearn: int = 0) -> Measured:
        """The figures of a model by itself, and of it together with the model it started from.

        ``relearn`` is the number of epochs for which a copy of it is trained on (`relearning.py`).
        """
        with trainer.scored_once(self.data.retain.train):
            found, affected = utility(trainer, self.config, self.test, self.data.affected_users)
            answers = observe(trainer, self.questions, self.data.retain)
        seen = dataclasses.replace(
            answers,
            probe=probe(trainer.model, self.data.retain.train, self.probes),
            ndcg=affected.get("ndcg@20"),
            relearned=relearned(trainer, self.questions, self.data, relearn),
        )
        view = View(self.questions, seen, None if before is None else before.seen)
        groups = {"core_edge": core_and_edge(self.questions, self.data, seen.top)}
        figures = self._figures(view, distances=False)
        return Measured(found, figures, groups, seen, affected, curves(self.questions, seen))

    def _figures(self, view: View, distances: bool) -> dict[str, Figure]:
        taken = [one for one in measures() if one.is_distance == distances]
        if not isinstance(self.questions, HistoryQuestions):
            taken = [one for one in taken if not one.of_sequences]
        if distances and len(self.questions.deleted) == 0:  # sequences may have emptied pairs
            taken = [one for one in taken if one.of_sequences]
        return {key: value for one in taken for key, value in one.of(view).items()}

    def distances(self, mine: Measured, retrained: Measured | None) -> dict[str, Figure]:
        """The distances of a model to the retrained one; empty for the retrained one itself, or without one."""
        if retrained is None or mine.seen is retrained.seen:
            return {}
        return self._figures(View(self.questions, mine.seen, retrained=retrained.seen), distances=True)

    def distributions(self, models: Mapping[str, Measured]) -> dict[str, Distribution]:
        """Histograms of the deleted pairs' scores, with the same edges for all models."""
        if len(self.questions.deleted) == 0:
            return {}
        return histograms({name: one.seen.deleted.score for name, one in models.items()})


def core_and_edge(questions: Questions, data: UnlearnData, top: torch.Tensor) -> dict[str, dict[str, Any]]:
    """Recall@20 of the users with the fewest and with the most training interactions."""
    test, train = data.retain.test, data.retain.train
    looked_at = torch.isin(test.inter_feat[test.uid_field], questions.users)
    users, items = (test.inter_feat[field][looked_at] for field in (test.uid_field, test.iid_field))
    row = torch.searchsorted(questions.users, users)
    found = (top[row, :20] == items[:, None]).any(dim=1).float()
    total = torch.bincount(row, minlength=len(questions.users))
    recall = torch.zeros(len(questions.users)).index_add_(0, row, found) / total.clamp(min=1)
    tested = (total > 0).nonzero().flatten()
    had = torch.bincount(train.inter_feat[train.uid_field], minlength=train.user_num)
    few, order = max(1, round(EXTREME * len(tested))), torch.argsort(had[questions.users[tested]], stable=True)
    ends = {"edge": recall[tested[order[:few]]], "core": recall[tested[order[-few:]]]} if len(tested) else {}
    return {name: {"recall@20": rounded(part.mean()), "users": few} for name, part in ends.items()}


def compare(unlearned: Measured, placebo: Measured, retrained: Measured) -> Placebo:
    """The placebo: the method's mark and the memory that is left, in demotion rate, AUC and scores of deleted pairs.

    The method also runs on the retrained model, with the same request. That model never saw S, so the change there is
    the method's *mark*; the difference between the results from the original and the retrained model is *memory*:

        mark = method(retrained) − retrained,    memory = method(original) − method(retrained)
    """
    rate = PhaseResult(forgetting=placebo.forgetting).demotion_rate
    return Placebo(rate, mark=_difference(placebo, retrained), memory=_difference(unlearned, placebo))


def _difference(after: Measured, before: Measured) -> Metrics:
    found: Metrics = {}
    phases = [PhaseResult(forgetting=one.forgetting) for one in (after, before)]
    for name, path in {"demotion": ("demotion_rate",), "attack": ("attack", "auc")}.items():
        now, then = (phase.figure(*path) for phase in phases)
        if now is not None and then is not None:
            found[name] = rounded(now - then)
    if "demotion" in found:
        found["ks"] = rounded(kolmogorov_smirnov(after.seen.deleted.score, before.seen.deleted.score))
    return found
