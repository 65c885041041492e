"""Measuring a phase: utility by RecBole's evaluator, and forgetting by the demotion rate.

Every phase is measured on the same rows with the same masks: the retained data's. Deleted items are *not*
masked, so a forgotten item that is still recommended costs utility. Utility is reported for all users, for
affected users (those with a deleted row) and for the others; one scoring pass serves all three.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from recbole.evaluator import Evaluator, metric_types
from recbole.evaluator.collector import DataStruct
from recbole.utils import EvaluatorType

from recbole_unlearn import compat
from recbole_unlearn.config import UnlearnConfig
from recbole_unlearn.data import Loaders, Splits, UnlearnData
from recbole_unlearn.trainer import PhaseTrainer

REPORTED_METRICS = ("Recall", "NDCG")
REPORTED_TOPK = (10, 20, 50)
DECIMALS = 6


class _KeepingEvaluator(Evaluator):
    """RecBole's evaluator; keeps what was collected, so that groups of users can be evaluated too."""

    kept: DataStruct

    def evaluate(self, dataobject: DataStruct) -> dict[str, float]:
        self.kept = dataobject
        return super().evaluate(dataobject)


def report_config(config: UnlearnConfig, item_num: int) -> UnlearnConfig:
    """The config with the metrics every result has, beside those the user asked for."""
    asked = [m for m in config["metrics"] if metric_types.get(m.lower()) == EvaluatorType.RANKING]
    names = {metric.lower(): metric for metric in [*REPORTED_METRICS, *asked]}
    topk = sorted(k for k in {*REPORTED_TOPK, *config["topk"]} if k < item_num)
    return config.replace(metrics=list(names.values()), topk=topk, metric_decimal_place=DECIMALS)


def utility(
    trainer: PhaseTrainer, config: UnlearnConfig, data: Loaders, affected: torch.Tensor
) -> dict[str, dict[str, float]]:
    """RecBole's metrics on the test rows: "metrics" (all users), "affected" and "unaffected"."""
    config = report_config(config, data.test._dataset.item_num)
    evaluator = _KeepingEvaluator(config)
    held = trainer.eval_collector, trainer.evaluator
    trainer.eval_collector, trainer.evaluator = compat.TensorCollector(config), evaluator
    try:
        trainer.eval_collector.data_collect(data.train)
        everyone = trainer.evaluate(
            data.test, load_best_model=False, show_progress=bool(config["show_progress"])
        )
    finally:
        trainer.eval_collector, trainer.evaluator = held
    struct = evaluator.kept
    users = torch.as_tensor(np.asarray(data.test.uid_list))
    is_affected = torch.isin(users, affected)
    groups = {"affected": is_affected, "unaffected": ~is_affected}
    return {"metrics": dict(everyone)} | {
        name: dict(evaluator.evaluate(_only(struct, mask))) if mask.any() else {}
        for name, mask in groups.items()
    }


def _only(struct: DataStruct, users: torch.Tensor) -> DataStruct:
    """The collected values of some of the users (a mask in the loader's order)."""
    part = DataStruct()
    for key, value in struct._data_dict.items():
        per_user = isinstance(value, torch.Tensor) and len(value) == len(users)
        part._data_dict[key] = value[users] if per_user else value
    return part


@dataclasses.dataclass(frozen=True)
class ForgettingProbe:
    """Deleted pairs and, for each, items the user never touched; the same for every phase."""

    users: torch.Tensor  # (pairs,), sorted
    items: torch.Tensor  # (pairs,)
    negatives: torch.Tensor  # (pairs, k)

    @classmethod
    def of(cls, data: UnlearnData, negatives: int, seed: int) -> ForgettingProbe:
        """Draw ``negatives`` items per deleted pair that the user met in no split, uniformly."""
        users, items = (part.numpy() for part in data.forget_pairs)
        drawn, usable = _never_touched(users, data.full, negatives, np.random.default_rng(seed))
        return cls(*(torch.from_numpy(part[usable]) for part in (users, items, drawn)))

    def demotion_rate(self, trainer: PhaseTrainer, splits: Splits) -> float | None:
        """Share of (deleted item, never-touched item) pairs in which the deleted item scores lower.

        DR = mean over S and negatives of 1[s(u, i_deleted) < s(u, i_never_touched)]. None without pairs.
        """
        if len(self.users) == 0:
            return None
        names, counts = torch.unique_consecutive(self.users, return_counts=True)
        ends = counts.cumsum(0)
        step = max(1, trainer.test_batch_size // splits.train.item_num)
        lower = 0
        for start in range(0, len(names), step):
            chunk = names[start : start + step]
            first = int(ends[start - 1]) if start else 0
            last = int(ends[start + len(chunk) - 1])
            scores = trainer.scores(chunk, splits.train)
            row = torch.searchsorted(chunk, self.users[first:last])
            deleted = scores[row, self.items[first:last]]
            others = scores[row[:, None], self.negatives[first:last]]
            lower += int((deleted[:, None] < others).sum())
        return lower / self.negatives.numel()


def _never_touched(
    users: np.ndarray, splits: Splits, k: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Items (n, k) that each of ``users`` met in no split, and which users have any such item."""
    item_num = splits.train.item_num
    touched = np.unique(
        np.concatenate(
            [
                part.inter_feat[part.uid_field].numpy() * item_num + part.inter_feat[part.iid_field].numpy()
                for part in splits
            ]
        )
    )
    drawn = rng.integers(1, item_num, (len(users), k))
    usable = np.ones(len(users), dtype=bool)
    bad = np.isin(users[:, None] * item_num + drawn, touched)
    for _ in range(20):
        if not bad.any():
            return drawn, usable
        drawn[bad] = rng.integers(1, item_num, int(bad.sum()))
        bad[bad] = np.isin((users[:, None] * item_num + drawn)[bad], touched)
    # Users who met almost everything: choose among what is left, one by one.
    for row in np.flatnonzero(bad.any(axis=1)):
        own = np.arange(1, item_num)
        own = own[~np.isin(users[row] * item_num + own, touched)]
        usable[row] = len(own) > 0
        if usable[row]:
            drawn[row] = rng.choice(own, k)
    return drawn, usable


def measure(
    trainer: PhaseTrainer,
    config: UnlearnConfig,
    data: UnlearnData,
    test: Loaders,
    probe: ForgettingProbe,
) -> dict[str, Any]:
    """All measures of one phase, as they stand in result.json."""
    return {
        **utility(trainer, config, test, data.affected_users),
        "forgetting": {"demotion_rate": _rounded(probe.demotion_rate(trainer, data.retain))},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DECIMALS)
