r"""The knowledge graph that some models read with the interactions: its files, its facts, and the part D\S keeps.

A line of the graph is a *fact*: a head, a relation and a tail. RecBole numbers heads and tails together with the
items: the first entities are the items, by the same numbers. A fact about an item is a feature of it like its title.
An item without any interaction left leaves the data with its features (`files/retained_data.py`), so its facts leave
as well: with the public graph they would show which item it was. All other facts stay; they are about no user.

The training loss reads facts with negative tails, which the head does not have. CKE and CFKG read as many facts in a
batch as interactions, drawn from the whole graph. An unlearning batch is about a few items, and facts about those
items come as often as in training: in one epoch an interaction of the region is read once, a fact

    |D\S| / (number of facts)

times. A deleted interaction brings no fact, since none is deleted: it gets that of entity 0, which no score reads.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from recbole.data.dataset import Dataset, KnowledgeBasedDataset
from recbole.data.interaction import Interaction

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.settings import UnlearnConfig

TRIES = 8  # draws of a negative tail


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


def with_facts_in_use(splits: Sequence[Dataset]) -> Sequence[Dataset]:
    """``splits`` (training first) without the facts about items that no interaction of theirs has."""
    train = splits[0]
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
    return parts


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
