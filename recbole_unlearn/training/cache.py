"""Trained models on disk, so that a second run with another method does not train again.

An entry is a file of torch under its key, with a note beside it: the file's checksum, and a digest of the data it was
trained on. It is written whole or not at all, and read as data. The least recently used go first when the cache
outgrows its size. A cache that cannot be written is a warning, never the end of a run.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import (
    Trained,
    file_digest,
    load_torch,
    make_directory,
    remove_stale,
    write_json,
    write_torch,
)

logger = logging.getLogger(__name__)


class Cache:
    """The entries of one directory."""

    def __init__(self, folder: str, gibibytes: float) -> None:
        self.folder = make_directory(folder)
        self.limit = gibibytes * 2**30
        remove_stale(self.folder, ".*.tmp")

    def has(self, key: str) -> bool:
        """Whether there is an entry under ``key``, whole or not."""
        return self._path(key).is_file()

    def find(self, key: str) -> Trained | None:
        """The model under ``key``, or None where there is none that is whole."""
        path = self._path(key)
        if not path.is_file():
            return None
        try:
            noted = self._note(path).get("sha256")
            if noted is not None and noted != file_digest(path):
                raise UnlearnError(f"{path} is damaged: its checksum is another.")
            trained = Trained(**{**load_torch(path), "from_cache": True})
        except (UnlearnError, TypeError, OSError) as error:
            logger.warning("Cached model not used, training again: %s", error)
            return None
        os.utime(path)  # recently used
        return trained

    def keep(self, key: str, trained: Trained, data: str) -> None:
        """Write an entry; ``data`` is the digest of what it was trained on."""
        path = self._path(key)
        content = {f.name: getattr(trained, f.name) for f in dataclasses.fields(Trained)}
        try:
            self.folder.mkdir(
                parents=True, exist_ok=True
            )  # another run may have removed it while it was empty
            write_torch(path, content)
            write_json(self._note_path(path), {"sha256": file_digest(path), "data": data})
            self._shrink()
        except (UnlearnError, OSError) as error:
            self._remove(path)
            logger.warning("The trained model is not kept for later runs: %s", error)

    def remove(self, keys: set[str], data: str) -> int:
        """Remove the entries under ``keys`` and those trained on ``data``; returns how many there were."""
        found = [
            path
            for path in self.folder.glob("*.pt")
            if path.stem in keys or self._note(path).get("data") == data
        ]
        for path in found:
            self._remove(path)
        return len(found)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.pt"

    @staticmethod
    def _note_path(path: Path) -> Path:
        return path.with_suffix(".json")

    def _note(self, path: Path) -> dict[str, str]:
        """What is noted of an entry; those of older versions have no note."""
        try:
            found = json.loads(self._note_path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _remove(self, path: Path) -> None:
        for file in (path, self._note_path(path)):
            file.unlink(missing_ok=True)

    def _shrink(self) -> None:
        """Remove the least recently used entries until the rest fits; the newest always stays."""
        entries = sorted(self.folder.glob("*.pt"), key=lambda path: path.stat().st_mtime, reverse=True)
        total = 0
        for position, path in enumerate(entries):
            total += path.stat().st_size
            if total > self.limit and position > 0:
                self._remove(path)
