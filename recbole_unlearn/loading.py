"""`load_unlearned()`: the result of a run, ready to use, wherever its directory is by now.

The checkpoint and the data beside it belong together and may be moved together: no path that a file names is
followed. Both are read without running code from them, and the checkpoint says which data it was written with.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from recbole.config import Config
from recbole.data.dataloader import AbstractDataLoader
from recbole.data.dataset import Dataset
from recbole.data.interaction import cat_interactions
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn import settings
from recbole_unlearn.compat import own_environment, own_randomness
from recbole_unlearn.data import Located, Splits, divide, load, loaders
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Checkpoint, dataset_config, find_unlearned, read_checkpoint
from recbole_unlearn.inputs import shown
from recbole_unlearn.methods import registry
from recbole_unlearn.pipeline import begin, checked_settings
from recbole_unlearn.recommend import Recommender
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import Trainings, build_model


@dataclasses.dataclass(frozen=True)
class Loaded:
    """An unlearned model with its retained data; unpacks in the order of RecBole's `load_data_and_model`."""

    config: Config
    model: AbstractRecommender
    dataset: Dataset
    train_data: AbstractDataLoader
    valid_data: AbstractDataLoader
    test_data: AbstractDataLoader
    _recommender: Recommender = dataclasses.field(repr=False)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.config, self.model, self.dataset, self.train_data, self.valid_data, self.test_data))

    def recommend(self, users: Any, k: int = 10, mask: Any = None) -> pd.DataFrame:
        """The ``k`` best items of each user, as a table with the columns user, rank, item and score.

        Left out are the user's retained training and validation interactions, as RecBole does when it tests, and
        items that no retained interaction has. A user gets fewer than ``k`` where fewer are left.

        Args:
            users: tokens as the dataset has them, each answered once; one token is a list of one.
            k: how many items.
            mask: what is never shown, as a request: a file, a DataFrame or a dict of columns. A row with a user and
                an item hides the item from that user, one with an item alone hides it from everybody, and a user
                alone gets no recommendations. What the data does not know has no effect. It is not kept.

        """
        return self._recommender.recommend(users, k, mask)


def load_unlearned(directory: str | os.PathLike, model: type | None = None) -> Loaded:
    """Load the unlearned model of a run, with the data it was evaluated on.

    Args:
        directory: the run's output directory, the checkpoint in it, or the directory of an ensemble.
        model: your own model class, when the run was about one.

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
    with own_environment(), own_randomness():
        config = _config(checkpoint, saved.parent, model)
        splits = load(config, saved).splits
        made = (
            _single(checkpoint, config, splits)
            if checkpoint.method is None
            else _ensemble(checkpoint, config, splits)
        )
        made.eval()
        whole = splits.train.copy(cat_interactions([part.inter_feat for part in splits]))
        plain = dataset_config(config, saved.parent, saved)
        return Loaded(plain, made, whole, *loaders(config, splits), Recommender(config, made, splits))


def _config(checkpoint: Checkpoint, directory: Path, model: type | None) -> UnlearnConfig:
    """The settings of the run, without any place that a file names."""
    values = {"tensorboard": False, "checkpoint_dir": str(directory)}
    values |= {"unlearn": checkpoint.method} if checkpoint.method else {}
    return UnlearnConfig(
        model or checkpoint.model, checkpoint.dataset, config_dict=values, inherited=checkpoint.settings
    )


def _single(checkpoint: Checkpoint, config: UnlearnConfig, splits: Splits) -> AbstractRecommender:
    model = build_model(config, splits)
    assert checkpoint.trained is not None, "only an ensemble has none"
    checkpoint.trained.load_into(model)
    return model


def _ensemble(checkpoint: Checkpoint, config: UnlearnConfig, splits: Splits) -> AbstractRecommender:
    """An ensemble, read by the method that wrote it as where the next request starts."""
    method = registry.get(str(checkpoint.method))
    train, valid, test = (np.zeros(len(part), dtype=bool) for part in splits)
    nothing = Located(train, valid, test)
    cache = dataclasses.replace(settings.read(settings.CacheSettings, config), cache=False)
    trainer, task = begin(
        method, checked_settings(method, config), config, divide(splits, nothing, "python"), None,
        Trainings(cache, 1), "unlearned", stored=checkpoint.path,
    )  # fmt: skip
    trainer.originate(task)
    return trainer.model
