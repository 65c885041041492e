"""A grid of runs: what the command line calls for `--grid=FILE.yaml`.

Cells are independent of each other. Each is done in a temporary directory, here or by a worker of Ray, and comes back
as the content of its files, so no disk is shared; its directory appears when all of it is there. A cell that has a
result is not done again: the same command goes on after a kill, and tries again what failed.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recbole.utils import set_color
from tabulate import tabulate
from tqdm import tqdm

from recbole_unlearn import settings
from recbole_unlearn.cluster import Workers
from recbole_unlearn.config import UnlearnConfig
from recbole_unlearn.data import fetch
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import make_directory, new_directory, write_json
from recbole_unlearn.grid import plan
from recbole_unlearn.grid.plan import Cell
from recbole_unlearn.log import logging_to
from recbole_unlearn.quick_start import run_unlearn
from recbole_unlearn.report import results_in, write_comparison
from recbole_unlearn.report.entries import FAILED_FILE, PLAN_FILE, read_json
from recbole_unlearn.report.values import decimal, duration, number, percent, times

SCHEMA = 1
ASKED = "cell.json"  # in the directory of a cell: all that its figures depend on
LOGGER = "recbole_unlearn.grid"
_OF_GRID = ("output_dir", "workers", "ray_address", "show_progress", "resume")


@dataclasses.dataclass(frozen=True)
class GridResult:
    """What a grid leaves behind: its cells in the order of the file, those that failed, and the files about all."""

    cells: list[Cell]
    failed: dict[str, str]
    output_dir: Path
    files: list[Path]

    def __str__(self) -> str:
        return table(self.cells, self.failed, self.output_dir)


def run_grid(file: str | Path, *, config_dict: Mapping[str, Any] | None = None) -> GridResult:
    """Do the runs of a grid that have no result yet, and make tables of all.

    Args:
        file: the grid, see docs/grid.md.
        config_dict: output_dir, workers, ray_address and show_progress of the grid; any other setting is one of every
            run, and wins over the file's.

    """
    if not isinstance(file, (str, Path)) or not str(file):
        raise UnlearnError("A grid needs its file: --grid=properties/grid/smoke.yaml, for example.")
    given = dict(config_dict or {})
    own = {key: given.pop(key) for key in _OF_GRID if key in given}
    cells = plan.load(Path(file), given)
    config = UnlearnConfig(
        cells[0].model, cells[0].dataset, config_dict={**cells[0].settings(), "workers": None, **own}
    )
    run = settings.read(settings.RunSettings, config)
    directory = make_directory(run.output_dir or Path("saved") / f"grid-{Path(file).stem}")
    with logging_to(directory, config["state"] or "INFO", LOGGER):
        return _Grid(cells, directory, run, bool(own.get("show_progress", True))).run()


class _Grid:
    """The cells of a grid and where their results go."""

    def __init__(
        self, cells: list[Cell], directory: Path, run: settings.RunSettings, show_progress: bool
    ) -> None:
        self.cells, self.directory, self.show_progress = cells, directory, show_progress
        self.run_settings = run
        self.logger = logging.getLogger(LOGGER)
        self.left = [cell for cell in cells if not _is_done(directory, cell)]
        # What failed before and is tried again stays on record until it has been.
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
        with self._progress() as bar:
            try:
                self._work(bar)
            except KeyboardInterrupt:
                done = len(self.cells) - sum(not _is_done(self.directory, cell) for cell in self.cells)
                self.logger.warning("Stopped: %d of %d cells have a result.", done, len(self.cells))
                raise
        if len(self.failed) == len(self.cells):
            reason = self.failed[self.cells[0].name]
            raise UnlearnError(f"All {len(self.cells)} cells of the grid failed; the first one: {reason}")
        page = self.directory / "comparison.html"
        write_comparison(results_in(self.directory), page, grids=[self.directory])
        files = [page, page.with_name("tables.md"), page.with_name("tables.tex")]
        return GridResult(self.cells, self.failed, self.directory, files)

    def _work(self, bar: tqdm) -> None:
        workers = Workers(self.run_settings.workers, self.run_settings.ray_address)
        for position, outcome in workers.do(run_cell, [(_placed(cell),) for cell in self.left], go_on=True):
            cell = self.left[position]
            if isinstance(outcome, Exception):
                self.failed[cell.name] = _one_line(outcome)
                self.logger.warning("%s failed: %s", cell.name, self.failed[cell.name])
            else:
                self._keep(cell, outcome)
                self.failed.pop(cell.name, None)
                self.logger.info("%s: %s", cell.name, _said(self.directory / cell.name))
            self._write_failed()
            bar.set_postfix_str(f"{len(self.failed)} failed" if self.failed else "")
            bar.update()

    def _progress(self) -> tqdm:
        return tqdm(
            total=len(self.cells), initial=len(self.cells) - len(self.left), ncols=100, unit="cell",
            desc=set_color("Grid", "pink"), disable=not self.show_progress,
        )  # fmt: skip

    def _keep(self, cell: Cell, content: dict[str, bytes]) -> None:
        with new_directory(self.directory / cell.name) as folder:
            for name, data in content.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            write_json(folder / ASKED, _plain(cell.asked))

    def _plan(self) -> dict[str, Any]:
        keys = ("name", "dataset", "model", "source", "ratio", "seed", "phases")
        return {"schema": SCHEMA, "cells": [{key: getattr(cell, key) for key in keys} for cell in self.cells]}

    def _write_failed(self) -> None:
        if self.failed:
            write_json(self.directory / FAILED_FILE, self.failed)
        else:
            (self.directory / FAILED_FILE).unlink(missing_ok=True)


def run_cell(cell: Cell) -> dict[str, bytes]:
    """One run in a temporary directory; returns the content of its files by their names."""
    with tempfile.TemporaryDirectory(prefix="recbole-unlearn-") as work:
        folder = Path(work) / cell.name
        run_unlearn(cell.model, cell.dataset, output_dir=folder, config_dict=cell.settings())
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def _placed(cell: Cell) -> Cell:
    """With whole paths: a worker may stand in another directory."""
    config = cell.config()
    paths = {
        "cache_dir": config["cache_dir"],
        "data_path": {**config.internal_config_dict, **cell.values}["data_path"],
    }
    return dataclasses.replace(
        cell, values=cell.values | {key: str(Path(path).resolve()) for key, path in paths.items()}
    )


def _is_done(directory: Path, cell: Cell) -> bool:
    """Whether the cell has a result; one that was made with other settings or methods is refused."""
    folder = directory / cell.name
    if not (folder / "result.json").exists():
        return False
    found, asked = read_json(folder / ASKED), _plain(cell.asked)
    for part in ("methods", "settings", "methods_settings"):
        if found.get(part) != asked[part]:
            what = _differing(part, found.get(part), asked[part])
            raise UnlearnError(
                f"{folder} has a result with other {what}. Remove it to do it again, or choose another --output_dir."
            )
    return True


def _differing(part: str, found: Any, asked: Any) -> str:
    """What differs, by name."""
    if part == "methods":
        return "methods"
    found = found if isinstance(found, dict) else {}
    key = next(key for key in [*asked, *found] if found.get(key) != asked.get(key))
    return f"settings ({key})" if part == "settings" else f"settings of {key}"


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from a file."""
    return json.loads(json.dumps(content, default=str))


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return lines[0] if isinstance(error, UnlearnError) else f"{type(error).__name__}: {lines[0]}".rstrip(": ")


def _figures(folder: Path) -> list[str]:
    """The main figures of a cell's first method, for people."""
    result = read_json(folder / "result.json")
    phases = result.get("phases", {})
    return [
        *(
            decimal(number(phases, name, "affected", "ndcg@20"), 4)
            for name in ("original", "unlearned", "retrained")
        ),
        percent(number(result, "recovered", "ndcg@20")),
        *(
            decimal(number(phases, name, "forgetting", "demotion_rate"))
            for name in ("unlearned", "retrained")
        ),
        duration(number(phases, "unlearned", "seconds")),
        times(number(result, "speedup")),
    ]


def _said(folder: Path) -> str:
    before, after, target, _, demotion, goal, seconds, faster = _figures(folder)
    method = read_json(folder / "result.json").get("method")
    return (
        f"{method}, NDCG@20 of affected users {before} to {after} (retrained {target}), demotion rate {demotion} "
        f"(retrained {goal}), {seconds}, {faster} faster."
    )


def table(cells: Sequence[Cell], failed: Mapping[str, str], directory: Path) -> str:
    """A row for each cell with the figures of its first method; below it, what failed and why."""
    head = [
        "cell",
        "method",
        "N@20 before",
        "after",
        "retrained",
        "recovered",
        "demotion",
        "retrained",
        "time",
        "speed-up",
    ]
    rows = []
    for cell in cells:
        figures = ["failed"] if cell.name in failed else _figures(directory / cell.name)
        rows.append([cell.name, cell.methods[0], *figures])
    align = ("left", "left", *["right"] * (len(head) - 2))
    text = tabulate(rows, headers=head, disable_numparse=True, colalign=align)
    lines = [text, "N@20: NDCG@20 of affected users. All methods, with means over seeds: tables.md."]
    lines += [f"{name} failed: {why}" for name, why in failed.items()]
    return "\n".join(lines)
