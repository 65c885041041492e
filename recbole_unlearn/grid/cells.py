"""One cell of a grid: doing its run, and checking whether it has been done."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.grid.plan import Cell
from recbole_unlearn.report import read_json
from recbole_unlearn.session import Arguments, opened

ASKED = "cell.json"  # in the directory of a cell: all that its figures depend on


def run_cell(cell: Cell) -> dict[str, bytes]:
    """One run in a temporary directory; returns the content of its files by their names."""
    with tempfile.TemporaryDirectory(prefix="recbole-unlearn-") as work:
        folder = Path(work) / cell.name
        given = Arguments(cell.model, cell.dataset, output_dir=folder, config_dict=cell.settings())
        with opened(given) as (pipeline, wanted):
            pipeline.run(wanted)
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def placed(cell: Cell) -> Cell:
    """The cell with absolute paths: a worker may be in another directory."""
    config = cell.config()
    paths = {
        "cache_dir": config["cache_dir"],
        "data_path": {**config.internal_config_dict, **cell.values}["data_path"],
    }
    return dataclasses.replace(
        cell, values=cell.values | {key: str(Path(path).resolve()) for key, path in paths.items()}
    )


def is_done(directory: Path, cell: Cell) -> bool:
    """Whether the cell has a result; one that was made with other settings or methods is refused."""
    folder = directory / cell.name
    if not (folder / "result.json").exists():
        return False
    found, asked = read_json(folder / ASKED), plain(cell.asked)
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


def plain(content: dict[str, Any]) -> dict[str, Any]:
    """``content`` as it comes back from a file."""
    return json.loads(json.dumps(content, default=str))
