"""`load_unlearned()`: the result of a run, ready to use, and recommendations from it in tokens.

The checkpoint and the data next to it belong together and may be moved together: no path inside a file is followed.
Both are read without running code from them, and the checkpoint says which data it was written with.

A model that forgot an interaction may still rank its item high, as a retrained model would: neither knows that the
user had it. A service that must not show it again masks it. The mask is the caller's and is not stored.
"""

import dataclasses
import functools
import numbers
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from recbole.config import Config
from recbole.data.dataloader import AbstractDataLoader
from recbole.data.dataset import Dataset
from recbole.data.interaction import cat_interactions
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn import data, settings
from recbole_unlearn.data import EMPTY, Fields, Located, SequenceSplits, Splits, ids_of, read_request, tokens
from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.files import Checkpoint, dataset_config, find_unlearned, read_checkpoint
from recbole_unlearn.pipeline import begin, checked_settings
from recbole_unlearn.recbole_compat import own_environment
from recbole_unlearn.registry import METHODS
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import PhaseTrainer, Trainings, build_model, compose

COLUMNS = ["user", "rank", "item", "score"]
Pairs: TypeAlias = tuple[torch.Tensor, torch.Tensor]  # ids of users and of items (n,)


@dataclasses.dataclass(frozen=True)
class Loaded:
    """An unlearned model with its retained data; unpacks in the order of RecBole's `load_data_and_model`."""

    config: Config
    model: AbstractRecommender
    dataset: Dataset
    train_data: AbstractDataLoader
    valid_data: AbstractDataLoader
    test_data: AbstractDataLoader
    _ours: UnlearnConfig = dataclasses.field(repr=False)
    _splits: Splits = dataclasses.field(repr=False)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.config, self.model, self.dataset, self.train_data, self.valid_data, self.test_data))

    def recommend(self, users: Any, k: int = 10, mask: Any = None) -> pd.DataFrame:
        """The ``k`` best items of each user, as a table with the columns user, rank, item and score.

        Left out are the user's retained training and validation interactions, as in RecBole's test, and items
        without a retained interaction. A user gets fewer than ``k`` where fewer are left.

        Args:
            users: tokens as in the dataset, each answered once; one token is a list of one.
            k: number of items.
            mask: items that are never shown, as a request: a file, a DataFrame or a dict of columns. A row with a
                user and an item hides the item from that user, an item alone is hidden from all users, and a user
                alone gets no recommendations. Unknown tokens have no effect. The mask is not stored.

        """
        if isinstance(k, bool) or not isinstance(k, numbers.Integral) or k < 1:
            raise UnlearnError(f"k={k!r:.100} is not valid: expected a whole number, 1 or more.")
        train = self._splits.train
        banned, pairs = _masked(mask, Fields.of(self._ours), train)
        named = dict.fromkeys(tokens(users if np.ndim(users) else [users]))
        asked, known = [token for token in named if token not in banned], train.field2token_id[train.uid_field]
        ids = torch.tensor([int(known.get(token, 0)) for token in asked], dtype=torch.int64)
        unknown = ~torch.isin(ids, self.dataset.inter_feat[train.uid_field])
        if unknown.any():
            raise UnlearnError(
                f"{int(unknown.sum())} of {len(ids)} users have no interaction in the retained data, the first of "
                f"them at position {int(unknown.nonzero()[0])}. Leave them out, or serve them as new users."
            )
        seen = [] if self._ours["repeatable"] else [train.inter_feat, self._splits.valid.inter_feat]
        hidden = [(part[train.uid_field], part[train.iid_field]) for part in seen] + [pairs]
        size = int(self._ours["eval_batch_size"])  # in windows for a sequential model, in pairs for others
        step = size if isinstance(self._splits, SequenceSplits) else max(1, size // train.item_num)
        batches = [self._best(batch, int(k), hidden) for batch in torch.split(ids, step) if len(batch)]
        return pd.concat(batches, ignore_index=True) if batches else pd.DataFrame(columns=COLUMNS)

    def _best(self, users: torch.Tensor, k: int, hidden: Sequence[Pairs]) -> pd.DataFrame:
        """The best items of some users (n,), best first, without the ``hidden`` ones."""
        train = self._splits.train
        scores = self._trainer.batch_scores(self._splits.batch(users), train)  # (n, items)
        scores[:, ~torch.isin(torch.arange(train.item_num), self.dataset.inter_feat[train.iid_field])] = -torch.inf
        place = torch.full((train.user_num + 1,), -1)  # row of each user in this batch; the last one is for EMPTY
        place[users] = torch.arange(len(users))
        for owners, items in hidden:
            scores[:, items[owners == EMPTY]] = -torch.inf
            rows = place[owners]
            scores[rows[rows >= 0], items[rows >= 0]] = -torch.inf
        values, places = (part.cpu() for part in torch.topk(scores, min(k, train.item_num), dim=1))
        shown = torch.isfinite(values)  # fewer than k where fewer are left
        rows, ranks = shown.nonzero(as_tuple=True)
        columns = (
            train.id2token(train.uid_field, users[rows].numpy()),
            ranks.numpy() + 1,
            train.id2token(train.iid_field, places[shown].numpy()),
            values[shown].numpy(),
        )
        return pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))

    @functools.cached_property
    def _trainer(self) -> PhaseTrainer:
        with own_environment():
            return compose(PhaseTrainer, self._ours, self.model, "unlearned")


def load_unlearned(directory: str | os.PathLike, model: type | None = None) -> Loaded:
    """Load the unlearned model of a run, with the data it was evaluated on.

    Args:
        directory: the run's output directory, the checkpoint in it, or the directory of an ensemble.
        model: your own model class, if the run used one.

    """
    checkpoint = read_checkpoint(find_unlearned(Path(os.path.abspath(directory))), model)
    path, saved = checkpoint.path, checkpoint.dataset_file
    if saved is None:
        raise UnlearnError(
            f"{shown(path)} is a checkpoint of RecBole, not an unlearned model of this plugin. Load it with "
            "RecBole's load_data_and_model, or give the directory that run_unlearn wrote."
        )
    if model is not None and model.__name__ != checkpoint.model:
        raise UnlearnError(f"{shown(path)} is of the model {checkpoint.model}, not {model.__name__}.")
    with own_environment():
        values = {"tensorboard": False, "checkpoint_dir": str(saved.parent)}  # no path from inside a file
        values |= {"unlearn": checkpoint.method} if checkpoint.method else {}
        name, inherited = checkpoint.dataset, checkpoint.settings
        config = UnlearnConfig(model or checkpoint.model, name, config_dict=values, inherited=inherited)
        splits = data.load(config, saved).splits
        if checkpoint.method is not None:
            made = _ensemble(checkpoint, config, splits)
        else:
            assert checkpoint.trained is not None, "only an ensemble has none"
            made = build_model(config, splits, checkpoint.trained.other_parameter)
            checkpoint.trained.load_into(made)
        made.eval()
        whole = splits.train.copy(cat_interactions([part.inter_feat for part in splits]))
        plain = dataset_config(config, saved.parent, saved)
        return Loaded(plain, made, whole, *data.loaders(config, splits), config, splits)


def _ensemble(checkpoint: Checkpoint, config: UnlearnConfig, splits: Splits) -> AbstractRecommender:
    """An ensemble, read by the method that wrote it, as the start of the next request."""
    method = METHODS.get(str(checkpoint.method))
    train, valid, test = (np.zeros(len(part), dtype=bool) for part in splits)
    nothing = Located(train, valid, test)
    cache = dataclasses.replace(settings.read(settings.CacheSettings, config), cache=False)
    trainer, task = begin(
        method, checked_settings(method, config), config, data.divide(splits, nothing, "python"), None,
        Trainings(cache, 1), "unlearned", stored=checkpoint.path,
    )  # fmt: skip
    trainer.originate(task)
    return trainer.model


def _masked(request: Any, fields: Fields, train: Dataset) -> tuple[set[str], Pairs]:
    """Users who get nothing, and the pairs that are not shown; ``EMPTY`` instead of a user stands for all."""
    if request is None or (isinstance(request, pd.DataFrame) and request.empty):
        return set(), (torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    read = read_request(request, fields)
    users, items = map(torch.from_numpy, ids_of(read, train))
    return set(read.frame["user"][read.frame["item"].isna()]), (users, items)
