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
from pathlib import Path
from typing import Any

import numpy
import recbole
import torch

from recbole_unlearn import __version__, settings
from recbole_unlearn.config import UnlearnConfig, own_keys
from recbole_unlearn.data import Splits
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import make_directory, write_torch
from recbole_unlearn.trainer import Trained, train
from recbole_unlearn.unpickle import load_torch

# Settings that change nothing in a trained model.
_IRRELEVANT = {
    "data_path", "checkpoint_dir", "show_progress", "state", "gpu_id", "use_gpu", "log_wandb",
    "wandb_project", "save_dataset", "save_dataloaders", "dataset_save_path", "dataloaders_save_path",
    "eval_batch_size", "loss_decimal_place", "config_files", "worker", "test_neg_sample_args",
}  # fmt: skip


class ModelCache:
    """Trains models, or takes them from disk when they were trained before."""

    def __init__(self, options: settings.CacheSettings, threads: int) -> None:
        self.folder = make_directory(options.cache_dir) if options.cache else None
        self.limit = options.cache_size * 2**30
        self.threads = threads

    def train(self, config: UnlearnConfig, splits: Splits, label: str) -> Trained:
        """A model of ``splits`` trained with ``config``, from the cache if it is there."""
        if self.folder is None:
            return train(config, splits, label)
        path = self.folder / f"{self.key(config, splits)}.pt"
        found = self._read(path)
        if found is not None:
            logging.getLogger().info("The %s model was trained before; taken from %s.", label, path)
            return found
        trained = train(config, splits, label)
        fields = {f.name: getattr(trained, f.name) for f in dataclasses.fields(Trained)}
        write_torch(path, fields)
        self._shrink()
        return trained

    def key(self, config: UnlearnConfig, splits: Splits) -> str:
        """The digest an entry is filed under."""
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
        }
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
