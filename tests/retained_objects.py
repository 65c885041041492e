"""What an object holds beside weights: every array, table and setting that can be reached from it.

A model that unlearned may hold nothing that a model built without the deleted interactions does not hold, so the two
are compared; and every table of interactions that is reached can be searched for deleted pairs.
"""

import logging

import numpy as np
import pandas as pd
import torch
from recbole.config import Config
from recbole.data.interaction import Interaction
from torch import nn

LIST = "_list"


def content(root):
    """All that ``root`` holds, by path; of weights the shape alone."""
    return {path: _value(value) for path, value in _walk(root, "", set())}


def tables(root):
    """Every table of interactions that can be reached from ``root``: those with a column of users."""
    kinds = (Interaction, pd.DataFrame)
    found = [value for _, value in _walk(root, "", set()) if isinstance(value, kinds)]
    return [table for table in found if "user_id" in table.columns and "item_id" in table.columns]


def pairs_in(table):
    """The pairs of a user and an item in a table, as targets and in histories; padding is left out."""
    users = np.asarray(table["user_id"])
    columns = [np.asarray(table["item_id"])[:, None]]
    if f"item_id{LIST}" in table.columns:
        columns.append(np.stack(list(np.asarray(table[f"item_id{LIST}"]))))
    items = np.concatenate(columns, axis=1)
    pairs = np.stack([np.broadcast_to(users[:, None], items.shape), items], axis=-1).reshape(-1, 2)
    return {(user, item) for user, item in pairs.tolist() if item}


def _walk(value, path, seen):
    """(path, value) of ``value`` and of all below it, each object once."""
    if isinstance(value, (logging.Logger, Config, type)):  # settings are not data
        return
    yield path, value
    if id(value) in seen:
        return
    below = _below(value)
    if below:
        seen.add(id(value))
        for name, part in below.items():
            yield from _walk(part, f"{path}.{name}", seen)


def _below(value):
    if isinstance(value, Interaction):
        return value.interaction
    if isinstance(value, dict):
        return {str(key): part for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return {str(place): part for place, part in enumerate(value)}
    if isinstance(value, (np.ndarray, torch.Tensor, pd.DataFrame, pd.Series, str)):
        return {}
    if isinstance(value, nn.Module):
        return {name: part for name, part in vars(value).items() if name != "training"}
    return vars(value) if hasattr(value, "__dict__") and not callable(value) else {}


def _value(value):
    """Something to compare."""
    if isinstance(value, nn.Parameter):
        return tuple(value.shape)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value).tolist()
    if isinstance(value, (pd.DataFrame, pd.Series)):
        return value.to_dict()
    if isinstance(value, (str, int, float, bool, set, type(None), np.generic)):
        return value
    return type(value).__qualname__
