"""Export for serving: the model as it is now, for those who do not have this plugin.

A directory, written whole or not at all:

    MODEL-unlearned.pth, DATASET-….pth    a checkpoint and a dataset of plain RecBole, without what was deleted
    embeddings.safetensors, .npz          `users` (n, d) and `items` (m, d), whose dot product is the score
    users.parquet, items.parquet          row, token: whose the vectors are
    delta.safetensors                     the rows that moved since an earlier export
    suppression.json                      keyed hashes of all that is never to be recommended
    export.json                           fingerprints, counts, files with their hashes, versions; no names

Requests that are done are in it before they are published. Those that are pending are in the suppression list only.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any, NamedTuple

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Done, file_digest, new_directory, write_json
from recbole_unlearn.inputs import shown
from recbole_unlearn.state.base import versions
from recbole_unlearn.state.context import Core, now
from recbole_unlearn.state.live import LiveModel
from recbole_unlearn.state.serving import suppression
from recbole_unlearn.state.suppression import write_suppression
from recbole_unlearn.state.vector_files import (
    ABOUT,
    DELTA,
    SCHEMA,
    VECTORS,
    Earlier,
    read_earlier,
    write_delta,
    write_vectors,
)
from recbole_unlearn.state.vectors import SIDES, Moved, Vectors, find_vectors

Both = tuple[Vectors, Vectors]  # of users and items
logger = logging.getLogger(__name__)


class Exported(NamedTuple):
    """What was exported."""

    folder: Path
    fingerprint: str  # of the model
    vectors: bool  # whether the model has any
    pending: int  # requests that the model does not know of yet
    delta_bytes: int | None
    whole_bytes: int | None  # of all vectors


class Taken(NamedTuple):
    """What belongs together of a state at one moment."""

    live: LiveModel
    fingerprint: str
    pending: int
    failed: int
    hashes: set[str]
    done: tuple[Done, ...]


def export(core: Core, out: str | os.PathLike, since: str | os.PathLike | None = None) -> Exported:
    """Write the model as it is now into the new directory ``out``; see :meth:`State.export`."""
    target = _free(core, out)
    earlier = None if since is None else read_earlier(core, Path(since))
    taken = _take(core)
    vectors = find_vectors(taken.live)
    if vectors is None and earlier is not None:
        raise UnlearnError(
            f"{core.about('model')} has no vectors, so there is no delta. Export it without `since`."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnlearnError(
            f"Cannot make {shown(target)}: {error.strerror or error}. Choose another."
        ) from error
    with new_directory(target) as place:
        about = _write(core, place, target, taken, vectors, earlier)
        write_json(place / ABOUT, about)
    _say(taken, vectors is not None, core.about("model"))
    delta = about["delta"] or {}
    whole = about["files"][VECTORS]["bytes"] if vectors else None
    return Exported(target, taken.fingerprint, vectors is not None, taken.pending, delta.get("bytes"), whole)


def _free(core: Core, out: str | os.PathLike) -> Path:
    """Where to write: a path that is not there yet, or an empty directory, outside the state."""
    target = Path(out).resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UnlearnError(f"{shown(target)} exists already. Choose another directory for the export.")
    if target.is_relative_to(core.folder):
        raise UnlearnError(
            f"{shown(target)} is inside the state. Choose a directory elsewhere for the export."
        )
    return target


def _take(core: Core) -> Taken:
    """The model in memory, and what the database says of that same model, whatever other processes do."""
    while True:
        version, live = core.refreshed(), core.live
        with core.database.transaction():
            if core.version() != version:
                continue
            done = core.database.rows(
                "SELECT digest, finished FROM requests WHERE status IN ('done', 'published') ORDER BY number"
            )
            return Taken(
                live, core.fingerprint(), _number(core, "pending", "running"), _number(core, "failed"),
                suppression(core).hashes(), tuple(Done(row["digest"], row["finished"][:10]) for row in done),
            )  # fmt: skip


def _number(core: Core, *statuses: str) -> int:
    marks = ", ".join("?" * len(statuses))
    found = core.database.value(f"SELECT count(*) FROM requests WHERE status IN ({marks})", *statuses)
    return int(str(found))


def _write(
    core: Core, place: Path, home: Path, taken: Taken, vectors: Both | None, earlier: Earlier | None
) -> dict[str, Any]:
    """Write all files but the last; returns what that one says."""
    live = taken.live
    data = dataclasses.replace(live.retained(), done=taken.done)
    live.trainer.fitted = live.fitted
    live.trainer.save(place, data, home)
    write_suppression(place / "suppression.json", core.key, taken.hashes)
    moved = None
    if vectors is not None:
        write_vectors(place, live.base.splits.train, vectors)
        if earlier is not None:
            moved = [Moved.between(*pair) for pair in zip(earlier.vectors, vectors, strict=True)]
            write_delta(place, moved)
    files = {
        path.name: {"sha256": file_digest(path), "bytes": path.stat().st_size}
        for path in sorted(place.iterdir())
    }
    return {
        "schema": SCHEMA,
        "date": now(),
        "model": core.about("model"),
        "dataset": core.about("dataset"),
        "fingerprint": taken.fingerprint,
        "counts": {
            "interactions": len(data.retain.train),
            "held_out": len(data.retain.valid) + len(data.retain.test),
            "suppressed": len(taken.hashes),
            "pending": taken.pending,
            "failed": taken.failed,
        },
        "vectors": _about_vectors(vectors) if vectors else None,
        "delta": _about_delta(moved, earlier, taken, files) if moved and earlier else None,
        "files": files,
        "versions": versions(),
    }


def _about_vectors(vectors: Both) -> dict[str, Any]:
    sides = zip(SIDES, vectors, strict=True)
    counts = {side: {"rows": len(one.values), "in_use": len(one.rows)} for side, one in sides}
    return {"dimension": vectors[0].values.shape[1], **counts}


def _about_delta(moved: list[Moved], earlier: Earlier, taken: Taken, files: dict[str, Any]) -> dict[str, Any]:
    sides = zip(SIDES, moved, strict=True)
    counts = {side: {"moved": len(one.rows), "removed": len(one.removed)} for side, one in sides}
    sizes = {"bytes": files[DELTA]["bytes"], "whole_bytes": files[VECTORS]["bytes"]}
    return {"before": earlier.fingerprint, "after": taken.fingerprint, **counts, **sizes}


def _say(taken: Taken, has_vectors: bool, model: str) -> None:
    if not has_vectors:
        logger.warning(
            "%s has no vectors whose dot product is its score: only its checkpoint is exported.", model
        )
    if taken.pending or taken.failed:
        logger.warning(
            "Requests that the exported model does not know of yet, but its suppression list does: %d pending, "
            "%d failed.",
            taken.pending,
            taken.failed,
        )
