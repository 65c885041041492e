r"""The witness set: the interactions that the region's rows are fitted to, drawn in batches.

Three parts, as in the paper: R, retained interactions; S, the deleted ones; Neg(S), negatives for S. R is drawn in
epochs, each interaction once with a new uniform negative. Where items are calibrated, some of R has an item of the
region as the negative: in training every item is a negative far more often than a positive.

A model may learn by interaction (a pair, a labelled pair) or by user: an autoencoder reads and scores a whole
history, so a batch of its loss has every user once, however many interactions of that user are in it.
"""

import functools
from collections.abc import Iterator
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from recbole.data.dataloader import UserDataLoader
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction, cat_interactions
from recbole.data.utils import get_dataloader
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import InputType

from recbole_unlearn.data import Facts
from recbole_unlearn.rows.index import SIDES, RetainedIndex
from recbole_unlearn.rows.model_loss import pair_scores
from recbole_unlearn.rows.region import Region
from recbole_unlearn.settings import UnlearnConfig


class Triples(NamedTuple):
    """Interactions by number, user and item, with a negative each; all (m,)."""

    numbers: torch.Tensor
    users: torch.Tensor
    items: torch.Tensor
    negatives: torch.Tensor

    def part(self, which: torch.Tensor | slice) -> Self:
        """Some of them."""
        return type(self)(*(column[which] for column in self))


class Witness:
    """Batches of retained and of deleted interactions."""

    watched: ClassVar[int] = 1024  # deleted pairs that are looked at while rows are calibrated

    def __init__(
        self, config: UnlearnConfig, retained: RetainedIndex, region: Region, generator: torch.Generator,
        region_negatives: float = 1.0, facts: Facts | None = None,
    ) -> None:  # fmt: skip
        r"""``facts``: of D\S, for a model that learns a knowledge graph with its interactions."""
        self.config, self.retained, self.region, self.generator = config, retained, region, generator
        self.index = retained.index
        self.region_negatives = region_negatives
        self.by_user = learns_by_user(config)
        self.facts = facts

    def interactions(self) -> torch.Tensor:
        """Retained interactions of the region's users or items."""
        found = [self.index.of(side, members.ids) for side, members in self.region.items()]
        return self.retained.only(torch.unique(torch.cat(found)))

    def everything(self) -> torch.Tensor:
        """All retained interactions that the loss counts."""
        return self.counted((~self.retained.deleted).nonzero().flatten())

    def uniform(self, size: int) -> torch.Tensor:
        """``size`` retained interactions, uniform, with replacement."""
        drawn = torch.randint(0, self.index.total, (size,), generator=self.generator)
        gone = self.retained.deleted[drawn].nonzero().flatten()
        while len(gone):
            drawn[gone] = torch.randint(0, self.index.total, gone.shape, generator=self.generator)
            gone = gone[self.retained.deleted[drawn[gone]]]
        return drawn

    def triples(self, numbers: torch.Tensor) -> Triples:
        """Interactions of D, by their numbers, with uniform negatives."""
        users, items = (self.index.ids[side][numbers] for side in SIDES)
        return Triples(numbers, users, items, self.retained.negatives(users, self.generator))

    def against_region(self, size: int) -> Triples:
        """About ``size`` retained interactions of any user, with an item of the region as negative."""
        numbers = self.uniform(size)
        users = self.index.ids["user"][numbers]
        pick = torch.randint(0, len(self.region["item"]), (size,), generator=self.generator)
        items = self.region["item"].ids[pick]
        fits = ~self.retained.are_known(users, items)
        return Triples(numbers, users, self.index.ids["item"][numbers], items).part(fits)

    def extra(self) -> int:
        r"""How many interactions with an item of the region as negative an epoch has.

        In training each of the |D\S| interactions draws one of n items, so the region's b items are drawn |D\S| b / n
        times an epoch; ``region_negatives`` scales that.
        """
        often = self.retained.size * len(self.region["item"]) / self.index.sizes["item"]
        return round(self.region_negatives * often)

    def batches(self, numbers: torch.Tensor, size: int, steps: int) -> Iterator[Triples]:
        """``steps`` batches of ``size`` triples at most, in epochs over the interactions ``numbers``."""
        extra, done = self.extra(), 0
        while done < steps:
            # No more than what is left to do: an epoch of a large request is never drawn whole.
            part = min(1.0, (steps - done) * size / (len(numbers) + extra))
            order = torch.randperm(len(numbers), generator=self.generator)
            epoch = self.triples(numbers[order[: max(1, round(part * len(numbers)))]])
            if extra:
                more = self.against_region(round(part * extra))
                epoch = Triples(*(torch.cat(pair) for pair in zip(epoch, more, strict=True)))
                epoch = epoch.part(torch.randperm(len(epoch.numbers), generator=self.generator))
            for start in range(0, len(epoch.numbers), size):
                if done == steps:
                    break
                done += 1
                yield epoch.part(slice(start, start + size))

    def deleted(self, size: int) -> Triples:
        """``size`` deleted pairs at most, with uniform negatives; only pairs that no retained interaction has."""
        gone = self.retained.gone
        if len(gone) > size:
            gone = gone[torch.randint(0, len(gone), (size,), generator=self.generator)]
        item_num = self.index.sizes["item"]
        users, items = gone // item_num, gone % item_num
        return Triples(torch.full_like(users, -1), users, items, self.retained.negatives(users, self.generator))

    def scores(self, model: AbstractRecommender, deleted: Triples) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores (m,) of deleted pairs and of their negatives."""
        of = functools.partial(pair_scores, model, self.index.train, deleted.users)
        return of(deleted.items), of(deleted.negatives)

    def units(self, users: torch.Tensor) -> torch.Tensor | slice:
        """Which of the interactions of ``users`` (m,) a loss counts: all, or one for each user."""
        return torch.from_numpy(np.unique(users.numpy(), return_index=True)[1]) if self.by_user else slice(None)

    def counted(self, numbers: torch.Tensor) -> torch.Tensor:
        """Those of the interactions ``numbers`` that a loss counts: all, or one for each user."""
        return numbers[self.units(self.index.ids["user"][numbers])]

    def batch(self, triples: Triples) -> Interaction:
        """Triples in the form the model's loss takes."""
        batch = as_batch(self.config, self.index.train, triples.numbers, triples.negatives)
        if self.facts is None:
            return batch
        shape, (near, share) = triples.numbers.shape, self._near_facts
        drawn = torch.randint(0, len(self.facts), shape, generator=self.generator)  # a fact for each interaction
        if len(near):
            picked = near[torch.randint(0, len(near), shape, generator=self.generator)]
            drawn = torch.where(torch.rand(shape, generator=self.generator) < share, picked, drawn)
        drawn = torch.where(self.retained.deleted[triples.numbers], -1, drawn)  # none for those that are deleted
        batch.update(self.facts.batch(drawn, self.generator))
        return batch

    @functools.cached_property
    def _near_facts(self) -> tuple[torch.Tensor, float]:
        """The facts about the region's items, and their share of an epoch's draws (`data/knowledge_graph.py`)."""
        assert self.facts is not None
        if "item" not in self.region or len(self.region["item"]) == 0:
            return torch.zeros(0, dtype=torch.int64), 0.0
        near = self.facts.about(self.region["item"].ids)
        epoch = len(self.interactions()) + self.extra()
        return near, len(near) * self.retained.size / (len(self.facts) * max(1, epoch))


def learns_by_user(config: UnlearnConfig) -> bool:
    """Whether the training loss is over users with their whole histories."""
    loader = get_dataloader(config, "train")
    return isinstance(loader, type) and issubclass(loader, UserDataLoader)


def as_batch(config: UnlearnConfig, train: Dataset, chosen: torch.Tensor, drawn: torch.Tensor) -> Interaction:
    """Interactions ``chosen`` of ``train`` with negatives ``drawn``, as pairs, labelled pairs or users."""
    if learns_by_user(config):
        return Interaction({train.uid_field: train.inter_feat[train.uid_field][chosen]})
    positives = train.join(Interaction(dict(train.inter_feat[chosen].interaction)))
    if config["MODEL_INPUT_TYPE"] == InputType.PAIRWISE:
        items = train.join(Interaction({train.iid_field: drawn}))
        items.add_prefix(config["NEG_PREFIX"])
        positives.update(items)
        return positives
    if config["MODEL_INPUT_TYPE"] == InputType.POINTWISE:
        negatives = Interaction(dict(train.inter_feat[chosen].interaction))
        negatives.update(Interaction({train.iid_field: drawn}))
        both = cat_interactions([positives, train.join(negatives)])
        labels = torch.cat([torch.ones(len(chosen)), torch.zeros(len(chosen))])
        both.update(Interaction({config["LABEL_FIELD"]: labels}))
        return both
    return Interaction({train.uid_field: torch.unique(train.inter_feat[train.uid_field][chosen])})
