"""Messages of a run: its plan, the time that is left of a training, and the size of the request.

Early stopping shortens trainings, so estimates are upper limits. Messages have counts, never names of users; figures
of few users were rounded or removed before.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recbole.utils import ModelType
from tqdm import tqdm

from recbole_unlearn.data import Splits, UnlearnData
from recbole_unlearn.methods import UnlearnTrainer
from recbole_unlearn.results import ORIGINAL, Forgotten, Withheld
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.text import counted
from recbole_unlearn.training import Trainings

logger = logging.getLogger(__name__)

CLEAN, PLACEBO = "clean", "placebo"
_RELIABLE = 2.0  # seconds of training before the first estimate
_AGAIN, _SELDOM = 30.0, 600.0  # least and largest number of seconds between two estimates of one training


@dataclasses.dataclass(frozen=True)
class MethodPhase:
    """A method of a run."""

    name: str  # of the phase
    method: type[UnlearnTrainer]
    settings: Any
    repeat: int = 0  # how often the method ran before in the run

    @property
    def own_original(self) -> str:
        """The name of the phase in which the method makes its own original."""
        return f"original of {self.name}"


@dataclasses.dataclass(frozen=True)
class Step:
    """One phase, with its training if it has one."""

    name: str
    what: str
    epochs: int = 0  # 0: no training, or a closed form
    cached: bool = False


@dataclasses.dataclass
class Plan:
    """The phases of one run; watches its trainings."""

    config: UnlearnConfig
    methods: Sequence[MethodPhase]
    source: str  # the origin of the forget set, in words
    informed: bool = False  # noise is chosen by a model of the clean data
    loaded: bool = False  # the original comes from a checkpoint
    placebo: bool = True  # the method also runs on the retrained model
    now: Callable[[], float] = time.perf_counter
    steps: list[Step] = dataclasses.field(default_factory=list)

    @property
    def _limit(self) -> str:
        """Where trainings can stop early."""
        last = self.config["eval_step"] * (self.config["stopping_step"] + 1)
        return "at most " if 0 < last < self.config["epochs"] else ""

    def announce(self, parts: Mapping[str, Splits], trainings: Trainings, changes: bool = True) -> None:
        """Log the plan, once; a later call only knows better which phases come.

        ``parts`` are the splits that are known: "clean", or "full" and "retain". ``changes`` says whether a training
        interaction is deleted.
        """
        first_time, self.steps = not self.steps, self.phases(parts, trainings, changes)
        if first_time:
            phases = []
            for number, step in enumerate(self.steps, 1):
                about = "cached" if step.cached else self._limit + counted(step.epochs, "epoch")
                phases.append(f"{number} {step.what}" + (f" ({about})" if step.cached or step.epochs else ""))
            model, dataset = self.config["model"], self.config["dataset"]
            logger.info("Plan for %s on %s, with %s: %s.", model, dataset, self.source, ", ".join(phases))

    def phases(self, parts: Mapping[str, Splits], trainings: Trainings, changes: bool = True) -> list[Step]:
        """The phases of the run, in the order in which the pipeline does them; arguments as :meth:`announce`."""
        has = lambda config, part: part in parts and trainings.has(config, parts[part])  # noqa: E731
        config, first = self.config, self.methods[0].method
        closed_form = config["MODEL_TYPE"] == ModelType.TRADITIONAL
        epochs = 0 if closed_form else int(config["epochs"])
        original = Step(ORIGINAL, "measure the original")
        if not self.loaded:
            original = Step(ORIGINAL, "train original", epochs, has(config, "full"))
        steps = [Step(CLEAN, "train clean", epochs, has(config, CLEAN))] if self.informed else []
        steps += [] if first.own_original else [original]
        for position, phase in enumerate(self.methods):
            method, name = phase.method, phase.name
            epochs = 0 if closed_form else method.epochs(phase.settings, config)
            if first.own_original and method.needs_original and original not in steps:
                steps.append(original)
            if method.own_original and self.loaded and position == 0:
                steps.append(Step(phase.own_original, f"measure the original of {method.name}"))
            elif method.own_original:
                steps.append(Step(phase.own_original, f"train the parts of {method.name}", epochs))
            if method.exact and (changes or position > 0):
                cached = has(method.training(phase.settings, config, phase.repeat), "retain")
                steps.append(Step(name, method.name, epochs, cached))
            elif changes:
                again = epochs if method.own_original else 0
                steps.append(Step(name, f"unlearn with {method.name}", again))
            else:
                steps.append(Step(name, f"{method.name}, which has nothing to change"))
        retrains = changes and any(phase.method.reference for phase in self.methods[1:])
        if self.placebo and retrains and not (first.exact or first.own_original):
            steps.append(Step(PLACEBO, f"{first.name} on the retrained model, as a placebo"))
        return steps

    def begin(self, name: str) -> None:
        """Log that the phase of this name begins."""
        at, step = next((at, step) for at, step in enumerate(self.steps, 1) if step.name == name)
        epochs = f", {self._limit}{counted(step.epochs, 'epoch')}" if step.epochs and not step.cached else ""
        logger.info("Phase %d of %d: %s%s.", at, len(self.steps), step.what, epochs)

    def training(self, label: str, epochs: int) -> None:
        """A training begins."""
        self._label, self._epochs, self._start, self._next = label, epochs, self.now(), _RELIABLE

    def epoch(self, done: int) -> None:
        """``done`` epochs of the training are finished; log the time left, at growing intervals."""
        spent = self.now() - self._start
        left = spent / done * (self._epochs - done)
        if spent >= self._next and left >= _RELIABLE:
            self._next = spent + min(_SELDOM, max(_AGAIN, spent))
            with tqdm.external_write_mode():  # keeps a progress bar on the screen intact
                logger.info("Training %s: %sabout %s left.", self._label, self._limit, duration(left))


def duration(seconds: float) -> str:
    """Seconds with the precision of an estimate: 25 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s" if seconds < 20 else f"{5 * round(seconds / 5)} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 10 else f"{round(hours)} h"


def log_request(config: UnlearnConfig, data: UnlearnData, forget: Forgotten, withheld: Withheld | None) -> None:
    """Log the size of a request, and what follows from it for all phases."""
    if data.done_earlier is not None:
        logger.info(
            "This request was carried out earlier (%s): its interactions are not in the data, and no weight has to "
            "change.", data.done_earlier,
        )  # fmt: skip
        return
    about = "about " if withheld else ""
    total, users = counted(len(data.full.train), "training interaction"), counted(forget.users, "user")
    logger.info(
        f"{config['unlearn']} with {config['model']} on {config['dataset']}: forgetting {about}{forget.interactions} "
        f"of {total}, of {users} and {counted(forget.items, 'item')}."
    )
    if withheld is not None:
        logger.info(withheld.why)
    if len(data.forget) == 0:
        logger.info(
            "The request hits validation and test interactions alone. No model was trained on them, so no weight has "
            "to change; they leave the retained data."
        )
    elif "orphan_users" in (counts := forget.counts):
        valid, test = counts["valid_rows_removed"], counts["test_rows_removed"]
        if valid or test:
            logger.warning(
                "The request also hits %s and %s. No model trained on them; they are left out of those splits for "
                "every phase.", counted(valid, "validation interaction"), counted(test, "test interaction"),
            )  # fmt: skip
        if counts["orphan_users"] or counts["orphan_items"]:
            left_out = counted(counts["orphan_test_rows"], "test interaction")
            logger.warning(
                "Without any training interaction left: %s and %s. They are treated as never seen, and %s of theirs "
                "left out of utility.",
                counted(counts["orphan_users"], "user"), counted(counts["orphan_items"], "item"), left_out,
            )  # fmt: skip
