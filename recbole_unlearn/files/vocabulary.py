"""Which values of its fields the interactions of a dataset use, and blanks in the place of all others.

A zip code or a word of a title can tell as much as a name. An interaction uses a value when it has it in a column of
its own, or when its user or its item has it. A value that no retained interaction uses may have been that of a
deleted user alone, so it is not saved: its token becomes a placeholder, which keeps the numbering, and the features
of users and items without an interaction become blanks.
"""

from __future__ import annotations

import numpy as np
import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction
from recbole.utils import FeatureType

_TOKENS = (FeatureType.TOKEN, FeatureType.TOKEN_SEQ)


def used_values(dataset: Dataset) -> dict[str, torch.Tensor]:
    """By field, the values that an interaction of ``dataset`` has, itself or through its user or item (n,), sorted.

    A value is a number of the field's vocabulary, or the bucket of a number (``numerical_features``). 0 is no value.
    """
    found: dict[str, list[torch.Tensor]] = {}
    for name in dataset.feat_name_list:
        feat, lines = getattr(dataset, name), _lines_in_use(dataset, name)
        for field in feat.columns:
            values = _values(dataset, field, feat[field][lines])
            if values is not None:
                found.setdefault(field, []).append(values)
    if "kg_feat" in dataset.feat_name_list:
        _add_graph(dataset, found)
    unique = {field: torch.unique(torch.cat(parts)) for field, parts in found.items()}
    return {field: values[values > 0] for field, values in unique.items()}


def _add_graph(dataset: Dataset, found: dict[str, list[torch.Tensor]]) -> None:
    """Heads, tails and items are one vocabulary of entities; RecBole's relation of users and items is in no fact."""
    ends = dataset.head_entity_field, dataset.tail_entity_field
    entities = [found[field][0] for field in ends] + [dataset.inter_feat[dataset.iid_field]]
    for field in (*ends, dataset.entity_field):
        found[field] = entities
    found[dataset.relation_field].append(torch.tensor([dataset.relation_num - 1]))


def _values(dataset: Dataset, field: str, column: torch.Tensor) -> torch.Tensor | None:
    """The values in a column (n,); None for plain numbers."""
    if dataset.field2type[field] in _TOKENS:
        return column.flatten().long()
    if field in (dataset.config["numerical_features"] or ()):  # pairs of a number and its bucket
        return column[..., 1].flatten().long()
    return None


def _lines_in_use(dataset: Dataset, name: str) -> torch.Tensor | slice:
    """Which lines of a table belong to interactions: all of theirs, and those of their users and items.

    A line of an additional table is in use unless it names a user or an item without an interaction.
    """
    if name in ("inter_feat", "kg_feat"):  # facts about items that are gone are not there (`data/graph.py`)
        return slice(None)
    present = {
        field: torch.unique(dataset.inter_feat[field]) for field in (dataset.uid_field, dataset.iid_field)
    }
    if name in ("user_feat", "item_feat"):  # a line for each id, in their order
        return present[dataset.uid_field if name == "user_feat" else dataset.iid_field]
    feat = getattr(dataset, name)
    inside = torch.ones(len(feat), dtype=torch.bool)
    for owner, ids in present.items():
        known = torch.cat([torch.zeros(1, dtype=ids.dtype), ids])
        for field in _same_vocabulary(dataset, owner):
            if field in feat.columns:
                inside &= torch.isin(feat[field], known).reshape(len(feat), -1).all(dim=1)
    return inside


def _same_vocabulary(dataset: Dataset, field: str) -> list[str]:
    """``field`` and the fields that RecBole numbers together with it (``alias_of_user_id``)."""
    groups = [[str(name) for name in names] for names in dataset.alias.values()]
    return next((names for names in groups if field in names), [field])


def blank_unused(dataset: Dataset) -> None:
    """Blank all that no interaction of ``dataset`` uses; its tables are replaced, never written to."""
    used = used_values(dataset)
    for owner in (dataset.uid_field, dataset.iid_field):
        # A user without an interaction has no name here, also where a column of somebody else's mentions them.
        used |= dict.fromkeys(_same_vocabulary(dataset, owner), used[owner])
    dataset.field2id_token, dataset.field2token_id = {**dataset.field2id_token}, {**dataset.field2token_id}
    for field in dataset.field2id_token:
        _erase_tokens(dataset, field, used.get(field))
    lines = {name: _lines_in_use(dataset, name) for name in dataset.feat_name_list if name != "inter_feat"}
    for name, kept in lines.items():
        feat = getattr(dataset, name)
        key = {"user_feat": dataset.uid_field, "item_feat": dataset.iid_field}.get(name)
        setattr(dataset, name, feat[kept] if key is None else _only(feat, key, kept))
    if hasattr(dataset, "item2entity"):
        known = dataset.field2token_id[dataset.iid_field]
        dataset.item2entity = {item: entity for item, entity in dataset.item2entity.items() if item in known}
        dataset.entity2item = {entity: item for item, entity in dataset.item2entity.items()}
    dataset._preloaded_weight = {
        field: _rows_of(matrix, used.get(field)) for field, matrix in dataset._preloaded_weight.items()
    }


def _erase_tokens(dataset: Dataset, field: str, used: torch.Tensor | None) -> None:
    """Replace the tokens of unused values by placeholders, which keep the numbering and tell nothing."""
    tokens = np.array(dataset.field2id_token[field], dtype=object)
    kept = np.zeros(0, dtype=np.int64) if used is None else used.numpy()
    unused = np.setdiff1d(np.arange(1, len(tokens)), kept)
    tokens[unused] = [f"[removed-{number}]" for number in unused]
    dataset.field2id_token[field] = tokens.astype(str)
    dataset.field2token_id[field] = {token: number for number, token in enumerate(tokens)}


def _only(feat: Interaction, key: str, kept: torch.Tensor | slice) -> Interaction:
    """Features with all lines but ``kept`` blank; ``key`` has the ids.

    Also line 0, which is nobody's: RecBole fills it with the mean over everybody, from which the number of the one
    person who is missing could be worked out.
    """
    columns = {}
    for name, value in feat.interaction.items():
        blank = torch.zeros_like(value)
        blank[kept] = value[kept]
        columns[name] = value if name == key else blank
    return Interaction(columns)


def _rows_of(matrix: np.ndarray, used: torch.Tensor | None) -> np.ndarray:
    """A matrix with a row for each value of a field, with zeros in the rows of unused values."""
    blank = np.zeros_like(matrix)
    if used is not None:
        blank[used.numpy()] = matrix[used.numpy()]
    return blank
