"""Training, validation and test interactions: what every part of a run hands to the next.

:class:`Splits` are interactions one by one. What a model and RecBole's loaders read of them is
:meth:`Splits.for_model`: the same datasets, and for sequential models the windows that are made of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction

from recbole_unlearn.errors import UnlearnError


class _Parts(NamedTuple):
    train: Dataset
    valid: Dataset
    test: Dataset


class Splits(_Parts):
    """Training, validation and test interactions as RecBole datasets with one set of ids."""

    def digest(self) -> str:
        """A digest of what a model trained on these splits can see: training and validation interactions."""
        digest = hashlib.sha256()
        for dataset in (self.train, self.valid):
            digest.update(f"{dataset.user_num} {dataset.item_num} {len(dataset)}".encode())
            graph: Any = getattr(dataset, "kg_feat", None)  # of knowledge-aware models
            for feat in (dataset.inter_feat, dataset.user_feat, dataset.item_feat, graph):
                for field in sorted(feat.columns) if feat is not None else ():
                    digest.update(field.encode())
                    digest.update(feat[field].contiguous().numpy().tobytes())
        return digest.hexdigest()

    def for_model(self) -> Splits:
        """The same as models and RecBole's loaders read it."""
        return self

    def with_train(self, train: Dataset) -> Splits:
        """The same with other training interactions."""
        return self._replace(train=train)

    def only(self, keep: Sequence[torch.Tensor]) -> Splits:
        """The interactions ``keep``, a mask for each part."""
        return Splits(*(_only(part, mask) for part, mask in zip(self, keep, strict=True)))

    def measurable(self, users: torch.Tensor, items: torch.Tensor) -> Splits:
        """Without the held-out interactions of orphans, ``users`` and ``items``, which no model can rank."""
        kept = (
            ~(
                torch.isin(part.inter_feat[part.uid_field], users)
                | torch.isin(part.inter_feat[part.iid_field], items)
            )
            for part in (self.valid, self.test)
        )
        return Splits(self.train, *(_only(part, mask) for part, mask in zip(self[1:], kept, strict=True)))

    def validated(self) -> Splits:
        """The same with validation interactions in the place of test ones, which are gone."""
        return Splits(self.train, self.valid, self.valid)

    def everything(self) -> Sequence[Dataset]:
        """The three parts with all interactions that are retained, measured or not."""
        return self

    def batch(self, users: torch.Tensor) -> Interaction:
        """What a model reads to rank items for ``users`` (n,) after their validation interactions."""
        return self.train.join(Interaction({self.train.uid_field: users}))


def _only(dataset: Dataset, mask: torch.Tensor) -> Dataset:
    return dataset.copy(dataset.inter_feat[mask])


def three(parts: Sequence[Dataset]) -> Sequence[Dataset]:
    """The parts of a split, refused unless they are training, validation and test."""
    if len(parts) != 3:
        raise UnlearnError(
            f"The split gives {len(parts)} parts; training, validation and test are needed. "
            "Use for example --eval_args='{split: {RS: [0.8,0.1,0.1]}}'."
        )
    return parts
