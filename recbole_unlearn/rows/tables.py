"""Which rows of which parameter belong to a user, an item, or a value of a feature.

RecBole's models keep a user or an item as a row of an embedding table (`user_embedding.weight`), context-aware models
as a block of one table for all fields. :func:`find_tables` finds them for any model: a table is recognised by its
module and its size, and by the word in its name where users and items are equally many.

* A side without a table may have weight matrices instead: an autoencoder reads items through the columns of its first
  layer and scores them through the rows (and biases) of its last. :func:`as_rows` shows them along the right axis.
* A knowledge-aware model has a table of entities, of which the first are the items, with or without an item table.
* A sequential model may have tables of positions or layers as long as there are users or items, so a table counts by
  its word (`item_embedding`) and its size. Tables of RecBole's models without such a word are listed, so for those
  models the answer is exact; in a derived model an embedding table without a word counts by its size.
* A value of a feature (a city, a word of a title) has a row too: :func:`find_features` finds their tables.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from recbole.data.dataset import Dataset, KnowledgeBasedDataset
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.model.layers import FLEmbedding, FMEmbedding
from recbole.utils import ModelType
from torch import nn

from recbole_unlearn.rows.index import Side

# Tables of RecBole's sequential models whose names do not say their side, by class; None: neither users nor items.
_LISTED: dict[str, dict[str, Side | None]] = {
    "BERT4Rec": {"output_bias": "item"},
    "FPMC": {"UI_emb.weight": "user", "IU_emb.weight": "item", "LI_emb.weight": "item", "IL_emb.weight": "item"},
    "RepeatNet": {"explore_recommendation_decoder.matrix_for_explore.weight": "item"},
    "SINE": {"C.weight": None},
    "TransRec": {"bias.weight": "item"},
}


class Table(NamedTuple):
    """Rows ``offset .. offset + number of users (or items)`` of ``parameter`` are the users (or items)."""

    parameter: str
    side: Side
    offset: int = 0
    axis: int = 0


class FieldTable(NamedTuple):
    """Rows ``offset .. offset + number of values`` of ``parameter`` are the values of a field."""

    parameter: str
    field: str
    offset: int = 0
    axis: int = 0


class Earlier(NamedTuple):
    """What some rows (n,) of a parameter were before they were written."""

    parameter: str
    rows: torch.Tensor
    values: torch.Tensor  # (n, d)
    axis: int = 0

    def now(self, model: AbstractRecommender) -> torch.Tensor:
        """What they are now (n, d)."""
        return as_rows(model.get_parameter(self.parameter), self.axis)[self.rows]


def write_rows(name: str, parameter: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, axis: int) -> Earlier:
    """Set some rows of a parameter; returns what they were."""
    own = as_rows(parameter, axis)
    rows = rows.to(own.device)
    earlier = Earlier(name, rows, own[rows], axis)
    own[rows] = values.to(own.device)
    return earlier


def as_rows(parameter: torch.Tensor, axis: int = 0) -> torch.Tensor:
    """A view (n, d) of a parameter with users or items along ``axis``; writing to it writes to the parameter."""
    parameter = parameter.detach()
    if parameter.dim() == 1:
        return parameter[:, None]
    return parameter.T if axis == 1 else parameter


def find_tables(model: AbstractRecommender, dataset: Dataset) -> list[Table]:
    """All tables of ``model`` with one row per user or per item."""
    if isinstance(dataset, KnowledgeBasedDataset):
        words = _graph_embeddings(model, dataset)
        tables = [Table(parameter, "user" if word == "user" else "item") for parameter, word in words]
    else:
        fields = _fields(model, dataset)
        ids: dict[str, Side] = {dataset.uid_field: "user", dataset.iid_field: "item"}
        tables = [Table(t.parameter, ids[t.field], t.offset) for t in fields if t.field in ids]
        taken = {table.parameter for table in fields}
        if model.type == ModelType.SEQUENTIAL:
            return tables + list(_of_sequences(model, _sizes(dataset), taken))
        for name, module in model.named_modules():
            if isinstance(module, nn.Embedding) and f"{name}.weight" not in taken:
                sides = _sides(name, module.num_embeddings, _sizes(dataset))
                if len(sides) == 1:
                    tables.append(Table(f"{name}.weight", sides[0]))
    return tables + list(_matrices(model, dataset, {"user", "item"} - {table.side for table in tables}))


def find_features(model: AbstractRecommender, dataset: Dataset) -> list[FieldTable]:
    """All tables of ``model`` with one row per value of a field other than the ids of users and items."""
    ids = (dataset.uid_field, dataset.iid_field)
    return [table for table in _fields(model, dataset) if table.field not in ids]


def _of_sequences(model: AbstractRecommender, sizes: Mapping[Side, int], taken: Collection[str]) -> Iterator[Table]:
    bases = [base for base in type(model).__mro__ if base.__module__.startswith("recbole.")]
    listed = {name: side for base in bases for name, side in _LISTED.get(base.__name__, {}).items()}
    for name, parameter in model.named_parameters():
        if name in taken or parameter.dim() == 0:
            continue
        module = model.get_submodule(name.rpartition(".")[0])
        side = listed[name] if name in listed else _side_by_word(name, len(parameter), module, sizes)
        if side is not None:
            yield Table(name, side)


def _side_by_word(name: str, rows: int, module: nn.Module, sizes: Mapping[Side, int]) -> Side | None:
    """The side whose rows a parameter has, by its layer's own word (`item_encoder.dense` has none) and its size."""
    *path, own = name.split(".")
    is_table = isinstance(module, nn.Embedding)
    word = path[-1] if path and isinstance(module, (nn.Embedding, nn.Linear)) else own
    if "position" in word:
        return None
    said: list[Side] = [side for side in sizes if side in word]
    if len(said) == 1:
        mask = said[0] == "item" and rows == sizes["item"] + 1  # one more row, for the mask token
        return said[0] if rows == sizes[said[0]] or mask else None
    fitting: list[Side] = [side for side, size in sizes.items() if size == rows]
    return fitting[0] if is_table and not said and len(fitting) == 1 else None


def _graph_embeddings(model: AbstractRecommender, dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Tables of users, items and entities in a knowledge-aware model, by their names: relations have tables too."""
    sizes = {"user": dataset.user_num, "item": dataset.item_num, "entity": dataset.entity_num}
    for name, module in model.named_modules():
        for word, size in sizes.items():
            if isinstance(module, nn.Embedding) and word in name and module.num_embeddings == size:
                yield f"{name}.weight", word


def _sizes(dataset: Dataset) -> dict[Side, int]:
    return {"user": dataset.user_num, "item": dataset.item_num}


def _fields(model: AbstractRecommender, dataset: Dataset) -> list[FieldTable]:
    """Tables by field: those of RecBole's layers, and any other with the name of a feature and its size."""
    if isinstance(dataset, KnowledgeBasedDataset):
        words = _graph_embeddings(model, dataset)
        return [FieldTable(parameter, dataset.entity_field) for parameter, word in words if word == "entity"]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [FieldTable(names[id(table.weight)], field, int(offset)) for field, table, offset in _layers(model)]
    taken = {table.parameter for table in found}
    vocabularies: Mapping[str, Any] = getattr(dataset, "field2id_token", {})
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and f"{name}.weight" not in taken:
            for field, tokens in vocabularies.items():
                called = re.search(rf"(^|[._]){re.escape(field)}([._]|$)", name)
                if called and len(tokens) == module.num_embeddings and not re.search("user|item", name):
                    found.append(FieldTable(f"{name}.weight", field))
    return found


def _layers(model: AbstractRecommender) -> Iterator[tuple[str, Any, int]]:
    """The fields of RecBole's layers, each with its table and where in it the field begins.

    Context-aware models have one table for all fields of tokens (and one for all of numbers in buckets), and one for
    each field of sequences, in the model itself and in its first-order part; FFM has all of them once per field.
    Sequential models with features have the same tables once for features of users and once for those of items.
    """
    for owner in model.modules():
        for kind in ("token", "float"):
            joint: list[tuple[Any, Sequence[str], Sequence[int]]] = [
                (table.embedding, fields, table.offsets)
                for table, fields in _by_type(owner, f"{kind}_embedding_table", f"{kind}_field_names")
                if isinstance(table, (FMEmbedding, FLEmbedding))
            ]
            single = list(_by_type(owner, f"{kind}_seq_embedding_table", f"{kind}_seq_field_names"))
            if names := getattr(owner, f"{kind}_feature_names", None):  # FFM
                joint += [(t, names, getattr(owner, f"{kind}_offsets")) for t in getattr(owner, f"{kind}_embeddings")]
            if names := getattr(owner, f"{kind}_seq_feature_names", None):
                single.append((getattr(owner, f"{kind}_seq_embedding"), names))
            for table, fields, offsets in joint:
                yield from ((field, table, offset) for field, offset in zip(fields, offsets, strict=True))
            for tables, fields in single:
                if isinstance(tables, nn.ModuleList):
                    yield from ((fields[place % len(fields)], table, 0) for place, table in enumerate(tables))


def _by_type(owner: nn.Module, tables: str, names: str) -> list[tuple[Any, Sequence[str]]]:
    """A table and the names of its fields; of a sequential model one for each type."""
    found = getattr(owner, tables, None)
    if isinstance(found, nn.ModuleDict):
        return [(table, getattr(owner, names)[kind]) for kind, table in found.items()]
    return [(found, getattr(owner, names, ()))]


def _matrices(model: AbstractRecommender, dataset: Dataset, missing: set[str]) -> Iterator[Table]:
    """Matrices and biases with one row or column per user or item, for sides that have no embedding table."""
    sizes = {side: size for side, size in _sizes(dataset).items() if side in missing}
    for name, parameter in model.named_parameters():
        if parameter.dim() not in (1, 2):
            continue
        if len(sizes) == 2 and len(parameter) == sum(sizes.values()):  # GCMC: users, then items
            yield from (Table(name, "user"), Table(name, "item", sizes["user"]))
            continue
        for axis, size in enumerate(parameter.shape):
            sides = _sides(name, size, sizes)
            if len(sides) == 1:
                yield Table(name, sides[0], 0, axis)
                break


def _sides(name: str, size: int, sizes: Mapping[Side, int]) -> list[Side]:
    sides = [side for side, number in sizes.items() if number == size]
    return sides if len(sides) < 2 else [side for side in sides if side in name]


@torch.no_grad()
def reset_rows(
    model: AbstractRecommender, initial: Mapping[str, torch.Tensor], tables: Sequence[Table | FieldTable],
    ids: Mapping[str, torch.Tensor],
) -> list[Earlier]:  # fmt: skip
    """Give the rows of ``ids``, by side or by field, in ``tables`` of ``model`` their values in ``initial``."""
    written = []
    for name, key, offset, axis in tables:
        if key in ids:
            rows = ids[key] + offset
            written.append(
                write_rows(name, model.get_parameter(name), rows, as_rows(initial[name], axis)[rows], axis)
            )
    return written
