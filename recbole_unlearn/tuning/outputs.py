"""What a sweep leaves behind: `tune.json`, `best.yaml`, the settings on the front, and the report."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import make_directory, write_bytes, write_json
from recbole_unlearn.results.record import environment, plain_values
from recbole_unlearn.settings import TuneSettings, names
from recbole_unlearn.text import counted, decimal
from recbole_unlearn.tuning.journal import FAILED, Record
from recbole_unlearn.tuning.objective import Candidate, best, front
from recbole_unlearn.tuning.prepare import Prepared
from recbole_unlearn.tuning.space import Domain, Space, Values, Whole
from recbole_unlearn.tuning.table import table

SCHEMA = 1

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TuneResult:
    """What a sweep leaves behind: the content of `tune.json`, and where it is."""

    result: dict[str, Any]
    output_dir: Path

    def to_frame(self) -> pd.DataFrame:
        """The trials: a row for each time one was measured, with its settings and figures; failed ones have none."""
        return pd.DataFrame(
            [
                {"trial": record["number"], "state": record["state"], **record["settings"], **report}
                for record in self.result["trials"]
                for report in record["reports"] or [{}]
            ]
        )

    def __str__(self) -> str:
        return table(self.result)


def content(
    forget: dict[str, Any],
    options: TuneSettings,
    space: Space,
    prepared: Prepared,
    kept: Mapping[str, Record],
    prepare_seconds: float,
) -> dict[str, Any]:
    """The content of `tune.json`."""
    config = prepared.shared.config
    records = sorted(kept.values(), key=lambda record: record["number"])
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
        raise UnlearnError(f"All {counted(len(records), 'trial')} failed; the first one: {reasons[0]}")
    objective = prepared.shared.goal
    return {
        "schema": SCHEMA,
        "model": config["model"],
        "dataset": config["dataset"],
        "method": prepared.shared.method.name,
        "seed": config["seed"],
        # A sweep that was cut short and resumed is the same sweep.
        "settings": {k: v for k, v in plain_values(config).items() if k != "resume"},
        "forget": forget,
        "objective": {
            "metric": objective.metric,
            "affected": objective.affected,
            "weight": objective.weight,
            "target": objective.target,
            "target_source": "expected" if prepared.retrained is None else "retrained",
        },
        "space": {key: _plain(domain) for key, domain in space.domains.items()},
        "searcher": options.searcher,
        "scheduler": options.scheduler,
        "original": objective.judge(prepared.original),
        "retrained": None if prepared.retrained is None else objective.judge(prepared.retrained),
        "best": best(candidates),
        "front": front(candidates),
        "trials": records,
        "prepare_seconds": prepare_seconds,
        "environment": environment(prepared.shared.threads, config["device"]),
    }


def write(
    directory: Path, result: dict[str, Any], prepared: Prepared, options: TuneSettings, report: bool
) -> TuneResult:
    """Write all files of a sweep into ``directory``."""
    write_json(directory / "tune.json", result)
    _write_settings(directory / "best.yaml", result["best"], "The best settings", prepared)
    if options.tune_pareto:
        folder = make_directory(directory / "front")
        for place, candidate in enumerate(result["front"], 1):
            what = f"Settings {place} of the front"
            _write_settings(folder / f"{place:02d}.yaml", candidate, what, prepared)
    if report:
        from recbole_unlearn.report import write_sweep  # plotly, only where something is drawn

        logger.info("Report: %s", write_sweep(result, directory))
    logger.info("Best settings: %s", directory / "best.yaml")
    return TuneResult(result, directory)


def _write_settings(path: Path, candidate: Candidate, what: str, prepared: Prepared) -> None:
    """Settings as `--config_files` takes them: what was swept over, and what the user had set of the method."""
    shared = prepared.shared
    own = names(shared.method.Settings)
    fixed = {key: value for key, value in shared.config.external_config_dict.items() if key in own}
    values = {"unlearn": shared.method.name, **fixed, **candidate["settings"]}
    about = [
        f"{what} of a sweep of {shared.method.name} with {shared.config['model']} on {shared.config['dataset']}, "
        f"seed {shared.config['seed']}, trial {candidate['trial']}.",
        f"On validation interactions: {shared.goal.metric} {decimal(candidate['everyone'])} (all users), "
        f"{decimal(candidate['affected'])} (affected), demotion rate {decimal(candidate['demotion'], 3)}, "
        f"score {decimal(candidate['score'])}.",
        f"Use it with the same command: --config_files={path.name} instead of --tune.",
    ]
    text = "".join(f"# {line}\n" for line in about) + yaml.safe_dump(values, sort_keys=False)
    write_bytes(path, text.encode())


def _plain(domain: Domain) -> dict[str, Any]:
    """A domain as the file has it."""
    if isinstance(domain, Values):
        return {"grid" if domain.every else "choice": list(domain.values)}
    if isinstance(domain, Whole):
        return {"int": [domain.low, domain.high, domain.step]}
    return {"loguniform" if domain.logarithmic else "uniform": [domain.low, domain.high]}
