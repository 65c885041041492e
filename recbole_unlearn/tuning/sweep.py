"""A sweep from the request to `best.yaml`: what the command line calls for `--tune`.

The original (and, with `--compare=retrain`, the retrained model) is made once here; trials are run by `backend.py`
and kept in a journal as they end. Everything that can be refused is refused before anything is trained.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from recbole_unlearn import cluster, settings
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files.atomic import make_directory, write_bytes, write_json
from recbole_unlearn.files.trained import Trained
from recbole_unlearn.log import progress
from recbole_unlearn.measures.evaluation import DECIMALS
from recbole_unlearn.pipeline import Pipeline, begin
from recbole_unlearn.results.record import environment, plain_values
from recbole_unlearn.start import Arguments, opened
from recbole_unlearn.training.phase import PhaseTrainer, build_model, compose
from recbole_unlearn.tuning import backend, journal
from recbole_unlearn.tuning import space as spaces
from recbole_unlearn.tuning.goal import (
    Bench,
    Candidate,
    Figures,
    Goal,
    best,
    expected_demotion,
    front,
    read_metric,
    validation_only,
)
from recbole_unlearn.tuning.journal import FAILED, FINISHED, STOPPED, Journal, Record
from recbole_unlearn.tuning.space import Settings, identity
from recbole_unlearn.tuning.table import figure, table
from recbole_unlearn.tuning.trial import Report, Shared

SCHEMA = 1

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TuneResult:
    """What a sweep leaves behind: the content of `tune.json`, and where it is."""

    result: dict[str, Any]
    output_dir: Path

    def __str__(self) -> str:
        return table(self.result)


def tune_unlearn(model: str | type | None = None, dataset: str | None = None, **arguments: Any) -> TuneResult:
    """Sweep over a method's settings; arguments as :func:`~recbole_unlearn.quick_start.run_unlearn` has them."""
    with opened(Arguments(model, dataset, **arguments)) as (pipeline, wanted):
        return _Sweep(pipeline).run(wanted)


class _Sweep:
    """The steps of one sweep, in order."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline, self.config, self.directory = pipeline, pipeline.config, pipeline.directory
        self.options = settings.read(settings.TuneSettings, self.config)
        self.method = pipeline.methods[0]
        if self.method.own_original:
            raise UnlearnError(
                f"{self.method.name} trains an original of its own, so trials have none to share: it cannot be tuned."
            )
        address = pipeline.run_settings.ray_address
        backend.check(self.options.searcher, address)
        journal.refuse_other(self.directory, self.options.resume)
        self.space = spaces.load(self.config, self.method, self.options.space)
        self.listed = self._listed()
        read_metric(self.options, self.config)
        for other in pipeline.methods[1:]:
            if not other.exact:
                raise UnlearnError(
                    f"A sweep compares with retrain, not with {other.name}: leave it out, and compare when "
                    "you run the best settings."
                )

    def _listed(self) -> list[Settings] | None:
        """The settings of all trials, None where a searcher finds them as it goes."""
        if self.options.searcher == "grid":
            return self.space.grid()
        if self.options.searcher == "random":
            return self.space.random(self.options.trials, self.config["seed"])
        for key, domain in self.space.domains.items():
            if domain.every:
                raise UnlearnError(
                    f"{self.options.searcher} draws and does not go through the grid of {key}: "
                    f"write {key}: {{choice: [...]}}, or use --searcher=grid."
                )
        return None

    def run(self, forget: Any) -> TuneResult:
        """From the request to the written result."""
        with contextlib.ExitStack() as stack:
            ray = None
            if not self.options.resume or self.pipeline.run_settings.ray_address is not None:
                # A cluster that is not there is told at once; to go on with a sweep that is complete needs none.
                ray = stack.enter_context(self._session())
            start = time.perf_counter()
            self.pipeline.prepare(forget)
            self.shared = self._shared()
            self.prepare_seconds = round(time.perf_counter() - start, 2)
            self.journal = Journal(self.directory, journal.sweep_digest(self.shared), self.options.resume)
            known = self.journal.finished()
            if self._is_left(known):
                ray = ray or stack.enter_context(self._session())
                self._trials(ray, known)
        result = self._result()
        self._write(result)
        return TuneResult(result, self.directory)

    def _session(self) -> Any:
        run = self.pipeline.run_settings
        return cluster.session(run.ray_address, run.workers)

    def _is_left(self, known: dict[str, Record]) -> bool:
        """Whether a trial is left to do."""
        if self.listed is not None:
            return any(identity(values) not in known for values in self.listed)
        return len(known) < self.options.trials

    def _shared(self) -> Shared:
        """What all trials share, with the objective: the original's utility, and the target."""
        pipeline, options = self.pipeline, self.options
        data = validation_only(pipeline.data)
        metric = read_metric(options, self.config, data.full.train.item_num)
        bench = Bench(self.config, data, metric, pipeline.evaluation.demotion_negatives)
        objective = Goal(metric, options.tune_affected, options.tune_weight)
        before = self._figures(bench, pipeline.original)
        self.retrained = self._retrained(bench)
        target = expected_demotion(self.config, data) if self.retrained is None else self.retrained.demotion
        # Rounded, so that the last bits of another machine do not make another sweep of it.
        target = None if target is None else round(target, DECIMALS)
        objective = dataclasses.replace(
            objective, original=round(objective.utility(before), DECIMALS), target=target
        )
        self.original = before
        if target is not None:
            source = "the level of never-seen items" if self.retrained is None else "the retrained model's"
            logger.info("Demotion rate to reach: %.3f (%s).", target, source)
        return Shared(
            self.config, data, pipeline.original, self.method, self.config.method_values(self.method.name),
            objective, options.tune_looks, pipeline.evaluation.demotion_negatives, pipeline.run_settings.threads,
        )  # fmt: skip

    def _figures(self, bench: Bench, trained: Trained) -> Figures:
        """Of the original: a model of D, measured as every other."""
        model = build_model(self.config, bench.data.full)
        trained.load_into(model)
        return bench.measure(compose(PhaseTrainer, self.config, model, "original"))

    def _retrained(self, bench: Bench) -> Figures | None:
        """Of the retrained model, when it was asked for."""
        if len(self.pipeline.methods) == 1:
            return None
        method, options = self.pipeline.methods[1], self.pipeline.method_settings[1]
        trainer, task = begin(
            method, options, self.config, self.pipeline.data, self.pipeline.original, self.pipeline.trainings,
            "retrained",
        )  # fmt: skip
        trainer.run(task)
        return bench.measure(trainer)

    def _trials(self, ray: Any, known: dict[str, Record]) -> None:
        total = self.options.trials if self.listed is None else len(self.listed)
        shown = bool(self.config["show_progress"])
        with progress(f"Tune {self.method.name}", total, shown, "trial") as bar:
            try:
                backend.sweep(
                    ray, self.shared, self.space, self.listed, known, _Keeper(self.journal, known, bar),
                    self.options, self.pipeline.run_settings.workers,
                )  # fmt: skip
            except KeyboardInterrupt:
                logger.warning(
                    "Stopped: %d trials have ended and are kept; go on with --resume.",
                    len(self.journal.records),
                )
                raise

    def _result(self) -> dict[str, Any]:
        """The content of `tune.json`."""
        records = sorted(self.journal.records.values(), key=lambda record: record["number"])
        candidates = [
            {
                "trial": record["number"],
                **{k: v for k, v in report.items() if k not in ("last", "work_seconds")},
            }
            for record in records
            if record["state"] != FAILED
            for report in record["reports"]
        ]
        if not candidates:
            reasons = [record["error"] for record in records if record["error"]]
            raise UnlearnError(f"All {len(records)} trials failed; the first one: {reasons[0]}")
        objective = self.shared.goal
        return {
            "schema": SCHEMA,
            "model": self.config["model"],
            "dataset": self.config["dataset"],
            "method": self.method.name,
            "seed": self.config["seed"],
            # A sweep that was cut short and went on is the same sweep.
            "settings": {k: v for k, v in plain_values(self.config).items() if k != "resume"},
            "forget": self.pipeline.data.summary(),
            "objective": {
                "metric": objective.metric,
                "affected": objective.affected,
                "weight": objective.weight,
                "target": objective.target,
                "target_source": "expected" if self.retrained is None else "retrained",
            },
            "space": {key: _plain(domain) for key, domain in self.space.domains.items()},
            "searcher": self.options.searcher,
            "scheduler": self.options.scheduler,
            "original": objective.judge(self.original),
            "retrained": None if self.retrained is None else objective.judge(self.retrained),
            "best": best(candidates),
            "front": front(candidates),
            "trials": records,
            "prepare_seconds": self.prepare_seconds,
            "environment": environment(self.shared.threads, self.config["device"]),
        }

    def _write(self, result: dict[str, Any]) -> None:
        write_json(self.directory / "tune.json", result)
        self._write_settings(self.directory / "best.yaml", result["best"], "The best settings")
        if self.options.tune_pareto:
            folder = make_directory(self.directory / "front")
            for place, candidate in enumerate(result["front"], 1):
                self._write_settings(
                    folder / f"{place:02d}.yaml", candidate, f"Settings {place} of the front"
                )
        if self.pipeline.run_settings.report != "none":
            from recbole_unlearn.report import write_sweep  # plotly, only where something is drawn

            logger.info("Report: %s", write_sweep(result, self.directory))
        logger.info("Best settings: %s", self.directory / "best.yaml")

    def _write_settings(self, path: Path, candidate: Candidate, what: str) -> None:
        """Settings as `--config_files` takes them: what was swept over, and what the user had set of the method."""
        own = settings.names(self.method.Settings)
        fixed = {key: value for key, value in self.config.external_config_dict.items() if key in own}
        values = {"unlearn": self.method.name, **fixed, **candidate["settings"]}
        about = [
            f"{what} of a sweep of {self.method.name} with {self.config['model']} on {self.config['dataset']}, "
            f"seed {self.config['seed']}, trial {candidate['trial']}.",
            f"On validation rows: {self.shared.goal.metric} {candidate['everyone']:.4f} (all users), "
            f"{figure(candidate['affected'])} (affected), demotion rate {figure(candidate['demotion'], 3)}, "
            f"score {candidate['score']:.4f}.",
            f"Use it with the same command: --config_files={path.name} instead of --tune.",
        ]
        text = "".join(f"# {line}\n" for line in about) + yaml.safe_dump(values, sort_keys=False)
        write_bytes(path, text.encode())


class _Keeper:
    """Hears of trials: collects their reports, keeps them in the journal when they end, and shows progress."""

    def __init__(self, kept: Journal, known: dict[str, Record], progress: tqdm) -> None:
        self.journal, self.known, self.progress = kept, known, progress
        self.reports: dict[int, dict[int, Report]] = {}
        self.nodes: dict[int, str] = {}
        self.failed = 0
        self.top: float | None = None

    def reported(self, number: int, values: Settings, index: int, report: Report, node: str) -> None:
        """A trial has been measured."""
        self.reports.setdefault(number, {})[index] = report
        self.nodes[number] = node
        if self.top is None or report["score"] > self.top:
            self.top = report["score"]

    def ended(self, number: int, values: Settings, error: str | None) -> None:
        """A trial has ended; one that was known before is on disk already."""
        reports = [report for _, report in sorted(self.reports.pop(number, {}).items())]
        if identity(values) not in self.known:
            last = bool(reports) and reports[-1]["last"]
            state = FAILED if error is not None or not reports else FINISHED if last else STOPPED
            self.failed += state == FAILED
            self.journal.add(
                {
                    "number": number,
                    "settings": values,
                    "state": state,
                    "error": error,
                    "node": self.nodes.get(number),
                    "reports": reports,
                }
            )
        self.progress.set_postfix_str(
            ("" if self.top is None else f"best {self.top:.4f}")
            + (f", {self.failed} failed" if self.failed else "")
        )
        self.progress.update()


def _plain(domain: spaces.Domain) -> dict[str, Any]:
    """A domain as the file has it."""
    if isinstance(domain, spaces.Values):
        return {"grid" if domain.every else "choice": list(domain.values)}
    if isinstance(domain, spaces.Whole):
        return {"int": [domain.low, domain.high, domain.step]}
    return {"loguniform" if domain.logarithmic else "uniform": [domain.low, domain.high]}
