"""All trainings of a run: one after the other or several at a time, each from the cache where it is there.

An entry's key is a digest of everything that determines the weights: versions, every setting that training reads, the
seed, the number of threads and the interactions themselves. After a real request nothing that has seen a deleted
interaction is kept (:meth:`Trainings.protect`); docs/guarantees.md says what that covers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Sequence

import numpy
import recbole
import torch
from recbole.data.dataset import Dataset

from recbole_unlearn import __version__
from recbole_unlearn.cluster import Workers
from recbole_unlearn.data import Splits, UnlearnData
from recbole_unlearn.files import Trained
from recbole_unlearn.settings import RECBOLE, CacheSettings, Known, UnlearnConfig, own_settings
from recbole_unlearn.training.cache import Cache
from recbole_unlearn.training.models import filed_as
from recbole_unlearn.training.phase import Job, PhaseTrainer, Watcher, build_model, compose, train, train_here
from recbole_unlearn.words import counted

logger = logging.getLogger(__name__)


def _train_anywhere(
    config: UnlearnConfig, splits: Splits, label: str, start: dict[str, torch.Tensor] | None
) -> Trained:
    """A training that needs and leaves no file, so that it can be done on another machine."""
    with tempfile.TemporaryDirectory() as work:
        apart = config.replace(checkpoint_dir=work, output_dir=None).without_curves()
        return train(apart, splits, label, start)


def _digest(weights: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class Trainings:
    """Trains models, or takes them from the cache when they were trained before."""

    def __init__(self, options: CacheSettings, threads: int, workers: Workers | None = None) -> None:
        self.cache = Cache(options.cache_dir, options.cache_size) if options.cache else None
        self.threads = threads
        self.workers = workers or Workers()
        self.watcher: Watcher | None = None  # of trainings that are done here
        self.asked = False  # whether a model was asked for so far
        self._deleted: torch.Tensor | None = None  # pairs that no kept model may have seen
        self._found_deleted: set[str] = set()

    def protect(self, data: UnlearnData) -> None:
        """From now on keep no model that has seen what this request deletes."""
        kept = torch.cat([_pairs(part) for part in data.retain])
        asked = torch.cat([_pairs(part) for part in data.full])
        self._deleted = torch.unique(asked[~torch.isin(asked, kept)])

    def forget(self, data: UnlearnData) -> None:
        """Remove the models that saw what the request deleted, as far as the cache knows of them."""
        if self.cache is None or self._deleted is None:
            return
        removed = self.cache.remove(self._found_deleted, data.full.digest())
        if removed:
            logger.info(
                "Removed from the cache: %s trained on the deleted interactions.", counted(removed, "model")
            )

    def train(
        self,
        config: UnlearnConfig,
        splits: Splits,
        label: str,
        start: dict[str, torch.Tensor] | None = None,
    ) -> Trained:
        """A model of ``splits`` trained with ``config``, from the cache if it is there."""
        job = Job(config, splits, label, start)
        return self._find(job) or self._keep(job, train(*job, *self._watchers))

    def trainer(self, config: UnlearnConfig, splits: Splits, label: str) -> tuple[PhaseTrainer, Trained]:
        """As :meth:`train`, with the trainer that holds the model."""
        job = Job(config, splits, label)
        found = self._find(job)
        if found is None:
            trainer, trained = train_here(*job, *self._watchers)
            return trainer, self._keep(job, trained)
        model = build_model(config, splits)
        found.load_into(model)
        return compose(PhaseTrainer, config, model, label), found

    def train_all(self, jobs: Sequence[Job]) -> list[Trained]:
        """As :meth:`train` for independent trainings, several at a time where that is asked for or saves time."""
        looked_up = [self._find(job) for job in jobs]
        found = {place: trained for place, trained in enumerate(looked_up) if trained is not None}
        missing = [place for place in range(len(jobs)) if place not in found]
        for done, trained in self.workers.do(_train_anywhere, [jobs[place] for place in missing]):
            place = missing[done]
            found[place] = self._keep(jobs[place], trained)
            logger.info("Trained the %s model: %.1f s.", jobs[place].label, trained.seconds)
        return [found[place] for place in range(len(jobs))]

    @property
    def _watchers(self) -> list[Watcher]:
        return [] if self.watcher is None else [self.watcher]

    def has(self, config: UnlearnConfig, splits: Splits) -> bool:
        """Whether the cache has such a model; whether it is whole is found out when it is read."""
        return self.cache is not None and self.cache.has(self.key(config, splits))

    def _find(self, job: Job) -> Trained | None:
        self.asked = True
        if self.cache is None:
            return None
        key = self.key(*job)
        found = self.cache.find(key)
        if found is not None:
            logger.info("The %s model was trained before; taken from the cache.", job.label)
            if self._has_deleted(job.splits):
                self._found_deleted.add(key)
        return found

    def _keep(self, job: Job, trained: Trained) -> Trained:
        if self.cache is not None and not self._has_deleted(job.splits):
            self.cache.keep(self.key(*job), trained, job.splits.digest())
        return trained

    def _has_deleted(self, splits: Splits) -> bool:
        """Whether what a model of ``splits`` sees has a deleted interaction in it."""
        if self._deleted is None or len(self._deleted) == 0:
            return False
        return any(
            bool(torch.isin(_pairs(part), self._deleted).any()) for part in (splits.train, splits.valid)
        )

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


def _pairs(dataset: Dataset) -> torch.Tensor:
    """One number for each interaction: user · items + item."""
    return dataset.inter_feat[dataset.uid_field] * dataset.item_num + dataset.inter_feat[dataset.iid_field]
