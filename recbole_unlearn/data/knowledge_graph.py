r"""Facts of a knowledge graph, drawn for the training loss of a model that reads them with the interactions.

A fact is (head, relation, tail); the loss also needs a negative tail, one that the head does not have. CKE and CFKG
read as many facts in a batch as interactions, drawn from the whole graph. Here a batch is about a few items, and
facts about those items come as often as in training: in one epoch an interaction of the region is read once, a fact

    |D\S| / (number of facts)

times. A deleted interaction brings no fact, since the request deletes nothing of the graph: it gets the fact of
entity 0, the padding entity, which no score reads.
"""

from __future__ import annotations

import torch
from recbole.data.dataset import Dataset, KnowledgeBasedDataset
from recbole.data.interaction import Interaction

TRIES = 8  # draws of a negative tail


class Facts:
    """The facts of a dataset, drawn with negative tails."""

    def __init__(self, dataset: Dataset, prefix: str) -> None:
        """``prefix`` is RecBole's prefix of negatives, for the field of negative tails."""
        names = dataset.head_entity_field, dataset.relation_field, dataset.tail_entity_field
        self._names = (*names, prefix + dataset.tail_entity_field)
        self._head, self._relation, self._tail = (dataset.kg_feat[name] for name in names)
        self._entities = dataset.entity_num
        self._known = torch.unique(self._head * self._entities + self._tail)

    def __len__(self) -> int:
        return len(self._head)

    def about(self, items: torch.Tensor) -> torch.Tensor:
        """The numbers of the facts that have one of ``items`` as head or tail."""
        inside = torch.zeros(self._entities, dtype=torch.bool)
        inside[items] = True
        return (inside[self._head] | inside[self._tail]).nonzero().flatten()

    def batch(self, numbers: torch.Tensor, generator: torch.Generator) -> Interaction:
        """Facts by their numbers (m,), -1 for the fact of entity 0, each with a negative tail."""
        head, relation, tail = (part[numbers] for part in (self._head, self._relation, self._tail))
        others = torch.randint(1, self._entities, head.shape, generator=generator)
        for _ in range(TRIES):
            known = torch.isin(head * self._entities + others, self._known).nonzero().flatten()
            if len(known) == 0:
                break
            others[known] = torch.randint(1, self._entities, known.shape, generator=generator)
        columns = [torch.where(numbers < 0, 0, part) for part in (head, relation, tail, others)]
        return Interaction(dict(zip(self._names, columns, strict=True)))


def facts_of(dataset: Dataset, prefix: str) -> Facts | None:
    """The facts of ``dataset``; None without a graph."""
    return Facts(dataset, prefix) if isinstance(dataset, KnowledgeBasedDataset) else None
