"""KGCN's neighbours: what it drew of the knowledge graph when it was made, without the facts that have left it.

KGCN reads an item by itself and by a few neighbours in the graph, drawn once for every entity; they are in its
checkpoint. An unlearned model keeps those of the original, for which its weights were fitted. Where a request takes
the last interaction of an item, the facts about it leave the graph (`data/graph.py`), and so they leave these tables.
"""

from __future__ import annotations

import torch
from recbole.data.dataset import Dataset
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.model.knowledge_aware_recommender.kgcn import KGCN


def forget_neighbours(model: AbstractRecommender, dataset: Dataset) -> None:
    """Take neighbours out of a KGCN that no fact of ``dataset`` joins; all other models stay as they are.

    In their place is the first that is left of the same entity. One that has none left is its own neighbour, as in
    RecBole.
    """
    if not isinstance(model, KGCN):
        return
    entity, relation = model.adj_entity, model.adj_relation  # (entities, drawn)
    own = torch.arange(len(entity), device=entity.device)
    ends = dataset.kg_feat[dataset.head_entity_field], dataset.kg_feat[dataset.tail_entity_field]
    head, tail = (end.to(entity.device) for end in ends)
    joined = torch.unique(torch.cat([head * len(entity) + tail, tail * len(entity) + head]))
    left = torch.isin(own[:, None] * len(entity) + entity, joined)
    first, alone = left.int().argmax(dim=1), ~left.any(dim=1)
    model.adj_entity = torch.where(left, entity, torch.where(alone, own, entity[own, first])[:, None])
    model.adj_relation = torch.where(left, relation, torch.where(alone, 0, relation[own, first])[:, None])
