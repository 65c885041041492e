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
from recbole.config import Config
from recbole.data.dataset import Dataset, KnowledgeBasedDataset, SequentialDataset
from recbole.data.interaction import Interaction, cat_interactions
from recbole.utils import ModelType

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import unpickle
from recbole_unlearn.files.atomic import atomic
from recbole_unlearn.files.dataset_state import ATTRIBUTES, GRAPH, LINKS, OPTIONAL, PARTS, fault, graph_fault
from recbole_unlearn.files.hash_keys import Done
from recbole_unlearn.files.vocabulary import blank_unused
from recbole_unlearn.inputs import shown

_KINDS = {ModelType.SEQUENTIAL: SequentialDataset, ModelType.KNOWLEDGE: KnowledgeBasedDataset}
MOST_INTERACTIONS = 2**40  # of an item; no dataset has more
RAW, RAW_SIZES = (
    "unlearn_raw",
    "unlearn_raw_sizes",
)  # the interactions behind windows, and how many in each part


class Clock(NamedTuple):
    """The affine map from the timestamps of the source file to those RecBole loaded."""

    low: float
    slope: float
    start: float

    def __call__(self, times: np.ndarray) -> np.ndarray:
        """Timestamps of the file as the dataset has them."""
        return self.start + (times - self.low) * self.slope


class Saved(NamedTuple):
    """A saved dataset, and what its file has beside RecBole's own."""

    dataset: Dataset
    clock: Clock | None
    fitted: np.ndarray | None  # (items,), about how many interactions the rows of each item were fitted to
    done: tuple[Done, ...]  # the requests that led here


def write_dataset(
    path: Path,
    config: Config,
    parts: Sequence[Dataset],
    clock: Clock | None,
    fitted: np.ndarray | None = None,
    done: Sequence[Done] = (),
    windows: Sequence[Dataset] | None = None,
) -> None:
    """Write the interactions of ``parts`` (train, valid, test) as one saved dataset of RecBole.

    ``fitted`` (items,) is about how many training interactions each item had when its rows were fitted, for the next
    request (`data/item_counts.py`); None where that are the retained ones. ``done`` are keyed hashes of requests that
    led to this data, by which one that comes again is recognised. ``windows`` are what a sequential model reads of
    ``parts``: RecBole finds them in the file, and the next request finds the interactions behind them.
    """
    dataset = _joined(config, parts)
    dataset = dataset if windows is None else _windowed(dataset, windows)
    dataset.unlearn_clock = None if clock is None else tuple(clock)
    dataset.unlearn_fitted = None if fitted is None else fitted.astype(np.int64)
    dataset.unlearn_done = [tuple(one) for one in done]
    with atomic(path) as stream:
        pickle.dump(dataset, stream, protocol=4)


def read_dataset(path: Path, config: Config) -> Saved:
    """A dataset that :func:`write_dataset` wrote, with what the request that wrote it left for the next."""
    content = unpickle.load_pickle(path, unpickle.only(config.model_class))  # its config names the class
    state = content.state if isinstance(content, unpickle.StandIn) else None
    kind = _KINDS.get(config["MODEL_TYPE"], Dataset)
    if not isinstance(state, dict) or getattr(content.maker, "name", "") != kind.__name__:
        raise UnlearnError(f"{shown(path)} is not a saved dataset of RecBole for {config['model']}.")
    if kind is SequentialDataset:
        state = state | {"inter_feat": state.get(RAW), "file_size_list": state.get(RAW_SIZES)}
    fields = {name: config[key] for name, key in GRAPH.items()} if kind is KnowledgeBasedDataset else {}
    problem = fault(state, config["dataset"]) or (graph_fault(state, fields) if fields else None)
    if problem:
        raise UnlearnError(f"{shown(path)} is damaged, or not a dataset this plugin wrote: {problem}.")
    dataset = kind.__new__(kind)
    if kind is SequentialDataset:
        dataset.max_item_list_len = config["MAX_ITEM_LIST_LENGTH"]
        dataset.item_list_length_field = config["ITEM_LIST_LENGTH_FIELD"]
    if kind is KnowledgeBasedDataset:
        dataset.__dict__.update(fields | {name: state[name] for name in LINKS})
    dataset.__dict__.update({name: state[name] for name in ATTRIBUTES})
    dataset.__dict__.update({name: state.get(name) for name in OPTIONAL})
    for feat in dataset.feat_name_list:
        setattr(dataset, feat, state[feat])
    dataset.dataset_path = config["data_path"]  # a path is not taken from a file
    dataset.config, dataset.logger = config, logging.getLogger()
    dataset.benchmark_filename_list = PARTS
    items = len(state["field2id_token"].get(dataset.iid_field, ()))
    fitted = _fitted(path, state.get("unlearn_fitted"), items)
    done = Done.of(state.get("unlearn_done"))
    if done is None:
        raise UnlearnError(f"{shown(path)} is damaged: its list of earlier requests is odd.")
    return Saved(dataset, _clock(path, state.get("unlearn_clock")), fitted, done)


def _clock(path: Path, parts: Any) -> Clock | None:
    if parts is None:
        return None
    fits = isinstance(parts, tuple) and len(parts) == 3 and all(isinstance(p, (int, float)) for p in parts)
    if not fits or not np.isfinite(parts).all():
        raise UnlearnError(f"{shown(path)} is damaged: its clock is odd.")
    return Clock(*(float(part) for part in parts))


def _fitted(path: Path, counts: Any, items: int) -> np.ndarray | None:
    """Counts by item from a file; None when it has none, as those of earlier versions."""
    if counts is None:
        return None
    fits = isinstance(counts, np.ndarray) and counts.shape == (items,) and counts.dtype.kind in "iu"
    if not fits or (counts < 0).any() or (counts > MOST_INTERACTIONS).any():
        raise UnlearnError(f"{shown(path)} is damaged: its counts of items are odd.")
    return counts.astype(np.int64)


def _joined(config: Config, parts: Sequence[Dataset]) -> Dataset:
    """One RecBole dataset of the retained interactions, which `build()` divides into ``parts`` again."""
    dataset = parts[0].copy(cat_interactions([part.inter_feat for part in parts]))
    dataset.config = config
    dataset.logger = logging.getLogger()
    dataset.benchmark_filename_list = PARTS
    dataset.file_size_list = [len(part) for part in parts]
    dataset.field2seqlen = dict(
        dataset.field2seqlen
    )  # where splits are files, a kind of dict that is refused here
    blank_unused(dataset)
    for feat in dataset.feat_name_list:
        setattr(dataset, feat, _frame(getattr(dataset, feat)))
    return dataset


def _windowed(dataset: Dataset, windows: Sequence[Dataset]) -> Dataset:
    """``dataset`` with ``windows`` in the place of its interactions, which are kept beside them."""
    feat = cat_interactions([part.inter_feat for part in windows])
    lists = [field for field in feat.columns if field not in dataset.inter_feat.columns]
    made = windows[0].copy(_frame(feat, lists))
    own = ("inter_feat", "file_size_list", "field2type", "field2source", "field2seqlen", "max_item_list_len")
    made.__dict__.update({name: value for name, value in dataset.__dict__.items() if name not in own})
    made.file_size_list = [len(part) for part in windows]
    # RecBole cuts a list at this length, and knows no list of lists.
    made.field2seqlen = {
        field: length[0] if isinstance(length, tuple) else length
        for field, length in made.field2seqlen.items()
    }
    made.__dict__.update({RAW: dataset.inter_feat, RAW_SIZES: dataset.file_size_list})
    return made


def _frame(feat: Interaction, lists: Sequence[str] = ()) -> pd.DataFrame:
    """Features in the form RecBole's datasets have before `build()`; ``lists`` are fields of histories."""
    columns: dict[str, Any] = {}
    for name in sorted(feat.columns):
        value = feat[name].numpy()
        if value.ndim == 3 and name not in lists:
            value = value.transpose(
                0, 2, 1
            )  # numbers with their buckets (n, length, 2), apart before `build()`
        columns[name] = list(value) if value.ndim > 1 else value
    return pd.DataFrame(columns)
