"""`--tune`: a sweep from the request to `tune.json` and `best.yaml`.

The original (and, with `--compare=retrain`, the retrained model) is made once here; trials are run by `backend.py`
and kept in a journal as they end. Everything that can be refused is refused before anything is trained.
"""

import dataclasses
import logging
import time
from pathlib import Path
from typing import Any

import yaml

from recbole_unlearn import cluster, settings
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import write_bytes, write_json
from recbole_unlearn.log import progress_bar
from recbole_unlearn.pipeline import Pipeline
from recbole_unlearn.quick_start import opened
from recbole_unlearn.results.record import environment, plain_values
from recbole_unlearn.text import MISSING, counted, decimal, drawn, wrapped
from recbole_unlearn.training.threads import of_one_process
from recbole_unlearn.tuning import backend
from recbole_unlearn.tuning import space as spaces
from recbole_unlearn.tuning.space import identity
from recbole_unlearn.tuning.trial import Shared, best, front, prepare, refuse_untunable

SCHEMA = 1
ROWS = 15  # trials in the table
NO_BETTER = "No trial is better than the untouched original, by this objective: do not use best.yaml."

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TuneResult:
    """The content of `tune.json`, and its directory."""

    result: dict[str, Any]
    output_dir: Path

    def __str__(self) -> str:
        """The trials, best first; then lines about the best and about failures."""
        result = self.result
        keys, records, objective = list(result["space"]), result["trials"], result["objective"]
        good = [record for record in records if record["state"] == backend.FINISHED]
        rows = [[name, *[""] * len(keys), *_cells(result[name])] for name in ("original", "retrained")]
        for record in sorted(good, key=lambda one: -one["figures"]["score"])[:ROWS]:
            values = [_plain(record["settings"].get(key)) for key in keys]
            rows.append([f"trial {record['number']}", *values, *_cells(record["figures"])])
        head = ["", *keys, objective["metric"], "affected", "demotion", "score", "seconds"]
        lines = []
        if len(good) > ROWS:
            lines.append(f"The best {ROWS} of {counted(len(good), 'trial')}; tune.json has all.")
        failed = [record for record in records if record["state"] == backend.FAILED]
        lines += [f"Trial {record['number']} failed: {record['error']}" for record in failed]
        chosen = ", ".join(f"{key}={_plain(value)}" for key, value in result["best"]["settings"].items())
        headline = [] if result["beats_original"] else [NO_BETTER, ""]
        lines.append(f"Best, on validation interactions: trial {result['best']['trial']}, {chosen}.")
        if objective["target"] is not None:
            lines.append(f"Demotion rate to reach: {decimal(objective['target'], 3)} (retrained).")
        number = counted(len(result["front"]), "candidate")
        lines.append(f"On the front of utility and forgetting: {number}; tune.json has their settings.")
        return "\n".join([*headline, drawn(head, rows), *map(wrapped, lines)])


def tune_unlearn(model: str | type | None = None, dataset: str | None = None, **arguments: Any) -> TuneResult:
    """Sweep over a method's settings; the arguments are those of :func:`~recbole_unlearn.quick_start.run_unlearn`."""
    with opened(model, dataset, **arguments, as_one=False) as (pipeline, wanted):
        return _Sweep(pipeline).run(wanted)


class _Sweep:
    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline, self.config, self.directory = pipeline, pipeline.config, pipeline.directory
        self.options = settings.read(settings.TuneSettings, self.config)
        self.method = pipeline.methods[0].method
        refuse_untunable(pipeline, self.options)
        backend.refuse(self.directory, self.options.resume, pipeline.run_settings.ray_address)
        self.space = spaces.load(self.config, self.method, self.options.space)
        if self.options.searcher == "grid":
            self.listed = self.space.grid()
        else:
            self.listed = self.space.random(self.options.trials, self.config["seed"])

    def run(self, forget: Any) -> TuneResult:
        """From the request to the written result."""
        run = self.pipeline.run_settings
        with cluster.session(run.ray_address, run.workers) as ray:  # first: it may not be there
            start = time.perf_counter()
            self.pipeline.prepare(forget)
            shared, references = prepare(self.pipeline, self.options)
            seconds = round(time.perf_counter() - start, 2)
            kept = backend.Journal(self.directory, backend.sweep_digest(shared, self.space))
            left = sum(identity(values) not in kept.known for values in self.listed)
            shown = bool(self.config["show_progress"])
            with progress_bar(f"Tune {self.method.name}", len(self.listed), shown and left > 0, "trial") as kept.bar:
                try:
                    if left > 0:
                        backend.run_trials(ray, shared, self.listed, kept)
                except KeyboardInterrupt:
                    number = counted(len(kept.records), "trial")
                    logger.warning("Stopped: finished trials are kept (%s); continue with --resume.", number)
                    raise
        content = {**self._content(shared, kept), **references, "prepare_seconds": seconds}
        content["beats_original"] = content["best"]["score"] > content["original"]["score"]
        self._write(content)
        return TuneResult(content, self.directory)

    def _content(self, shared: Shared, kept: backend.Journal) -> dict[str, Any]:
        """The content of `tune.json` without the figures of original and retrained model."""
        config, goal = self.config, shared.goal
        records = sorted(kept.records.values(), key=lambda record: record["number"])
        candidates = [
            {"trial": record["number"], "settings": record["settings"], **record["figures"]}
            for record in records
            if record["state"] == backend.FINISHED
        ]
        if not candidates:
            reasons = [record["error"] for record in records if record["error"]]
            raise UnlearnError(f"All {counted(len(records), 'trial')} failed; the first one: {reasons[0]}")
        objective = {name: getattr(goal, name) for name in ("metric", "affected", "weight", "target")}
        return {
            "schema": SCHEMA, "model": config["model"], "dataset": config["dataset"],
            "method": self.method.name, "seed": config["seed"],
            # A sweep that was cut short and resumed is the same sweep.
            "settings": {k: v for k, v in plain_values(config).items() if k != "resume"},
            "forget": self.pipeline.forgotten.to_json(),
            "objective": objective,
            "space": dict(self.space.lines),
            "searcher": self.options.searcher,
            "best": best(candidates), "front": front(candidates), "trials": records,
            "environment": environment(of_one_process(config["threads"]), config["device"]),
        }  # fmt: skip

    def _write(self, content: dict[str, Any]) -> None:
        """`tune.json`, and for `--config_files` the best settings and those of the method that the user had set."""
        config, own, best = self.config, settings.names(self.method.Settings), content["best"]
        fixed = {key: value for key, value in config.external_config_dict.items() if key in own}
        values = {"unlearn": self.method.name, **fixed, **best["settings"]}
        metric = content["objective"]["metric"]
        lines = [
            f"The best settings of a sweep of {self.method.name} with {config['model']} on {config['dataset']}, "
            f"seed {config['seed']}, trial {best['trial']}.",
            f"On validation interactions: {metric} {decimal(best['everyone'])} (all users), "
            f"{decimal(best['affected'])} (affected), demotion rate {decimal(best['demotion'], 3)}, "
            f"score {decimal(best['score'])}.",
            "Use it with the same command: --config_files=best.yaml instead of --tune.",
            *([] if content["beats_original"] else [NO_BETTER]),
        ]
        text = "".join(f"# {line}\n" for line in lines) + yaml.safe_dump(values, sort_keys=False)
        write_json(self.directory / "tune.json", content)
        write_bytes(self.directory / "best.yaml", text.encode())
        logger.info("Best settings: %s", self.directory / "best.yaml")


def _cells(figures: dict[str, Any]) -> list[str]:
    cells = [
        decimal(figures[key], 3 if key == "demotion" else 4) for key in ("everyone", "affected", "demotion", "score")
    ]
    return [*cells, decimal(figures["seconds"], 2) if "seconds" in figures else ""]


def _plain(value: Any) -> str:
    """The value of a setting, numbers with four significant digits."""
    return f"{value:z.4g}" if isinstance(value, float) else MISSING if value is None else str(value)
