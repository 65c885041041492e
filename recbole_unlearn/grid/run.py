"""`--grid=FILE.yaml`: read which runs make up a grid, do those that have no result yet, and write tables of all.

    datasets: [ml-100k]
    models: [BPR, LightGCN]              # or package.module:Class, imported from the working directory
    methods: [obliviate, retrain]
    seeds: [2020, 2021]
    ratios: [0.2]                        # and, or instead, requests: [requests.csv]
    settings: {epochs: 50}               # config_files: [own.yaml] come before them

Every combination of dataset, model, seed and ratio or request is a *cell*: one run with all methods, so that times
are compared inside one run. `grids:` is a list of such blocks, each with its own lists; the keys next to it hold for
all blocks. The whole file is checked before anything is trained, and all that is wrong with it is said at once.

Each cell runs in a temporary directory, in this process or on a Ray worker, and returns the content of its files, so
no disk is shared; its directory appears when it is complete. A cell that has a result is not done again: the same
command continues after a kill, and retries the cells that failed.
"""

import contextlib
import dataclasses
import itertools
import json
import logging
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from recbole_unlearn import report
from recbole_unlearn.cluster import Workers
from recbole_unlearn.data import fetch
from recbole_unlearn.errors import UnlearnError, nearest, one_line
from recbole_unlearn.files import made, new_directory, write_json
from recbole_unlearn.log import logging_to, on_terminal, progress_bar
from recbole_unlearn.pipeline import checked_settings
from recbole_unlearn.quick_start import opened
from recbole_unlearn.registry import METHODS
from recbole_unlearn.results import flat
from recbole_unlearn.results.record import plain_values
from recbole_unlearn.results.table import against_retraining
from recbole_unlearn.settings import (
    GROUPS,
    Role,
    RunSettings,
    UnlearnConfig,
    about,
    packaged,
    read,
    read_yaml,
    typed_class,
)
from recbole_unlearn.text import counted, drawn, wrapped
from recbole_unlearn.training.threads import of_one_process

SCHEMA = 1
LARGEST = 10_000  # cells that a grid may have
MOST_SHOWN = 20  # problems of a file in one message
_LISTS = ("datasets", "models", "methods", "seeds", "ratios", "requests")
_KEYS = (*_LISTS, "config_files", "settings")
_EXAMPLES = {
    "datasets": "datasets: [ml-100k]", "models": "models: [BPR, LightGCN]", "seeds": "seeds: [2020, 2021]",
    "methods": "methods: [obliviate, retrain]", "ratios": "ratios: [0.05, 0.2]", "requests": "requests: [mine.csv]",
    "config_files": "config_files: [own.yaml]",
}  # fmt: skip
# The type of a list's values, which of them fit (a bool is no number), and what these are.
_NAME = (str, lambda value: type(value) in (str, int) and str(value).strip(), "a name")
_VALUES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "seeds": (int, lambda value: type(value) is int and 0 <= value < 2**31,
              "a seed; expected a whole number from 0 on, below 2^31"),
    "ratios": (float, lambda value: type(value) in (int, float) and 0 < value <= 1,
               "a share of users; expected a number above 0 and at most 1"),
    "requests": (str, lambda value: type(value) is str and Path(value).is_file(), "a file of requests"),
}  # fmt: skip
# The settings that make a cell, and the lists that have their values.
_OF_CELLS = {
    "model": "models", "dataset": "datasets", "seed": "seeds", "inject_users": "ratios", "unlearn": "methods",
    "compare": "methods", "forget": "requests",
}  # fmt: skip
# A grid is for figures: it keeps no models, and its runs are quiet and use one worker.
_OF_RUNS = {"save_unlearned": False, "tensorboard": False, "show_progress": False, "workers": 1}
ASKED = "cell.json"  # in the directory of a cell: all that its figures depend on
_OF_GRID = ("output_dir", "workers", "ray_address", "show_progress", "resume")

logger = logging.getLogger(__name__)


class Cell(NamedTuple):
    """One run of a grid: its settings, and in ``asked`` all that its figures depend on."""

    dataset: str
    typed: str  # the model as it was typed, which may be package.module:Class
    subject: float | str  # the share of users with injected noise, or a file of requests
    seed: int
    methods: tuple[str, ...]
    values: dict[str, Any]
    asked: dict[str, Any]

    @property
    def model(self) -> str:
        """The name of its model."""
        return self.typed.rpartition(":")[2]

    @property
    def ratio(self) -> float | None:
        """The share of users with injected noise; None with a file of requests."""
        return None if isinstance(self.subject, str) else self.subject

    @property
    def request(self) -> str | None:
        """A name for its file of requests, as results and directories have it."""
        file = isinstance(self.subject, str)
        return re.sub(r"[^A-Za-z0-9._-]", "_", Path(str(self.subject)).stem)[:64] if file else None

    @property
    def name(self) -> str:
        """Its directory, for example ml-100k-BPR-0.2-2020."""
        return f"{self.dataset}-{self.model}-{self.request or format(self.subject, '.12g')}-{self.seed}"

    @property
    def model_or_class(self) -> Any:
        """The model for a config: a name of RecBole's, or a class."""
        return typed_class(self.typed) if ":" in self.typed else self.typed

    def config(self, **more: Any) -> UnlearnConfig:
        """The configuration of its run, with ``more`` settings."""
        return UnlearnConfig(self.model_or_class, self.dataset, config_dict={**self.settings(), **more})

    def settings(self) -> dict[str, Any]:
        """The settings of its run."""
        first, *others = self.methods
        own: dict[str, Any] = {"seed": self.seed, "unlearn": first, "compare": others}
        if self.request is None:
            own |= {"inject_users": self.ratio, "forget": "injected"}
        else:
            own |= {"forget": self.subject, "request_id": self.request}
        return {**self.values, **own}


class _Problems(list[str]):
    """All that is wrong with a file."""

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Keep a refusal in the block, and go on."""
        try:
            yield
        except UnlearnError as error:
            if str(error) not in self:
                self.append(str(error))


def load(path: Path, given: Mapping[str, Any] | None = None) -> list[Cell]:
    """The cells of the grid file ``path``; settings in ``given`` win over those of the file."""
    path, problems = Path(path), _Problems()
    cells: list[Cell] = []
    with problems.noted():
        _refuse_cell_settings(given or {})
    content = read_yaml(path, "grid", "--grid", _EXAMPLES["models"])
    if not content:
        raise UnlearnError(f"{path} is empty; expected lines such as {_EXAMPLES['models']}.")
    shared = {key: value for key, value in content.items() if key != "grids"}
    _note_unknown(shared, (*_KEYS, "grids"), problems)
    blocks = content.get("grids", [{}])
    if not isinstance(blocks, list) or not blocks or not all(isinstance(block, dict) for block in blocks):
        problems.append("grids is not a list of grids; expected for example '- {models: [BPR], seeds: 1}'.")
        blocks = []
    for number, block in enumerate(blocks, 1):
        where = f"grid {number}: " if "grids" in content else ""
        found = _Problems()
        _note_unknown(block, _KEYS, found)
        with found.noted():
            cells += _cells(shared, block, given or {}, found)
        problems += [f"{where}{problem}" for problem in found]
    with problems.noted():
        _refuse_twice("the cell", [cell.name for cell in cells])
    if len(problems) > 1:
        shown = " ".join(f"({number}) {problem}" for number, problem in enumerate(problems[:MOST_SHOWN], 1))
        raise UnlearnError(f"{path}: {len(problems)} problems: {shown}")
    if problems:
        raise UnlearnError(f"{path}: {problems[0]}")
    return cells


def _refuse_cell_settings(values: Mapping[Any, Any], in_grid: bool = False) -> None:
    """Refuse settings that a grid gives its runs by other means; in its own file also places other than the data."""
    for key in values:
        problem = ""
        if not isinstance(key, str):
            problem = f"settings: {key!r} is not the name of a setting"
        elif key in _OF_CELLS:
            problem = f"{key} differs between the runs of a grid: list its values under {_OF_CELLS[key]}"
        elif not about(key).per_run:
            problem = f"{key} is not a setting of the runs of a grid; leave it out"
        elif in_grid and about(key).role is Role.PLACE and key != "data_path":
            problem = f"{key} is a place on one machine: give --{key} on the command line instead"
        if problem:
            raise UnlearnError(f"{problem}.")


def _note_unknown(block: dict[Any, Any], known: tuple[str, ...], problems: _Problems) -> None:
    for key in block:
        if key not in known:
            problems.append(f"unknown key {key!r}.{nearest(str(key), known)} One of {', '.join(known)}.")


def _cells(
    shared: dict[str, Any], block: dict[str, Any], given: Mapping[str, Any], problems: _Problems
) -> Iterator[Cell]:
    """The cells of a block with the keys that all blocks share; what is wrong with it goes to ``problems``."""
    values: dict[str, Any] = dict(_OF_RUNS)
    for part in (shared, block):
        with problems.noted():
            for file in _list(part, "config_files") if "config_files" in part else []:
                values |= _settings_of(read_yaml(Path(file), option="config_files"))
        with problems.noted():
            values |= _settings_of(part.get("settings", {}), in_grid=True)
    values |= given
    block |= {key: value for key, value in shared.items() if key not in block}
    lists: dict[str, list[Any]] = {key: [] for key in _LISTS}
    for key in _LISTS:
        if key in block or key != ("ratios" if "requests" in block else "requests"):  # either is enough
            with problems.noted():
                lists[key] = _list(block, key)
    methods: tuple[str, ...] = ("retrain",)  # so that the models are checked also where the methods are wrong
    with problems.noted():
        methods = _methods(lists["methods"] or ["retrain"])
    subjects = [*lists["ratios"], *lists["requests"]]
    if (size := math.prod(map(len, (lists["datasets"], lists["models"], lists["seeds"], subjects)))) > LARGEST:
        raise UnlearnError(f"the grid has {size} cells, more than {LARGEST}; leave values out.")
    for dataset, model in itertools.product(lists["datasets"], lists["models"]):
        # Settings do not differ between requests and seeds, so one of each is checked for all.
        first = Cell(dataset, model, [*subjects, 1.0][0], [*lists["seeds"], 0][0], methods, values, {})
        with problems.noted():
            first = first._replace(asked=_checked(first))
        if first.asked:
            yield from (first._replace(subject=s, seed=n) for s, n in itertools.product(subjects, lists["seeds"]))


def _settings_of(values: Any, in_grid: bool = False) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise UnlearnError("settings is not a mapping; expected for example settings: {epochs: 50}.")
    _refuse_cell_settings(values, in_grid)
    return values


def _list(block: dict[str, Any], key: str) -> list[Any]:
    """The values under ``key``, each checked; a single one need not be in brackets."""
    values = block[key] if isinstance(block.get(key), list) else [block.get(key)]
    if not values or values == [None]:
        problem = "empty" if key in block else "missing"
        raise UnlearnError(f"{key} is {problem}; expected for example {_EXAMPLES[key]}.")
    kind, fits, expected = _VALUES.get(key, _NAME)
    if bad := [value for value in values if not fits(value)]:
        raise UnlearnError(f"{key}: {', '.join(map(repr, bad[:MOST_SHOWN]))} is not {expected}.")
    checked = [kind(value) for value in values]
    _refuse_twice(key, checked)
    return checked


def _refuse_twice(what: str, values: list[Any]) -> None:
    for place, value in enumerate(values):
        if value in values[:place]:
            shown = value if str(value).isprintable() else repr(value)
            raise UnlearnError(f"{what}: {shown} is there twice; leave one out.")


def _methods(names: list[str]) -> tuple[str, ...]:
    """The methods of a run, beginning with the one it is about: the first that is not retraining."""
    reference = [name for name in names if METHODS.get(name).reference]
    if names and not reference:
        raise UnlearnError("methods: retrain is missing; all figures are compared with the retrained model's.")
    others = [name for name in names if name not in reference]
    return (*others[:1], *reference, *others[1:])


def _checked(cell: Cell) -> dict[str, Any]:
    """All settings that the figures of the cell depend on; settings that no run would accept are refused."""
    config = cell.config()
    for group in GROUPS.values():
        read(group, config)
    if config["report"] not in ("html", "none"):
        raise UnlearnError("report is html or none for the runs of a grid.")
    values = plain_values(config).items()
    asked = {key: value for key, value in values if key not in _OF_CELLS and about(key).role is not Role.SPEED}
    for name in cell.methods:
        checked_settings(METHODS.get(name), config)
    own = {name: config.method_values(name) for name in cell.methods}
    found = {"methods": list(cell.methods), "settings": asked, "methods_settings": own}
    return json.loads(json.dumps(found, default=str))  # as it comes back from a file


@dataclasses.dataclass(frozen=True)
class GridResult:
    """The outputs of a grid: its cells in the order of the file, the reasons of failures, the files about all."""

    cells: list[Cell]
    failed: dict[str, str]
    output_dir: Path
    files: list[Path]

    def __str__(self) -> str:
        """A row for each method of each cell, with its distances from retraining; then the reason of each failure."""
        done = [cell.name for cell in self.cells if cell.name not in self.failed]
        results = (report.read_result(self.output_dir / name / "result.json") for name in done)
        found = zip(done, (against_retraining(result, least=1) for result in results), strict=True)
        blocks = [(name, block) for name, block in found if block]
        rows = [[name, *row] for name, (_, own, _) in blocks for row in own]
        lines = ["Distances from the retrained model's figures. Means over seeds, and all figures: tables.md."]
        lines += [f"{name} failed: {why}" for name, why in self.failed.items()]
        tables = [drawn(["cell", *blocks[0][1][0]], rows, left=3)] if blocks else []
        return "\n".join([*tables, *map(wrapped, lines)])


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
    config = cells[0].config(**{"workers": None, **own})
    run = read(RunSettings, config)
    shown = bool(own.get("show_progress", on_terminal()))
    with (
        made(run.output_dir or Path("saved") / f"grid-{path.stem}") as directory,
        logging_to(directory, config["state"] or "INFO", "recbole_unlearn.grid"),
    ):
        return _run(cells, directory, run, shown)


def _run(cells: list[Cell], directory: Path, run: RunSettings, show_progress: bool) -> GridResult:
    left = [cell for cell in cells if not _is_done(directory, cell)]
    # A cell that failed before stays on record until it has been tried again.
    before = report.read_mapping(directory / report.FAILED_FILE)
    failed = {cell.name: before[cell.name] for cell in left if cell.name in before}
    if run.ray_address is None:  # nodes of a cluster have data of their own
        sources = {(cell.dataset, str(cell.values.get("data_path"))): cell for cell in left}
        for cell in sources.values():
            fetch(cell.config().replace(show_progress=show_progress))
    plan = {cell.name: cell.request for cell in cells}
    write_json(directory / report.PLAN_FILE, {"schema": SCHEMA, "cells": plan})
    _write_failed(directory, failed)
    with progress_bar("Grid", len(cells), show_progress, "cell") as bar:
        bar.update(len(cells) - len(left))
        try:
            device = cells[0].config()["device"].type
            workers = Workers(run.workers, run.ray_address, device, of_one_process(run.threads))
            work = workers.do(run_cell, [(_placed(c),) for c in left], go_on=True)
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
        verdict = report.read_result(directory / cell.name / "result.json").verdict
        logger.info("%s: %s", cell.name, "done." if verdict is None else verdict.text)
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
        values = cell.settings()
        with opened(cell.model_or_class, cell.dataset, output_dir=folder, config_dict=values) as (pipeline, wanted):
            pipeline.run(wanted)
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def _placed(cell: Cell) -> Cell:
    """The cell with absolute paths: a worker may be in another directory."""
    config = cell.config()
    data_path = {**config.internal_config_dict, **cell.values}["data_path"]
    paths = {"cache_dir": config["cache_dir"], "data_path": data_path}
    subject = str(Path(cell.subject).resolve()) if isinstance(cell.subject, str) else cell.subject
    values = cell.values | {key: str(Path(path).resolve()) for key, path in paths.items()}
    return cell._replace(values=values, subject=subject)


def _is_done(directory: Path, cell: Cell) -> bool:
    """Whether the cell has a result; one that was made with other settings or methods is refused."""
    folder, result = directory / cell.name, directory / cell.name / "result.json"
    if not result.exists():
        return False
    if isinstance(cell.subject, str) and Path(cell.subject).stat().st_mtime > result.stat().st_mtime:
        raise UnlearnError(f"{folder} has a result that is older than {cell.subject}. Remove it to do it again.")
    found = report.read_mapping(folder / ASKED)
    before, own = (dict(flat(tree, " / ")) for tree in (found, cell.asked))  # methods, settings, methods_settings
    for key in [*own, *before]:
        if before.get(key) != own.get(key):
            raise UnlearnError(
                f"{folder} has a result with other {key}. Remove it to do it again, or choose another --output_dir."
            )
    return True
