r"""Facts of a knowledge graph, as a model's training loss reads them beside interactions.

A fact is (head, relation, tail); the loss wants another tail with it, one that the head does not have. CKE and CFKG
read as many facts in a batch as interactions, drawn from the whole graph. Here a batch is about a few items, so that
facts about those come as often as they do in training: an interaction of the region is read once an epoch, and a fact

    |D\S| / (number of facts)

times. A deleted interaction brings no fact: it taught nothing of the graph, and nothing of the graph is undone. In
its place is the fact of entity 0, which is nobody's and which no score reads.
"""

from __future__ import annotations

import torch
from recbole.data.dataset import Dataset, KnowledgeBasedDataset
from recbole.data.interaction import Interaction

TRIES = 8  # to find a tail that the head does not have


class Facts:
    """The facts of a dataset, drawn with other tails."""

    def __init__(self, dataset: Dataset, prefix: str) -> None:
        """``prefix`` is that of the field of other tails, as of negatives."""
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
        """Facts by their numbers (m,), -1 for that of entity 0, each with another tail."""
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
    """The facts of ``dataset``; None where it has no graph."""
    return Facts(dataset, prefix) if isinstance(dataset, KnowledgeBasedDataset) else None
