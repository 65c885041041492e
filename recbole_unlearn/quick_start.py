"""One run, from a deletion request to a result.

:func:`run_unlearn` is what the command line calls. It reads top to bottom as the work is done: settings,
data, forget set, original, unlearned, compared methods, result. :func:`unlearn_model` does the middle part
for people who hold a RecBole config, model and loaders already.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from recbole.config import Config
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import get_local_time

from recbole_unlearn import result as results
from recbole_unlearn import settings
from recbole_unlearn.cache import ModelCache
from recbole_unlearn.checkpoint import Checkpoint, read_checkpoint
from recbole_unlearn.cluster import Workers
from recbole_unlearn.config import UnlearnConfig
from recbole_unlearn.data import Loaders, Splits, UnlearnData, divide, load, loaders
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.evaluation import Measurement
from recbole_unlearn.export import refuse_overwriting, write_unlearned
from recbole_unlearn.files import make_directory, write_json
from recbole_unlearn.forget import Fields, locate, read_request
from recbole_unlearn.injection import inject
from recbole_unlearn.log import logging_to
from recbole_unlearn.measures.difficulty import difficulty
from recbole_unlearn.methods import registry
from recbole_unlearn.trainer import (
    PhaseTrainer,
    Trained,
    UnlearnTask,
    UnlearnTrainer,
    build_model,
    compose,
)

INJECTED = "injected"
_BEFORE_KEYS = ("seconds", "seconds_from_cache", "metrics", "affected", "unaffected", "forgetting")


@dataclasses.dataclass(frozen=True)
class UnlearnResult:
    """What a run leaves behind: the content of result.json, and the live objects it speaks of."""

    result: dict[str, Any]
    model: AbstractRecommender
    config: UnlearnConfig
    data: UnlearnData
    output_dir: Path

    def __str__(self) -> str:
        return results.table(self.result)


def run_unlearn(
    model: str | type | None = None,
    dataset: str | None = None,
    *,
    forget: str | Path | pd.DataFrame | dict | tuple | None = None,
    unlearn: str | None = None,
    compare: str | Sequence[str] | None = None,
    checkpoint: str | Path | None = None,
    config_files: Sequence[str] | None = None,
    output_dir: str | Path | None = None,
    config_dict: dict[str, Any] | None = None,
) -> UnlearnResult:
    """Train or load a model, make it forget, and measure it.

    Args:
        model: name of a RecBole model, or a class; read from the checkpoint when there is one.
        dataset: name of the dataset; read from the checkpoint when there is one.
        forget: a file of requests, a DataFrame, a dict of columns, a pair of arrays, or "injected".
        unlearn: the unlearning method.
        compare: further methods to run on the same request, for example ["retrain"].
        checkpoint: a checkpoint of RecBole to start from.
        config_files: YAML files in RecBole's manner.
        output_dir: where the result goes; a new folder in `saved/` by default.
        config_dict: any further setting of RecBole or of the plugin.

    """
    given = {
        "forget": forget, "unlearn": unlearn, "compare": compare, "checkpoint": checkpoint,
        "config_files": config_files, "output_dir": output_dir, "config_dict": config_dict,
    }  # fmt: skip
    with opened(model, dataset, **given) as (pipeline, wanted):
        if pipeline.config["tune"]:
            raise UnlearnError(
                "tune makes a sweep of runs: give --tune on the command line, or use tune_unlearn()."
            )
        if pipeline.config["grid"]:
            raise UnlearnError(
                "grid makes many runs: give --grid=FILE on the command line, or use run_grid()."
            )
        return pipeline.run(wanted)


@contextlib.contextmanager
def opened(
    model: str | type | None = None,
    dataset: str | None = None,
    *,
    forget: str | Path | pd.DataFrame | dict | tuple | None = None,
    unlearn: str | None = None,
    compare: str | Sequence[str] | None = None,
    checkpoint: str | Path | None = None,
    config_files: Sequence[str] | None = None,
    output_dir: str | Path | None = None,
    config_dict: dict[str, Any] | None = None,
) -> Iterator[tuple[Pipeline, Any]]:
    """A pipeline with its directory, log and threads, and the request; arguments as :func:`run_unlearn` has them."""
    named = {
        "unlearn": unlearn,
        "compare": None if compare is None else settings.as_list(compare),
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "output_dir": None if output_dir is None else str(output_dir),
        "forget": str(forget) if isinstance(forget, (str, Path)) else None,
    }
    values = {**(config_dict or {}), **{k: v for k, v in named.items() if v is not None}}
    original = read_checkpoint(values["checkpoint"]) if values.get("checkpoint") else None
    config = _config(model, dataset, list(config_files or []), values, original)
    run = settings.read(settings.RunSettings, config)
    directory = make_directory(run.output_dir or _default_directory(config))
    refuse_overwriting(directory, config, original.path if original else None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_threads(run.threads))
        stack.enter_context(logging_to(directory, config["state"] or "INFO"))
        # RecBole's trainers create this folder, and some write pre-trained weights to it.
        work = stack.enter_context(tempfile.TemporaryDirectory(dir=directory, prefix=".work-"))
        config = config.replace(
            output_dir=str(directory), checkpoint_dir=work, dataset_save_path=None,
            dataloaders_save_path=None, save_dataset=False, save_dataloaders=False,
        )  # fmt: skip
        wanted = config["forget"] if forget is None or named["forget"] else forget
        yield Pipeline(config, directory, original), wanted


def _config(
    model: str | type | None,
    dataset: str | None,
    files: list[str],
    values: dict[str, Any],
    checkpoint: Checkpoint | None,
) -> UnlearnConfig:
    if checkpoint is None:
        return UnlearnConfig(model, dataset, files, values)
    for given, own, key in (
        (model or values.get("model"), checkpoint.model, "model"),
        (dataset or values.get("dataset"), checkpoint.dataset, "dataset"),
    ):
        if isinstance(given, str) and given != own:
            raise UnlearnError(
                f"{checkpoint.path} is of the {key} {own}, not {given}: leave --{key} out, or give the "
                "right checkpoint."
            )
    config = UnlearnConfig(
        model or checkpoint.model, checkpoint.dataset, files, values, inherited=checkpoint.settings
    )
    method = config["unlearn"]
    if checkpoint.method is not None and method != checkpoint.method:
        raise UnlearnError(
            f"{checkpoint.path} is an ensemble of {checkpoint.method}, and --unlearn={method} cannot start from it. "
            f"Use --unlearn={checkpoint.method}."
        )
    if checkpoint.method is None and registry.get(method).own_original:
        raise UnlearnError(
            f"{method} starts from an ensemble of its own, and {checkpoint.path} is one model. Leave --checkpoint "
            f"out, or give the directory that an earlier --unlearn={method} wrote."
        )
    return config


def _default_directory(config: UnlearnConfig) -> Path:
    name = f"{config['model']}-{config['dataset']}-{config['unlearn']}-{get_local_time()}"
    return Path("saved") / name


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Pipeline:
    """The phases of one run, in order."""

    def __init__(self, config: UnlearnConfig, directory: Path, checkpoint: Checkpoint | None) -> None:
        self.config, self.directory, self.checkpoint = config, directory, checkpoint
        self.run_settings = settings.read(settings.RunSettings, config)
        self.forget_settings = settings.read(settings.ForgetSettings, config)
        self.evaluation = settings.read(settings.EvaluationSettings, config)
        cache_settings = settings.read(settings.CacheSettings, config)
        self.methods = [registry.get(name) for name in config.method_names()]
        self.method_settings = [
            settings.read(method.Settings, config.method_values(method.name)) for method in self.methods
        ]
        workers = Workers(self.run_settings.workers, self.run_settings.ray_address)
        self.cache = ModelCache(cache_settings, self.run_settings.threads, workers)
        self.logger = logging.getLogger()
        self.phases: dict[str, Any] = {}
        self.befores: dict[str, Any] = {}  # originals beside the run's, by name

    def run(self, forget: Any) -> UnlearnResult:
        """From the request to the written result."""
        self.prepare(forget)
        self.test = loaders(self.config, self.data.retain)
        self.measurement = Measurement(self.config, self.data, self.test, self.evaluation.demotion_negatives)
        if not self.methods[0].own_original:
            self._record_original(*self._plain_phase())
        trainers = [self._method_phase(position) for position in range(len(self.methods))]
        if self.methods[0].exact and "retrained" not in self.phases:
            self.phases["retrained"] = dict(self.phases["unlearned"])
            self.measurement.seen["retrained"] = self.measurement.seen["unlearned"]
        self.measurement.compare(self.phases)
        result = results.build(
            self.config,
            self.data.summary(),
            self.phases,
            difficulty=self.difficulty,
            certificates=trainers[0].certificates,
            curves={trainer.label: trainer.curves for trainer in trainers if trainer.curves},
        )
        if self.run_settings.save_unlearned:
            path = write_unlearned(self.directory, self.config, trainers[0], self.data)
            self.logger.info("Unlearned model: %s", path)
        write_json(self.directory / "result.json", result)
        self.logger.info("Result: %s", self.directory / "result.json")
        if self.run_settings.report != "none":
            from recbole_unlearn.report import write_report  # plotly, only where something is drawn

            self.logger.info("Report: %s", write_report(result, self.directory))
        return UnlearnResult(result, trainers[0].model, self.config, self.data, self.directory)

    def prepare(self, forget: Any) -> None:
        """The data that every method starts from, divided by the request."""
        self.data = self._data(forget)
        self._say_what_is_forgotten()

    def _data(self, forget: Any) -> UnlearnData:
        injected = isinstance(forget, str) and forget == INJECTED
        if injected and self.checkpoint is not None:
            raise UnlearnError(
                "forget=injected trains its own original, so it cannot start from a checkpoint. "
                "Give --forget=FILE with the requests, or leave --checkpoint out."
            )
        request = None if injected else read_request(forget, Fields.of(self.config))
        source = load(self.config, self.checkpoint.dataset_file if self.checkpoint else None)
        if request is not None:
            located = locate(request, source.splits, self.forget_settings.on_missing, source.clock)
            kind = "file" if isinstance(forget, (str, Path)) else "python"
            return divide(source.splits, located, kind, source.clock)
        seed = self.forget_settings.inject_seed
        seed = self.config["seed"] if seed is None else seed
        full, located = inject(source.splits, self.forget_settings, seed, self._scorer(source.splits))
        kind = f"{INJECTED} {self.forget_settings.inject_mode}"
        return divide(full, located, kind, source.clock)

    def _scorer(self, clean: Splits) -> Any:
        """Scores by a model of the clean data, which chooses the injected items and nothing else."""
        if self.forget_settings.inject_mode != "informed":
            return None
        trained = self.cache.train(self.config, clean, "clean")
        trainer = self._trainer(PhaseTrainer, trained, clean, "clean")
        return functools.partial(trainer.scores, dataset=clean.train)

    def _trainer(self, cls: type, trained: Trained, splits: Splits, label: str) -> Any:
        model = build_model(self.config, splits)
        trained.load_into(model)
        return compose(cls, self.config, model, label)

    @functools.cached_property
    def original(self) -> Trained:
        """The plain model of D, from the checkpoint or trained."""
        if self.checkpoint is not None and self.checkpoint.trained is not None:
            return self.checkpoint.trained
        return self.cache.train(self.config, self.data.full, "original")

    def _plain_phase(self) -> tuple[PhaseTrainer, float | None, bool]:
        trainer = self._trainer(PhaseTrainer, self.original, self.data.full, "original")
        return trainer, self.original.seconds, self.original.from_cache

    def _method_phase(self, position: int) -> UnlearnTrainer:
        """Run one method: the first is `unlearned`, an exact one beside it is `retrained`."""
        method = self.methods[position]
        earlier = [m.name for m in self.methods[:position]].count(method.name)
        name = "unlearned" if position == 0 else "retrained" if method.exact else method.name
        if name in self.phases:  # asked for again, with another seed
            name = f"{name}_{earlier + (self.methods[0] is not method)}"
        trainer, task = begin(
            method, self.method_settings[position], self.config, self.data,
            self.original if method.needs_original or not self.methods[0].own_original else None,
            self.cache, name, earlier,
            self.checkpoint.path if position == 0 and self.checkpoint and method.own_original else None,
        )  # fmt: skip
        before = self._before(position, trainer, task)
        trainer.run(task)
        self.phases[name] = self._measured(name, trainer, trainer.seconds, trainer.from_cache, before)
        if before != "original":
            self.phases[name]["before"] = self.befores[before]
        return trainer

    def _before(self, position: int, trainer: UnlearnTrainer, task: UnlearnTask) -> str:
        """The name of what a method starts from, measured: the run's `original`, or another one in ``befores``."""
        method, first = self.methods[position], self.methods[0]
        if not method.own_original and not (method.needs_original and first.own_original):
            return "original"
        name = f"original of {task.label}" if method.own_original else "plain original"
        if name in self.befores:
            return name
        if method.own_original:
            made = trainer.originate(task)
            start = compose(PhaseTrainer, self.config, made.model, "original"), made.seconds, made.from_cache
            if position == 0:
                self._record_original(*start)
                return "original"
        else:
            start = self._plain_phase()
        measured = self._measured(name, *start, before=name)
        self.befores[name] = {key: measured[key] for key in _BEFORE_KEYS}
        return name

    def _record_original(self, trainer: PhaseTrainer, seconds: float | None, from_cache: bool) -> None:
        self.difficulty = difficulty(trainer.model, self.data, self.config["seed"])
        self.phases["original"] = self._measured("original", trainer, seconds, from_cache)

    def _measured(
        self,
        name: str,
        trainer: PhaseTrainer,
        seconds: float | None,
        from_cache: bool,
        before: str = "original",
    ) -> dict[str, Any]:
        """All figures of a phase; says the main ones."""
        measured = self.measurement.phase(name, trainer, before)
        took = "loaded" if seconds is None else f"{seconds:.1f} s" + (" (cached)" if from_cache else "")
        parts = [f"{name}: {took}"]
        for group, label in (("metrics", "all"), ("affected", "affected")):
            if "ndcg@20" in measured[group]:
                parts.append(f"NDCG@20 {label} {measured[group]['ndcg@20']:.4f}")
        rate = measured["forgetting"]["demotion_rate"]
        if rate is not None:
            parts.append(f"demotion rate {rate:.3f}")
        self.logger.info(", ".join(parts))
        return {
            "seconds": None if seconds is None else round(seconds, 4),
            "seconds_from_cache": from_cache,
            **measured,
        }

    def _say_what_is_forgotten(self) -> None:
        counts = self.data.summary()
        self.logger.info(
            "%s with %s on %s: forgetting %d of %d training rows, of %d users and %d items.",
            self.config["unlearn"], self.config["model"], self.config["dataset"],
            counts["interactions"], len(self.data.full.train), counts["users"], counts["items"],
        )  # fmt: skip
        held_out = counts["valid_rows_removed"] + counts["test_rows_removed"]
        if held_out:
            self.logger.warning(
                "The request also hits %d validation and %d test rows. No model trained on them; they are "
                "left out of those splits for every phase.",
                counts["valid_rows_removed"], counts["test_rows_removed"],
            )  # fmt: skip
        if counts["orphan_users"] or counts["orphan_items"]:
            self.logger.warning(
                "%d users and %d items have no training row left. They are treated as never seen; their "
                "%d test rows are left out of utility.",
                counts["orphan_users"], counts["orphan_items"], counts["orphan_test_rows"],
            )  # fmt: skip


def begin(
    method: type[UnlearnTrainer],
    method_settings: Any,
    config: UnlearnConfig,
    data: UnlearnData,
    original: Trained | None,
    models: ModelCache,
    label: str,
    repeat: int = 0,
    stored: Path | None = None,
) -> tuple[UnlearnTrainer, UnlearnTask]:
    r"""A trainer of ``method`` over a model built on D\S with the original's weights, and its task."""
    model = build_model(config, data.retain)
    initial = {name: value.detach().clone() for name, value in model.named_parameters()}
    if method.needs_original:
        original.load_weights(model)
    task = UnlearnTask(
        config,
        data,
        original,
        initial,
        method_settings,
        models.train,
        label,
        repeat,
        models.train_all,
        stored,
    )
    return compose(method, config, model, label), task


@dataclasses.dataclass(frozen=True)
class Unlearned:
    """The result of :func:`unlearn_model`: a plain RecBole model, and loaders over the retained data."""

    model: AbstractRecommender
    data: UnlearnData
    loaders: Loaders
    seconds: float


def unlearn_model(
    config: Config,
    model: AbstractRecommender,
    data: Sequence[Any],
    forget: Any,
    method: str = "retrain",
    optimizer: torch.optim.Optimizer | None = None,
    **overrides: Any,
) -> Unlearned:
    """Make a model you hold forget; nothing is read from or written to disk.

    Args:
        config: your RecBole config.
        model: your trained model; it is left as it is.
        data: (train, valid, test), as loaders from `data_preparation` or as datasets.
        forget: the request, as in :func:`run_unlearn`; timestamps as your dataset has them.
        method: the unlearning method.
        optimizer: the optimizer that trained the model, for methods that read its state.
        **overrides: settings of the method or of the plugin.

    """
    ours = UnlearnConfig.from_recbole(config, unlearn=method, tensorboard=False, **overrides)
    cls = registry.get(method)
    if cls.own_original:
        raise UnlearnError(
            f"{method} trains several models from the start and cannot begin with one that you hold. "
            "Use run_unlearn, or another method."
        )
    options = settings.read(cls.Settings, ours.method_values(method))
    forget_settings = settings.read(settings.ForgetSettings, ours)
    full = Splits(*(getattr(part, "_dataset", part) for part in data))
    located = locate(read_request(forget, Fields.of(ours)), full, forget_settings.on_missing)
    divided = divide(full, located, "python")
    state = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    moments = None if optimizer is None else optimizer.state_dict()
    original = Trained(state, moments, {}, -1)
    with (
        _threads(settings.read(settings.RunSettings, ours).threads),
        tempfile.TemporaryDirectory() as work,
    ):
        ours = ours.replace(checkpoint_dir=work, output_dir=None)
        run = settings.read(settings.RunSettings, ours)
        nothing_kept = dataclasses.replace(settings.read(settings.CacheSettings, ours), cache=False)
        models = ModelCache(nothing_kept, run.threads)
        trainer, task = begin(cls, options, ours, divided, original, models, "unlearned")
        trainer.run(task)
        return Unlearned(trainer.model, divided, loaders(ours, divided.retain), trainer.seconds)
