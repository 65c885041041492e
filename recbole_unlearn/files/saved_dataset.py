"""The retained data as a file: RecBole's saved dataset, read back without running code from it.

RecBole numbers users and items by their first appearance, so a source file without the deleted rows would
number them anew and an unlearned model would not fit it. This file keeps the numbering and the split:
RecBole's `create_dataset` loads it as it is, and :func:`read_dataset` is where the next request starts.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from recbole.config import Config
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction, cat_interactions
from recbole.utils import FeatureType

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import unpickle
from recbole_unlearn.files.atomic import atomic

PARTS = ["train", "valid", "test"]

# What a dataset of RecBole consists of, beside its config and its logger.
_ATTRIBUTES = {
    "dataset_name": str, "dataset_path": str, "field2type": dict, "field2source": dict,
    "field2id_token": dict, "field2token_id": dict, "field2bucketnum": dict, "field2seqlen": dict,
    "alias": dict, "_preloaded_weight": dict, "uid_field": str, "iid_field": str, "feat_name_list": list,
    "file_size_list": list, "inter_feat": pd.DataFrame,
}  # fmt: skip
_OPTIONAL = ("user_feat", "item_feat", "label_field", "time_field", "_rest_fields")


class Clock(NamedTuple):
    """The affine map from the timestamps of the source file to those RecBole loaded."""

    low: float
    slope: float
    start: float

    def __call__(self, times: np.ndarray) -> np.ndarray:
        """Timestamps of the file as the dataset has them."""
        return self.start + (times - self.low) * self.slope


def write_dataset(path: Path, config: Config, parts: Sequence[Dataset], clock: Clock | None) -> None:
    """Write the rows of ``parts`` (train, valid, test) as one saved dataset of RecBole."""
    dataset = _joined(config, parts)
    dataset.unlearn_clock = None if clock is None else tuple(clock)
    with atomic(path) as stream:
        pickle.dump(dataset, stream, protocol=4)


def read_dataset(path: Path, config: Config) -> tuple[Dataset, Clock | None]:
    """A dataset that :func:`write_dataset` wrote, with the clock of its source."""
    content = unpickle.load_pickle(path)
    state = content.state if isinstance(content, unpickle.StandIn) else None
    if type(content).__name__ != "Dataset" or not isinstance(state, dict):
        raise UnlearnError(f"{path} is not a saved dataset of RecBole.")
    for name, kind in _ATTRIBUTES.items():
        if not isinstance(state.get(name), kind):
            raise UnlearnError(f"{path} is not a dataset this plugin wrote: {name} is missing or odd.")
    if len(state["file_size_list"]) != len(PARTS) or sum(state["file_size_list"]) != len(state["inter_feat"]):
        raise UnlearnError(f"{path} is damaged: its parts do not add up to its rows.")
    dataset = Dataset.__new__(Dataset)
    dataset.__dict__.update({name: state[name] for name in _ATTRIBUTES})
    dataset.__dict__.update({name: state.get(name) for name in _OPTIONAL})
    for feat in dataset.feat_name_list:
        if not isinstance(state.get(feat), pd.DataFrame):
            raise UnlearnError(f"{path} is damaged: {feat} is missing.")
        setattr(dataset, feat, state[feat])
    dataset.config, dataset.logger = config, logging.getLogger()
    dataset.benchmark_filename_list = PARTS
    clock = state.get("unlearn_clock")
    return dataset, None if clock is None else Clock(*(float(part) for part in clock))


def _joined(config: Config, parts: Sequence[Dataset]) -> Dataset:
    """One RecBole dataset of the retained rows, which `build()` divides into ``parts`` again."""
    dataset = parts[0].copy(cat_interactions([part.inter_feat for part in parts]))
    gone = {}
    for field in (dataset.uid_field, dataset.iid_field):
        present = torch.unique(dataset.inter_feat[field]).numpy()
        gone[field] = np.setdiff1d(np.arange(1, dataset.num(field)), present)
    dataset.config = config
    dataset.logger = logging.getLogger()
    dataset.benchmark_filename_list = PARTS
    dataset.file_size_list = [len(part) for part in parts]
    dataset.field2id_token = {**dataset.field2id_token}
    dataset.field2token_id = {**dataset.field2token_id}
    for field, ids in gone.items():
        _erase_tokens(dataset, field, ids)
    for feat, field in (("user_feat", dataset.uid_field), ("item_feat", dataset.iid_field)):
        if getattr(dataset, feat) is not None:
            setattr(dataset, feat, _without(getattr(dataset, feat), field, gone[field]))
    for feat in dataset.feat_name_list:
        setattr(dataset, feat, _frame(dataset, getattr(dataset, feat)))
    return dataset


def _erase_tokens(dataset: Dataset, field: str, ids: np.ndarray) -> None:
    """Replace the tokens of ``ids`` by placeholders, which keeps the numbering and tells nothing."""
    tokens = np.array(dataset.field2id_token[field], dtype=object)
    tokens[ids] = [f"[removed-{number}]" for number in ids]
    dataset.field2id_token[field] = tokens.astype(str)
    dataset.field2token_id[field] = {token: number for number, token in enumerate(tokens)}


def _without(feat: Interaction, key: str, ids: np.ndarray) -> Interaction:
    """Features with the rows of ``ids`` blank."""
    columns = {name: value.clone() for name, value in feat.interaction.items()}
    for name, value in columns.items():
        if name != key:
            value[torch.from_numpy(ids)] = 0
    return Interaction(columns)


def _frame(dataset: Dataset, feat: Interaction | pd.DataFrame) -> pd.DataFrame:
    """Features in the form RecBole's datasets have before `build()`."""
    if isinstance(feat, pd.DataFrame):
        return feat
    columns: dict[str, Any] = {}
    for name in sorted(feat.columns):
        value = feat[name].numpy()
        if dataset.field2type[name] in (FeatureType.TOKEN_SEQ, FeatureType.FLOAT_SEQ):
            columns[name] = list(value)
        else:
            columns[name] = value
    return pd.DataFrame(columns)
