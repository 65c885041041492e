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

from recbole_unlearn import __version__
from recbole_unlearn.cluster import Workers
from recbole_unlearn.data import Splits
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Trained, load_torch, make_directory, write_torch
from recbole_unlearn.settings import CacheSettings, UnlearnConfig
from recbole_unlearn.settings.config import own_settings
from recbole_unlearn.settings.recbole_values import RECBOLE, Known
from recbole_unlearn.training.models import filed_as
from recbole_unlearn.training.phase import Job, PhaseTrainer, build_model, compose, train, train_here

logger = logging.getLogger(__name__)


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


class Trainings:
    """Trains models, or takes them from disk when they were trained before."""

    def __init__(self, options: CacheSettings, threads: int, workers: Workers | None = None) -> None:
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

    def trainer(self, config: UnlearnConfig, splits: Splits, label: str) -> tuple[PhaseTrainer, Trained]:
        """As :meth:`train`, with the trainer that holds the model."""
        path = self._path(Job(config, splits, label))
        found = self._find(path, label)
        if found is None:
            trainer, trained = train_here(config, splits, label)
            return trainer, self._keep(path, trained)
        model = build_model(config, splits)
        found.load_into(model)
        return compose(PhaseTrainer, config, model, label), found

    def train_all(self, jobs: Sequence[Job]) -> list[Trained]:
        """As :meth:`train` for independent trainings, several at a time where that is asked for or pays."""
        paths = [self._path(job) for job in jobs]
        looked_up = [self._find(path, job.label) for path, job in zip(paths, jobs, strict=True)]
        found = {place: trained for place, trained in enumerate(looked_up) if trained is not None}
        missing = [place for place in range(len(jobs)) if place not in found]
        for done, trained in self.workers.do(_train_anywhere, [jobs[place] for place in missing]):
            place = missing[done]
            found[place] = self._keep(paths[place], trained)
            logger.info("Trained the %s model: %.1f s.", jobs[place].label, trained.seconds)
        return [found[place] for place in range(len(jobs))]

    def _path(self, job: Job) -> Path | None:
        return None if self.folder is None else self.folder / f"{self.key(*job)}.pt"

    def _find(self, path: Path | None, label: str) -> Trained | None:
        found = None if path is None else self._read(path)
        if found is not None:
            logger.info("The %s model was trained before; taken from %s.", label, path)
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
        ours = own_settings()
        relevant = {
            name: repr(value)
            for name, value in config.final_config_dict.items()
            if name not in ours and RECBOLE.get(name, Known()).trains
        }
        parts = {
            "versions": [__version__, recbole.__version__, torch.__version__, numpy.__version__],
            "threads": self.threads,
            "model": filed_as(config.model_class),
            "settings": relevant,
            "data": splits.digest(),
        } | ({} if start is None else {"start": _digest(start)})
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    def _read(self, path: Path) -> Trained | None:
        if not path.is_file():
            return None
        try:
            content: dict[str, Any] = load_torch(path)
            trained = Trained(**{**content, "from_cache": True})
        except (UnlearnError, TypeError) as error:
            logger.warning("Cached model left aside, training again: %s", error)
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
