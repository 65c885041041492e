r"""The knowledge graph beside the interactions: its files, and what of it D\S has.

A line of the graph is a *fact*: a head, a relation and a tail. RecBole numbers heads and tails together with the
items: the first entities are the items, by the same numbers. A fact about an item is as much a feature of it as its
title. An item that no interaction has any more leaves the data with its features (`files/retained_data.py`), so it
leaves with its facts as well: whoever has the public graph could tell from them which item it was. All other facts
stay, they say nothing about anybody.
"""

from __future__ import annotations

from pathlib import Path

import torch

from recbole_unlearn.data.parts import Splits
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.inputs import shown
from recbole_unlearn.settings import UnlearnConfig


def require_files(config: UnlearnConfig) -> None:
    """Refuse a dataset without the two files of a graph, which RecBole has for ml-100k alone."""
    folder = Path(config["data_path"])
    missing = [f"{config['dataset']}.{suffix}" for suffix in ("kg", "link")]
    missing = [name for name in missing if not (folder / name).is_file()]
    if missing:
        raise UnlearnError(
            f"{config['model']} reads a knowledge graph, and {shown(folder)} has no {' and no '.join(missing)}. Add "
            "them (RecBole's atomic files), or use a general model such as LightGCN."
        )


def with_facts_in_use(splits: Splits) -> Splits:
    """``splits`` without the facts about items that no interaction of theirs has; as they are without a graph."""
    train = splits.train
    if getattr(train, "kg_feat", None) is None:
        return splits
    present = torch.zeros(train.entity_num, dtype=torch.bool)
    present[train.item_num :] = True
    for part in splits:
        present[part.inter_feat[part.iid_field]] = True
    facts = train.kg_feat
    kept = present[facts[train.head_entity_field]] & present[facts[train.tail_entity_field]]
    if kept.all():
        return splits
    if not kept.any():
        raise UnlearnError(
            "After this request no item that is left is in the knowledge graph. Ask for less, or use a larger graph."
        )
    parts = [part.copy(part.inter_feat) for part in splits]
    for part in parts:
        part.kg_feat = facts[kept]
    return Splits(*parts)
