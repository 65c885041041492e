r"""Training, validation and test interactions, and their division by a request into S and D\S with the same ids.

:class:`Splits` are the interactions; :meth:`Splits.for_model` is what a model and RecBole's loaders read of them: the
same datasets, and for sequential models the windows made of them. :class:`UnlearnData` holds D (``full``), D\S
(``retain``) and the deleted training interactions (``forget``). Rules, see docs/deletion-requests.md:

* Only training interactions are unlearned. Validation and test interactions of a request leave those splits for every
  phase alike, so that all figures are about the same interactions.
* A user or an item without any training interaction left (an *orphan*) cannot be ranked sensibly by any model. Its
  validation and test interactions are left out for every phase, and counted.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction, cat_interactions

from recbole_unlearn.data import item_counts
from recbole_unlearn.data.knowledge_graph import with_facts_in_use
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Clock, Done, used_values

INJECTED = "injected"  # the source of a request that the synthetic protocol made
DRAWN = "drawn"  # of one that `protocols.py` drew
_LESS = "Ask for less, or use a larger dataset."


class Splits(NamedTuple):
    """Training, validation and test interactions as RecBole datasets with one set of ids."""

    train: Dataset
    valid: Dataset
    test: Dataset

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

    def in_windows(self) -> Dataset | None:
        """The training interactions that are in a training window; None where a model reads no windows."""
        return None

    def with_train(self, train: Dataset) -> Splits:
        """The same with other training interactions."""
        return self._replace(train=train)

    def only(self, keep: Sequence[torch.Tensor]) -> Splits:
        """The interactions ``keep``, a mask for each part."""
        return Splits(*(part.copy(part.inter_feat[mask]) for part, mask in zip(self, keep, strict=True)))

    def measurable(self, users: torch.Tensor, items: torch.Tensor) -> Splits:
        """Without the held-out interactions of orphans, ``users`` and ``items``, which no model can rank."""
        parts = []
        for part in self[1:]:
            owners, targets = _pairs(part)
            gone = torch.isin(owners, users) | torch.isin(targets, items)
            parts.append(part.copy(part.inter_feat[~gone]))
        return Splits(self.train, *parts)

    def validated(self) -> Splits:
        """The same with the validation interactions also as test interactions."""
        return Splits(self.train, self.valid, self.valid)

    def everything(self) -> Sequence[Dataset]:
        """The three parts with all interactions that are retained, measured or not."""
        return self

    def batch(self, users: torch.Tensor) -> Interaction:
        """The input with which a model ranks items for ``users`` (n,) after their validation interactions."""
        return self.train.join(Interaction({self.train.uid_field: users}))


def three_parts(parts: Sequence[Dataset]) -> Sequence[Dataset]:
    """The parts of a split, refused unless they are training, validation and test."""
    if len(parts) != 3:
        raise UnlearnError(
            f"The split gives {len(parts)} parts; training, validation and test are needed. "
            "Use for example --eval_args='{split: {RS: [0.8,0.1,0.1]}}'."
        )
    return parts


class Located(NamedTuple):
    """Which interactions of each split a request means (boolean masks), and the state of its lines, counted."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    lines: dict[str, int] | None = None  # "training", "held_out" (not trained on) and "unknown"

    @property
    def is_empty(self) -> bool:
        """Whether no interaction is meant."""
        return not (self.train.any() or self.valid.any() or self.test.any())


@dataclasses.dataclass(frozen=True)
class UnlearnData:
    """The data of one unlearning run."""

    full: Splits
    retain: Splits
    forget: Dataset  # the deleted training interactions, S
    deleted: torch.Tensor  # (|D|,), which interactions of full.train they are
    source: str  # "file", "python", "injected ..." or "drawn ..."
    clock: Clock | None
    counts: dict[str, int]
    orphan_users: torch.Tensor
    orphan_items: torch.Tensor
    # (items,), about how many interactions the rows of items were fitted to (item_counts.py); None: to those of D.
    fitted: torch.Tensor | None = None
    done: tuple[Done, ...] = ()  # keyed hashes of earlier requests and of this one, for the saved dataset
    done_earlier: str | None = None  # the day on which this request was done, when it comes again
    # (m,), which interactions of full.train S is, where requests follow each other and the index changes in place.
    numbers: torch.Tensor | None = None
    exposed: torch.Tensor | None = None  # items whose exposure is measured, see protocols.py

    @property
    def is_made_up(self) -> bool:
        """Whether the request asks for no one, so that nothing of it has to be withheld."""
        return self.source.startswith((INJECTED, DRAWN))

    @functools.cached_property
    def affected_users(self) -> torch.Tensor:
        """Users with a deleted interaction, sorted."""
        return torch.unique(self.forget.inter_feat[self.forget.uid_field])

    @property
    def validation(self) -> Dataset:
        """The retained validation interactions, as models read them."""
        return self.retain.for_model().valid

    @functools.cached_property
    def forget_pairs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The distinct deleted pairs (users, items) that no retained interaction has."""
        train = self.retain.train
        (users, items), (kept_users, kept_items) = _pairs(self.forget), _pairs(train)
        keys = torch.unique(users * train.item_num + items)
        keys = keys[~torch.isin(keys, kept_users * train.item_num + kept_items)]
        return keys // train.item_num, keys % train.item_num

    @functools.cached_property
    def orphan_values(self) -> dict[str, torch.Tensor]:
        r"""By field of features, the values that training interactions had in D and that none has in D\S."""
        before, after = (used_values(splits.train) for splits in (self.full, self.retain))
        ids = (self.forget.uid_field, self.forget.iid_field)
        gone = {field: values[~torch.isin(values, after[field])] for field, values in before.items()}
        entity = getattr(self.forget, "entity_field", None)
        if entity in gone:  # the first entities are items, which are orphans as such
            gone[entity] = gone[entity][gone[entity] >= self.forget.item_num]
        return {field: values for field, values in gone.items() if field not in ids and len(values)}

    @functools.cached_property
    def unread(self) -> tuple[torch.Tensor, torch.Tensor]:
        r"""Users and items that training reads on D and not on D\S: orphans, and ones in no window of a sequence."""
        before, after = self.full.in_windows(), self.retain.in_windows()
        if before is None or after is None:
            return self.orphan_users, self.orphan_items
        return _orphans(before, after)

    @functools.cached_property
    def popularity(self) -> torch.Tensor:
        """How many interactions of D each item has (items,)."""
        train = self.full.train
        return torch.bincount(train.inter_feat[train.iid_field], minlength=train.item_num)

    @functools.cached_property
    def lost(self) -> torch.Tensor | None:
        """How many training interactions earlier requests took from each item (items,), rounded up; None: none."""
        return None if self.fitted is None else item_counts.lost_since(self.fitted, self.popularity)

    @functools.cached_property
    def lost_at_least(self) -> torch.Tensor | None:
        """As ``lost``, but no more than is certain."""
        return None if self.fitted is None else item_counts.lost_at_least(self.fitted, self.popularity)

    def fitted_after(self, refitted: torch.Tensor | None) -> torch.Tensor | None:
        """``fitted`` for the next request, after items ``refitted`` got new rows; injected noise does not count."""
        if self.source.startswith(INJECTED):
            return None
        before = self.popularity
        gone = torch.bincount(self.forget.inter_feat[self.forget.iid_field], minlength=len(before))
        return item_counts.fitted_after(self.fitted, before, before - gone, refitted)

    def summary(self) -> dict[str, Any]:
        """Counts for result.json: how much was asked for, and what the rules above left out."""
        users, items = (len(torch.unique(ids)) for ids in _pairs(self.forget))
        return {"source": self.source, "interactions": len(self.forget), "users": users, "items": items} | self.counts


def _pairs(dataset: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    return dataset.inter_feat[dataset.uid_field], dataset.inter_feat[dataset.iid_field]


def _orphans(before: Dataset, after: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    users, items = map(torch.unique, _pairs(before))
    new_users, new_items = _pairs(after)
    return users[~torch.isin(users, new_users)], items[~torch.isin(items, new_items)]


def divide(
    full: Splits, located: Located, source: str, clock: Clock | None = None, fitted: torch.Tensor | None = None
) -> UnlearnData:
    r"""Divide D into S and D\S by the interactions that were located, applying the rules of this module."""
    remove = [torch.from_numpy(mask) for mask in located[:3]]
    kept = full.only([~mask for mask in remove])
    users, items = _orphans(full.train, kept.train)
    retain = kept.measurable(users, items)
    if getattr(retain.train, "kg_feat", None) is not None:
        retain = Splits(*with_facts_in_use(retain))
    if len(retain.for_model().train) == 0:
        raise UnlearnError(
            f"After this request no user has two training interactions, so there is no sequence to train on. {_LESS}"
        )
    for part, label in ((retain.valid, "validation"), (retain.test, "test")):
        if len(part) == 0:
            raise UnlearnError(f"After this request no {label} interaction is left to measure with. {_LESS}")
    counts = {
        **{f"lines_{state}": number for state, number in (located.lines or {}).items()},
        "skipped_requests": (located.lines or {}).get("unknown", 0),
        "valid_rows_removed": int(remove[1].sum()), "test_rows_removed": int(remove[2].sum()),
        "orphan_users": len(users), "orphan_items": len(items),
        "orphan_valid_rows": len(kept.valid) - len(retain.valid),
        "orphan_test_rows": len(kept.test) - len(retain.test),
    }  # fmt: skip
    forget = full.train.copy(full.train.inter_feat[remove[0]])
    return UnlearnData(full, retain, forget, remove[0], source, clock, counts, users, items, fitted)


def append(train: Dataset, interactions: Interaction) -> Dataset:
    """``train`` with more interactions at its end."""
    return train.copy(cat_interactions([train.inter_feat, interactions]))
