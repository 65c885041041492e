"""What a run is going to do, and how long that takes: said before it starts, and corrected as it goes.

A :class:`Plan` knows the phases of a run. Before the first epoch nobody knows how long one takes, so it is measured.
All trainings of a run have the same model, and an epoch takes a time in proportion to its interactions. A training
that stops early is shorter, so estimates are upper limits. What a method does beside training is not estimated.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from recbole.utils import ModelType
from tqdm import tqdm

from recbole_unlearn.data import UnlearnData
from recbole_unlearn.methods import UnlearnTrainer
from recbole_unlearn.results import ORIGINAL, Forgotten, PhaseResult, Withheld
from recbole_unlearn.settings import UnlearnConfig, properties_dir, read_yaml
from recbole_unlearn.text import counted

logger = logging.getLogger(__name__)

CLEAN, PLACEBO = "clean", "placebo"
LONG = 1800.0  # seconds from which a run is told how to be quicker
_SURE = 2.0  # seconds of training before an estimate is worth anything
_AGAIN = (
    30.0  # seconds between two estimates of one training, at least; later each is twice as far from the start
)
_SELDOM = 600.0  # seconds between two of them, at most
_DIMENSIONS, _BATCH = 64, 8192  # what is quicker for models without settings of their own in machine.yaml


@dataclasses.dataclass(frozen=True)
class Step:
    """One phase: its name, what is done in it, and the training in it where there is one."""

    name: str
    what: str
    epochs: int = 0  # 0: no training, or one that is a formula
    interactions: int = 0
    cached: bool = False

    @property
    def work(self) -> int:
        """Epochs times interactions that are to be trained on."""
        return 0 if self.cached else self.epochs * self.interactions


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a run is asked to do, as far as its phases depend on it."""

    config: UnlearnConfig
    methods: Sequence[type[UnlearnTrainer]]
    settings: Sequence[Any]  # by method
    names: Sequence[str]  # of the methods' phases
    informed: bool  # noise is chosen by a model of the clean data
    loaded: bool  # the original is in a checkpoint
    placebo: bool


class Parts(NamedTuple):
    """How many training interactions there are, and what of it the cache has a model of."""

    full: int
    retain: int
    changes: bool  # whether a training interaction is deleted
    has: Callable[[UnlearnConfig, str], bool]  # of "clean", "full" or "retain"


class Plan:
    """The phases of one run; watches its trainings.

    Args:
        asked: what the run is asked to do.
        source: where its forget set is from, in words.
        now: the clock.

    """

    def __init__(self, asked: Asked, source: str, now: Callable[[], float] = time.perf_counter) -> None:
        self.asked, self.source, self.now = asked, source, now
        self.steps: list[Step] = []
        self.stops_early = stops_early(asked.config)
        self._at = -1  # the position of the phase that is being done
        self._pace: float | None = None  # seconds for one interaction of one epoch
        self._advised = False

    def say(self, parts: Parts) -> None:
        """Say what is going to be done, once; called again when more is known about the same phases."""
        first_time, self.steps = not self.steps, steps_of(self.asked, parts)
        if not first_time:
            return
        config = self.asked.config
        phases = ", ".join(f"{number} {self._in_words(step)}" for number, step in enumerate(self.steps, 1))
        logger.info(
            "Plan for %s on %s, with %s: %s.", config["model"], config["dataset"], self.source, phases
        )

    def _in_words(self, step: Step) -> str:
        about = "cached" if step.cached else self._epochs(step)
        return f"{step.what} ({about})" if about else step.what

    def _epochs(self, step: Step) -> str:
        if not step.epochs:
            return ""
        counted = "1 epoch" if step.epochs == 1 else f"{step.epochs} epochs"
        return f"at most {counted}" if self.stops_early else counted

    def begin(self, name: str) -> None:
        """The phase of this name begins."""
        self._at = next(position for position, step in enumerate(self.steps) if step.name == name)
        step = self.steps[self._at]
        parts = [f"Phase {self._at + 1} of {len(self.steps)}: {step.what}"]
        if step.work:
            parts.append(self._epochs(step))
            parts += [] if self._pace is None else [f"about {duration(step.work * self._pace)}"]
        rest = self._rest()
        later = f" (about {duration(rest)} of training after it)" if rest else ""
        logger.info("%s%s.", ", ".join(parts), later)

    def _rest(self) -> float:
        """Seconds of the trainings of later phases; 0 where that is not known."""
        return sum(step.work for step in self.steps[self._at + 1 :]) * (self._pace or 0.0)

    def training(self, label: str, interactions: int, epochs: int) -> None:
        """A training begins; its pace is measured."""
        self._label, self._interactions, self._epoch_number = label, interactions, epochs
        # With the pace of an earlier training, its phase began with an estimate.
        self._start, self._next = self.now(), _SURE if self._pace is None else _AGAIN

    def epoch(self, done: int) -> None:
        """So many of its epochs are done; says how long it goes on, first after seconds and then ever less often."""
        spent = self.now() - self._start
        self._pace = spent / (done * max(1, self._interactions))
        left = spent / done * (self._epoch_number - done)
        if spent < self._next or left < _SURE:
            return
        self._next = spent + min(_SELDOM, max(_AGAIN, spent))
        limit = "at most about" if self.stops_early else "about"
        rest = self._rest()
        more = f", and {duration(rest)} of training after it" if rest else ""
        # A progress bar on the screen steps aside for the line.
        with tqdm.external_write_mode():
            logger.info("Training %s: %s %s left%s.", self._label, limit, duration(left), more)
            if left + rest > LONG and not self._advised:
                self._advised = True
                advice = quicker(self.asked, left + rest)
                logger.info("This run may take %s. %s", duration(left + rest), advice)


def duration(seconds: float) -> str:
    """Seconds in words that promise no more than an estimate holds: 25 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s" if seconds < 20 else f"{5 * round(seconds / 5)} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 10 else f"{round(hours)} h"


def steps_of(asked: Asked, parts: Parts) -> list[Step]:
    """The phases of a run, in the order in which the pipeline does them."""
    first = asked.methods[0]
    steps = []
    if asked.informed:
        steps.append(_plain(asked, CLEAN, "train clean", parts.retain, parts.has(asked.config, "clean")))
    if not first.own_original:
        steps.append(_original(asked, parts))
    for position in range(len(asked.methods)):
        if first.own_original and asked.methods[position].needs_original and ORIGINAL not in _names(steps):
            steps.append(_original(asked, parts))
        steps += _of_method(asked, parts, position)
    exact = any(method.exact for method in asked.methods[1:])
    if asked.placebo and exact and parts.changes and not (first.exact or first.own_original):
        steps.append(Step(PLACEBO, f"{first.name} on the retrained model, as a placebo"))
    return steps


def _names(steps: Sequence[Step]) -> set[str]:
    return {step.name for step in steps}


def _plain(asked: Asked, name: str, what: str, interactions: int, cached: bool) -> Step:
    return Step(name, what, training_epochs(asked.config), interactions, cached)


def _original(asked: Asked, parts: Parts) -> Step:
    if asked.loaded:
        return Step(ORIGINAL, "measure the original")
    return _plain(asked, ORIGINAL, "train original", parts.full, parts.has(asked.config, "full"))


def _of_method(asked: Asked, parts: Parts, position: int) -> list[Step]:
    """One phase; two for a method with an original of its own, which has to be made first."""
    method, options, name = asked.methods[position], asked.settings[position], asked.names[position]
    epochs = training_epochs(asked.config, method.epochs(options, asked.config))
    before = []
    if method.own_original:
        stored = asked.loaded and position == 0
        what = f"measure the original of {method.name}" if stored else f"train the parts of {method.name}"
        before = [Step(original_of(name), what, 0 if stored else epochs, parts.full)]
    if method.exact and (parts.changes or position > 0):
        repeat = [m.name for m in asked.methods[:position]].count(method.name)
        cached = parts.has(method.training(options, asked.config, repeat), "retain")
        return [*before, Step(name, method.name, epochs, parts.retain, cached)]
    if not parts.changes:
        return [*before, Step(name, f"{method.name}, which has nothing to change")]
    again = epochs if method.own_original else 0
    return [*before, Step(name, f"unlearn with {method.name}", again, parts.retain)]


def original_of(name: str) -> str:
    """The name of the phase in which a method makes an original of its own."""
    return f"original of {name}"


def stops_early(config: UnlearnConfig) -> bool:
    """Whether RecBole's early stopping can end a training before its last epoch."""
    return 0 < config["eval_step"] * (config["stopping_step"] + 1) < config["epochs"]


def training_epochs(config: UnlearnConfig, epochs: int | None = None) -> int:
    """Epochs of a training with this config; 0 for a model that is a formula of its data."""
    if config["MODEL_TYPE"] == ModelType.TRADITIONAL:
        return 0
    return int(config["epochs"]) if epochs is None else epochs


def quicker(asked: Asked, seconds: float) -> str:
    """A sentence on settings that make a run quicker that would take ``seconds``.

    A model that was loaded has its size, and a retraining with other settings says nothing of it. For others the
    settings are those this project has chosen for the model, in `properties/grid/machine.yaml`.
    """
    config = asked.config
    if asked.loaded:
        exact = "--unlearn=obliviate does not train again."
        return exact if asked.methods[0].exact else "Without retrain in --compare, nothing is trained again."
    chosen, source = _chosen(config["model"], config["dataset"])
    differing = {key: value for key, value in chosen.items() if config[key] != value}
    if config["epochs"] <= chosen.get("epochs", 0) or not differing:
        differing, source = _general(config), ""
    flags = " ".join(f"--{key}={value}" for key, value in differing.items())
    now = ", ".join(str(config[key]) for key in differing)
    share = differing.get("epochs", config["epochs"]) / config["epochs"]
    then = f", about {duration(share * seconds)} or less" if share < 1 else ""
    return f"Quicker{then}: {flags} (now {now}){source}." if flags else ""


def _chosen(model: str, dataset: str) -> tuple[dict[str, Any], str]:
    """The training settings in machine.yaml for a model, if possible on this dataset, and where they are from."""
    grids = [
        grid
        for grid in read_yaml(properties_dir() / "grid" / "machine.yaml")["grids"]
        if model in grid["models"] and "settings" in grid
    ]
    for grid in sorted(grids, key=lambda grid: dataset not in grid["datasets"]):
        where = dataset if dataset in grid["datasets"] else grid["datasets"][0]
        return grid["settings"], f", as this project has them for {model} on {where}"
    return {}, ""


def _general(config: UnlearnConfig) -> dict[str, Any]:
    """What is quicker for most models: smaller rows and larger batches."""
    less = {"embedding_size": _DIMENSIONS} if (config["embedding_size"] or 0) > _DIMENSIONS else {}
    more = {"train_batch_size": _BATCH} if config["train_batch_size"] < _BATCH else {}
    return less | more


def say_what_is_forgotten(
    config: UnlearnConfig, data: UnlearnData, forget: Forgotten, withheld: Withheld | None
) -> None:
    """How much a request takes away, and what follows from that for all phases."""
    if data.done_earlier is not None:
        logger.info(
            "This request was carried out earlier (%s): its interactions are not in the data, and no weight has to "
            "change.", data.done_earlier,
        )  # fmt: skip
        return
    logger.info(
        "%s with %s on %s: forgetting %s%d of %s, of %s and %s.",
        config["unlearn"], config["model"], config["dataset"], "about " if withheld else "", forget.interactions,
        counted(len(data.full.train), "training interaction"), counted(forget.users, "user"),
        counted(forget.items, "item"),
    )  # fmt: skip
    if withheld is not None:
        logger.info(withheld.why)
    if len(data.forget) == 0:
        logger.info(
            "The request hits validation and test interactions alone. No model was trained on them, so no weight has "
            "to change; they leave the retained data."
        )
    elif forget.counts:
        _say_what_is_left_out(forget.counts)


def _say_what_is_left_out(counts: Mapping[str, int]) -> None:
    held_out = counts["valid_rows_removed"] + counts["test_rows_removed"]
    if held_out:
        logger.warning(
            "The request also hits %s and %s. No model trained on them; they are left out of those splits for every "
            "phase.",
            counted(counts["valid_rows_removed"], "validation interaction"),
            counted(counts["test_rows_removed"], "test interaction"),
        )
    if counts["orphan_users"] or counts["orphan_items"]:
        logger.warning(
            "Without any training interaction left: %s and %s. They are treated as never seen, and %s of theirs left "
            "out of utility.",
            counted(counts["orphan_users"], "user"),
            counted(counts["orphan_items"], "item"),
            counted(counts["orphan_test_rows"], "test interaction"),
        )


def say_what_was_measured(name: str, phase: PhaseResult) -> None:
    """The main figures of a model, in one line."""
    took = "loaded" if phase.seconds is None else f"{phase.seconds:.1f} s"
    parts = [f"{name}: {took}" + (" (cached)" if phase.seconds_from_cache else "")]
    for figures, label in ((phase.metrics, "all"), (phase.affected, "affected")):
        if "ndcg@20" in figures:
            parts.append(f"NDCG@20 {label} {figures['ndcg@20']:.4f}")
    if phase.demotion_rate is not None:
        parts.append(f"demotion rate {phase.demotion_rate:.3f}")
    logger.info(", ".join(parts))
