"""A cache of trained models, so that a second run with another method does not train again.

An entry's key is a digest of everything that determines the weights: versions, every setting that training
reads, the seed, the number of threads and the rows themselves. Entries are written atomically, read with
the restricted unpickler, and removed least-recently-used first when the cache outgrows its size. The cache
of a model trained before a deletion request still knows what is to be deleted; docs/guarantees.md says so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import recbole
import torch

from recbole_unlearn import __version__, settings
from recbole_unlearn.cluster import Workers
from recbole_unlearn.config import UnlearnConfig, own_keys
from recbole_unlearn.data import Splits
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import make_directory, write_torch
from recbole_unlearn.trainer import Job, Trained, train
from recbole_unlearn.unpickle import load_torch

# Settings that change nothing in a trained model.
_IRRELEVANT = {
    "data_path", "checkpoint_dir", "show_progress", "state", "gpu_id", "use_gpu", "log_wandb",
    "wandb_project", "save_dataset", "save_dataloaders", "dataset_save_path", "dataloaders_save_path",
    "eval_batch_size", "loss_decimal_place", "config_files", "worker", "test_neg_sample_args",
}  # fmt: skip


def _train_anywhere(
    config: UnlearnConfig, splits: Splits, label: str, start: dict[str, torch.Tensor] | None
) -> Trained:
    """A training that needs and leaves no file, so that it can be done on another machine."""
    with tempfile.TemporaryDirectory() as work:
        apart = config.replace(checkpoint_dir=work, output_dir=None, tensorboard=False)
        return train(apart, splits, label, start)


def _digest(weights: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class ModelCache:
    """Trains models, or takes them from disk when they were trained before."""

    def __init__(self, options: settings.CacheSettings, threads: int, workers: Workers | None = None) -> None:
        self.folder = make_directory(options.cache_dir) if options.cache else None
        self.limit = options.cache_size * 2**30
        self.threads = threads
        self.workers = workers or Workers()

    def train(
        self,
        config: UnlearnConfig,
        splits: Splits,
        label: str,
        start: dict[str, torch.Tensor] | None = None,
    ) -> Trained:
        """A model of ``splits`` trained with ``config``, from the cache if it is there."""
        job = Job(config, splits, label, start)
        path = self._path(job)
        return self._find(path, label) or self._keep(path, train(*job))

    def train_all(self, jobs: Sequence[Job]) -> list[Trained]:
        """As :meth:`train` for independent trainings, several at a time where that is asked for or pays."""
        paths = [self._path(job) for job in jobs]
        found = [self._find(path, job.label) for path, job in zip(paths, jobs, strict=True)]
        missing = [place for place, trained in enumerate(found) if trained is None]
        for done, trained in self.workers.do(_train_anywhere, [jobs[place] for place in missing]):
            place = missing[done]
            found[place] = self._keep(paths[place], trained)
            logging.getLogger().info("Trained the %s model: %.1f s.", jobs[place].label, trained.seconds)
        return found

    def _path(self, job: Job) -> Path | None:
        return None if self.folder is None else self.folder / f"{self.key(*job)}.pt"

    def _find(self, path: Path | None, label: str) -> Trained | None:
        found = None if path is None else self._read(path)
        if found is not None:
            logging.getLogger().info("The %s model was trained before; taken from %s.", label, path)
        return found

    def _keep(self, path: Path | None, trained: Trained) -> Trained:
        if path is not None:
            write_torch(path, {f.name: getattr(trained, f.name) for f in dataclasses.fields(Trained)})
            self._shrink()
        return trained

    def key(
        self,
        config: UnlearnConfig,
        splits: Splits,
        label: str = "",
        start: dict[str, torch.Tensor] | None = None,
    ) -> str:
        """The digest an entry is filed under; the label is for people and has no part in it."""
        ours = own_keys()
        relevant = {
            name: repr(value)
            for name, value in config.final_config_dict.items()
            if name not in ours | _IRRELEVANT
        }
        parts = {
            "versions": [__version__, recbole.__version__, torch.__version__, numpy.__version__],
            "threads": self.threads,
            "model": f"{config.model_class.__module__}.{config.model_class.__qualname__}",
            "settings": relevant,
            "data": splits.fingerprint(),
        } | ({} if start is None else {"start": _digest(start)})
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    def _read(self, path: Path) -> Trained | None:
        if not path.is_file():
            return None
        try:
            content: dict[str, Any] = load_torch(path)
            trained = Trained(**{**content, "from_cache": True})
        except (UnlearnError, TypeError) as error:
            logging.getLogger().warning("Cached model left aside, training again: %s", error)
            return None
        os.utime(path)  # recently used
        return trained

    def _shrink(self) -> None:
        """Remove the least recently used entries until the rest fits; the newest always stays."""
        assert self.folder is not None
        entries = sorted(self.folder.glob("*.pt"), key=lambda path: path.stat().st_mtime, reverse=True)
        total = 0
        for position, path in enumerate(entries):
            total += path.stat().st_size
            if total > self.limit and position > 0:
                path.unlink(missing_ok=True)
