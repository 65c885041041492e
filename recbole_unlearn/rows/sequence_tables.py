"""Which parameters of a sequential model have a row for every user or item.

Sizes alone do not tell in these models: a table of positions may have as many rows as there are users, and so may any
layer. So a table is one of users or items by its word (`item_embedding`) or because it is listed here, and its size
has to fit. What RecBole's models call neither is listed too, so for them the answer is exact. Of what somebody added
to one, an embedding table without a word is taken by its size.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from recbole.model.abstract_recommender import AbstractRecommender
from torch import nn

if TYPE_CHECKING:
    from recbole_unlearn.rows.tables import Side

# By class of RecBole, what its names do not say; None: of neither.
_LISTED: dict[str, dict[str, Side | None]] = {
    "BERT4Rec": {"output_bias": "item"},
    "FPMC": {"UI_emb.weight": "user", "IU_emb.weight": "item", "LI_emb.weight": "item", "IL_emb.weight": "item"},
    "RepeatNet": {"explore_recommendation_decoder.matrix_for_explore.weight": "item"},
    "SINE": {"C.weight": None},
    "TransRec": {"bias.weight": "item"},
}  # fmt: skip


def tables_of_sequences(
    model: AbstractRecommender, sizes: Mapping[Side, int], taken: Collection[str]
) -> Iterator[tuple[str, Side]]:
    """Names of the parameters of ``model`` whose rows are users or items, beside those that are ``taken``."""
    listed = _listed(model)
    for name, parameter, module in _parameters(model):
        if name in taken or parameter.dim() == 0:
            continue
        side = listed[name] if name in listed else _side(name, len(parameter), module, sizes)
        if side is not None:
            yield name, side


def _listed(model: AbstractRecommender) -> dict[str, Side | None]:
    bases = [base for base in type(model).__mro__ if base.__module__.startswith("recbole.")]
    return {name: side for base in bases for name, side in _LISTED.get(base.__name__, {}).items()}


def _parameters(model: AbstractRecommender) -> Iterator[tuple[str, nn.Parameter, nn.Module]]:
    """Each parameter once, with its full name and the module that owns it."""
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        yield name, parameter, modules[name.rpartition(".")[0]]


def _side(name: str, rows: int, module: nn.Module, sizes: Mapping[Side, int]) -> Side | None:
    """Whose rows a parameter has, by its own word and its size.

    Of a layer the word is that of the layer, not of what it is part of: `item_encoder.dense` is no table of items.
    """
    *path, own = name.split(".")
    is_table = isinstance(module, nn.Embedding)
    word = path[-1] if path and isinstance(module, (nn.Embedding, nn.Linear)) else own
    if re.search("position", word):
        return None
    said: list[Side] = [side for side in sizes if side in word]
    if len(said) == 1:
        return said[0] if rows in _fitting(said[0], sizes[said[0]]) else None
    fitting: list[Side] = [side for side, size in sizes.items() if size == rows]
    return fitting[0] if is_table and not said and len(fitting) == 1 else None


def _fitting(side: Side, size: int) -> tuple[int, ...]:
    """How many rows a table may have: one more for the mask in the place of an item."""
    return (size, size + 1) if side == "item" else (size,)
