"""A grid of runs: what the command line calls for `--grid=FILE.yaml`.

Cells are independent of each other. Each is done in a temporary directory, here or by a worker of Ray, and comes back
as the content of its files, so no disk is shared; its directory appears when all of it is there. A cell that has a
result is not done again: the same command continues after a kill, and tries again what failed.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from recbole_unlearn.cluster import Workers
from recbole_unlearn.data import fetch
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import made, new_directory, write_json
from recbole_unlearn.grid.cells import ASKED, is_done, placed, plain, run_cell
from recbole_unlearn.grid.plan import Cell, find, load
from recbole_unlearn.grid.table import frame, said, table
from recbole_unlearn.log import logging_to, on_terminal, progress
from recbole_unlearn.report import FAILED_FILE, PLAN_FILE, read_json, results_in, write_comparison
from recbole_unlearn.settings import RunSettings, UnlearnConfig, read
from recbole_unlearn.words import counted

SCHEMA = 1

logger = logging.getLogger(__name__)

_OF_GRID = ("output_dir", "workers", "ray_address", "show_progress", "resume")


@dataclasses.dataclass(frozen=True)
class GridResult:
    """What a grid leaves behind: its cells in the order of the file, those that failed, and the files about all."""

    cells: list[Cell]
    failed: dict[str, str]
    output_dir: Path
    files: list[Path]

    def to_frame(self) -> pd.DataFrame:
        """The figures of all cells that did not fail, a row each, with the cell, model, dataset, ratio and seed."""
        return frame([cell for cell in self.cells if cell.name not in self.failed], self.output_dir)

    def __str__(self) -> str:
        return table(self.cells, self.failed, self.output_dir)


def run_grid(file: str | Path, *, config_dict: Mapping[str, Any] | None = None) -> GridResult:
    """Do the runs of a grid that have no result yet, and make tables of all.

    Args:
        file: the grid, see docs/grid.md; smoke, machine and paper are names of those that are in the package.
        config_dict: output_dir, workers, ray_address and show_progress of the grid; any other setting is for every
            run, and wins over the file's.

    """
    if not isinstance(file, (str, Path)) or not str(file):
        raise UnlearnError("A grid needs its file: --grid=smoke or --grid=FILE.yaml, for example.")
    given = dict(config_dict or {})
    own = {key: given.pop(key) for key in _OF_GRID if key in given}
    path = find(file)
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
        return _Grid(cells, directory, run, shown).run()


class _Grid:
    """The cells of a grid and where their results go."""

    def __init__(self, cells: list[Cell], directory: Path, run: RunSettings, show_progress: bool) -> None:
        self.cells, self.directory, self.show_progress = cells, directory, show_progress
        self.run_settings = run
        self.left = [cell for cell in cells if not is_done(directory, cell)]
        # A cell that failed before stays on record until it has been tried again.
        names = {cell.name for cell in self.left}
        self.failed = {name: why for name, why in read_json(directory / FAILED_FILE).items() if name in names}

    def run(self) -> GridResult:
        """Do what is left, then the tables."""
        if self.run_settings.ray_address is None:  # nodes of a cluster have data of their own
            sources = {(cell.dataset, str(cell.values.get("data_path"))): cell for cell in self.left}
            for cell in sources.values():
                fetch(cell.config().replace(show_progress=self.show_progress))
        write_json(self.directory / PLAN_FILE, self._plan())
        self._write_failed()
        with progress("Grid", len(self.cells), self.show_progress, "cell") as bar:
            bar.update(len(self.cells) - len(self.left))
            try:
                self._work(bar)
            except KeyboardInterrupt:
                done = len(self.cells) - sum(not is_done(self.directory, cell) for cell in self.cells)
                logger.warning("Stopped: a result for %d of %s.", done, counted(len(self.cells), "cell"))
                raise
        if len(self.failed) == len(self.cells):
            reason = self.failed[self.cells[0].name]
            raise UnlearnError(
                f"All {counted(len(self.cells), 'cell')} of the grid failed; the first one: {reason}"
            )
        page = self.directory / "comparison.html"
        write_comparison(results_in(self.directory), page, grids=[self.directory])
        files = [page, page.with_name("tables.md"), page.with_name("tables.tex")]
        return GridResult(self.cells, self.failed, self.directory, files)

    def _work(self, bar: tqdm) -> None:
        workers = Workers(self.run_settings.workers, self.run_settings.ray_address)
        for position, outcome in workers.do(run_cell, [(placed(cell),) for cell in self.left], go_on=True):
            cell = self.left[position]
            if isinstance(outcome, Exception):
                self.failed[cell.name] = _one_line(outcome)
                logger.warning("%s failed: %s", cell.name, self.failed[cell.name])
            else:
                self._keep(cell, outcome)
                self.failed.pop(cell.name, None)
                logger.info("%s: %s", cell.name, said(self.directory / cell.name))
            self._write_failed()
            bar.set_postfix_str(f"{len(self.failed)} failed" if self.failed else "")
            bar.update()

    def _keep(self, cell: Cell, content: dict[str, bytes]) -> None:
        with new_directory(self.directory / cell.name) as folder:
            for name, data in content.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            write_json(folder / ASKED, plain(cell.asked))

    def _plan(self) -> dict[str, Any]:
        keys = ("name", "dataset", "model", "source", "ratio", "seed", "phases")
        return {"schema": SCHEMA, "cells": [{key: getattr(cell, key) for key in keys} for cell in self.cells]}

    def _write_failed(self) -> None:
        if self.failed:
            write_json(self.directory / FAILED_FILE, self.failed)
        else:
            (self.directory / FAILED_FILE).unlink(missing_ok=True)


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return lines[0] if isinstance(error, UnlearnError) else f"{type(error).__name__}: {lines[0]}".rstrip(": ")
