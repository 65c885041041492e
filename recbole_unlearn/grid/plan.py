"""The grid file: YAML that says which runs make up a grid.

    datasets: [ml-100k]
    models: [BPR, LightGCN]
    methods: [obliviate, retrain]
    seeds: [2020, 2021]
    ratios: [0.2]
    settings: {epochs: 50}

Every combination of dataset, model, seed and ratio is a *cell*: one run with all methods, so that times are compared
inside one run. `grids:` is a list of such blocks, each with its own lists; the keys next to it hold for all blocks.
Nothing is evaluated as code, and the whole file is checked before anything is trained.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from recbole_unlearn.errors import UnlearnError, nearest
from recbole_unlearn.pipeline import checked_settings
from recbole_unlearn.registry import METHODS
from recbole_unlearn.results.record import plain_values
from recbole_unlearn.settings import GROUPS, Role, UnlearnConfig, about, read, read_yaml

LARGEST = 10_000  # cells that a grid may have
_LISTS = ("datasets", "models", "methods", "seeds", "ratios")
_KEYS = (*_LISTS, "settings")
_EXAMPLES = {
    "datasets": "datasets: [ml-100k]", "models": "models: [BPR, LightGCN]", "seeds": "seeds: [2020, 2021]",
    "methods": "methods: [obliviate, retrain]", "ratios": "ratios: [0.05, 0.2]",
}  # fmt: skip
# The type of a list's values, which of them fit (a bool is no number), and what these are.
_NAME = (str, lambda value: type(value) in (str, int) and str(value).strip(), "a name")
_VALUES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "seeds": (int, lambda value: type(value) is int and 0 <= value < 2**31,
              "a seed; expected a whole number from 0 on, below 2^31"),
    "ratios": (float, lambda value: type(value) in (int, float) and 0 < value <= 1,
               "a share of users; expected a number above 0 and at most 1"),
}  # fmt: skip
# The settings that make a cell, and the lists that have their values.
_OF_CELLS = {
    "model": "models", "dataset": "datasets", "seed": "seeds", "inject_users": "ratios", "unlearn": "methods",
    "compare": "methods",
}  # fmt: skip
# A grid is for figures: it keeps no models, and its runs are quiet and use one worker.
_OF_RUNS = {"save_unlearned": False, "tensorboard": False, "show_progress": False, "workers": 1}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of a grid: its settings, and in ``asked`` all that its figures depend on."""

    dataset: str
    model: str
    ratio: float
    seed: int
    methods: tuple[str, ...]
    values: dict[str, Any]
    asked: dict[str, Any]

    @property
    def name(self) -> str:
        """Its directory, for example ml-100k-BPR-0.2-2020."""
        return f"{self.dataset}-{self.model}-{self.ratio:.12g}-{self.seed}"

    @property
    def phases(self) -> list[str]:
        """The methods by the names they have in tables."""
        return ["retrained" if METHODS.get(name).reference else name for name in self.methods]

    @property
    def source(self) -> str:
        """The source of the request, as its result names it."""
        return f"injected {self.asked['settings']['inject_mode']}"

    def config(self) -> UnlearnConfig:
        """The configuration of its run."""
        return UnlearnConfig(self.model, self.dataset, config_dict=self.settings())

    def settings(self) -> dict[str, Any]:
        """The settings of its run."""
        first, *others = self.methods
        own = {"seed": self.seed, "inject_users": self.ratio, "unlearn": first, "compare": others}
        return {**self.values, "forget": "injected", **own}


def load(path: Path, given: Mapping[str, Any] | None = None) -> list[Cell]:
    """The cells of the grid file ``path``; settings in ``given`` win over those of the file."""
    path = Path(path)
    _refuse_cell_settings(given or {})
    content = read_yaml(path, "grid", "--grid", _EXAMPLES["models"])
    if not content:
        raise UnlearnError(f"{path} is empty; expected lines such as {_EXAMPLES['models']}.")
    try:
        cells = [cell for block in _blocks(content) for cell in _cells(block, given or {})]
        _refuse_twice("the cell", [cell.name for cell in cells])
    except UnlearnError as error:
        raise UnlearnError(f"{path}: {error}") from error
    return cells


def _refuse_cell_settings(values: Mapping[Any, Any], in_file: bool = False) -> None:
    """Refuse settings that a grid gives its runs by other means, and in a file also places on one machine."""
    for key in values:
        problem = ""
        if not isinstance(key, str):
            problem = f"settings: {key!r} is not the name of a setting"
        elif key in _OF_CELLS:
            problem = f"{key} differs between the runs of a grid: list its values under {_OF_CELLS[key]}"
        elif not about(key).per_run:
            problem = f"{key} is not a setting of the runs of a grid; leave it out"
        elif in_file and about(key).role is Role.PLACE:
            problem = f"{key} is a place on one machine: give --{key} on the command line instead"
        if problem:
            raise UnlearnError(f"{problem}.")


def _blocks(content: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    """The blocks of the file, each with the keys that all blocks share."""
    shared = {key: value for key, value in content.items() if key != "grids"}
    _refuse_unknown(shared, (*_KEYS, "grids"))
    blocks = content.get("grids", [{}])
    if not isinstance(blocks, list) or not blocks or not all(isinstance(block, dict) for block in blocks):
        raise UnlearnError("grids is not a list of grids; expected for example '- {models: [BPR], seeds: 1}'.")
    for number, block in enumerate(blocks, 1):
        try:
            _refuse_unknown(block, _KEYS)
            settings: dict[str, Any] = {}
            for values in (part["settings"] for part in (shared, block) if "settings" in part):
                if not isinstance(values, dict):
                    raise UnlearnError("settings is not a mapping; expected for example settings: {epochs: 50}.")
                _refuse_cell_settings(values, in_file=True)
                settings |= values
            yield {**shared, **block, "settings": settings}
        except UnlearnError as error:
            where = f"grid {number}: " if "grids" in content else ""
            raise UnlearnError(f"{where}{error}") from error


def _refuse_unknown(block: dict[Any, Any], known: tuple[str, ...]) -> None:
    for key in block:
        if key not in known:
            raise UnlearnError(f"unknown key {key!r}.{nearest(str(key), known)} One of {', '.join(known)}.")


def _cells(block: dict[str, Any], given: Mapping[str, Any]) -> list[Cell]:
    """The product of a block's lists."""
    lists = {key: _list(block, key) for key in _LISTS}
    if (size := math.prod(len(values) for key, values in lists.items() if key != "methods")) > LARGEST:
        raise UnlearnError(f"the grid has {size} cells, more than {LARGEST}; leave values out.")
    methods = _methods(lists["methods"])
    values = {**_OF_RUNS, **block["settings"], **given}
    cells = []
    for dataset, model in itertools.product(lists["datasets"], lists["models"]):
        # Settings do not differ between ratios and seeds, so one of each is checked for all.
        first = Cell(dataset, model, lists["ratios"][0], lists["seeds"][0], methods, values, {})
        asked = _checked(first)
        cells += [
            dataclasses.replace(first, ratio=ratio, seed=seed, asked=asked)
            for ratio, seed in itertools.product(lists["ratios"], lists["seeds"])
        ]
    return cells


def _list(block: dict[str, Any], key: str) -> list[Any]:
    """The values under ``key``, each checked; a single one need not be in brackets."""
    values = block[key] if isinstance(block.get(key), list) else [block.get(key)]
    if not values or values == [None]:
        problem = "empty" if key in block else "missing"
        raise UnlearnError(f"{key} is {problem}; expected for example {_EXAMPLES[key]}.")
    kind, fits, expected = _VALUES.get(key, _NAME)
    for value in values:
        if not fits(value):
            raise UnlearnError(f"{key}: {value!r} is not {expected}.")
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
    if not reference:
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
