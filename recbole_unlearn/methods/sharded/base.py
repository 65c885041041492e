r"""The base of sharded methods: how an ensemble is trained, how it forgets, and how it is saved.

The interactions are divided into K shards, each shard trains a model of its own, and the models answer together. A
method defines how to divide (:meth:`ShardedTrainer.divide`) and how to combine the models' scores
(:meth:`ShardedTrainer.ensemble`, :meth:`ShardedTrainer.fit_rule`). The ensemble is an original of its own, not the
plain model. A request restarts the shards that hold one of its interactions; the others are kept bit for bit.

A shard's graph, its negatives and its early stopping (on validation interactions of users and items it knows) depend
on the shard's own interactions only, so nothing leaks from one shard into another.

Times are sums over the shards' trainings, whether they ran in parallel or not, so that they compare with the time of
one model on one thread; `certificates` has the shards' times.

An ensemble is saved as a directory that the next request starts from. It holds retained interactions only, no
optimizer moments, and no shard of orphans; the dataset is its only pickle, and reading it runs no code from the file:

    ensemble.json            method, model, dataset and settings, and the number of shards
    shard-K.safetensors      a shard's initial weights, and the trained ones
    rule.safetensors         the shard of each retained interaction, and the weights of the rule
    DATASET-Dataset.pth      the retained interactions, in RecBole's format
"""

import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import ModelType, init_seed
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from recbole_unlearn import files
from recbole_unlearn.data import Splits, UnlearnData
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Trained
from recbole_unlearn.methods import Curve, Outcome, UnlearnTask, UnlearnTrainer
from recbole_unlearn.recbole_compat import clear_caches, on_cpu
from recbole_unlearn.rows import Earlier, find_tables, find_vectors, side_tables
from recbole_unlearn.settings import UnlearnConfig, plain_settings, read_regular
from recbole_unlearn.training import Job, build_model

logger = logging.getLogger(__name__)

Weights = dict[str, torch.Tensor]
_RULE, _TRAINED = "rule.safetensors", "slice-0"  # names of files, and of weights in them
Vectors = tuple[torch.Tensor, torch.Tensor]  # of users (n, d) and of items (m, d)


class Ensemble(AbstractRecommender):
    """K models whose scores are averaged: s(u, i) = 1/K Σ_k s_k(u, i)."""

    type = ModelType.GENERAL

    def __init__(self, models: Sequence[AbstractRecommender]) -> None:
        super().__init__()
        self.models: Any = nn.ModuleList(models)

    def predict(self, interaction: Interaction) -> torch.Tensor:
        """Scores of pairs (n,)."""
        return torch.stack([model.predict(interaction).reshape(-1) for model in self.models]).mean(dim=0)

    def full_sort_predict(self, interaction: Interaction) -> torch.Tensor:
        """Scores of all items for each user (n · items,)."""
        return torch.stack([model.full_sort_predict(interaction).reshape(-1) for model in self.models]).mean(dim=0)

    def rule(self) -> Weights:
        """The weights of the rule, without those of the models."""
        return {k: v for k, v in self.state_dict().items() if not k.startswith("models.")}

    def load_rule(self, stored: Weights, path: Path | None) -> None:
        """Put the stored weights of the rule of the ensemble in ``path`` into this one, if they fit it."""
        there, here = ({name: value.shape for name, value in some.items()} for some in (stored, self.rule()))
        if there != here:
            raise UnlearnError(
                f"The rule of {path} does not fit: it was written with other settings or by another version. Train "
                "the ensemble again, without --checkpoint."
            )
        self.load_state_dict(self.state_dict() | stored)


@dataclasses.dataclass(frozen=True)
class Shards:
    """The models of all shards, as data."""

    config: UnlearnConfig  # of a shard's training
    places: torch.Tensor  # (|D|,) int64, the shard of each training interaction
    initial: list[Weights]  # by shard
    trained: list[Trained | None]  # by shard; None: to be trained from the initial weights

    @classmethod
    def new(cls, config: UnlearnConfig, splits: Splits, places: torch.Tensor, number: int) -> Self:
        """Untrained shards, each with initial weights of its own."""
        shards = cls(config, places, [], [None] * number)
        for shard in range(number):
            model = build_model(shards._config(shard), shards.splits(splits, shard))
            shards.initial.append(on_cpu(model.state_dict()))
        return shards

    def _config(self, shard: int) -> UnlearnConfig:
        """A shard's config, with a seed of its own."""
        return self.config.replace(seed=self.config["seed"] + shard)

    def splits(self, splits: Splits, shard: int) -> Splits:
        """A shard's training interactions, and validation ones of their users and items."""
        mine = self.places == shard
        train, held = splits.train.copy(splits.train.inter_feat[mine]), splits.valid.inter_feat
        users, items = (torch.isin(held[f], train.inter_feat[f]) for f in (train.uid_field, train.iid_field))
        own = users & items
        # Without such validation interactions, all of them decide when the shard stops.
        valid = splits.valid.copy(held[own]) if own.any() else splits.valid
        return Splits(train, valid, valid)

    def without(self, data: UnlearnData) -> Self:
        """The shards of the retain set; those that saw a deleted interaction are to be trained."""
        touched = set(self.places[data.deleted].tolist())
        kept = [None if shard in touched else one for shard, one in enumerate(self.trained)]
        return dataclasses.replace(self, places=self.places[~data.deleted], trained=kept)

    def fitted(
        self, splits: Splits, train_all: Callable[[Sequence[Job]], list[Trained]], label: str
    ) -> tuple[Self, dict[int, Trained]]:
        """The shards with all models trained on ``splits``, and the new ones by shard."""
        due = [shard for shard, one in enumerate(self.trained) if one is None]
        new, jobs = {}, {}
        for shard in due:
            own, start = self.splits(splits, shard), self.initial[shard]
            if len(own.train) == 0:  # nothing to learn from: the weights stay
                new[shard] = Trained(start, None, {}, -1, seconds=0.0)
                continue
            # Not the shard's own number: it would narrow down the user of a single-user request.
            jobs[shard] = Job(self._config(shard), own, f"{label} shard {due.index(shard) + 1}/{len(due)}", start)
        new |= dict(zip(jobs, train_all(list(jobs.values())), strict=True))
        whole = [new.get(shard, one) for shard, one in enumerate(self.trained)]
        return dataclasses.replace(self, trained=whole), new

    def models(self, splits: Splits) -> list[AbstractRecommender]:
        """The models, each built on its shard's interactions."""
        models = []
        for shard, trained in enumerate(self.trained):
            assert trained is not None
            model = build_model(self._config(shard), self.splits(splits, shard))
            trained.load_weights(model)
            models.append(model)
        return models


class ShardedTrainer(UnlearnTrainer):
    """K models on parts of D; a request trains those that saw S again. Settings: NAME_shards, NAME_learning_rate."""

    needs_original = False
    own_original = True
    needs_gradients = True

    shards: Shards  # of the original, and after `run` of the result, with retained interactions only

    def pretrain(self, task: UnlearnTask) -> Trained | None:
        """The model whose embeddings the interactions are divided by, the plain original; None without one."""
        return task.original or task.train(task.config, task.data.full, "pretrained")

    def divide(self, task: UnlearnTask, embeddings: Vectors | None, generator: torch.Generator) -> torch.Tensor:
        """The shard of each training interaction; ``embeddings`` are those of the pretrained model."""
        raise NotImplementedError(f"{type(self).__name__} does not implement divide().")

    def ensemble(self, task: UnlearnTask, splits: Splits, models: list[Any]) -> Ensemble:
        """The models of :attr:`shards` with the rule that combines them, by default the mean of their scores."""
        return Ensemble(models)

    def fit_rule(self, task: UnlearnTask, ensemble: Ensemble, splits: Splits) -> dict[str, Curve]:
        """Fit the rule's own weights, if it has any, to training interactions; returns the curves of the fit."""
        return {}

    def originate(self, task: UnlearnTask) -> Outcome:
        """Train the ensemble on D, or read it from the directory it was saved to."""
        full, rate = task.data.full, getattr(task.settings, f"{self.name}_learning_rate")
        config = task.config if rate is None else task.config.replace(learning_rate=rate)
        if task.stored is not None:
            self.shards, rule = read_ensemble(task.stored, config, full)
            self.model = self._combined(task, full, rule)[0]
            return Outcome()
        pretrained = self.pretrain(task)
        start = time.perf_counter()
        generator = torch.Generator().manual_seed(task.config["seed"])
        embeddings = None if pretrained is None else row_vectors(task, pretrained)
        places = self.divide(task, embeddings, generator)
        shards = Shards.new(config, full, places, getattr(task.settings, f"{self.name}_shards"))
        spent = time.perf_counter() - start
        self.shards, new = shards.fitted(full, task.train_all, self.name)
        trained = [*new.values(), *([] if pretrained is None else [pretrained])]
        self.model, _, rule_seconds = self._combined(task, full)
        spent += rule_seconds + sum(one.seconds or 0.0 for one in trained)
        return Outcome(seconds=spent, from_cache=any(one.from_cache for one in trained))

    def _combined(
        self, task: UnlearnTask, splits: Splits, rule: Weights | None = None
    ) -> tuple[Ensemble, dict[str, Curve], float]:
        """The ensemble with a stored rule or a fitted one; the fit's curves, and its seconds without validation."""
        start, looked = time.perf_counter(), self.validation_seconds
        models = self.shards.models(splits)
        init_seed(task.config["seed"], task.config["reproducibility"])
        ensemble = self.ensemble(task, splits, models)
        curves = self.fit_rule(task, ensemble, splits) if rule is None else {}
        if rule is not None:
            ensemble.load_rule(rule, task.stored)
        clear_caches(ensemble)
        ensemble.eval()
        return ensemble, curves, time.perf_counter() - start - (self.validation_seconds - looked)

    def unlearn(self, task: UnlearnTask) -> Outcome:
        """Restart the shards that saw a deleted interaction, and fit the rule again."""
        start = time.perf_counter()
        shards = self.shards.without(task.data)
        logger.info("%s: the shards that hold deleted interactions start again.", self.name)
        finding = time.perf_counter() - start
        self.shards, new = shards.fitted(task.data.retain, task.train_all, self.label)
        self.model, curves, rule_seconds = self._combined(task, task.data.retain)
        spent = {shard: one.seconds or 0.0 for shard, one in new.items()}
        return Outcome(
            {
                "shards": len(shards.trained),
                "restarted": len(new),
                "shard_seconds": {str(shard + 1): round(value, 4) for shard, value in spent.items()},
                "rule_seconds": round(rule_seconds, 4),
            },
            curves,
            seconds=finding + rule_seconds + sum(spent.values()),
            from_cache=any(one.from_cache for one in new.values()),
        )

    def keep(self, task: UnlearnTask) -> Outcome:
        """As the base class; the original is the ensemble."""
        self.shards = self.shards.without(task.data)
        return Outcome(seconds=0.0)

    def reset_orphans(self, task: UnlearnTask, refitted_items: bool = False) -> list[Earlier]:
        """Does nothing: shards that held a deleted interaction started again, and no other ever saw it."""
        return []

    def save(self, directory: Path, data: UnlearnData, home: Path) -> str:
        """Write the ensemble as a directory; an older one is replaced when all is written."""
        name, config, shards = f"{self.config['model']}-unlearned", self.config, self.shards
        with files.new_directory(directory / name) as folder:
            for shard, trained in enumerate(shards.trained):
                assert trained is not None
                named = {"initial": shards.initial[shard], _TRAINED: trained.state_dict}
                _save(folder / f"shard-{shard}.safetensors", named)
            _save(folder / _RULE, {"partition": {"rows": shards.places}, "rule": self.model.rule()})
            values = plain_settings(config.to_recbole().final_config_dict) | config.method_values(self.name)
            file = f"{config['dataset']}-Dataset.pth"
            plain = files.dataset_config(config, home / name, home / name / file)
            files.write_dataset(folder / file, plain, data.retain, data.clock, done=data.done)
            head = {
                "schema": files.SCHEMA, "method": self.name, "model": config["model"], "dataset": config["dataset"],
                "settings": {key: value for key, value in values.items() if not key.endswith(("_path", "_dir"))},
                "shards": len(shards.trained), "rows": _digest(data.retain),
            }  # fmt: skip
            files.write_json(folder / files.HEAD, head)
        return name


def read_ensemble(path: Path, config: UnlearnConfig, splits: Splits) -> tuple[Shards, Weights]:
    """The shards of a saved ensemble of ``splits``, and the weights of its rule."""
    head = files.read_head(path)
    number = head["shards"]
    if head["rows"] != _digest(splits):
        raise UnlearnError(
            f"{path} is of other interactions than its dataset file holds. Use the directory as it was written."
        )
    groups = _load(path / _RULE)
    places, size = groups.get("partition", {}).get("rows", torch.empty(0)), len(splits.train)
    if places.shape != (size,) or places.dtype != torch.int64 or ((places < 0) | (places >= number)).any():
        raise UnlearnError(
            f"{path / _RULE} is damaged: its places do not fit {size} interactions in {number} shards. Use another "
            "copy of the ensemble."
        )
    initial: list[Weights] = []
    trained: list[Trained | None] = []
    for shard in range(number):
        file = path / f"shard-{shard}.safetensors"
        named = _load(file)
        if set(named) != {"initial", _TRAINED}:
            raise UnlearnError(f"{file} is damaged: it does not hold initial and trained weights.")
        initial.append(named["initial"])
        trained.append(Trained(named[_TRAINED], None, {}, -1))
    return Shards(config, places, initial, trained), groups.get("rule", {})


def _digest(splits: Splits) -> str:
    """A digest of the users and items of the training interactions, in their order."""
    digest = hashlib.sha256()
    for field in (splits.train.uid_field, splits.train.iid_field):
        digest.update(splits.train.inter_feat[field].to(torch.int64).contiguous().numpy().tobytes())
    return digest.hexdigest()


def _save(path: Path, groups: dict[str, Weights]) -> None:
    """Tensors by group and name; a name may hold dots, a group may not."""
    flat = {
        f"{group}.{name}": value.detach().cpu().contiguous().clone()
        for group, named in groups.items()
        for name, value in named.items()
    }
    files.write_bytes(path, save(flat))


def _load(path: Path) -> dict[str, Weights]:
    try:
        flat = load(read_regular(path))
    except (SafetensorError, UnlearnError) as error:
        raise UnlearnError(f"Cannot read {path}: {error}. Use another copy of the ensemble.") from error
    groups: dict[str, Weights] = {}
    for name, value in flat.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise UnlearnError(f"{path}: the weights {name} are not finite; this ensemble cannot be used.")
        group, _, own = name.partition(".")
        groups.setdefault(group, {})[own] = value
    return groups


def row_vectors(task: UnlearnTask, pretrained: Trained) -> Vectors:
    """The vectors of users (n, d) and items (m, d) in a pretrained model, or its tables side by side."""
    data = task.data.full
    model = build_model(task.config, data)
    pretrained.load_into(model)
    found = find_vectors(model, data.train)
    if found is None:
        sides = side_tables(model, find_tables(model, data.train), data.train)
        if not all(sides.values()):
            raise UnlearnError(
                f"{task.config['model']} has no embeddings of {'users' if not sides['user'] else 'items'} to "
                "divide the interactions by. Use --unlearn=sisa."
            )
        found = torch.cat(sides["user"], dim=1), torch.cat(sides["item"], dim=1)
    return found[0].cpu(), found[1].cpu()
