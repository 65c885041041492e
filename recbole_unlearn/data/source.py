r"""Datasets loaded and split as RecBole does it, and new samplers and loaders over splits.

Samplers are never shared between D and D\S: deleted pairs would stay excluded from the negatives and masked at test.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from recbole.data import create_dataset
from recbole.data.dataloader import AbstractDataLoader
from recbole.data.dataset import Dataset, SequentialDataset
from recbole.data.interaction import Interaction, cat_interactions
from recbole.data.utils import create_samplers, get_dataloader
from recbole.sampler import KGSampler, Sampler
from recbole.utils import ModelType, init_seed

from recbole_unlearn.data.download import ensure_dataset
from recbole_unlearn.data.fast_loading import fast_loading
from recbole_unlearn.data.knowledge_graph import require_files
from recbole_unlearn.data.sequences import SCORES, Sequences, SequenceSplits
from recbole_unlearn.data.splits import Splits, three_parts
from recbole_unlearn.data.used_items import used_ids
from recbole_unlearn.errors import BAD_SETTING, UnlearnError
from recbole_unlearn.files import Clock, Done, read_dataset
from recbole_unlearn.recbole_compat import replaced
from recbole_unlearn.settings import UnlearnConfig


class Loaders(NamedTuple):
    """RecBole's loaders over :class:`Splits`."""

    train: AbstractDataLoader
    valid: AbstractDataLoader | None  # None: no epoch is validated
    test: AbstractDataLoader


class Source(NamedTuple):
    """A loaded dataset: its splits, the map of its timestamps, and the record of earlier requests."""

    splits: Splits
    clock: Clock | None
    fitted: torch.Tensor | None = None  # (items,), see UnlearnData
    done: tuple[Done, ...] = ()  # earlier requests


def fetch(config: UnlearnConfig) -> None:
    """Make sure that the files of the dataset are there; RecBole's own datasets are downloaded."""
    name, suffixes = config["dataset"], config["benchmark_filename"]
    files = [f"{name}.{suffix}.inter" for suffix in suffixes] if suffixes else [f"{name}.inter"]
    ensure_dataset(name, config["data_path"], files, config["download_url"], bool(config["show_progress"]))


@fast_loading()
def load(config: UnlearnConfig, saved: Path | None = None) -> Source:
    """Load and split the dataset as RecBole does with this config; or ``saved``, which an earlier request left."""
    name = config["dataset"]
    init_seed(config["seed"], config["reproducibility"])
    fitted: np.ndarray | None = None
    done: tuple[Done, ...] = ()
    if saved is not None:
        dataset, clock, fitted, done = read_dataset(saved, config)
    else:
        fetch(config)
        _load_times(config)
        if config["MODEL_TYPE"] == ModelType.KNOWLEDGE:
            require_files(config)
        try:
            dataset, clock = _created(config)
        except BAD_SETTING as error:
            raise UnlearnError(
                f"RecBole cannot load the dataset {name} from {config['data_path']}: {error}. "
                "Check load_col, the column names and the filters."
            ) from error
    try:
        splits = _split(dataset, saved is not None)
    except BAD_SETTING as error:
        raise UnlearnError(f"RecBole cannot split the dataset {name}: {error}. Check eval_args.") from error
    if len(splits.train) == 0:
        raise UnlearnError(f"Dataset {name} has no training interactions after filtering; check val_interval.")
    return Source(splits, clock, None if fitted is None else torch.from_numpy(fitted), done)


def _load_times(config: UnlearnConfig) -> None:
    """Let a sequential model read the times of interactions, which RecBole loads only where it is told to."""
    columns = (config["load_col"] or {}).get("inter")
    is_chosen = "load_col" in {**config.inherited, **config.external_config_dict}
    file = Path(config["data_path"]) / f"{config['dataset']}.inter"
    if config["MODEL_TYPE"] != ModelType.SEQUENTIAL or not columns or is_chosen or not file.is_file():
        return
    with open(file, encoding=config["encoding"] or "utf-8") as stream:
        head = [name.partition(":")[0] for name in stream.readline().rstrip("\r\n").split(config["field_separator"])]
    if config["TIME_FIELD"] in head and config["TIME_FIELD"] not in columns:
        config["load_col"] = {**config["load_col"], "inter": [*columns, config["TIME_FIELD"]]}


def _split(dataset: Dataset, is_saved: bool) -> Splits:
    """A dataset as RecBole divides it; for a sequential model, the interactions behind its windows."""
    if not isinstance(dataset, SequentialDataset):
        return Splits(*three_parts(dataset.build()))
    if dataset.config["benchmark_filename"] and not is_saved:
        raise UnlearnError(
            "benchmark_filename gives files of finished windows, in which an interaction cannot be deleted. Use the "
            "interactions themselves, NAME.inter, and leave benchmark_filename out."
        )
    return SequenceSplits.of(Sequences.saved(dataset) if is_saved else Sequences.of(dataset))


def _created(config: UnlearnConfig) -> tuple[Dataset, Clock | None]:
    """The dataset as RecBole creates it, and the map of timestamps where RecBole scales them to [0, 1]."""
    raw, original = np.zeros(0), Dataset._normalize

    def normalize(self: Dataset) -> None:
        nonlocal raw
        if self.time_field in self.inter_feat:
            raw = self.inter_feat[self.time_field].to_numpy(dtype=np.float64, copy=True)
        original(self)

    with replaced(Dataset, "_normalize", normalize):
        dataset = create_dataset(config)
    now = dataset.inter_feat[dataset.time_field].to_numpy(dtype=np.float64) if len(raw) else raw
    if np.array_equal(raw, now):
        return dataset, None
    low, high = raw.min(), raw.max()
    start, end = now[raw.argmin()], now[raw.argmax()]
    slope = (end - start) / (high - low) if high > low else 0.0
    return dataset, Clock(float(low), float(slope), float(start))


def loaders(config: UnlearnConfig, splits: Splits, most: int | None = None) -> Loaders:
    """New samplers and loaders over ``splits``; the datasets handed in are not reordered.

    For a short training, ``most`` limits the users of the validation data, drawn with the config's seed; its test
    loader has these users' validation data as well, because making one of all test data takes as long as an epoch.
    """
    if isinstance(splits, SequenceSplits):  # a batch of evaluation is a number of windows
        windows = max(1, SCORES // splits.train.item_num)
        config = config.replace(eval_batch_size=min(int(config["eval_batch_size"]), windows))
    parts = [part.copy(Interaction(dict(part.inter_feat.interaction))) for part in splits.for_model()]
    if most is not None:
        valid, users = parts[1], parts[1].inter_feat[parts[1].uid_field]
        names = users.unique()
        drawn = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(config["seed"]))[:most]]
        parts[1:] = [valid.copy(valid.inter_feat[torch.isin(users, drawn)])] * 2
    is_graph = config["MODEL_TYPE"] == ModelType.KNOWLEDGE
    whole = parts[0]
    if is_graph or config["repeatable"]:  # other samplers do not read it
        whole = parts[0].copy(cat_interactions([part.inter_feat for part in parts]))
    try:
        with replaced(Sampler, "get_used_ids", used_ids):
            samplers: list[tuple[Any, ...]] = [(own,) for own in create_samplers(config, whole, parts)]
    except ValueError as error:
        raise UnlearnError(f"RecBole cannot draw negatives from this data: {error}") from error
    shuffle = bool(config["shuffle"]) or is_graph  # a graph is always shuffled, as in RecBole
    try:
        if is_graph:  # training also draws facts of the graph
            drawn = config["train_neg_sample_args"]
            samplers[0] += (KGSampler(whole, drawn["distribution"], drawn["alpha"]),)
        made = [
            get_dataloader(config, phase)(config, part, *own, shuffle=shuffle and phase == "train")
            for phase, part, own in zip(Loaders._fields, parts, samplers, strict=True)
        ]
        return Loaders(*made)
    except BAD_SETTING as error:
        raise UnlearnError(
            f"RecBole cannot make batches with these settings: {error}. Check train_batch_size, eval_args and "
            "train_neg_sample_args."
        ) from error
