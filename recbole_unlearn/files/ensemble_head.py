"""`ensemble.json`: which ensemble a directory holds; `methods/sharded/storage.py` writes and reads the rest."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from recbole_unlearn.errors import UnlearnError

SCHEMA = 1
HEAD = "ensemble.json"


@dataclasses.dataclass(frozen=True)
class Stored:
    """What `ensemble.json` says."""

    path: Path
    method: str
    model: str
    dataset: str
    settings: dict[str, Any]
    shards: int
    slices: int
    rows: str

    @property
    def dataset_file(self) -> Path:
        """The retained rows beside it."""
        return self.path / f"{self.dataset}-Dataset.pth"


def read_head(path: Path) -> Stored:
    """Which ensemble ``path`` holds."""
    try:
        content = json.loads((path / HEAD).read_text(encoding="utf-8"))
    except OSError as error:
        raise UnlearnError(
            f"{path} is not the directory of an ensemble: {HEAD} cannot be read ({error.strerror or error})."
        ) from error
    except ValueError as error:
        raise UnlearnError(f"{path / HEAD} is damaged: it is not JSON. Use another copy.") from error
    kinds = {
        "method": str, "model": str, "dataset": str, "settings": dict, "shards": int, "slices": int, "rows": str,
    }  # fmt: skip
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise UnlearnError(f"{path / HEAD} is not of schema {SCHEMA}; it was written by another version.")
    for key, kind in kinds.items():
        if not isinstance(content.get(key), kind):
            raise UnlearnError(f"{path / HEAD} is damaged: {key} is missing or odd.")
    return Stored(path, **{key: content[key] for key in kinds})
