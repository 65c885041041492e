"""Messages of a run: its plan, the time that is left of a training, and the size of the request.

Early stopping shortens trainings, so estimates are upper limits. Messages have counts, never names of users; figures
of few users were rounded or removed before.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from recbole.utils import ModelType
from tqdm import tqdm

from recbole_unlearn.data import Splits, UnlearnData
from recbole_unlearn.methods import UnlearnTrainer
from recbole_unlearn.results import Forgotten, Withheld
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.text import counted, duration
from recbole_unlearn.training import Trainings

logger = logging.getLogger(__name__)

CLEAN, PLACEBO = "clean", "placebo"
_RELIABLE = 2.0  # seconds of training before the first estimate


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


@dataclasses.dataclass
class Plan:
    """What one run will do; watches its trainings."""

    config: UnlearnConfig
    methods: Sequence[MethodPhase]
    source: str  # the origin of the forget set, in words
    informed: bool = False  # noise is chosen by a model of the clean data
    loaded: bool = False  # the original comes from a checkpoint
    now: Callable[[], float] = time.perf_counter
    is_said: bool = False

    def announce(self, parts: Mapping[str, Splits], trainings: Trainings, changes: bool = True) -> None:
        """Log the plan, once.

        ``parts`` are the splits that are known: "clean", or "full" and "retain". ``changes`` says whether a training
        interaction is deleted.
        """
        if not self.is_said:
            about = self.config["model"], self.config["dataset"], self.source
            logger.info("Plan for %s on %s, with %s: %s.", *about, ", ".join(self._steps(parts, trainings, changes)))
        self.is_said = True

    def _steps(self, parts: Mapping[str, Splits], trainings: Trainings, changes: bool) -> Iterator[str]:
        """The trainings and methods."""
        config, first = self.config, self.methods[0].method

        def training(what: str, part: str, epochs: int, own: UnlearnConfig = config) -> str:
            if part in parts and trainings.has(own, parts[part]):
                return f"{what} (cached)"
            closed_form = config["MODEL_TYPE"] == ModelType.TRADITIONAL or not epochs
            return what if closed_form else f"{what} ({self._limit}{counted(epochs, 'epoch')})"

        if self.informed:
            yield training("train clean", CLEAN, config["epochs"])
        starts = any(phase.method.needs_original for phase in self.methods) or not first.own_original
        if starts and not self.loaded:
            yield training("train original", "full", config["epochs"])
        for position, phase in enumerate(self.methods):
            method, epochs = phase.method, phase.method.epochs(phase.settings, config)
            if method.own_original and (position or not self.loaded):
                yield training(f"train the parts of {method.name}", "", epochs)
            if method.exact and (changes or position):
                own = method.training(phase.settings, config, phase.repeat)
                yield training(method.name, "retain", epochs, own)
            elif changes:
                yield f"{method.verb} {method.name}"

    @property
    def _limit(self) -> str:
        """Where trainings can stop early."""
        last = self.config["eval_step"] * (self.config["stopping_step"] + 1)
        return "at most " if 0 < last < self.config["epochs"] else ""

    def __call__(self, label: str, epochs: int, done: int) -> None:
        """Follow a training with ``done`` epochs finished; log the time left, each time after twice as long."""
        if done == 0:
            self._start, self._next = self.now(), _RELIABLE
            return
        spent = self.now() - self._start
        left = spent / done * (epochs - done)
        if spent >= self._next and left >= _RELIABLE:
            self._next = 2 * spent
            with tqdm.external_write_mode():  # keeps a progress bar on the screen intact
                logger.info("Training %s: %sabout %s left.", label, self._limit, duration(left))


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
