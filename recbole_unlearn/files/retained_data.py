"""The retained data as a file: RecBole's saved dataset, without the deleted interactions and what only they used.

RecBole numbers users and items by their first appearance, so a source file without the deleted interactions would
give other numbers, and an unlearned model would not fit it. This file keeps the numbering and the split: RecBole's
`create_dataset` loads it as it is, and :func:`read_dataset` is where the next request starts.

A value that no retained interaction uses, such as a zip code, may have been that of a deleted user alone: its token
becomes a placeholder, which keeps the numbering, and the features of users and items without an interaction become
zeros (:func:`blank_unused`). Any file is checked when it is read: RecBole trusts its datasets, and an id outside the
vocabulary or a missing column would end in the middle of a training.
"""

import logging
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from recbole.config import Config
from recbole.data.dataset import Dataset, KnowledgeBasedDataset, SequentialDataset
from recbole.data.interaction import Interaction, cat_interactions
from recbole.utils import FeatureSource, FeatureType, ModelType

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.files.atomic import atomic
from recbole_unlearn.files.hash_keys import Done
from recbole_unlearn.files.safe_load import load_pickle, only
from recbole_unlearn.files.safe_pickle import RefusedError, StandIn, require

PARTS = ["train", "valid", "test"]
MOST_BUCKETS = 100_000
FREE, PADDED = 10_000_000, 100  # places that rows of different lengths may take: so many, and for each place in use
MOST_INTERACTIONS = 2**40  # of an item; no dataset has more
RAW, RAW_SIZES = "unlearn_raw", "unlearn_raw_sizes"  # the interactions behind windows, how many in each part
_KINDS = {ModelType.SEQUENTIAL: SequentialDataset, ModelType.KNOWLEDGE: KnowledgeBasedDataset}
_TOKENS = (FeatureType.TOKEN, FeatureType.TOKEN_SEQ)
_SEQUENCES = (FeatureType.TOKEN_SEQ, FeatureType.FLOAT_SEQ)
_DEPTH = {FeatureType.FLOAT: 1, FeatureType.FLOAT_SEQ: 2}  # of numbers with their buckets
# The attributes of a dataset of RecBole, apart from its config, its logger and its path.
_ATTRIBUTES: dict[str, type] = {
    "dataset_name": str, "field2type": dict, "field2source": dict, "field2id_token": dict, "field2token_id": dict,
    "field2bucketnum": dict, "field2seqlen": dict, "alias": dict, "uid_field": str, "iid_field": str,
    "feat_name_list": list, "file_size_list": list, "inter_feat": pd.DataFrame,
}  # fmt: skip
# The values of those that are mappings by field.
_CONTENT: dict[str, Any] = {
    "field2type": FeatureType, "field2source": (FeatureSource, str), "field2bucketnum": int, "field2seqlen": int,
    "alias": (list, np.ndarray),
}  # fmt: skip
_TABLES = ("inter_feat", "user_feat", "item_feat", "kg_feat")
_OPTIONAL = ("user_feat", "item_feat", "label_field", "time_field", "_rest_fields")
# Those of a knowledge-aware model: fields that the config names, and dicts between tokens.
_GRAPH = {
    "head_entity_field": "HEAD_ENTITY_ID_FIELD", "tail_entity_field": "TAIL_ENTITY_ID_FIELD",
    "relation_field": "RELATION_ID_FIELD", "entity_field": "ENTITY_ID_FIELD", "kg_reverse_r": "kg_reverse_r",
    "entity_kg_num_interval": "entity_kg_num_interval", "relation_kg_num_interval": "relation_kg_num_interval",
}  # fmt: skip
_LINKS = ("item2entity", "entity2item")


class Clock(NamedTuple):
    """The affine map from the timestamps of the source file to those RecBole loaded."""

    low: float
    slope: float
    start: float

    def __call__(self, times: np.ndarray) -> np.ndarray:
        """Timestamps of the file as the dataset has them."""
        return self.start + (times - self.low) * self.slope


def write_dataset(
    path: Path, config: Config, parts: Sequence[Dataset], clock: Clock | None, fitted: np.ndarray | None = None,
    done: Sequence[Done] = (), windows: Sequence[Dataset] | None = None,
) -> None:  # fmt: skip
    """Write the interactions of ``parts`` (train, valid, test) as one saved dataset of RecBole.

    ``fitted`` (items,) is about how many training interactions each item had when its rows were fitted, for the next
    request (`data/item_counts.py`); None where these are the retained ones. ``done`` are keyed hashes of the requests
    that led to this data, by which a repeated one is recognized. ``windows`` are the windows of ``parts`` that a
    sequential model reads: RecBole finds them in the file, and the next request finds the interactions behind them.
    """
    dataset = parts[0].copy(cat_interactions([part.inter_feat for part in parts]))
    dataset.config, dataset.logger = config, logging.getLogger()
    dataset.benchmark_filename_list = PARTS  # RecBole's `build()` divides it into the parts again
    dataset.file_size_list = [len(part) for part in parts]
    dataset.field2seqlen = dict(dataset.field2seqlen)  # where splits are files, a kind of dict that is refused
    blank_unused(dataset)
    for feat in dataset.feat_name_list:
        setattr(dataset, feat, _frame(getattr(dataset, feat)))
    if windows is not None:
        dataset = _windowed(dataset, windows)
    dataset.unlearn_clock = None if clock is None else tuple(clock)
    dataset.unlearn_fitted = None if fitted is None else fitted.astype(np.int64)
    dataset.unlearn_done = [tuple(one) for one in done]
    with atomic(path) as stream:
        pickle.dump(dataset, stream, protocol=4)


def _windowed(dataset: Dataset, windows: Sequence[Dataset]) -> Dataset:
    """``dataset`` with ``windows`` in place of its interactions, which it keeps under another name."""
    feat = cat_interactions([part.inter_feat for part in windows])
    lists = [field for field in feat.columns if field not in dataset.inter_feat.columns]
    found = windows[0].copy(_frame(feat, lists))
    own = ("inter_feat", "file_size_list", "field2type", "field2source", "field2seqlen", "max_item_list_len")
    found.__dict__.update({name: value for name, value in dataset.__dict__.items() if name not in own})
    found.file_size_list = [len(part) for part in windows]
    # RecBole cuts a list at this length, and knows no list of lists.
    found.field2seqlen = {
        field: length[0] if isinstance(length, tuple) else length for field, length in found.field2seqlen.items()
    }
    found.__dict__.update({RAW: dataset.inter_feat, RAW_SIZES: dataset.file_size_list})
    return found


def _frame(feat: Interaction, lists: Sequence[str] = ()) -> pd.DataFrame:
    """Features in the form RecBole's datasets have before `build()`; ``lists`` are fields of histories."""
    columns: dict[str, Any] = {}
    for name in sorted(feat.columns):
        value = feat[name].numpy()
        if value.ndim == 3 and name not in lists:
            value = value.transpose(0, 2, 1)  # numbers with their buckets (n, length, 2), apart before `build()`
        columns[name] = list(value) if value.ndim > 1 else value
    return pd.DataFrame(columns)


def used_values(dataset: Dataset) -> dict[str, torch.Tensor]:
    """By field, the values that an interaction of ``dataset`` has, itself or through its user or item (n,), sorted.

    A value is a number of the field's vocabulary, or the bucket of a number (``numerical_features``). 0 is no value.
    """
    found: dict[str, list[torch.Tensor]] = {}
    for name in dataset.feat_name_list:
        feat, lines = getattr(dataset, name), _lines_in_use(dataset, name)
        for field in feat.columns:
            column = feat[field][lines]
            if dataset.field2type[field] in _TOKENS:
                found.setdefault(field, []).append(column.flatten().long())
            elif field in (dataset.config["numerical_features"] or ()):  # pairs of a number and its bucket
                found.setdefault(field, []).append(column[..., 1].flatten().long())
    if "kg_feat" in dataset.feat_name_list:
        # Heads, tails and items are one vocabulary of entities; RecBole's relation of users and items is in no fact.
        ends = dataset.head_entity_field, dataset.tail_entity_field
        entities = [found[field][0] for field in ends] + [dataset.inter_feat[dataset.iid_field]]
        found |= dict.fromkeys((*ends, dataset.entity_field), entities)
        found[dataset.relation_field].append(torch.tensor([dataset.relation_num - 1]))
    unique = {field: torch.unique(torch.cat(parts)) for field, parts in found.items()}
    return {field: values[values > 0] for field, values in unique.items()}


def _lines_in_use(dataset: Dataset, name: str) -> torch.Tensor | slice:
    """The lines of a table about users or items, one for each id in their order, that interactions have."""
    owner = {"user_feat": dataset.uid_field, "item_feat": dataset.iid_field}.get(name)
    # Facts about items that are gone are removed before (`data/`).
    return slice(None) if owner is None else torch.unique(dataset.inter_feat[owner])


def blank_unused(dataset: Dataset) -> None:
    """Blank all values that no interaction of ``dataset`` uses; its tables are replaced, never written to."""
    rows = {field: values.numpy() for field, values in used_values(dataset).items()}
    dataset.field2id_token, dataset.field2token_id = {**dataset.field2id_token}, {**dataset.field2token_id}
    for field in dataset.field2id_token:  # placeholders keep the numbering and tell nothing
        tokens = np.array(dataset.field2id_token[field], dtype=object)
        unused = np.setdiff1d(np.arange(1, len(tokens)), rows.get(field, []))
        tokens[unused] = [f"[removed-{number}]" for number in unused]
        dataset.field2id_token[field] = tokens.astype(str)
        dataset.field2token_id[field] = {token: number for number, token in enumerate(tokens)}
    for name, key in (("user_feat", dataset.uid_field), ("item_feat", dataset.iid_field)):
        if name not in dataset.feat_name_list:
            continue
        feat, kept = getattr(dataset, name), _lines_in_use(dataset, name)
        # Zeros in all other lines, 0 too, which RecBole fills with the mean over all users: from it the value of the
        # one who is missing could be worked out.
        columns = {field: torch.zeros_like(value) for field, value in feat.interaction.items()}
        for field, blank in columns.items():
            blank[kept] = feat[field][kept]
        setattr(dataset, name, Interaction(columns | {key: feat[key]}))
    if hasattr(dataset, "item2entity"):
        known = dataset.field2token_id[dataset.iid_field]
        dataset.item2entity = {item: entity for item, entity in dataset.item2entity.items() if item in known}
        dataset.entity2item = {entity: item for item, entity in dataset.item2entity.items()}


def read_dataset(path: Path, config: Config) -> tuple[Dataset, Clock | None, np.ndarray | None, tuple[Done, ...]]:
    """A dataset that :func:`write_dataset` wrote, with its ``clock``, ``fitted`` and ``done``."""
    content = load_pickle(path, only(config.model_class))  # its config names the class
    state = content.state if isinstance(content, StandIn) else None
    kind = _KINDS.get(config["MODEL_TYPE"], Dataset)
    if not isinstance(state, dict) or content.maker.name != kind.__name__:
        raise UnlearnError(f"{shown(path)} is not a saved dataset of RecBole for {config['model']}.")
    if kind is SequentialDataset:
        state = state | {"inter_feat": state.get(RAW), "file_size_list": state.get(RAW_SIZES)}
    fields = {name: config[key] for name, key in _GRAPH.items()} if kind is KnowledgeBasedDataset else {}
    try:
        _check_state(state, config["dataset"])
        if fields:
            _check_graph(state, fields)
        clock, fitted = (state.get("unlearn_clock"), state.get("unlearn_fitted"))  # None in files of old versions
        if clock is not None:
            require(isinstance(clock, tuple) and np.isfinite(clock).all(), "its clock is odd")
            clock = Clock(*(float(part) for part in clock))
        if fitted is not None:
            items = len(state["field2id_token"][state["iid_field"]])
            fits = isinstance(fitted, np.ndarray) and fitted.dtype.kind in "iu" and fitted.shape == (items,)
            fits = fits and ((fitted >= 0) & (fitted <= MOST_INTERACTIONS)).all()
            require(fits, "its counts of items are odd")
            fitted = fitted.astype(np.int64)
        done = Done.of(state.get("unlearn_done"))
        require(done is not None, "its list of earlier requests is odd")
    except Exception as error:  # a state of odd types can make the checks raise anything
        fault = shown(str(error)) if isinstance(error, RefusedError) else type(error).__name__
        raise UnlearnError(f"{shown(path)} is damaged, or not a dataset this plugin wrote: {fault}.") from error
    dataset = kind.__new__(kind)
    if kind is SequentialDataset:
        dataset.max_item_list_len = config["MAX_ITEM_LIST_LENGTH"]
        dataset.item_list_length_field = config["ITEM_LIST_LENGTH_FIELD"]
    names = (*_ATTRIBUTES, *state["feat_name_list"], *_OPTIONAL, *(_LINKS if fields else ()))
    dataset.__dict__.update({name: state.get(name) for name in names} | fields | {"_preloaded_weight": {}})
    dataset.dataset_path = config["data_path"]  # a path is not taken from a file
    dataset.config, dataset.logger = config, logging.getLogger()
    dataset.benchmark_filename_list = PARTS
    return dataset, clock, fitted, done or ()


def _check_state(state: Mapping[str, Any], name: str) -> None:
    """Fields, vocabularies, tables and parts of a saved dataset that should be called ``name`` agree."""
    for key, kind in _ATTRIBUTES.items():
        require(isinstance(state.get(key), kind), f"{key} is missing or odd")
    require(state["dataset_name"] == name, f"it is of another dataset than {name}")
    sizes, types, tables = state["file_size_list"], state["field2type"], state["feat_name_list"]
    whole = len(sizes) == len(PARTS) and all(type(size) is int and size >= 0 for size in sizes)
    require(whole and sum(sizes) == len(state["inter_feat"]), "its parts do not add up to its interactions")
    for key, kinds in _CONTENT.items():
        named = all(isinstance(name, str) and isinstance(value, kinds) for name, value in state[key].items())
        require(named, f"{key} is odd")
    for key in ("field2bucketnum", "field2seqlen"):
        require(all(0 <= number <= MOST_BUCKETS for number in state[key].values()), f"{key} is odd")
    for key in ("label_field", "time_field"):
        require(isinstance(state.get(key), (str, type(None))), f"{key} is odd")
    owners = {state["uid_field"], state["iid_field"]}
    tokens = all(types.get(field) is FeatureType.TOKEN and field in state["inter_feat"] for field in owners)
    require(tokens, "its users or items are not a column of tokens")
    for field in owners | state["field2id_token"].keys() | state["field2token_id"].keys():
        known, ids = (state[key].get(field) for key in ("field2id_token", "field2token_id"))
        listed = isinstance(known, list) or (isinstance(known, np.ndarray) and known.ndim == 1)
        require(listed and isinstance(ids, dict), f"{field} has no vocabulary")
        whole = len(ids) == len(known) and all(isinstance(number, (int, np.integer)) for number in ids.values())
        same = whole and all(ids.get(str(token)) == place for place, token in enumerate(known))
        require(same, f"the vocabulary of {field} is damaged")
        _check_lengths(field, [len(token) for token in ids])
    kept = {"inter_feat"} | {table for table in ("user_feat", "item_feat") if state.get(table) is not None}
    require(kept <= set(tables), "its tables are not in the list of its tables")
    for table in tables:
        fits = table in _TABLES and isinstance(state.get(table), pd.DataFrame)
        require(fits, "a table is missing or has an odd name")
        for column in state[table]:
            try:
                _check_column(state, str(column), state[table][column])
            except (TypeError, ValueError) as error:
                raise RefusedError(f"{column} is damaged") from error


def _check_graph(state: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """The graph has its columns and vocabularies; ``fields`` are the values of :data:`_GRAPH`."""
    columns = [fields[f"{name}_field"] for name in ("head_entity", "tail_entity", "relation")]
    there = "kg_feat" in state["feat_name_list"] and all(name in state["kg_feat"] for name in columns)
    require(there, "its graph is missing")
    require(len(state["kg_feat"]), "its graph is empty")
    sizes = [len(state["field2id_token"].get(name, ())) for name in (*columns[:2], fields["entity_field"])]
    items = len(state["field2id_token"].get(state["iid_field"], ()))
    one = len(set(sizes)) == 1 and sizes[0] >= items
    require(one, "its entities are not one vocabulary that begins with the items")
    for name in _LINKS:
        links = state.get(name)
        fits = isinstance(links, dict) and all(type(token) is str for pair in links.items() for token in pair)
        require(fits, f"{name} is odd")


def _check_column(state: Mapping[str, Any], field: str, values: pd.Series) -> None:
    kind = state["field2type"].get(field)
    require(kind is not None, f"{field} has no type")
    if kind in _DEPTH and values.dtype == object and any(np.ndim(value) == _DEPTH[kind] for value in values):
        # Numbers with their buckets (`numerical_features`): pairs, or two sequences of one length.
        for value in values:
            pair = np.asarray(value, dtype=np.float64)
            require(pair.ndim == _DEPTH[kind] and len(pair) == 2 and np.isfinite(pair).all(), f"{field} is damaged")
            inside = ((pair[1] >= 0) & (pair[1] < state["field2bucketnum"].get(field, 0))).all()
            require(inside, f"{field} has buckets that it does not have")
        return
    require((kind in _SEQUENCES) == (values.dtype == object), f"{field} is not what its type says")
    flat = values.to_numpy()
    if kind in _SEQUENCES:
        flat = np.concatenate([np.zeros(0, np.int64), *(np.asarray(value).ravel() for value in values)])
        _check_lengths(field, [np.size(value) for value in values])
    if kind in _TOKENS:
        number = len(state["field2id_token"].get(field, ()))
        inside = flat.dtype.kind in "iu" and ((flat >= 0) & (flat < number)).all()
        require(inside, f"{field} has ids that are not in its vocabulary")
    else:
        require(flat.dtype.kind in "iuf" and np.isfinite(flat).all(), f"{field} has other than numbers")


def _check_lengths(field: str, lengths: Sequence[int]) -> None:
    """Refuse one long entry among many short ones: as an array, each would take the place of the longest."""
    fits = len(lengths) * max(lengths, default=0) <= FREE + PADDED * sum(lengths)
    require(fits, f"{field} has an entry that is much longer than the others")
