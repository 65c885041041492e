r"""From a dataset and a forget set to forget and retain data with the same ids.

:func:`load` makes RecBole's dataset and splits it as RecBole would. :class:`UnlearnData` holds the two
sides: D (``full``) and D\S (``retain``), plus the deleted interactions (``forget``). :func:`loaders` builds new
samplers and loaders for either side; the samplers are never shared, or deleted pairs would stay excluded
from the negatives and stay masked at test.

Rules, see docs/deletion-requests.md:

* Only training interactions are unlearned. A request that also hits validation or test interactions removes
  them from those splits for every phase alike, so that all figures are about the same interactions.
* A user or an item that has no training interaction left (an *orphan*) cannot be ranked sensibly by any model.
  Its validation and test interactions are left out for every phase, and counted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from recbole.data import create_dataset
from recbole.data.dataloader import AbstractDataLoader
from recbole.data.dataset import Dataset, SequentialDataset
from recbole.data.interaction import Interaction, cat_interactions
from recbole.data.utils import create_samplers, get_dataloader
from recbole.sampler import KGSampler
from recbole.utils import ModelType, init_seed

from recbole_unlearn.data.download import ensure_dataset
from recbole_unlearn.data.graph import require_files, with_facts_in_use
from recbole_unlearn.data.item_counts import fitted_after, lost_at_least, lost_since
from recbole_unlearn.data.parts import Splits, three
from recbole_unlearn.data.requests import Located
from recbole_unlearn.data.sequences import SCORES, Sequences, SequenceSplits
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Clock, Done, read_dataset, used_values
from recbole_unlearn.settings import UnlearnConfig

INJECTED = "injected"  # the source of a request that the synthetic protocol made


# What RecBole raises when a setting is not what it expects; it checks few of them.
_OF_SETTINGS = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, NotImplementedError, AssertionError,
)  # fmt: skip


class Loaders(NamedTuple):
    """RecBole's loaders over :class:`Splits`."""

    train: AbstractDataLoader
    valid: AbstractDataLoader
    test: AbstractDataLoader


class Source(NamedTuple):
    """A loaded dataset: its splits, how raw timestamps map to the loaded ones, and what earlier requests left."""

    splits: Splits
    clock: Clock | None
    fitted: torch.Tensor | None = None  # (items,), see UnlearnData
    done: tuple[Done, ...] = ()  # earlier requests


def fetch(config: UnlearnConfig) -> None:
    """Make sure that the files of the dataset are there; those that RecBole knows are downloaded."""
    name, suffixes = config["dataset"], config["benchmark_filename"]
    files = [f"{name}.{suffix}.inter" for suffix in suffixes] if suffixes else [f"{name}.inter"]
    ensure_dataset(name, config["data_path"], files, config["download_url"], bool(config["show_progress"]))


def load(config: UnlearnConfig, saved: Path | None = None) -> Source:
    """Load and split the dataset exactly as a RecBole run with this config does.

    Args:
        config: names the dataset, its filters and its split.
        saved: the retained data of an earlier request, to continue from instead of the source files.

    """
    name = config["dataset"]
    init_seed(config["seed"], config["reproducibility"])
    fitted: np.ndarray | None = None
    done: tuple[Done, ...] = ()
    if saved is not None:
        dataset, clock, fitted, done = read_dataset(saved, config)
    else:
        fetch(config)
        if config["MODEL_TYPE"] == ModelType.KNOWLEDGE:
            require_files(config)
        try:
            with _recorded_times() as raw:
                dataset = create_dataset(config)
            clock = _clock(raw, dataset)
        except _OF_SETTINGS as error:
            raise UnlearnError(
                f"RecBole cannot load the dataset {name} from {config['data_path']}: {error}. "
                "Check load_col, the column names and the filters."
            ) from error
    try:
        splits = _split(dataset, saved is not None)
    except _OF_SETTINGS as error:
        raise UnlearnError(f"RecBole cannot split the dataset {name}: {error}. Check eval_args.") from error
    if len(splits.train) == 0:
        raise UnlearnError(
            f"The dataset {name} has no training interactions after filtering; check val_interval."
        )
    return Source(splits, clock, None if fitted is None else torch.from_numpy(fitted), done)


def _split(dataset: Dataset, is_saved: bool) -> Splits:
    """A dataset as RecBole divides it; one of a sequential model as the interactions behind its windows."""
    if not isinstance(dataset, SequentialDataset):
        return Splits(*three(dataset.build()))
    if dataset.config["benchmark_filename"] and not is_saved:
        raise UnlearnError(
            "benchmark_filename gives files of finished windows, in which an interaction cannot be deleted. Use the "
            "interactions themselves, NAME.inter, and leave benchmark_filename out."
        )
    return SequenceSplits.of(Sequences.saved(dataset) if is_saved else Sequences.of(dataset))


@contextlib.contextmanager
def _recorded_times() -> Iterator[dict[str, np.ndarray]]:
    """Record the timestamps as the file has them: RecBole may scale them to [0, 1] while it loads."""
    recorded: dict[str, np.ndarray] = {}
    original = Dataset._normalize

    @functools.wraps(original)
    def normalize(self: Dataset) -> None:
        if self.time_field in self.inter_feat:
            recorded["time"] = self.inter_feat[self.time_field].to_numpy(dtype=np.float64, copy=True)
        original(self)

    Dataset._normalize = normalize
    try:
        yield recorded
    finally:
        Dataset._normalize = original


def _clock(recorded: dict[str, np.ndarray], dataset: Dataset) -> Clock | None:
    """The map from the file's timestamps to the dataset's, when they differ."""
    if "time" not in recorded or dataset.time_field not in dataset.inter_feat:
        return None
    raw = recorded["time"]
    now = dataset.inter_feat[dataset.time_field].to_numpy(dtype=np.float64)
    if len(raw) == 0 or np.array_equal(raw, now):
        return None
    low, high = raw.min(), raw.max()
    start, end = now[raw.argmin()], now[raw.argmax()]
    slope = (end - start) / (high - low) if high > low else 0.0
    return Clock(float(low), float(slope), float(start))


@dataclasses.dataclass(frozen=True)
class UnlearnData:
    """The data of one unlearning run."""

    full: Splits
    retain: Splits
    forget: Dataset  # the deleted training interactions, S
    deleted: torch.Tensor  # (|D|,), which interactions of full.train they are
    source: str  # "file", "python" or "injected ..."
    clock: Clock | None
    counts: dict[str, int]
    orphan_users: torch.Tensor
    orphan_items: torch.Tensor
    # (items,), about how many interactions the rows of items were fitted to, see fitted.py; None: to those of D.
    fitted: torch.Tensor | None = None
    done: tuple[Done, ...] = ()  # keyed hashes of earlier requests and of this one, for the saved dataset
    done_earlier: str | None = None  # the day on which this request was done, when it comes again
    # (m,), which interactions of full.train S is, where requests follow each other and the index changes in place.
    numbers: torch.Tensor | None = None

    @functools.cached_property
    def affected_users(self) -> torch.Tensor:
        """Users with a deleted interaction, sorted."""
        return torch.unique(self.forget.inter_feat[self.forget.uid_field])

    @functools.cached_property
    def forget_pairs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The distinct deleted pairs (users, items) that no retained interaction has."""
        train = self.retain.train
        users, items = _pairs(self.forget)
        keys = torch.unique(users * train.item_num + items)
        kept_users, kept_items = _pairs(train)
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
        r"""Users and items that training on D reads and training on D\S does not.

        These are the orphans. Of a sequential model also those who keep one training interaction, which is in no
        window.
        """
        if isinstance(self.full, SequenceSplits) and isinstance(self.retain, SequenceSplits):
            return _orphans(self.full.in_windows(), self.retain.in_windows())
        return self.orphan_users, self.orphan_items

    @functools.cached_property
    def popularity(self) -> torch.Tensor:
        """How many interactions of D each item has (items,)."""
        train = self.full.train
        return torch.bincount(train.inter_feat[train.iid_field], minlength=train.item_num)

    @functools.cached_property
    def lost(self) -> torch.Tensor | None:
        """How many training interactions earlier requests took from each item (items,), rounded up; None: none."""
        return None if self.fitted is None else lost_since(self.fitted, self.popularity)

    @functools.cached_property
    def lost_at_least(self) -> torch.Tensor | None:
        """As ``lost``, but no more than is certain."""
        return None if self.fitted is None else lost_at_least(self.fitted, self.popularity)

    def fitted_after(self, refitted: torch.Tensor | None) -> torch.Tensor | None:
        """What the next request has to know once this one is done; items ``refitted`` have new rows.

        Noise that was injected does not count: nobody asked to forget it.
        """
        if self.source.startswith(INJECTED):
            return None
        before = self.popularity
        gone = torch.bincount(self.forget.inter_feat[self.forget.iid_field], minlength=len(before))
        return fitted_after(self.fitted, before, before - gone, refitted)

    def summary(self) -> dict[str, Any]:
        """Counts for result.json: how much was asked for, and what the rules above left out."""
        users, items = _pairs(self.forget)
        return {
            "source": self.source,
            "interactions": len(self.forget),
            "users": len(torch.unique(users)),
            "items": len(torch.unique(items)),
            **self.counts,
        }


def _pairs(dataset: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    return dataset.inter_feat[dataset.uid_field], dataset.inter_feat[dataset.iid_field]


def divide(
    full: Splits,
    located: Located,
    source: str,
    clock: Clock | None = None,
    fitted: torch.Tensor | None = None,
) -> UnlearnData:
    r"""Divide D into S and D\S by the interactions that were located, applying the rules of this module."""
    remove = [torch.from_numpy(mask) for mask in (located.train, located.valid, located.test)]
    kept = full.only([~mask for mask in remove])
    users, items = _orphans(full.train, kept.train)
    retain = with_facts_in_use(kept.measurable(users, items))
    if len(retain.for_model().train) == 0:
        raise UnlearnError(
            "After this request nobody has two training interactions left, so there is no sequence to train on. Ask "
            "for less, or use a larger dataset."
        )
    for part, label in ((retain.valid, "validation"), (retain.test, "test")):
        if len(part) == 0:
            raise UnlearnError(
                f"After this request no {label} interaction is left to measure with. Ask for less, or use a "
                "larger dataset."
            )
    counts = {
        "skipped_requests": located.skipped,
        "valid_rows_removed": int(remove[1].sum()),
        "test_rows_removed": int(remove[2].sum()),
        "orphan_users": len(users),
        "orphan_items": len(items),
        "orphan_valid_rows": len(kept.valid) - len(retain.valid),
        "orphan_test_rows": len(kept.test) - len(retain.test),
    }
    forget = full.train.copy(full.train.inter_feat[remove[0]])
    return UnlearnData(full, retain, forget, remove[0], source, clock, counts, users, items, fitted)


def _orphans(before: Dataset, after: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """Users and items with training interactions before and none after."""
    found = []
    for old, new in zip(_pairs(before), _pairs(after), strict=True):
        old = torch.unique(old)
        found.append(old[~torch.isin(old, new)])
    return found[0], found[1]


def append(train: Dataset, interactions: Interaction) -> Dataset:
    """``train`` with more interactions at its end."""
    return train.copy(cat_interactions([train.inter_feat, interactions]))


def loaders(config: UnlearnConfig, splits: Splits) -> Loaders:
    """New samplers and loaders over ``splits``; the datasets handed in are not reordered."""
    if isinstance(splits, SequenceSplits):  # a batch of evaluation is a number of windows
        most = max(1, SCORES // splits.train.item_num)
        config = config.replace(eval_batch_size=min(int(config["eval_batch_size"]), most))
    parts = [part.copy(Interaction(dict(part.inter_feat.interaction))) for part in splits.for_model()]
    whole = parts[0].copy(cat_interactions([part.inter_feat for part in parts]))
    is_graph = config["MODEL_TYPE"] == ModelType.KNOWLEDGE  # always shuffled, as in RecBole
    try:
        samplers = create_samplers(config, whole, parts)
    except ValueError as error:
        raise UnlearnError(f"RecBole cannot draw negatives from this data: {error}") from error
    try:
        made = [
            get_dataloader(config, phase)(config, part, *sampler, shuffle=shuffle)
            for phase, part, sampler, shuffle in zip(
                ("train", "valid", "test"), parts, _by_phase(config, whole, samplers),
                (bool(config["shuffle"]) or is_graph, False, False), strict=True,
            )
        ]  # fmt: skip
    except _OF_SETTINGS as error:
        raise UnlearnError(
            f"RecBole cannot make batches with these settings: {error}. Check train_batch_size, eval_args and "
            "train_neg_sample_args."
        ) from error
    return Loaders(*made)


def _by_phase(config: UnlearnConfig, whole: Dataset, samplers: Sequence[Any]) -> list[tuple[Any, ...]]:
    """What each loader draws from: a sampler of negatives, and for training on a knowledge graph one of its facts."""
    each: list[tuple[Any, ...]] = [(sampler,) for sampler in samplers]
    if config["MODEL_TYPE"] == ModelType.KNOWLEDGE:
        drawn = config["train_neg_sample_args"]
        each[0] += (KGSampler(whole, drawn["distribution"], drawn["alpha"]),)
    return each
