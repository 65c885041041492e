r"""People who did not ask: whether the model still ranks for them as well as before a request.

A sample of users without a deleted interaction has retained validation interactions. Each is ranked among the items
that its user did not meet in training; with r its place, 1 being the first,

    score = mean of 1 / (1 + (r / 10)²)

which follows NDCG@20 and varies half as much. The same interactions are ranked before and after, so that the model
alone makes the difference. What LUA and LAC do to rows of items and of other users is taken back, a quarter at a
time, until the score has not fallen by more than 1 %.
"""

import torch

from recbole_unlearn.data import SequenceSplits
from recbole_unlearn.methods import UnlearnTask, UnlearnTrainer
from recbole_unlearn.recbole_compat import clear_caches
from recbole_unlearn.rows import RetainedIndex
from recbole_unlearn.settings import scores_pairs

SCORES, MOST = 2**24, 2**26  # interactions × items that are ranked: as a rule, and for ENOUGH interactions at most
LEAST, ENOUGH = 500, 2400  # with fewer interactions chance would decide; it did with 591, on yelp10k
TOP = 10.0  # places that count
FALLS = 0.01  # the share of the score that may be lost


class Bystanders:
    """The ranking of users without a deleted interaction, by the model as it is whenever it is asked for."""

    def __init__(self, trainer: UnlearnTrainer, task: UnlearnTask, retained: RetainedIndex) -> None:
        self.trainer, self.train, index = trainer, task.data.retain.train, retained.index
        valid, forget = task.data.validation, task.data.forget
        users, items = (valid.inter_feat[field] for field in (valid.uid_field, valid.iid_field))
        others = (~torch.isin(users, forget.inter_feat[forget.uid_field])).nonzero().flatten()
        generator = torch.Generator().manual_seed(task.config["seed"])
        if scores_pairs(task.config.model_class):  # a user's scores take long: all interactions of few users
            order = torch.randperm(index.sizes["user"], generator=generator)[users[others]]
            chosen = others[torch.argsort(order, stable=True)[: 2 * LEAST]]
        else:
            number = max(SCORES // index.sizes["item"], min(ENOUGH, MOST // index.sizes["item"]))
            chosen = others[torch.randperm(len(others), generator=generator)[:number]]
        self.items = items[chosen]
        if isinstance(task.data.retain, SequenceSplits):  # a line of scores for each window
            self.batch, self.line = task.data.retain.read(valid.inter_feat[chosen]), torch.arange(len(chosen))
            self._known = self.line[:0], self.items[:0]
        else:  # for each user
            own, self.line = torch.unique(users[chosen], return_inverse=True)
            self.batch = task.data.retain.batch(own)
            known = retained.only(index.of("user", own))
            self._known = torch.searchsorted(own, index.ids["user"][known]), index.ids["item"][known]
        self.before = self.score()

    def score(self) -> float:
        """The mean of 1 / (1 + (r / 10)²)."""
        if len(self.items) < LEAST:
            return 0.0
        clear_caches(self.trainer.model)
        scores = self.trainer.batch_scores(self.batch, self.train)
        scores[self._known] = -torch.inf
        own = scores[self.line, self.items][:, None]
        place = 1 + scores[self.line].gt_(own).sum(dim=1)  # in place, as floats: ten times as fast as by a mask
        return float((1.0 / (1.0 + (place / TOP).square())).mean())

    def are_fine(self) -> bool:
        """Whether they have lost no more than may be lost."""
        return self.score() >= (1.0 - FALLS) * self.before
