"""Recommendations of a model in tokens, without what a request asks never to show.

A model that forgot an interaction may still rank its item high: it never saw that the user had it, and likes it for
them, as a retrained model would. Who must not show it again masks it. The mask is the caller's and is not kept.
"""

from __future__ import annotations

import functools
import numbers
from typing import Any

import numpy as np
import pandas as pd
import torch
from recbole.data.dataset import Dataset
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.compat import own_environment, own_randomness
from recbole_unlearn.data import Fields, SequenceSplits, Splits, read_request
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import PhaseTrainer, compose

COLUMNS = ["user", "rank", "item", "score"]


class Recommender:
    """A model with the data that it was trained on, as tokens."""

    def __init__(self, config: UnlearnConfig, model: AbstractRecommender, splits: Splits) -> None:
        self.config, self.model, self.splits = config, model, splits

    def recommend(self, users: Any, k: int = 10, mask: Any = None) -> pd.DataFrame:
        """The ``k`` best items of each of ``users``, see :meth:`recbole_unlearn.loading.Loaded.recommend`."""
        if isinstance(k, bool) or not isinstance(k, numbers.Integral) or k < 1:
            raise UnlearnError(f"k={k!r:.100} is not valid: expected a whole number, 1 or more.")
        train = self.splits.train
        masked = _Mask(mask, Fields.of(self.config), train)
        ids = self._ids([token for token in _tokens(users) if token not in masked.users])
        size = int(self.config["eval_batch_size"])  # of a sequential model in windows, of others in pairs
        step = size if isinstance(self.splits, SequenceSplits) else max(1, size // train.item_num)
        batches = [self._best(batch, int(k), masked) for batch in torch.split(ids, step) if len(batch)]
        return pd.concat(batches, ignore_index=True) if batches else pd.DataFrame(columns=COLUMNS)

    def _ids(self, tokens: list[str]) -> torch.Tensor:
        """The ids of users (n,); refuses those who have no interaction in the retained data."""
        train = self.splits.train
        ids = _known(tokens, train, train.uid_field)
        unknown = ~self._present(train.uid_field)[ids]
        if unknown.any():
            raise UnlearnError(
                f"{int(unknown.sum())} of {len(ids)} users have no interaction in the retained data, the first of "
                f"them at position {int(unknown.nonzero()[0])}. Leave them out, or serve them as new users."
            )
        return ids

    def _present(self, field: str) -> torch.Tensor:
        """Which ids of users or items an interaction has (ids,); all others are nobody's by now."""
        train = self.splits.train
        present = torch.zeros(train.num(field), dtype=torch.bool)
        for part in self.splits:
            present[part.inter_feat[field]] = True
        return present

    def _best(self, users: torch.Tensor, k: int, masked: _Mask) -> pd.DataFrame:
        """The best items of some users (n,), best first."""
        train = self.splits.train
        scores = self._trainer.batch_scores(self.splits.batch(users), train)  # (n, items)
        scores[:, ~self._present(train.iid_field)] = -torch.inf
        scores[:, masked.items] = -torch.inf
        place = torch.full((train.user_num,), -1)  # of each user among these
        place[users] = torch.arange(len(users))
        for owners, items in (self._history, masked.pairs):
            rows = place[owners]
            scores[rows[rows >= 0], items[rows >= 0]] = -torch.inf
        best = torch.topk(scores, min(k, train.item_num), dim=1)
        shown = torch.isfinite(best.values)  # fewer than k where fewer are left
        rows, ranks = shown.nonzero(as_tuple=True)
        columns = (
            train.id2token(train.uid_field, users[rows].numpy()),
            ranks.numpy() + 1,
            train.id2token(train.iid_field, best.indices[shown].numpy()),
            best.values[shown].numpy(),
        )
        return pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))

    @functools.cached_property
    def _history(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What users had before the test interactions, and are not shown again: as RecBole has it when it tests."""
        parts = [] if self.config["repeatable"] else [self.splits.train, self.splits.valid]
        users, items = (
            torch.cat([torch.zeros(0, dtype=torch.int64), *(part.inter_feat[field] for part in parts)])
            for field in (self.splits.train.uid_field, self.splits.train.iid_field)
        )
        return users, items

    @functools.cached_property
    def _trainer(self) -> PhaseTrainer:
        """RecBole's trainer of the model, which knows how all items are scored."""
        with own_environment(), own_randomness():
            return compose(PhaseTrainer, self.config, self.model, "unlearned")


class _Mask:
    """What is never shown: all for some users, some items for everybody, and pairs."""

    def __init__(self, request: Any, fields: Fields, train: Dataset) -> None:
        nothing = request is None or (isinstance(request, pd.DataFrame) and request.empty)
        frame = pd.DataFrame() if nothing else read_request(request, fields).frame
        empty = pd.Series(None, index=frame.index, dtype=object)
        users, items = (frame.get(column, empty) for column in ("user", "item"))
        both = users.notna() & items.notna()
        self.users = set(users[items.isna()])
        self.items = _known(items[users.isna()], train, train.iid_field)
        self.pairs = (
            _known(users[both], train, train.uid_field), _known(items[both], train, train.iid_field),
        )  # fmt: skip


def _known(tokens: Any, train: Dataset, field: str) -> torch.Tensor:
    """The ids of tokens (n,); 0, which is nobody's, for those that the data does not have."""
    ids = train.field2token_id[field]
    return torch.tensor([int(ids.get(token, 0)) for token in tokens], dtype=torch.int64)


def _tokens(users: Any) -> list[str]:
    """Tokens as strings, each once, in their order; one token is a list of one."""
    single = isinstance(users, (str, numbers.Real)) or np.ndim(users) == 0
    found = []
    for user in [users] if single else users:
        if not isinstance(user, (str, numbers.Real)) or isinstance(user, bool):
            raise UnlearnError(
                f"A user is a token, not a {type(user).__name__}: give tokens as the dataset has them."
            )
        if (
            isinstance(user, numbers.Real)
            and not isinstance(user, numbers.Integral)
            and float(user).is_integer()
        ):
            user = int(float(user))  # 196.0, as a table with gaps has it
        found.append(str(user))
    return list(dict.fromkeys(found))
