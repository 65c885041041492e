"""Measuring a phase: utility by RecBole's evaluator, and forgetting by the measures of `measures/`.

Every phase is measured on the same rows with the same masks: the retained data's. Deleted items are *not*
masked, so a forgotten item that is still recommended costs utility. Utility is reported for all users, for
affected users (those with a deleted row) and for the others; one scoring pass serves all three.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from recbole.evaluator import Evaluator, metric_types
from recbole.evaluator.collector import DataStruct
from recbole.utils import EvaluatorType

from recbole_unlearn import compat
from recbole_unlearn.config import UnlearnConfig
from recbole_unlearn.data import Loaders, Splits, UnlearnData, append
from recbole_unlearn.index import Retained, TrainIndex
from recbole_unlearn.measures import attack, groups, overlap, scores
from recbole_unlearn.measures.observe import Observation, Pairs, Plan, observe
from recbole_unlearn.trainer import PhaseTrainer

REPORTED_METRICS = ("Recall", "NDCG")
REPORTED_TOPK = (10, 20, 50)
DECIMALS = 6
BINS = 60  # of the score distributions


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


def deleted_pairs(data: UnlearnData, negatives: int, seed: int) -> Pairs:
    """The deleted pairs, each with ``negatives`` items that its user met in no split, uniform."""
    users, items = data.forget_pairs
    drawn, usable = never_touched(users, data.full, negatives, torch.Generator().manual_seed(seed))
    return Pairs(users[usable], items[usable], drawn[usable])


def never_touched(
    users: torch.Tensor, splits: Splits, k: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Items (n, k) that each of ``users`` met in no split, and which users have any such item (n,)."""
    index = TrainIndex(append(append(splits.train, splits.valid.inter_feat), splits.test.inter_feat))
    nothing = torch.empty(0, dtype=torch.long)
    met = Retained(index, nothing, nothing, torch.zeros(len(index), dtype=torch.bool))
    several = users[:, None].expand(-1, k).contiguous()
    drawn, left = met.draw(several, generator, tries=20)
    usable = torch.ones(len(users), dtype=torch.bool)
    # Users who met almost everything: choose among what is left, one by one.
    everything = torch.arange(1, index.sizes["item"])
    for row in torch.unique(left // k).tolist():
        own = everything[~met.are_known(users[row].expand(len(everything)), everything)]
        usable[row] = len(own) > 0
        if len(own):
            drawn[row] = own[torch.randint(0, len(own), (k,), generator=generator)]
    return drawn, usable


class Measurement:
    """All measures of one run: the same questions to every phase, and its distances to the retrained one."""

    def __init__(self, config: UnlearnConfig, data: UnlearnData, test: Loaders, negatives: int) -> None:
        self.config, self.data, self.test = config, data, test
        self.plan = Plan.of(data, deleted_pairs(data, negatives, config["seed"]), config["seed"])
        self.seen: dict[str, Observation] = {}

    def phase(self, name: str, trainer: PhaseTrainer, before: str = "original") -> dict[str, Any]:
        """What can be said of a phase by itself, and of it beside the phase ``before`` it, as in result.json."""
        seen = self.seen[name] = observe(trainer, self.plan, self.data.retain)
        found = utility(trainer, self.config, self.test, self.data.affected_users)
        forgetting: dict[str, Any] = {"demotion_rate": None}
        if len(self.plan.deleted):
            forgetting["demotion_rate"] = _rounded(seen.deleted.demoted.double().mean())
            forgetting |= self._resurfacing(seen)
            forgetting |= _present(attack=attack.membership(self.plan, seen))
            if name != before and before in self.seen:
                both = attack.membership(self.plan, seen, self.seen[before])
                forgetting |= _present(attack_before_after=both)
        return {
            **found,
            "masked": self._masked(seen, found["unaffected"]),
            "forgetting": forgetting,
            "groups": groups.by_group(self.plan, self.data, seen.top),
        }

    def compare(self, phases: dict[str, Any]) -> None:
        """Add to every phase its distances to the retrained one, and the distributions all of them share."""
        if len(self.plan.deleted) == 0:
            return
        mine = {name: self.seen[name] for name in phases}
        everything = torch.cat([seen.deleted.score for seen in mine.values()]).numpy()
        edges = np.linspace(*np.quantile(everything, [0.001, 0.999]), BINS + 1)
        for name, seen in mine.items():
            phases[name]["distribution"] = scores.histogram(seen.deleted.score, edges)
        if "retrained" not in self.seen:
            return
        target = self.seen["retrained"]
        who = {"all": slice(None), "affected": self.plan.affected, "unaffected": ~self.plan.affected}
        for name, seen in mine.items():
            if name == "retrained" or seen is target:
                continue
            alike = {
                "overlap@20": overlap.top_k_overlap(seen.top, target.top, 20),
                "rbo": overlap.rank_biased_overlap(seen.top, target.top),
            }
            phases[name]["forgetting"] |= {
                "ks": _rounded(scores.kolmogorov_smirnov(seen.deleted.score, target.deleted.score)),
                "wasserstein": _rounded(scores.wasserstein(seen.deleted.score, target.deleted.score)),
                **{
                    key: {
                        group: _rounded(values[mask].mean())
                        for group, mask in who.items()
                        if len(values[mask])
                    }
                    for key, values in alike.items()
                },
            }

    def _resurfacing(self, seen: Observation) -> dict[str, float]:
        """Share of deleted items among the first K of their user, nothing but the retained history masked."""
        pairs = self.plan.deleted
        lists = seen.top[torch.searchsorted(self.plan.users, pairs.users)]
        hits = lists == pairs.items[:, None]
        return {
            f"resurfacing@{k}": _rounded(hits[:, :k].any(dim=1).double().mean())
            for k in REPORTED_TOPK
            if k <= lists.shape[1]
        }

    def _masked(self, seen: Observation, unaffected: dict[str, float]) -> dict[str, float]:
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
        lists = seen.top_masked[torch.searchsorted(self.plan.users, users), : max(topk)]
        hits = torch.isin(users[:, None] * test.item_num + lists, keys)
        struct = DataStruct()
        struct.set("rec.topk", torch.cat([hits.int(), number[:, None].int()], dim=1))
        config = config.replace(metrics=list(REPORTED_METRICS), topk=topk)
        masked = Evaluator(config).evaluate(struct)
        share = len(users) / len(tested)
        return {
            name: _rounded(share * masked[name] + (1 - share) * unaffected.get(name, 0.0)) for name in names
        }


def _present(**values: Any) -> dict[str, Any]:
    """Those that are not None: what cannot be measured is absent, not zero."""
    return {key: value for key, value in values.items() if value is not None}


def _rounded(value: Any) -> float:
    return round(float(value), DECIMALS)
