"""A sweep from the request to `best.yaml`: what the command line calls for `--tune`.

The original (and, with `--compare=retrain`, the retrained model) is made once here; trials are run by `backend.py`
and kept in a journal as they end. Everything that can be refused is refused before anything is trained.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

from recbole_unlearn import cluster, settings
from recbole_unlearn.log import progress_bar
from recbole_unlearn.pipeline import Pipeline
from recbole_unlearn.session import Arguments, opened
from recbole_unlearn.text import counted
from recbole_unlearn.tuning import backend, journal, outputs
from recbole_unlearn.tuning import space as spaces
from recbole_unlearn.tuning.journal import Journal, Keeper, Record
from recbole_unlearn.tuning.prepare import Prepared, prepare, refuse_unprepared
from recbole_unlearn.tuning.space import Settings, identity

logger = logging.getLogger(__name__)


def tune_unlearn(
    model: str | type | None = None, dataset: str | None = None, **arguments: Any
) -> outputs.TuneResult:
    """Sweep over a method's settings; arguments as :func:`~recbole_unlearn.quick_start.run_unlearn` has them."""
    with opened(Arguments(model, dataset, **arguments), as_one=False) as (pipeline, wanted):
        return _Sweep(pipeline).run(wanted)


class _Sweep:
    """The steps of one sweep, in order."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline, self.config, self.directory = pipeline, pipeline.config, pipeline.directory
        self.options = settings.read(settings.TuneSettings, self.config)
        self.method = pipeline.methods[0].method
        refuse_unprepared(pipeline, self.options)
        address = pipeline.run_settings.ray_address
        backend.check(self.options.searcher, address)
        journal.refuse_other(self.directory, self.options.resume)
        self.space = spaces.load(self.config, self.method, self.options.space)
        self.listed = self._listed()

    def _listed(self) -> list[Settings] | None:
        """The settings of all trials, None where a searcher finds them as it goes."""
        if self.options.searcher == "grid":
            return self.space.grid()
        if self.options.searcher == "random":
            return self.space.random(self.options.trials, self.config["seed"])
        self.space.refuse_grids(self.options.searcher)
        return None

    def run(self, forget: Any) -> outputs.TuneResult:
        """From the request to the written result."""
        with contextlib.ExitStack() as stack:
            ray = None
            if not self.options.resume or self.pipeline.run_settings.ray_address is not None:
                # Report at once that there is no cluster; to resume a sweep that is complete needs none.
                ray = stack.enter_context(self._session())
            start = time.perf_counter()
            self.pipeline.prepare(forget)
            prepared = prepare(self.pipeline, self.options)
            seconds = round(time.perf_counter() - start, 2)
            self.journal = Journal(self.directory, journal.sweep_digest(prepared.shared), self.options.resume)
            known = self.journal.finished()
            if self._is_left(known):
                ray = ray or stack.enter_context(self._session())
                self._trials(ray, prepared, known)
        result = outputs.content(
            self.pipeline.forgotten.to_json(),
            self.options,
            self.space,
            prepared,
            self.journal.records,
            seconds,
        )
        report = self.pipeline.run_settings.report != "none"
        return outputs.write(self.directory, result, prepared, self.options, report)

    def _session(self) -> Any:
        run = self.pipeline.run_settings
        return cluster.session(run.ray_address, run.workers)

    def _is_left(self, known: dict[str, Record]) -> bool:
        """Whether a trial is left to do."""
        if self.listed is not None:
            return any(identity(values) not in known for values in self.listed)
        return len(known) < self.options.trials

    def _trials(self, ray: Any, prepared: Prepared, known: dict[str, Record]) -> None:
        total = self.options.trials if self.listed is None else len(self.listed)
        shown = bool(self.config["show_progress"])
        with progress_bar(f"Tune {self.method.name}", total, shown, "trial") as bar:
            try:
                backend.sweep(
                    ray, prepared.shared, self.space, self.listed, known, Keeper(self.journal, known, bar),
                    self.options, self.pipeline.run_settings.workers,
                )  # fmt: skip
            except KeyboardInterrupt:
                logger.warning(
                    "Stopped: what has ended is kept (%s); continue with --resume.",
                    counted(len(self.journal.records), "trial"),
                )
                raise
