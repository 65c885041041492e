r"""The objective of a sweep: utility against forgetting, on training and validation interactions, never on test ones.

    utility  = (1 − a) · metric of all users + a · metric of affected users          a: tune_affected
    distance = |demotion rate − target|
    score    = utility / utility of the original − w · distance                      w: tune_weight

The target is the retrained model's demotion rate where there is one, otherwise the level that the provisional verdict
expects (`measures/verdict.py`), and both are then of users who keep an interaction. The ranker behind it has no
histories: a sequential model needs the retrained one; its deleted interactions are scored at their cleaned prefixes.

The *front* are the candidates that no other beats in both utility and distance; for any weight, the best is on it.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from recbole.evaluator.register import metrics_dict

from recbole_unlearn import measures
from recbole_unlearn.data import SequenceSplits, UnlearnData, loaders
from recbole_unlearn.errors import UnlearnError, nearest
from recbole_unlearn.settings import TuneSettings, UnlearnConfig
from recbole_unlearn.training import PhaseTrainer

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
        self._expected: Callable[[], float] | None = None
        if self.windows is None and len(config.method_names()) == 1:
            expectation, every = measures.Expectation(data, config["seed"]), self.deleted
            picked = expectation.picked(every)
            self.deleted = measures.Pairs(every.users[picked], every.items[picked], every.others[picked])
            self._expected = lambda: float(expectation.demoted(every, picked).mean())

    @property
    def expected(self) -> float | None:
        """Without retraining, the demotion rate that is expected of the deleted pairs."""
        return self._expected() if self._expected is not None and len(self.deleted) else None

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
