"""What a saved dataset has to look like before RecBole works with it: fields, vocabularies, tables and parts agree.

RecBole trusts its datasets: an id outside the vocabulary, a missing column or a part of negative length ends in the
middle of a training. The file may come from anybody, so all of it is checked here, once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from recbole.utils import FeatureSource, FeatureType

PARTS = ["train", "valid", "test"]
MOST_BUCKETS = 10_000_000
_TOKENS = (FeatureType.TOKEN, FeatureType.TOKEN_SEQ)
_NUMBERS = (FeatureType.FLOAT, FeatureType.FLOAT_SEQ)
_DEPTH = {FeatureType.FLOAT: 1, FeatureType.FLOAT_SEQ: 2}  # of numbers with their buckets

# What a dataset of RecBole consists of, beside its config, its logger and its path.
ATTRIBUTES: dict[str, type] = {
    "dataset_name": str, "field2type": dict, "field2source": dict, "field2id_token": dict, "field2token_id": dict,
    "field2bucketnum": dict, "field2seqlen": dict, "alias": dict, "_preloaded_weight": dict, "uid_field": str,
    "iid_field": str, "feat_name_list": list, "file_size_list": list, "inter_feat": pd.DataFrame,
}  # fmt: skip
# What one of a knowledge-aware model has more: fields that the config names, and dicts between tokens.
GRAPH = {
    "head_entity_field": "HEAD_ENTITY_ID_FIELD", "tail_entity_field": "TAIL_ENTITY_ID_FIELD",
    "relation_field": "RELATION_ID_FIELD", "entity_field": "ENTITY_ID_FIELD", "kg_reverse_r": "kg_reverse_r",
    "entity_kg_num_interval": "entity_kg_num_interval", "relation_kg_num_interval": "relation_kg_num_interval",
}  # fmt: skip
LINKS = ("item2entity", "entity2item")
OPTIONAL = ("user_feat", "item_feat", "label_field", "time_field", "_rest_fields")


def fault(state: Mapping[str, Any], name: str) -> str | None:
    """What is wrong with the state of a saved dataset that should be called ``name``; None when nothing is."""
    for key, kind in ATTRIBUTES.items():
        if not isinstance(state.get(key), kind):
            return f"{key} is missing or odd"
    if state["dataset_name"] != name:
        return f"it is of another dataset than {name}"
    sizes = state["file_size_list"]
    if len(sizes) != len(PARTS) or any(type(size) is not int or size < 0 for size in sizes):
        return "its parts are not three numbers"
    if sum(sizes) != len(state["inter_feat"]):
        return "its parts do not add up to its interactions"
    return _fields(state) or _vocabularies(state) or _tables(state)


def graph_fault(state: Mapping[str, Any], fields: Mapping[str, Any]) -> str | None:
    """What is wrong with the graph in the state of a saved dataset; ``fields`` are :data:`GRAPH` by their values."""
    columns = [fields[f"{name}_field"] for name in ("head_entity", "tail_entity", "relation")]
    if "kg_feat" not in state["feat_name_list"] or any(name not in state["kg_feat"] for name in columns):
        return "its graph is missing"
    if len(state["kg_feat"]) == 0:
        return "its graph is empty"
    sizes = [len(state["field2id_token"].get(name, ())) for name in (*columns[:2], fields["entity_field"])]
    if len(set(sizes)) != 1 or sizes[0] < len(state["field2id_token"].get(state["iid_field"], ())):
        return "its entities are not one vocabulary that begins with the items"
    for name in LINKS:
        links = state.get(name)
        if not isinstance(links, dict) or any(type(x) is not str for pair in links.items() for x in pair):
            return f"{name} is odd"
    return None


def _fields(state: Mapping[str, Any]) -> str | None:
    types, sources = state["field2type"], state["field2source"]
    if any(not isinstance(kind, FeatureType) for kind in types.values()):
        return "a field has no type"
    if any(not isinstance(source, (FeatureSource, str)) for source in sources.values()):
        return "a field has no source"
    for key in ("field2bucketnum", "field2seqlen"):
        if any(type(number) is not int or not 0 <= number <= MOST_BUCKETS for number in state[key].values()):
            return f"{key} has other than numbers"
    weights = state["_preloaded_weight"].values()
    if any(
        not isinstance(w, np.ndarray) or w.dtype.kind not in "iuf" or not np.isfinite(w).all()
        for w in weights
    ):
        return "its preloaded weights are odd"
    if any(not isinstance(names, (list, np.ndarray)) for names in state["alias"].values()):
        return "alias is odd"
    for key in ("label_field", "time_field"):
        if state.get(key) is not None and not isinstance(state[key], str):
            return f"{key} is odd"
    for key in ("uid_field", "iid_field"):
        if types.get(state[key]) is not FeatureType.TOKEN or state[key] not in state["inter_feat"]:
            return f"{state[key]} is not a column of tokens"
    return None


def _vocabularies(state: Mapping[str, Any]) -> str | None:
    for field, kind in state["field2type"].items():
        if kind not in _TOKENS:
            continue
        tokens, ids = (state[key].get(field) for key in ("field2id_token", "field2token_id"))
        if tokens is None and ids is None:
            continue  # a field that was not loaded
        if not isinstance(tokens, (list, np.ndarray)) or np.ndim(tokens) != 1 or not isinstance(ids, dict):
            return f"{field} has no vocabulary"
        whole = all(isinstance(number, (int, np.integer)) for number in ids.values())
        if not whole or sorted(map(int, ids.values())) != list(range(len(tokens))):
            return f"the vocabulary of {field} is damaged"
        if any(ids.get(str(token)) != place for place, token in enumerate(tokens)):
            return f"the vocabulary of {field} is damaged"
    return None


def _tables(state: Mapping[str, Any]) -> str | None:
    if "inter_feat" not in state["feat_name_list"]:
        return "its interactions are not among its tables"
    for name in state["feat_name_list"]:
        if not isinstance(name, str) or not re.fullmatch(r"\w{1,50}_feat", name):
            return "a table has an odd name"
        if not isinstance(state.get(name), pd.DataFrame):
            return f"{name} is missing"
        for column in state[name]:
            problem = _column(state, str(column), state[name][column])
            if problem:
                return f"{name}: {problem}"
    for name in ("user_feat", "item_feat"):
        if state.get(name) is not None and name not in state["feat_name_list"]:
            return f"{name} is not among its tables"
    return None


def _column(state: Mapping[str, Any], field: str, values: pd.Series) -> str | None:
    kind = state["field2type"].get(field)
    if kind is None:
        return f"{field} has no type"
    if kind in _NUMBERS and values.dtype == object and any(np.ndim(v) == _DEPTH[kind] for v in values):
        return _buckets(state, field, values)
    several = kind in (FeatureType.TOKEN_SEQ, FeatureType.FLOAT_SEQ)
    if several != (values.dtype == object):
        return f"{field} is not what its type says"
    flat = values.to_numpy()
    if several:
        try:
            flat = np.concatenate(
                [np.zeros(0, dtype=np.int64), *(np.asarray(value).ravel() for value in values)]
            )
        except (TypeError, ValueError):
            return f"{field} is damaged"
    if kind in _TOKENS:
        number = len(state["field2id_token"].get(field, ()))
        inside = flat.dtype.kind in "iu" and (
            not len(flat) or 0 <= int(flat.min()) <= int(flat.max()) < number
        )
        return None if inside else f"{field} has ids that are not in its vocabulary"
    return None if flat.dtype.kind in "iuf" and np.isfinite(flat).all() else f"{field} has other than numbers"


def _buckets(state: Mapping[str, Any], field: str, values: pd.Series) -> str | None:
    """A column of numbers with their buckets (`numerical_features`): pairs, or two sequences of one length."""
    most = state["field2bucketnum"].get(field, 0)
    for value in values:
        try:
            pair = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            return f"{field} is damaged"
        if pair.ndim != _DEPTH[state["field2type"][field]] or len(pair) != 2 or not np.isfinite(pair).all():
            return f"{field} is damaged"
        if pair[1].size and not 0 <= pair[1].min() <= pair[1].max() < most:
            return f"{field} has buckets that it does not have"
    return None
