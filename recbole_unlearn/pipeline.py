r"""One run from top to bottom: data, request, original, methods, measures, result.

:meth:`Pipeline.run` names the phases in their order. D is the data, S the forget set, D\S the retain set.
"""

import dataclasses
import functools
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import ModelType

from recbole_unlearn import measures, results, settings
from recbole_unlearn.cluster import Workers
from recbole_unlearn.data import (
    INJECTED,
    Fields,
    Protocol,
    Scorer,
    Source,
    UnlearnData,
    carry_out,
    divide,
    inject,
    load,
    loaders,
    read_request,
)
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Checkpoint, Trained, read_checkpoint, write_json
from recbole_unlearn.methods import Outcome, UnlearnTask, UnlearnTrainer
from recbole_unlearn.progress import CLEAN, PLACEBO, MethodPhase, Plan, log_request
from recbole_unlearn.recbole_compat import on_cpu
from recbole_unlearn.registry import AUTO, METHODS
from recbole_unlearn.results import CONTROL, ORIGINAL, RETRAINED, UNLEARNED, PhaseResult, RunResult, record
from recbole_unlearn.results.disclosure import Discretion
from recbole_unlearn.results.record import Evidence
from recbole_unlearn.results.table import frame, table
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import PhaseTrainer, Trainings, build_model, compose, forget_neighbours, loaded
from recbole_unlearn.training.threads import of_one_process, use_threads

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class UnlearnResult:
    """The outputs of a run: its record, the unlearned model, the data and the directory of its files."""

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

    def __repr__(self) -> str:  # also what a notebook shows
        return table(self.record)


@dataclasses.dataclass(frozen=True)
class _Phase:
    """A measured model, the time to make it, and the measured model that it started from."""

    measured: measures.Measured
    seconds: float | None
    from_cache: bool
    start: "_Phase | None" = None  # None for an original
    exact: bool = False

    def result(self, distances: Mapping[str, Any] | None = None, **more: Any) -> PhaseResult:
        """Its figures; ``distances`` and ``more`` are figures that need other phases."""
        seconds = None if self.seconds is None else round(self.seconds, 4)
        forgetting = {**self.measured.forgetting, **(distances or {})}
        own: dict[str, Any] = self.measured.utility  # metrics of all, affected and unaffected users
        more |= {"seconds": seconds, "seconds_from_cache": self.from_cache, "exact": self.exact}
        return PhaseResult(forgetting=forgetting, **own, **more)


class Pipeline:
    """The phases of one run. Everything that can be refused without data is refused by the constructor.

    Files are written to ``directory``; at the end of the run they are in ``home``.
    """

    def __init__(self, config: UnlearnConfig, directory: Path, home: Path, checkpoint: Checkpoint | None) -> None:
        self.config, self.directory, self.home, self.checkpoint = config, directory, home, checkpoint
        self.run_settings = settings.read(settings.RunSettings, config)
        self.forget_settings = settings.read(settings.ForgetSettings, config)
        self.evaluation = settings.read(settings.EvaluationSettings, config)
        self.methods = planned_methods(config)
        if config.external_config_dict.get("unlearn", AUTO) == AUTO:
            logger.info("--unlearn=auto: %s, the quickest exact method for %s.", config["unlearn"], config["model"])
        if config["device"].type == "cuda" and not config["use_gpu"]:
            logger.warning("use_gpu=False does not keep RecBole off the GPU: give --gpu_id= to work on the CPU.")
        run, device = self.run_settings, config["device"].type
        workers = Workers(run.workers, run.ray_address, device, of_one_process(run.threads))
        cache = settings.read(settings.CacheSettings, config)
        self.trainings = Trainings(cache, self.run_settings.threads, workers)
        self.plan: Plan | None = None  # of a run; a sweep has other phases
        self.phases: dict[str, _Phase] = {}
        self.saved: str | None = None  # the name of the unlearned model's file
        self.evidence = Evidence.of(settings.read(settings.RecordSettings, config))

    def run(self, forget: Any) -> UnlearnResult:
        """From the request to the written result."""
        injected, protocol = is_injected(forget), Protocol.read(forget)
        if not injected and protocol is None:  # what is made up is no request: it needs no hashes
            self.evidence.open()
        informed = injected and self.forget_settings.inject_mode == "informed"
        source = protocol.name if protocol else "injected noise" if injected else "a request"
        self.plan = self.trainings.watcher = Plan(
            self.config, self.methods, source, informed=informed, loaded=self.checkpoint is not None
        )
        self.prepare(forget)
        test, number = loaders(self.config, self.data.retain), self.evaluation.demotion_negatives
        self.measurement = measures.Measurement(self.config, self.data, test, number)
        if not self.methods[0].method.own_original:
            self._measure_original(*self._original)
        done = [self._run_method(phase) for phase in self.methods]
        result = self._result(done)
        self._write(result)
        return UnlearnResult(result, done[0][0].model, self.config, self.data, self.home)

    # Data and request

    def prepare(self, forget: Any) -> None:
        """Load the data and divide it by the request; log the request's size and the plan."""
        self.data = self._data(forget)
        if self.data.done_earlier is not None and self.plan is not None:  # there is nothing to compare
            self.plan.methods = self.methods = self.methods[:1]
        if not self.data.is_made_up:
            self.trainings.protect(self.data)
        counts = self.data.summary()
        own = {key: counts.pop(key) for key in ("source", "interactions", "users", "items")}
        self._exact_size = results.Forgotten(**own, counts=counts)
        self.discretion = Discretion.of(self.data, self.evaluation.min_group)
        self.forgotten = self.discretion.forgotten(self._exact_size)  # the size of the request that may be shown
        log_request(self.config, self.data, self.forgotten, self.discretion.withheld)
        if self.plan is not None:
            parts = {"full": self.data.full, "retain": self.data.retain}
            self.plan.announce(parts, self.trainings, changes=len(self.data.forget) > 0)

    def _data(self, forget: Any) -> UnlearnData:
        r"""D, divided into S and D\S by a request, or by noise that is injected into the clean data."""
        options = self.forget_settings
        if (protocol := Protocol.read(forget)) is not None:
            protocol.load_column(self.config)
            source = self._load(self.checkpoint.dataset_file if self.checkpoint else None)
            return protocol.divided(source, self.config["seed"])
        if not is_injected(forget):
            request = read_request(forget, Fields.of(self.config))
            source = self._load(self.checkpoint.dataset_file if self.checkpoint else None)
            self.evidence.add_request(request.frame)
            kind = "file" if isinstance(forget, (str, Path)) else "python"
            return carry_out(request, source, kind, options.on_missing, self.evidence.hashes.get("request"))
        if self.checkpoint is not None:
            raise UnlearnError(
                "forget=injected trains its own original, so it cannot start from a checkpoint. "
                "Give --forget=FILE with the requests, or leave --checkpoint out."
            )
        source = self._load()
        clean = source.splits
        if self.plan is not None:
            self.plan.announce({CLEAN: clean}, self.trainings)
        scorer: Scorer | None = None
        if options.inject_mode == "informed":  # a model of the clean data chooses the items, and nothing else
            logger.info("Begin: %s.", CLEAN)
            trainer, _ = self.trainings.trainer(self.config, clean, CLEAN)
            scorer = lambda users: trainer.batch_scores(clean.batch(users), clean.train)  # noqa: E731
        full, located = inject(clean, options, self.config["seed"], scorer)
        return divide(full, located, f"{INJECTED} {options.inject_mode}", source.clock)

    def _load(self, saved: Path | None = None) -> Source:
        """The data, whose size decides on the threads of the run."""
        source = load(self.config, saved)
        use_threads(self.config, source.splits.train)
        return source

    # The original

    @property
    def original(self) -> Trained:
        """The plain model of D, from the checkpoint or trained."""
        return self._original[1]

    @functools.cached_property
    def _original(self) -> tuple[PhaseTrainer, Trained]:
        logger.info("Begin: %s.", ORIGINAL)
        trained = None if self.checkpoint is None else self.checkpoint.trained
        if trained is None:
            return self.trainings.trainer(self.config, self.data.full, ORIGINAL)
        return loaded(self.config, self.data.full, ORIGINAL, trained), trained

    @functools.cached_property
    def _plain_original(self) -> _Phase:
        """The plain original, measured, in a run whose first method has an original of its own."""
        return self._measure("plain original", *self._original)

    def _measure_original(self, trainer: PhaseTrainer, made: Trained | Outcome) -> _Phase:
        """The original of the run: its hash and its figures."""
        self.evidence.add_model("original", trainer.model, self.config)
        self.phases[ORIGINAL] = self._measure(ORIGINAL, trainer, made)
        return self.phases[ORIGINAL]

    # The methods

    @property
    def _relearns(self) -> bool:
        """Whether an approximate method is compared with retraining, so that relearning tells something."""
        used = [phase.method for phase in self.methods]
        return any(one.reference for one in used) and not all(one.exact or one.own_original for one in used)

    def _run_method(self, phase: MethodPhase) -> tuple[PhaseTrainer, Outcome]:
        """Run one method, save the model of the first one, and measure it."""
        method, first = phase.method, self.methods[0]
        # Curves of a training could be recognised by repeating it for each user, so a small request has none.
        config = self.config.without_curves() if self.discretion.few else self.config
        original = self.original if method.needs_original or not first.method.own_original else None
        stored = self.checkpoint.path if self.checkpoint and phase is first and method.own_original else None
        trainer, task = begin(
            method, phase.settings, config, self.data, original, self.trainings, phase.name, phase.repeat, stored
        )  # fmt: skip
        start = self._start(phase, trainer, task)
        logger.info("Begin: %s (%s).", phase.name, method.name)
        # Without a deleted training interaction no weight has to change; a comparison with retraining still runs.
        works = len(self.data.forget) > 0 or (method.exact and phase is not first)
        outcome = trainer.run(task) if works else trainer.keep(task)
        if phase is first and self.run_settings.save_unlearned:
            new = () if self.data.done_earlier else self.evidence.done()
            data = dataclasses.replace(self.data, done=(*self.data.done, *new))
            self.saved = trainer.save(self.directory, data, self.home)
        made = self._as_saved(trainer, self.saved if phase is first else None)
        # An exact model never saw S; the retrained one is trained on for the others' sake.
        again = works and self._relearns and (method.reference or not (method.exact or method.own_original))
        relearn = measures.relearning_epochs(self.config) if again else 0
        self.phases[phase.name] = self._measure(phase.name, made, outcome, start, relearn)
        return made, outcome

    def _as_saved(self, trainer: UnlearnTrainer, name: str | None = None) -> PhaseTrainer:
        r"""The model as a file has it, built again on D\S: without a mask or noise that only the object has.

        It is read from the file ``name``, or has what one would have. An ensemble is a directory of models, which its
        method alone can put together.
        """
        if trainer.own_original:
            return trainer
        trained: Trained | None = trainer.snapshot()
        if name is not None:
            trained = read_checkpoint(self.directory / name, self.config.model_class).trained
        assert trained is not None
        return loaded(self.config.replace(output_dir=None), self.data.retain, trainer.label, trained)

    def _start(self, phase: MethodPhase, trainer: UnlearnTrainer, task: UnlearnTask) -> _Phase:
        """The measured model that a method starts from: the run's original, the plain one, or one of its own."""
        method, first = phase.method, self.methods[0]
        if method.own_original:
            logger.info("Begin: %s.", phase.own_original)
            made = trainer.originate(task)
            own = compose(PhaseTrainer, self.config, trainer.model, ORIGINAL)
            if phase is first:
                return self._measure_original(own, made)
            return self._measure(phase.own_original, own, made)
        if method.needs_original and first.method.own_original:
            return self._plain_original
        return self.phases[ORIGINAL]

    def _measure(
        self, name: str, trainer: PhaseTrainer, made: Trained | Outcome, start: _Phase | None = None, relearn: int = 0
    ) -> _Phase:
        """All figures of a model by itself; logs the main ones."""
        measured = self.measurement.measure(trainer, None if start is None else start.measured, relearn)
        exact = isinstance(made, Outcome) and made.certificates.get("exact") is True
        phase = _Phase(measured, made.seconds, made.from_cache, start, exact)
        shown = self.discretion.phase(phase.result())
        took = "loaded" if shown.seconds is None else f"{shown.seconds:.1f} s"
        parts = [f"{name}: {took}" + (" (cached)" if shown.seconds_from_cache else "")]
        for figures, users in ((shown.metrics, "all"), (shown.affected, "affected")):
            form = "~{:.1f}" if self.discretion.few else "{:.4f}"
            parts += [f"NDCG@20 {users} {form.format(figures['ndcg@20'])}"] if "ndcg@20" in figures else []
        if shown.demotion_rate is not None and not self.discretion.few:
            parts.append(f"demotion rate {shown.demotion_rate:.3f}")
        logger.info(", ".join(parts))
        return phase

    # The result

    def _result(self, done: Sequence[tuple[PhaseTrainer, Outcome]]) -> RunResult:
        """The record of the run, with the figures that may be shown."""
        trainer, outcome = done[0]
        outcomes = {phase.name: own for phase, (_, own) in zip(self.methods, done, strict=True)}
        if self.methods[0].method.reference and RETRAINED not in self.phases and len(self.data.forget):
            self.phases[RETRAINED] = self.phases[UNLEARNED]
        phases, errors = self._phase_results(), {}
        if RETRAINED in self.phases:  # how sure it is that retraining moved affected users from a start
            target = self.phases[RETRAINED].measured
            starts = {name: phase.start or phase for name, phase in self.phases.items()}
            errors = {name: measures.paired_errors(start.measured, target) for name, start in starts.items()}
        self.evidence.add_model("result", trainer.model, self.config)
        result = record.build(
            self.config,
            self._exact_size,
            phases,
            certificates=outcome.certificates,
            curves={name: own for name in self.phases if (own := self._curves(name, outcomes))},
            errors=errors,
            placebo=self._placebo(outcomes),
            control=self._control(),
            done_earlier=self.data.done_earlier,
            **self.evidence.stamp(),
        )
        try:  # before anything is written
            json.dumps(result.to_json(), allow_nan=False)
        except ValueError as error:
            figures = results.flat(result.to_json(), " / ")
            odd = (path for path, value in figures if isinstance(value, float) and not math.isfinite(value))
            raise UnlearnError(
                f"{next(odd, 'A point of a curve')} is not a finite number, so nothing was written. Check the "
                "measure if it is your own; otherwise the weights of the original, and lower the learning rate."
            ) from error
        return self.discretion.shown(result)

    def _phase_results(self) -> dict[str, PhaseResult]:
        """The figures of all phases, with those that need other phases."""
        measured = {name: phase.measured for name, phase in self.phases.items()}
        distributions = self.measurement.distributions(measured)
        distances = functools.partial(self.measurement.distances, retrained=measured.get(RETRAINED))
        found = {}
        for name, phase in self.phases.items():
            start = None if phase.start is self.phases[ORIGINAL] else phase.start
            found[name] = phase.result(
                distances(phase.measured),
                groups=phase.measured.groups,
                before=None if start is None else start.result(distances(start.measured)),
                distribution=distributions.get(name),
            )
        return found

    def _curves(self, name: str, outcomes: Mapping[str, Outcome]) -> dict[str, results.Curve]:
        """Those of a phase's method, and of its relearning."""
        return (outcomes[name].curves if name in outcomes else {}) | self.phases[name].measured.curves

    def _placebo(self, outcomes: Mapping[str, Outcome]) -> results.Placebo | None:
        """The method on the retrained model, measured: one unlearning, no training."""
        first = self.methods[0]
        trained = next((outcomes[phase.name].trained for phase in self.methods if phase.method.reference), None)
        wanted = self.evaluation.placebo and len(self.data.forget) > 0 and RETRAINED in self.phases
        if not wanted or trained is None or self.phases[UNLEARNED].exact or first.method.own_original:
            return None
        logger.info("Begin: %s.", PLACEBO)
        config = self.config.replace(output_dir=None)  # it writes no file
        trainer, task = begin(first.method, first.settings, config, self.data, trained, self.trainings, PLACEBO)
        trainer.run(task)
        retrained = self.phases[RETRAINED].measured
        measured = self.measurement.measure(self._as_saved(trainer), retrained)
        return measures.compare(self.phases[UNLEARNED].measured, measured, retrained)

    def _control(self) -> PhaseResult | None:
        """The original with nothing but its orphan rows reset, measured: the result of a method that does nothing."""
        target, first = self.phases.get(RETRAINED), self.methods[0].method
        if target is None or self.phases[UNLEARNED].exact or len(self.data.forget) == 0 or first.own_original:
            return None
        config = self.config.replace(output_dir=None)
        trainer, task = begin(UnlearnTrainer, None, config, self.data, self.original, self.trainings, CONTROL)
        trainer.reset_orphans(task)
        measured = self.measurement.measure(self._as_saved(trainer), self.phases[ORIGINAL].measured)
        return _Phase(measured, None, False).result(self.measurement.distances(measured, target.measured))

    def _write(self, result: RunResult) -> None:
        """Write result.json and the report; cached models that saw S are removed."""
        if self.saved is not None:
            logger.info("Unlearned model: %s", self.home / self.saved)
        write_json(self.directory / "result.json", result.to_json())
        self.trainings.forget(self.data)
        logger.info("Result: %s", self.home / "result.json")
        if self.run_settings.report != "none":
            from recbole_unlearn import report

            given = self.config.external_config_dict | {"model": self.config.model_class}
            page = report.write_report(result, self.directory, given)
            logger.info("Report: %s", self.home / page.name)


def is_injected(forget: Any) -> bool:
    """Whether noise is injected instead of reading a request."""
    return isinstance(forget, str) and forget == INJECTED


def planned_methods(config: UnlearnConfig) -> list[MethodPhase]:
    """The methods of a run, with checked settings.

    The first one's phase is `unlearned`. Of the compared ones, that of retraining is `retrained`, and another's has
    the name of the method; a repetition (with another seed) has a number.
    """
    phases: list[MethodPhase] = []
    for method in map(METHODS.get, config.method_names()):
        repeat = [phase.method.name for phase in phases].count(method.name)
        name = UNLEARNED if not phases else RETRAINED if method.reference else method.name
        if name in [phase.name for phase in phases]:
            name = f"{name}_{repeat + (phases[0].method is not method)}"
        phases.append(MethodPhase(name, method, checked_settings(method, config), repeat))
    return phases


def checked_settings(method: type[UnlearnTrainer], config: UnlearnConfig) -> Any:
    """The settings of a method in this run; refuses models and settings that it cannot run with."""
    options: Any = settings.read(method.Settings, config.method_values(method.name))
    for kind, ability, model, gap in (
        (ModelType.SEQUENTIAL, "on_sequences", "a sequential model", "sequences yet"),
        (ModelType.KNOWLEDGE, "on_knowledge", "a knowledge-aware model", "a knowledge graph"),
    ):
        if config["MODEL_TYPE"] == kind and not getattr(method, ability):
            able = ", ".join(one.name for one in METHODS.all() if getattr(one, ability) and one.verb == method.verb)
            what = f"{config['model']} is {model}, and {method.name} does not work on {gap}"
            raise UnlearnError(f"{what}. Use {able}.")
    if method.needs_original and (reason := settings.only_retrained(config.model_class)):
        raise UnlearnError(f"{config['model']} can only be trained again: {reason}. Use --unlearn=retrain.")
    method.check(options, config)
    return options


def begin(
    method: type[UnlearnTrainer], method_settings: Any, config: UnlearnConfig, data: UnlearnData,
    original: Trained | None, trainings: Trainings, label: str, repeat: int = 0, stored: Path | None = None,
) -> tuple[UnlearnTrainer, UnlearnTask]:  # fmt: skip
    r"""A trainer of ``method`` over a model built on D\S with the original's weights, and its task."""
    held = original.other_parameter if original is not None and method.fits_closed_forms else None
    model = build_model(config, data.retain, held)
    initial = on_cpu(dict(model.named_parameters()))
    if method.needs_original:
        assert original is not None
        original.load_weights(model)
        forget_neighbours(model, data.retain.train)
    task = UnlearnTask(
        config, data, original, initial, method_settings, trainings.train, label, repeat, trainings.train_all, stored
    )  # fmt: skip
    return compose(method, config, model, label), task
