"""Which rows of which parameter belong to which user or item.

RecBole's models keep a user or an item as a row of an embedding table (`user_embedding.weight`), and
context-aware models as a block of one table for all fields. :func:`find_tables` names them for any model,
so that methods can work on rows. A table is recognised by its module and its size; when users and items
are equally many, by the word in its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import torch
from recbole.data.dataset import Dataset
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.model.layers import FMEmbedding
from torch import nn


class Table(NamedTuple):
    """Rows ``offset .. offset + number of users (or items)`` of ``parameter`` are the users (or items)."""

    parameter: str
    side: Literal["user", "item"]
    offset: int


def find_tables(model: AbstractRecommender, dataset: Dataset) -> list[Table]:
    """All tables of ``model`` with one row per user or per item."""
    return list(_find(model, dataset))


def _find(model: AbstractRecommender, dataset: Dataset) -> Iterator[Table]:
    sizes = {"user": dataset.user_num, "item": dataset.item_num}
    fields = {dataset.uid_field: "user", dataset.iid_field: "item"}
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
        sides = [side for side, size in sizes.items() if module.num_embeddings == size]
        if len(sides) == 2:
            sides = [side for side in sides if side in name] or sides[:0]
        if len(sides) == 1:
            yield Table(f"{name}.weight", sides[0], 0)


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
        rows = (ids[table.side] + table.offset).to(target[table.parameter].device)
        target[table.parameter][rows] = initial[table.parameter][rows]
