"""Which rows of which parameter belong to which user or item.

RecBole's models keep a user or an item as a row of an embedding table (`user_embedding.weight`), and
context-aware models as a block of one table for all fields. :func:`find_tables` names them for any model,
so that methods can work on rows. A table is recognised by its module and its size; when users and items
are equally many, by the word in its name.

A side that has no table may have weight matrices instead: an autoencoder reads items through the columns of its
first layer and scores them through the rows (and biases) of its last. Those are tables as well, seen along the
right axis (:func:`as_rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import torch
from recbole.data.dataset import Dataset
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.model.layers import FMEmbedding
from torch import nn

Side = Literal["user", "item"]
OTHER: dict[Side, Side] = {"user": "item", "item": "user"}


class Table(NamedTuple):
    """Rows ``offset .. offset + number of users (or items)`` of ``parameter`` are the users (or items)."""

    parameter: str
    side: Side
    offset: int = 0
    axis: int = 0


def as_rows(parameter: torch.Tensor, axis: int = 0) -> torch.Tensor:
    """A view (n, d) of a parameter with users or items along ``axis``; writing to it writes to the parameter."""
    parameter = parameter.detach()
    if parameter.dim() == 1:
        return parameter[:, None]
    return parameter.T if axis == 1 else parameter


def find_tables(model: AbstractRecommender, dataset: Dataset) -> list[Table]:
    """All tables of ``model`` with one row per user or per item."""
    tables = list(_embeddings(model, dataset))
    missing = {"user", "item"} - {table.side for table in tables}
    return tables + list(_matrices(model, dataset, missing))


def _embeddings(model: AbstractRecommender, dataset: Dataset) -> Iterator[Table]:
    sizes: dict[Side, int] = {"user": dataset.user_num, "item": dataset.item_num}
    fields: dict[str, Side] = {dataset.uid_field: "user", dataset.iid_field: "item"}
    joint = {
        f"{name}.embedding": module
        for name, module in model.named_modules()
        if isinstance(module, FMEmbedding)
    }
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding):
            continue
        if name in joint:
            names = getattr(model, "token_field_names", [])
            for field, offset in zip(names, joint[name].offsets, strict=False):
                if field in fields:
                    yield Table(f"{name}.weight", fields[field], int(offset))
            continue
        sides = _sides(name, module.num_embeddings, sizes)
        if len(sides) == 1:
            yield Table(f"{name}.weight", sides[0])


def _matrices(model: AbstractRecommender, dataset: Dataset, missing: set[str]) -> Iterator[Table]:
    """Matrices and biases with one row or column per user or item, for sides that have no embedding table."""
    both: dict[Side, int] = {"user": dataset.user_num, "item": dataset.item_num}
    sizes = {side: size for side, size in both.items() if side in missing}
    for name, parameter in model.named_parameters():
        if parameter.dim() > 2:
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
    model: AbstractRecommender,
    initial: Mapping[str, torch.Tensor],
    dataset: Dataset,
    users: torch.Tensor,
    items: torch.Tensor,
) -> None:
    """Give the rows of ``users`` and ``items`` in ``model`` their values in ``initial``.

    For users and items that have no training row left: a model that never saw them would still have
    their row as it was initialised.
    """
    ids = {"user": users, "item": items}
    target = dict(model.named_parameters())
    for table in find_tables(model, dataset):
        own, fresh = (
            as_rows(target[table.parameter], table.axis),
            as_rows(initial[table.parameter], table.axis),
        )
        rows = (ids[table.side] + table.offset).to(own.device)
        own[rows] = fresh[rows]
