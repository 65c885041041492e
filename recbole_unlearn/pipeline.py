"""The phases of one run, in the order in which they are done: data, request, original, methods, result."""

from __future__ import annotations

import dataclasses
import functools
import logging
from pathlib import Path
from typing import Any

from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn import result as results
from recbole_unlearn import settings
from recbole_unlearn.cache import ModelCache
from recbole_unlearn.checkpoint import Checkpoint
from recbole_unlearn.cluster import Workers
from recbole_unlearn.config import UnlearnConfig
from recbole_unlearn.data import Splits, UnlearnData, divide, load, loaders
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.evaluation import Measurement
from recbole_unlearn.export import write_unlearned
from recbole_unlearn.files import write_json
from recbole_unlearn.forget import Fields, locate, read_request
from recbole_unlearn.injection import inject
from recbole_unlearn.measures.difficulty import difficulty
from recbole_unlearn.methods import registry
from recbole_unlearn.trainer import PhaseTrainer, Trained, UnlearnTask, UnlearnTrainer, build_model, compose

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
