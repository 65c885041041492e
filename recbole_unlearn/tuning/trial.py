"""One trial: the method on the shared original with some settings, measured on validation interactions as it goes.

What all trials share is made once by the process that drives the sweep and handed to each worker once, as data: the
config, the divided data, the original's weights. A trial reads no file and leaves none.
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from recbole_unlearn import settings
from recbole_unlearn.data import UnlearnData
from recbole_unlearn.files import Trained
from recbole_unlearn.methods import UnlearnTrainer, Watch
from recbole_unlearn.pipeline import begin
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import Trainings
from recbole_unlearn.tuning.objective import Bench, Goal

Report = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Shared:
    """What all trials start from; nobody writes to it."""

    config: UnlearnConfig
    data: UnlearnData  # without test interactions
    original: Trained
    method: type[UnlearnTrainer]
    values: dict[str, Any]  # of the method's settings, where a trial has no other
    goal: Goal
    looks: int
    negatives: int
    threads: int

    def bench(self) -> Bench:
        """What measures; made once in each process."""
        return Bench(self.config, self.data, self.goal.metric, self.negatives)


def look_steps(total: int, looks: int) -> frozenset[int]:
    """After which of ``total`` steps a trial is measured before its end: at equal shares, ``looks`` with the end."""
    return frozenset(step for k in range(1, looks) if 0 < (step := round(total * k / looks)) < total)


def run_trial(shared: Shared, bench: Bench, values: dict[str, Any], emit: Callable[[Report], None]) -> None:
    """Unlearn with ``values`` in the place of the method's settings; ``emit`` gets a report for every look.

    A report has the `settings` with which a run by itself ends in the same state, the figures, the method's own
    `seconds`, the trial's `work_seconds` so far, and whether it is the `last`.
    """
    torch.set_num_threads(shared.threads)
    logging.getLogger().setLevel(logging.WARNING)
    start = time.perf_counter()
    method = shared.method
    options: Any = settings.read(method.Settings, shared.values | values)
    method.check(options, shared.config)
    total = method.steps(options)

    def report(trainer: UnlearnTrainer, step: int, seconds: float, last: bool = False) -> None:
        changed = {} if last else method.settings_after(options, step)
        figures = shared.goal.judge(bench.measure(trainer))
        emit(
            {
                "settings": {**values, **changed},
                "step": step if total else None,
                **figures,
                "seconds": round(seconds, 4),
                "work_seconds": round(time.perf_counter() - start, 4),
                "last": last,
            }
        )

    watch = Watch(look_steps(total, shared.looks), report) if total else None
    with tempfile.TemporaryDirectory() as work:
        config = shared.config.replace(
            checkpoint_dir=work, output_dir=None, show_progress=False
        ).without_curves()
        kept = dataclasses.replace(settings.read(settings.CacheSettings, config), cache=False)
        models = Trainings(kept, shared.threads)
        trainer, task = begin(method, options, config, shared.data, shared.original, models, "unlearned")
        finished = trainer.run(dataclasses.replace(task, watch=watch))
        report(trainer, total, finished.seconds or 0.0, last=True)
