"""All trainings of a run: one after the other or several at a time, each from the cache if it was done before.

The key of a cache entry is a digest of everything that determines the weights: versions, every setting that training
reads, the seed, `threads` as it is set (with auto a model may be of any number) and the interactions. After a real
request only models stay in the cache of which this run knows that they saw no deleted interaction, and those of other
datasets (:meth:`Trainings.forget`); docs/guarantees.md says what that covers.
"""

import dataclasses
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy
import recbole
import torch
from recbole.data.dataset import Dataset

from recbole_unlearn import __version__, files
from recbole_unlearn.cluster import Workers
from recbole_unlearn.data import Splits, UnlearnData
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Trained
from recbole_unlearn.settings import RECBOLE, CacheSettings, Known, UnlearnConfig, own_settings, read_json
from recbole_unlearn.training.lean import is_lean
from recbole_unlearn.training.spectral import SPECTRAL
from recbole_unlearn.training.trainer import Job, PhaseTrainer, Watcher, Weights, loaded, train, train_here

logger = logging.getLogger(__name__)


class Cache:
    """Trained models on disk, in one directory.

    An entry is a file of torch named by its key, and a JSON file with a digest of its training data and their source,
    the name of the dataset. It is written whole or not at all, and read as data. When the cache
    exceeds its size, the least recently used entries are removed first. A cache that cannot be written causes a
    warning, never the end of a run.
    """

    def __init__(self, folder: str, gibibytes: float) -> None:
        self.folder = files.make_directory(folder)
        self.limit = gibibytes * 2**30
        files.remove_stale(self.folder, ".*.tmp")

    def path(self, key: str) -> Path:
        """The file of an entry, whether it exists or not."""
        return self.folder / f"{key}.pt"

    def find(self, key: str) -> Trained | None:
        """The model under ``key``, or None if there is none or it is damaged."""
        path = self.path(key)
        if not path.is_file():
            return None
        try:
            trained = Trained(**{**files.load_torch(path), "from_cache": True})
        except (UnlearnError, TypeError, OSError) as error:
            logger.warning("Cached model not used, training again: %s", error)
            return None
        os.utime(path)  # recently used
        return trained

    def keep(self, key: str, trained: Trained, splits: Splits) -> None:
        """Write an entry of a model trained on ``splits``."""
        path = self.path(key)
        try:  # another run may have removed the folder while it was empty
            self.folder.mkdir(parents=True, exist_ok=True)
            files.write_torch(path, {f.name: getattr(trained, f.name) for f in dataclasses.fields(Trained)})
            note = {"data": splits.digest(), "source": splits.train.dataset_name}
            files.write_json(path.with_suffix(".json"), note)
            total = 0
            entries = sorted(self.folder.glob("*.pt"), key=lambda path: path.stat().st_mtime, reverse=True)
            for position, entry in enumerate(entries):  # the newest always stays
                total += entry.stat().st_size
                if total > self.limit and position > 0:
                    self._remove(entry)
        except (UnlearnError, OSError) as error:
            self._remove(path)
            logger.warning("The trained model is not kept for later runs: %s", error)

    def remove(self, source: str, data: str, keys: set[str]) -> int:
        """Remove the entries of a source but those trained on ``data`` and those under ``keys``; returns how many.

        An entry that does not say its source is removed as well.
        """
        notes = {path: self._note(path) for path in self.folder.glob("*.pt") if path.stem not in keys}
        own = {path: note for path, note in notes.items() if note.get("source", source) == source}
        found = [path for path, note in own.items() if note.get("data") != data]
        for path in found:
            self._remove(path)
        return len(found)

    @staticmethod
    def _note(path: Path) -> dict[str, str]:
        try:
            found = read_json(path.with_suffix(".json"))
        except (OSError, ValueError, UnlearnError):
            return {}
        return found if isinstance(found, dict) else {}

    @staticmethod
    def _remove(path: Path) -> None:
        for file in (path, path.with_suffix(".json")):
            file.unlink(missing_ok=True)


def _train_anywhere(config: UnlearnConfig, splits: Splits, label: str, start: Weights | None) -> Trained:
    """A training that needs and leaves no file, so that it can run on another machine."""
    with tempfile.TemporaryDirectory() as work:
        apart = config.replace(checkpoint_dir=work, output_dir=None).without_curves()
        return train(apart, splits, label, start)


class Trainings:
    """Trains models, or takes them from the cache."""

    def __init__(self, options: CacheSettings, threads: int | str, workers: Workers | None = None) -> None:
        self.cache = Cache(options.cache_dir, options.cache_size) if options.cache else None
        self.threads = threads
        self.workers = workers or Workers()
        self.watcher: Watcher | None = None  # of trainings in this process
        self.asked = False  # whether a model was requested so far
        self._deleted: torch.Tensor | None = None  # pairs that no cached model may have seen
        self._clean: set[str] = set()  # keys of models in the cache that have seen none of these

    def protect(self, data: UnlearnData) -> None:
        """From now on cache no model that has seen what this request deletes."""
        kept = torch.cat([_pairs(part) for part in data.retain])
        asked = torch.cat([_pairs(part) for part in data.full])
        self._deleted = torch.unique(asked[~torch.isin(asked, kept)])

    def forget(self, data: UnlearnData) -> None:
        """Remove all models of this dataset of which it is not known that they saw no deleted interaction.

        A model that another request was retrained for saw these users as well.
        """
        if self.cache is None or self._deleted is None:
            return
        retain = data.retain
        if self.cache.remove(retain.train.dataset_name, retain.digest(), self._clean):
            logger.info("Removed from the cache: models that may have seen the deleted interactions.")

    def train(self, config: UnlearnConfig, splits: Splits, label: str, start: Weights | None = None) -> Trained:
        """A model of ``splits`` trained with ``config``, from the cache if it is there."""
        job = Job(config, splits, label, start)
        return self._find(job) or self._keep(job, train(*job, self.watcher))

    def trainer(self, config: UnlearnConfig, splits: Splits, label: str) -> tuple[PhaseTrainer, Trained]:
        """As :meth:`train`, with the trainer that holds the model."""
        job = Job(config, splits, label)
        if (found := self._find(job)) is not None:
            return loaded(config, splits, label, found), found
        trainer, trained = train_here(*job, self.watcher)
        return trainer, self._keep(job, trained)

    def train_all(self, jobs: Sequence[Job]) -> list[Trained]:
        """As :meth:`train` for independent trainings, several at a time if asked for or if it saves time."""
        done = [self._find(job) for job in jobs]
        missing = [place for place, trained in enumerate(done) if trained is None]
        for number, trained in self.workers.do(_train_anywhere, [jobs[place] for place in missing]):
            job = jobs[missing[number]]
            done[missing[number]] = self._keep(job, trained)
            if job.config.leaves_curves:  # how many parts of a model start again goes with the size of a request
                logger.info("Trained the %s model: %.1f s.", job.label, trained.seconds)
        return [trained for trained in done if trained is not None]

    def has(self, config: UnlearnConfig, splits: Splits) -> bool:
        """Whether the cache has such a model; damage is found when it is read."""
        return self.cache is not None and self.cache.path(self.key(config, splits)).is_file()

    def _find(self, job: Job) -> Trained | None:
        self.asked = True
        if self.cache is None:
            return None
        key = self.key(*job)
        found = self.cache.find(key)
        if found is not None:
            if job.config.leaves_curves:
                logger.info("The %s model was trained before; taken from the cache.", job.label)
            if not self._has_deleted(job.splits):
                self._clean.add(key)
        return found

    def _keep(self, job: Job, trained: Trained) -> Trained:
        if self.cache is not None and not self._has_deleted(job.splits):
            self.cache.keep(self.key(*job), trained, job.splits)
            self._clean.add(self.key(*job))
        return trained

    def _has_deleted(self, splits: Splits) -> bool:
        """Whether a model of ``splits`` sees a deleted interaction."""
        if self._deleted is None:
            return False
        return any(bool(torch.isin(_pairs(part), self._deleted).any()) for part in (splits.train, splits.valid))

    def key(self, config: UnlearnConfig, splits: Splits, label: str = "", start: Weights | None = None) -> str:
        """The digest that names an entry; the label is for people and has no part in it."""
        ours, values = own_settings(), config.final_config_dict
        trained_with = [name for name in values if name not in ours and RECBOLE.get(name, Known()).trains]
        parts = {
            "versions": [__version__, recbole.__version__, torch.__version__, numpy.__version__],
            "threads": self.threads,
            "model": f"{config.model_class.__module__}.{config.model_class.__qualname__}",
            "settings": {name: repr(values[name]) for name in trained_with},
            "data": splits.digest(),
        }
        if start is not None:
            parts["start"] = state_digest(start)
        if config["start"] == SPECTRAL:
            parts["rows"] = SPECTRAL
        if is_lean(config.model_class):
            parts["loop"] = "lean"
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def state_digest(weights: Weights) -> str:
    """A digest of a model's weights."""
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _pairs(dataset: Dataset) -> torch.Tensor:
    """One number for each interaction: user · items + item."""
    return dataset.inter_feat[dataset.uid_field] * dataset.item_num + dataset.inter_feat[dataset.iid_field]
