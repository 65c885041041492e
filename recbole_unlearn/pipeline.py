"""The phases of one run, in the order in which they are done: data, request, original, methods, result."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import ModelType

from recbole_unlearn import settings
from recbole_unlearn.cluster import Workers
from recbole_unlearn.data import (
    INJECTED,
    Fields,
    Scorer,
    SequenceSplits,
    Splits,
    UnlearnData,
    carry_out,
    divide,
    inject,
    load,
    loaders,
    read_request,
)
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Checkpoint, Trained, write_json
from recbole_unlearn.measures import EXACT, Measured, Measurement, compare, paired_errors
from recbole_unlearn.measures.difficulty import difficulty
from recbole_unlearn.measures.provisional import provisional
from recbole_unlearn.methods import Outcome, UnlearnTask, UnlearnTrainer
from recbole_unlearn.progress import (
    CLEAN,
    PLACEBO,
    Asked,
    Parts,
    Plan,
    original_of,
    say_what_is_forgotten,
    say_what_was_measured,
)
from recbole_unlearn.registry import METHODS
from recbole_unlearn.results import (
    ORIGINAL,
    RETRAINED,
    UNLEARNED,
    Forgotten,
    Metrics,
    PhaseResult,
    Placebo,
    Provisional,
    RunResult,
    record,
)
from recbole_unlearn.results.disclosure import Discretion
from recbole_unlearn.results.record import Evidence
from recbole_unlearn.results.table import frame, notebook_html, table
from recbole_unlearn.results.trackers import tracked
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import PhaseTrainer, Trainings, build_model, compose, forget_neighbours

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class UnlearnResult:
    """What a run leaves behind: its record, and the live objects it is about."""

    record: RunResult
    model: AbstractRecommender
    config: UnlearnConfig
    data: UnlearnData
    output_dir: Path

    @functools.cached_property
    def result(self) -> dict[str, Any]:
        """The content of result.json."""
        return self.record.to_json()

    def to_frame(self) -> pd.DataFrame:
        """All figures, a row each: phase, group, metric and value (:func:`~recbole_unlearn.results.table.frame`)."""
        return frame(self.record)

    def __str__(self) -> str:
        return table(self.record)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return notebook_html(self.record)


class _Phase(NamedTuple):
    """A model that was measured, and how long it took to make."""

    measured: Measured
    seconds: float | None
    from_cache: bool
    before: str  # the name of the phase it started from

    def result(self, **more: Any) -> PhaseResult:
        """Its figures, with those that need other phases in ``more``."""
        own = self.measured
        distances = more.pop("distances", {})
        return PhaseResult(
            seconds=None if self.seconds is None else round(self.seconds, 4),
            seconds_from_cache=self.from_cache,
            metrics=own.utility["metrics"],
            affected=own.utility["affected"],
            unaffected=own.utility["unaffected"],
            **more,
            forgetting={**own.forgetting, **distances},
        )


class Pipeline:
    """The phases of one run, in order. Everything that can be refused without data is refused when it is made."""

    def __init__(
        self, config: UnlearnConfig, directory: Path, home: Path, checkpoint: Checkpoint | None
    ) -> None:
        """Files are written to ``directory``, and are in ``home`` in the end."""
        self.config, self.directory, self.home, self.checkpoint = config, directory, home, checkpoint
        self.run_settings = settings.read(settings.RunSettings, config)
        self.forget_settings = settings.read(settings.ForgetSettings, config)
        self.evaluation = settings.read(settings.EvaluationSettings, config)
        cache_settings = settings.read(settings.CacheSettings, config)
        self.methods = [METHODS.get(name) for name in config.method_names()]
        self.method_settings = [checked_settings(method, config) for method in self.methods]
        workers = Workers(self.run_settings.workers, self.run_settings.ray_address)
        self.trainings = Trainings(cache_settings, self.run_settings.threads, workers)
        self.names = _phase_names(self.methods)
        self.plan: Plan | None = None  # of a run; a sweep has other phases
        self.phases: dict[str, _Phase] = {}
        self.befores: dict[str, _Phase] = {}  # originals beside the run's, by name
        self.difficulty: dict[str, Any] = {}
        self.evidence = Evidence.of(settings.read(settings.RecordSettings, config))

    @property
    def has_worked(self) -> bool:
        """Whether a model was trained, taken from the cache or measured: until then an error is a refusal."""
        return self.trainings.asked or bool(self.phases)

    def run(self, forget: Any) -> UnlearnResult:
        """From the request to the written result."""
        with tracked(self.config) as send:
            done = self._run(forget)
            send(done.record)
        return done

    def _run(self, forget: Any) -> UnlearnResult:
        if not _is_injected(forget):  # noise is nobody's request
            self.evidence.open()
        self.trainings.watcher = self.plan = self._new_plan(forget)
        self.prepare(forget)
        test = loaders(self.config, self.data.retain)
        self.measurement = Measurement(self.config, self.data, test, self.evaluation.demotion_negatives)
        if not self.methods[0].own_original:
            self._record_original(*self._plain_phase())
        done = [self._method_phase(position) for position in range(len(self.methods))]
        first, unlearned = done[0][1:]
        curves = {name: finished.curves for name, _, finished in done if finished.curves}
        phases = self._results()
        self.evidence.add_model("result", first.model, self.config)
        result = record.build(
            self.config,
            _forgotten(self.data),
            phases,
            difficulty=self.difficulty,
            certificates=unlearned.certificates,
            curves=curves,
            errors=self._errors(),
            placebo=self._placebo([finished for _, _, finished in done]),
            provisional=self._provisional(unlearned.certificates),
            done_earlier=self.data.done_earlier,
            stamp=self.evidence.stamp(),
        )
        _refuse_not_finite(result)
        result = self.discretion.shown(result)  # from here on nobody has figures that name a user
        self._write(result, first)
        return UnlearnResult(result, first.model, self.config, self.data, self.home)

    def _new_plan(self, forget: Any) -> Plan:
        """The plan of this run, which has its phases as soon as the data is there."""
        injected, loaded = _is_injected(forget), self.checkpoint is not None
        asked = Asked(
            self.config, self.methods, self.method_settings, self.names,
            informed=injected and self.forget_settings.inject_mode == "informed",
            loaded=loaded, placebo=self.evaluation.placebo,
        )  # fmt: skip
        return Plan(asked, "injected noise" if injected else "a request")

    def _say_the_plan(self, splits: Mapping[str, Splits], changes: bool = True) -> None:
        """Say what is going to be done; with injected noise, only its sizes are known before it is there."""
        if self.plan is None:
            return
        inject = self.forget_settings
        retain = len(splits["retain" if "retain" in splits else CLEAN].train)
        guess = round(retain * (1 + inject.inject_users * inject.inject_amount))
        full = len(splits["full"].train) if "full" in splits else guess

        def has(config: UnlearnConfig, part: str) -> bool:
            return part in splits and self.trainings.has(config, splits[part])

        self.plan.say(Parts(full, retain, changes, has))

    def _begin(self, name: str) -> None:
        if self.plan is not None:
            self.plan.begin(name)

    def _write(self, result: RunResult, trainer: UnlearnTrainer) -> None:
        """The unlearned model, result.json and the report."""
        if self.run_settings.save_unlearned:
            new = () if self.data.done_earlier else self.evidence.done(result.date)
            data = dataclasses.replace(self.data, done=(*self.data.done, *new))
            name = trainer.save(self.directory, data, self.home)
            logger.info("Unlearned model: %s", self.home / name)
        write_json(self.directory / "result.json", result.to_json())
        self.trainings.forget(self.data)
        logger.info("Result: %s", self.home / "result.json")
        if self.run_settings.report != "none":
            from recbole_unlearn.report import write_report  # plotly, only where something is drawn

            logger.info("Report: %s", self.home / write_report(result, self.directory).name)

    def prepare(self, forget: Any) -> None:
        """The data that every method starts from, divided by the request."""
        self.data = self._data(forget)
        if self.data.done_earlier is not None and self.plan is not None:  # there is nothing to compare
            self.methods = self.methods[:1]
            self.trainings.watcher = self.plan = self._new_plan(forget)
        if not self.data.source.startswith(INJECTED):  # somebody's own interactions, not noise of ours
            self.trainings.protect(self.data)
        self.discretion = Discretion.of(self.data, self.evaluation.min_group)
        say_what_is_forgotten(self.config, self.data, self.forgotten, self.discretion.withheld)
        self._say_the_plan(
            {"full": self.data.full, "retain": self.data.retain}, changes=len(self.data.forget) > 0
        )

    def _data(self, forget: Any) -> UnlearnData:
        injected = _is_injected(forget)
        if injected and self.checkpoint is not None:
            raise UnlearnError(
                "forget=injected trains its own original, so it cannot start from a checkpoint. "
                "Give --forget=FILE with the requests, or leave --checkpoint out."
            )
        request = None if injected else read_request(forget, Fields.of(self.config))
        source = load(self.config, self.checkpoint.dataset_file if self.checkpoint else None)
        if request is not None:
            self.evidence.add_request(request.frame)
            kind = "file" if isinstance(forget, (str, Path)) else "python"
            on_missing, digest = self.forget_settings.on_missing, self.evidence.hashes.get("request")
            return carry_out(request, source, kind, on_missing, digest)
        seed = self.config["seed"]
        self._say_the_plan({CLEAN: source.splits})
        full, located = inject(source.splits, self.forget_settings, seed, self._scorer(source.splits))
        kind = f"{INJECTED} {self.forget_settings.inject_mode}"
        return divide(full, located, kind, source.clock)

    def _scorer(self, clean: Splits) -> Scorer | None:
        """Scores by a model of the clean data, which chooses the injected items and nothing else."""
        if self.forget_settings.inject_mode != "informed":
            return None
        self._begin(CLEAN)
        trainer, _ = self.trainings.trainer(self.config, clean, CLEAN)
        return lambda users: trainer.batch_scores(clean.batch(users), clean.train)

    @functools.cached_property
    def original(self) -> Trained:
        """The plain model of D, from the checkpoint or trained."""
        return self._original[1]

    @functools.cached_property
    def _original(self) -> tuple[PhaseTrainer, Trained]:
        self._begin(ORIGINAL)
        trained = None if self.checkpoint is None else self.checkpoint.trained
        if trained is None:
            return self.trainings.trainer(self.config, self.data.full, ORIGINAL)
        model = build_model(self.config, self.data.full)
        trained.load_into(model)
        return compose(PhaseTrainer, self.config, model, ORIGINAL), trained

    def _plain_phase(self) -> tuple[PhaseTrainer, float | None, bool]:
        trainer, trained = self._original
        return trainer, trained.seconds, trained.from_cache

    def _method_phase(self, position: int) -> tuple[str, UnlearnTrainer, Outcome]:
        """Run one method: the first is `unlearned`, an exact one beside it is `retrained`."""
        method, name = self.methods[position], self.names[position]
        earlier = [m.name for m in self.methods[:position]].count(method.name)
        config = self.config
        if self.discretion.few:  # whoever repeats a training for each user knows its curves again
            config = config.without_curves()
        trainer, task = begin(
            method, self.method_settings[position], config, self.data,
            self.original if method.needs_original or not self.methods[0].own_original else None,
            self.trainings, name, earlier,
            self.checkpoint.path if position == 0 and self.checkpoint and method.own_original else None,
        )  # fmt: skip
        before = self._before(position, trainer, task)
        # A compared retraining is asked for, whatever the request; all else would change weights for nothing.
        works = len(self.data.forget) > 0 or (method.exact and position > 0)
        self._begin(name)
        finished = trainer.run(task) if works else trainer.keep(task)
        self.phases[name] = self._measured(name, trainer, finished.seconds, finished.from_cache, before)
        return name, trainer, finished

    def _errors(self) -> dict[str, Metrics]:
        """For each phase, how sure it is that retraining moved affected users from where the phase started."""
        if RETRAINED not in self.phases:
            return {}
        target = self.phases[RETRAINED].measured
        starts = {name: self.befores.get(name) or self.phases[ORIGINAL] for name in [ORIGINAL, *self.befores]}
        errors = {name: paired_errors(start.measured, target) for name, start in starts.items()}
        return {name: errors[phase.before] for name, phase in self.phases.items()}

    def _provisional(self, certificates: Mapping[str, Any]) -> Provisional | None:
        """What the unlearned model looks like where nothing is there to compare it with."""
        if RETRAINED in self.phases or len(self.data.forget) == 0:
            return None
        if certificates.get("exact"):
            return EXACT
        # Of sequences nothing is known without retraining: the ranker that stands in for it knows no prefix.
        if self.discretion.few or isinstance(self.data.retain, SequenceSplits):
            return None
        before, after = (self.phases[name].measured.seen for name in (ORIGINAL, UNLEARNED))
        least = 1 if self.discretion.shows_all else self.evaluation.min_group
        questions = self.measurement.questions
        return provisional(questions, self.data, before, after, least, self.config["seed"])

    def _placebo(self, done: list[Outcome]) -> Placebo | None:
        """The method on the retrained model, measured: one unlearning, no training."""
        method = self.methods[0]
        trained = next((f.trained for f in done if f.trained is not None), None)
        wanted = self.evaluation.placebo and len(self.data.forget) > 0 and RETRAINED in self.phases
        if not wanted or trained is None or method.exact or method.own_original:
            return None
        self._begin(PLACEBO)
        config = self.config.replace(output_dir=None)  # it leaves no file
        trainer, task = begin(
            method, self.method_settings[0], config, self.data, trained, self.trainings, PLACEBO
        )
        trainer.run(task)
        retrained = self.phases[RETRAINED].measured
        measured = self.measurement.measure(trainer, retrained)
        return compare(self.phases[UNLEARNED].measured, measured, retrained)

    def _before(self, position: int, trainer: UnlearnTrainer, task: UnlearnTask) -> str:
        """The name of what a method starts from, measured: the run's `original`, or another one in ``befores``."""
        method, first = self.methods[position], self.methods[0]
        if not method.own_original and not (method.needs_original and first.own_original):
            return ORIGINAL
        if method.own_original:
            name = original_of(task.label)
            self._begin(name)
            made = trainer.originate(task)
            start = compose(PhaseTrainer, self.config, trainer.model, ORIGINAL), made.seconds, made.from_cache
            if position == 0:
                self._record_original(*start)
                return ORIGINAL
        else:
            name = "plain original"
            if name in self.befores:
                return name
            start = self._plain_phase()
        self.befores[name] = self._measured(name, *start)
        return name

    def _record_original(self, trainer: PhaseTrainer, seconds: float | None, from_cache: bool) -> None:
        self.evidence.add_model("original", trainer.model, self.config)
        self.difficulty = difficulty(trainer.model, self.data, self.config["seed"])
        self.phases[ORIGINAL] = self._measured(ORIGINAL, trainer, seconds, from_cache)

    def _measured(
        self,
        name: str,
        trainer: PhaseTrainer,
        seconds: float | None,
        from_cache: bool,
        before: str | None = None,
    ) -> _Phase:
        """All figures of a model by itself; logs the main ones."""
        start = None if before is None else (self.phases.get(before) or self.befores[before])
        measured = self.measurement.measure(trainer, None if start is None else start.measured)
        phase = _Phase(measured, seconds, from_cache, before or ORIGINAL)
        say_what_was_measured(name, self.discretion.phase(phase.result()))
        return phase

    def _results(self) -> dict[str, PhaseResult]:
        """All phases, with the figures that need other phases."""
        if self.methods[0].exact and RETRAINED not in self.phases and len(self.data.forget):
            self.phases[RETRAINED] = self.phases[UNLEARNED]
        measured = {name: phase.measured for name, phase in self.phases.items()}
        distributions = self.measurement.distributions(measured)
        target = measured.get(RETRAINED)
        befores = {
            name: before.result(distances=self.measurement.distances(before.measured, target))
            for name, before in self.befores.items()
        }
        results = {}
        for name, phase in self.phases.items():
            results[name] = phase.result(
                masked=phase.measured.masked,
                groups=phase.measured.groups,
                distances=self.measurement.distances(phase.measured, target),
                before=befores.get(phase.before),
                distribution=distributions.get(name),
            )
        return results

    @property
    def forgotten(self) -> Forgotten:
        """How much is to be forgotten, as far as it may be shown."""
        return self.discretion.forgotten(_forgotten(self.data))


def _is_injected(forget: Any) -> bool:
    return isinstance(forget, str) and forget == INJECTED


def _phase_names(methods: Sequence[type[UnlearnTrainer]]) -> list[str]:
    """What the methods' phases are called: the first is `unlearned`, an exact one beside it is `retrained`."""
    names: list[str] = []
    for position, method in enumerate(methods):
        name = UNLEARNED if position == 0 else RETRAINED if method.exact else method.name
        if name in names:  # asked for again, with another seed
            earlier = [other.name for other in methods[:position]].count(method.name)
            name = f"{name}_{earlier + (methods[0] is not method)}"
        names.append(name)
    return names


def _refuse_not_finite(result: RunResult) -> None:
    """Refuse, before anything is written, a figure that is not a number."""
    try:
        json.dumps(result.to_json(), allow_nan=False)
    except ValueError as error:
        raise UnlearnError(
            "A figure of this run is not a finite number, so the model is not usable; nothing was written. "
            "Check the weights of the original, and lower the learning rate."
        ) from error


def _forgotten(data: UnlearnData) -> Forgotten:
    counts = data.summary()
    own = {key: counts.pop(key) for key in ("source", "interactions", "users", "items")}
    return Forgotten(**own, counts=counts)


def checked_settings(method: type[UnlearnTrainer], config: UnlearnConfig) -> Any:
    """The settings of a method in this run; refuses those that it could not run with."""
    options: Any = settings.read(method.Settings, config.method_values(method.name))
    if config["MODEL_TYPE"] == ModelType.SEQUENTIAL and not method.on_sequences:
        able = ", ".join(one.name for one in METHODS.all() if one.on_sequences)
        raise UnlearnError(
            f"{config['model']} is a sequential model, and {method.name} does not work on sequences yet. Use {able}."
        )
    if config["MODEL_TYPE"] == ModelType.KNOWLEDGE and not method.on_knowledge:
        able = ", ".join(one.name for one in METHODS.all() if one.on_knowledge)
        raise UnlearnError(
            f"{config['model']} is a knowledge-aware model, and {method.name} does not work on a knowledge graph. "
            f"Use {able}."
        )
    method.check(options, config)
    return options


def begin(
    method: type[UnlearnTrainer],
    method_settings: Any,
    config: UnlearnConfig,
    data: UnlearnData,
    original: Trained | None,
    trainings: Trainings,
    label: str,
    repeat: int = 0,
    stored: Path | None = None,
) -> tuple[UnlearnTrainer, UnlearnTask]:
    r"""A trainer of ``method`` over a model built on D\S with the original's weights, and its task."""
    model = build_model(config, data.retain)
    initial = {name: value.detach().clone() for name, value in model.named_parameters()}
    if method.needs_original:
        assert original is not None
        original.load_weights(model)
        forget_neighbours(model, data.retain.train)
    task = UnlearnTask(
        config,
        data,
        original,
        initial,
        method_settings,
        trainings.train,
        label,
        repeat,
        trainings.train_all,
        stored,
    )
    return compose(method, config, model, label), task
