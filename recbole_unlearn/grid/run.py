"""`--grid=FILE.yaml`: do the cells of a grid that have no result yet, and write tables of all of them.

Cells are independent of each other. Each runs in a temporary directory, in this process or on a Ray worker, and
returns the content of its files, so no disk is shared; its directory appears when it is complete. A cell that has a
result is not done again: the same command continues after a kill, and retries the cells that failed.
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from recbole_unlearn import report
from recbole_unlearn.cluster import Workers
from recbole_unlearn.data import fetch
from recbole_unlearn.errors import UnlearnError, one_line
from recbole_unlearn.files import made, new_directory, write_json
from recbole_unlearn.grid.plan import Cell, load
from recbole_unlearn.log import logging_to, on_terminal, progress_bar
from recbole_unlearn.quick_start import opened
from recbole_unlearn.results import ORIGINAL, RETRAINED, UNLEARNED, PhaseResult, RunResult
from recbole_unlearn.results.table import frame as frame_of
from recbole_unlearn.settings import RunSettings, UnlearnConfig, packaged, read
from recbole_unlearn.text import counted, drawn, speed, wrapped

SCHEMA = 1
ASKED = "cell.json"  # in the directory of a cell: all that its figures depend on
_HEAD = (
    "cell", "method", "N@20 before", "after", "retrained", "recovered", "demotion", "retrained", "time", "speed-up",
)  # fmt: skip
_OF_GRID = ("output_dir", "workers", "ray_address", "show_progress", "resume")

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class GridResult:
    """The outputs of a grid: its cells in the order of the file, the reasons of failures, the files about all."""

    cells: list[Cell]
    failed: dict[str, str]
    output_dir: Path
    files: list[Path]

    def to_frame(self) -> pd.DataFrame:
        """The figures of all cells that did not fail, a row each, with the cell, model, dataset, ratio and seed."""
        parts = []
        for cell in self.cells:
            if cell.name in self.failed:
                continue
            result = self._result(cell)
            own = {key: getattr(cell, key) for key in ("model", "dataset", "ratio", "seed")}
            own = {"cell": cell.name, **own, "method": result.method}
            figures = frame_of(result)
            parts.append(pd.DataFrame(own, index=figures.index).join(figures))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    def __str__(self) -> str:
        """A row for each cell with the figures of its first method; then the reason of each failure."""
        rows = []
        for cell in self.cells:
            figures = ["failed"] if cell.name in self.failed else _figures(self._result(cell))
            rows.append([cell.name, cell.methods[0], *figures, *[""] * (len(_HEAD) - 2 - len(figures))])
        lines = ["N@20: NDCG@20 of affected users. All methods, with means over seeds: tables.md."]
        lines += [f"{name} failed: {why}" for name, why in self.failed.items()]
        return "\n".join([drawn(_HEAD, rows, left=2), *map(wrapped, lines)])

    def _result(self, cell: Cell) -> RunResult:
        return report.read_result(self.output_dir / cell.name / "result.json")


def run_grid(file: str | Path, *, config_dict: Mapping[str, Any] | None = None) -> GridResult:
    """Do the runs of a grid that have no result yet, and write tables of all runs.

    Args:
        file: the grid, see docs/many-runs.md; smoke, machine and paper are in the package.
        config_dict: output_dir, workers, ray_address and show_progress of the grid; any other setting goes to every
            run, and overrides the file's.

    """
    if not isinstance(file, (str, Path)) or not str(file):
        raise UnlearnError("A grid needs its file: --grid=smoke or --grid=FILE.yaml, for example.")
    given = dict(config_dict or {})
    own = {key: given.pop(key) for key in _OF_GRID if key in given}
    path = packaged(file, "grid", "--grid")
    cells = load(path, given)
    config = UnlearnConfig(
        cells[0].model, cells[0].dataset, config_dict={**cells[0].settings(), "workers": None, **own}
    )
    run = read(RunSettings, config)
    shown = bool(own.get("show_progress", on_terminal()))
    with (
        made(run.output_dir or Path("saved") / f"grid-{path.stem}") as directory,
        logging_to(directory, config["state"] or "INFO", "recbole_unlearn.grid"),
    ):
        return _run(cells, directory, run, shown)


def _run(cells: list[Cell], directory: Path, run: RunSettings, show_progress: bool) -> GridResult:
    """Do the cells that are left, then write the tables."""
    left = [cell for cell in cells if not _is_done(directory, cell)]
    # A cell that failed before stays on record until it has been tried again.
    before = report.read_mapping(directory / report.FAILED_FILE)
    failed = {cell.name: before[cell.name] for cell in left if cell.name in before}
    if run.ray_address is None:  # nodes of a cluster have data of their own
        sources = {(cell.dataset, str(cell.values.get("data_path"))): cell for cell in left}
        for cell in sources.values():
            fetch(cell.config().replace(show_progress=show_progress))
    keys = ("name", "dataset", "model", "source", "ratio", "seed", "phases")
    plan = [{key: getattr(cell, key) for key in keys} for cell in cells]
    write_json(directory / report.PLAN_FILE, {"schema": SCHEMA, "cells": plan})
    _write_failed(directory, failed)
    with progress_bar("Grid", len(cells), show_progress, "cell") as bar:
        bar.update(len(cells) - len(left))
        try:
            work = Workers(run.workers, run.ray_address).do(run_cell, [(_placed(c),) for c in left], go_on=True)
            for position, outcome in work:
                _keep(directory, left[position], outcome, failed)
                bar.set_postfix_str(f"{len(failed)} failed" if failed else "")
                bar.update()
        except KeyboardInterrupt:
            done = sum(_is_done(directory, cell) for cell in cells)
            logger.warning("Stopped: a result for %d of %s.", done, counted(len(cells), "cell"))
            raise
    if len(failed) == len(cells):
        reason = failed[cells[0].name]
        raise UnlearnError(f"All {counted(len(cells), 'cell')} of the grid failed; the first one: {reason}")
    page = directory / "comparison.html"
    report.write_comparison(report.results_in(directory), page, grids=[directory])
    return GridResult(cells, failed, directory, [page, page.with_name("tables.md"), page.with_name("tables.tex")])


def _keep(directory: Path, cell: Cell, outcome: Any, failed: dict[str, str]) -> None:
    """Write the files of a cell, or note in ``failed`` why it has none."""
    if isinstance(outcome, Exception):
        failed[cell.name] = one_line(outcome)
        logger.warning("%s failed: %s", cell.name, failed[cell.name])
    else:
        with new_directory(directory / cell.name) as folder:
            for name, data in outcome.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
            write_json(folder / ASKED, cell.asked)
        failed.pop(cell.name, None)
        logger.info("%s: %s", cell.name, _summary(directory / cell.name))
    _write_failed(directory, failed)


def _write_failed(directory: Path, failed: dict[str, str]) -> None:
    if failed:
        write_json(directory / report.FAILED_FILE, failed)
    else:
        (directory / report.FAILED_FILE).unlink(missing_ok=True)


def run_cell(cell: Cell) -> dict[str, bytes]:
    """Do one run in a temporary directory; returns the content of its files by their names."""
    with tempfile.TemporaryDirectory(prefix="recbole-unlearn-") as work:
        folder = Path(work) / cell.name
        with opened(cell.model, cell.dataset, output_dir=folder, config_dict=cell.settings()) as (pipeline, wanted):
            pipeline.run(wanted)
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def _placed(cell: Cell) -> Cell:
    """The cell with absolute paths: a worker may be in another directory."""
    config = cell.config()
    data_path = {**config.internal_config_dict, **cell.values}["data_path"]
    paths = {"cache_dir": config["cache_dir"], "data_path": data_path}
    absolute = {key: str(Path(path).resolve()) for key, path in paths.items()}
    return dataclasses.replace(cell, values=cell.values | absolute)


def _is_done(directory: Path, cell: Cell) -> bool:
    """Whether the cell has a result; one that was made with other settings or methods is refused."""
    folder = directory / cell.name
    if not (folder / "result.json").exists():
        return False
    found = report.read_mapping(folder / ASKED)
    for part, own in cell.asked.items():  # methods, settings, methods_settings
        before = found.get(part)
        if before == own:
            continue
        what = "methods"
        if part != "methods":
            before = before if isinstance(before, dict) else {}
            key = next(key for key in [*own, *before] if before.get(key) != own.get(key))
            what = f"settings ({key})" if part == "settings" else f"settings of {key}"
        raise UnlearnError(
            f"{folder} has a result with other {what}. Remove it to do it again, or choose another --output_dir."
        )
    return True


def _figures(result: RunResult) -> list[str]:
    """The main figures of a cell's first method."""
    phases = [result.phases.get(name, PhaseResult()) for name in (ORIGINAL, UNLEARNED, RETRAINED)]
    _, after, target = phases
    return [
        *(report.decimal(phase.affected.get("ndcg@20"), 4) for phase in phases),
        report.percent((result.recovered or {}).get("ndcg@20")),
        *(report.decimal(phase.demotion_rate) for phase in (after, target)),
        report.duration(after.seconds),
        report.times(result.speedup),
    ]


def _summary(folder: Path) -> str:
    """One line about a cell that is done."""
    result = report.read_result(folder / "result.json")
    before, after, target, _, demotion, goal, seconds, _ = _figures(result)
    faster = "" if result.speedup is None else f", {speed(result.speedup, '×')}"
    return (
        f"{result.method}, NDCG@20 of affected users {before} to {after} (retrained {target}), demotion rate "
        f"{demotion} (retrained {goal}), {seconds}{faster}."
    )
