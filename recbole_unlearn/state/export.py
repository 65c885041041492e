"""Export for serving: the model as it is now, as files that can be read without this plugin.

A directory, written as a whole or not at all:

    MODEL-unlearned.pth, DATASET-….pth    a checkpoint and a dataset of plain RecBole, without deleted interactions
    embeddings.safetensors, .npz          `users` (n, d) and `items` (m, d), whose dot product is the score
    users.parquet, items.parquet          row, token: the names of the rows
    delta.safetensors                     the rows that moved since an earlier export
    suppression.json                      keyed hashes of all pairs that are never to be recommended
    export.json                           fingerprints, whether the model is exact, counts, files with their hashes,
                                          versions; no names

Requests that are done are in it before they are published. Pending requests are in the suppression list only. That
list has a keyed hash of the whole: with another key or a missing entry, pairs would be recommended unnoticed.

`rows/vectors.py` finds the vectors; NeuMF, MultiVAE and EASE have none.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from recbole.data.dataset import Dataset

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.files import Done, file_digest, keyed_hash, load_key, new_directory, write_bytes, write_json
from recbole_unlearn.recbole_compat import clear_caches
from recbole_unlearn.rows import SIDES
from recbole_unlearn.rows import find_vectors as vectors_of
from recbole_unlearn.settings import LARGEST_FILE, read_json, read_regular
from recbole_unlearn.state.context import Core, Suppression, versions
from recbole_unlearn.state.database import TRAINED, Exactness, now
from recbole_unlearn.state.deltas import digest, pack, unpack
from recbole_unlearn.state.live import LiveModel

SCHEMA = 1  # of export.json and of suppression.json
ABOUT, VECTORS, DELTA = "export.json", "embeddings.safetensors", "delta.safetensors"
TABLES = ("users", "items")
logger = logging.getLogger(__name__)


class Vectors(NamedTuple):
    """Vectors of users or of items; rows that are not in use are zeros."""

    values: torch.Tensor  # (n, d)
    rows: np.ndarray  # in use, ascending: those with a training interaction


def moved(before: Vectors, after: Vectors) -> dict[str, torch.Tensor]:
    """The changes that lead an index of vectors from one export to the next, exact to the bit.

    `rows` are new or have other `vectors` (len(rows), d); `removed` are rows that are not in use any more.
    """
    differs = (before.values != after.values).any(dim=1).numpy()
    rows = torch.from_numpy(after.rows[differs[after.rows] | ~np.isin(after.rows, before.rows)])
    removed = torch.from_numpy(np.setdiff1d(before.rows, after.rows))
    return {"rows": rows, "vectors": after.values[rows], "removed": removed}


class Exported(NamedTuple):
    """The result of an export."""

    folder: Path
    fingerprint: str  # of the model
    vectors: bool  # whether the model has any
    pending: int  # requests that are in the suppression list only
    delta: dict[str, Any] | None  # as in export.json


def export(core: Core, out: str | os.PathLike, since: str | os.PathLike | None = None) -> Exported:
    """Write the model as it is now into the new directory ``out``; see :meth:`State.export`."""
    target = Path(out).resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UnlearnError(f"{shown(target)} exists already. Choose another directory for the export.")
    if target.is_relative_to(core.folder):
        raise UnlearnError(f"{shown(target)} is inside the state. Choose a directory outside of it.")
    live, fingerprint, hashes, rows, exact = _take(core)
    before, earlier = (None, None) if since is None else _read_earlier(core, Path(since))
    counts = {status: sum(row["status"] == status for row in rows) for status in ("pending", "failed")}
    done = tuple(Done(row["digest"], row["finished"][:10]) for row in rows if row["status"] in ("done", "published"))
    model, vectors = core.about("model"), find_vectors(live)
    if vectors is None:
        if since is not None:
            raise UnlearnError(f"{model} has no vectors, so there is no delta. Export it without `since`.")
        logger.warning("%s has no vectors whose dot product is its score: only its checkpoint is exported.", model)
    data = dataclasses.replace(live.retained(), done=done)
    about: dict[str, Any] = {
        "schema": SCHEMA, "date": now(), "model": model, "dataset": core.about("dataset"), "fingerprint": fingerprint,
        **exact._asdict(),
        "counts": {
            "interactions": len(data.retain.train), "held_out": len(data.retain.valid) + len(data.retain.test),
            "suppressed": len(hashes), **counts,
        },
        "vectors": None, "delta": None,
    }  # fmt: skip
    with new_directory(target) as place:
        live.trainer.save(place, data, target)
        check = _list_hash(core.key, hashes)
        write_json(place / "suppression.json", {"schema": SCHEMA, "check": check, "hashes": hashes})
        if vectors is not None:
            about["vectors"] = write_vectors(place, live.base.splits.train, vectors)
            if earlier is not None:
                moves = write_delta(place, earlier, vectors)
                sizes = {"bytes": (place / DELTA).stat().st_size, "whole_bytes": (place / VECTORS).stat().st_size}
                about["delta"] = {"before": before, "after": fingerprint, **moves, **sizes}
        about["files"] = {
            path.name: {"sha256": file_digest(path), "bytes": path.stat().st_size} for path in sorted(place.iterdir())
        }
        write_json(place / ABOUT, {**about, "versions": versions()})
    if any(counts.values()):
        logger.warning(
            "Requests that are in the suppression list but not yet in the exported model: %d pending, %d failed.",
            *counts.values(),
        )
    return Exported(target, fingerprint, vectors is not None, counts["pending"], about["delta"])


def _take(core: Core) -> tuple[LiveModel, str, list[str], list[sqlite3.Row], Exactness]:
    """The model, and of the same moment its fingerprint, suppressed hashes, requests, and whether it is exact."""
    while True:
        version, live = core.refreshed(), core.live
        with core.database.transaction():
            if core.version() != version:
                continue  # another process has changed the state
            rows, exact = core.database.rows("SELECT * FROM requests ORDER BY number"), core.database.exactness()[0]
            return live, core.fingerprint(), sorted(core.suppression().hashes), rows, exact


def find_vectors(live: LiveModel) -> tuple[Vectors, Vectors] | None:
    """The vectors of users and items; None for a model that has none."""
    found = vectors_of(live.model, live.base.splits.train)
    clear_caches(live.model)
    if found is None:
        return None
    made = []
    for side, values in zip(SIDES, found, strict=True):
        used = live.index.counts(side, torch.arange(len(values))).nonzero().flatten()
        kept = torch.zeros(values.shape)
        kept[used] = values.cpu().float()[used]
        made.append(Vectors(kept, used.numpy()))
    return made[0], made[1]


def write_vectors(place: Path, train: Dataset, vectors: tuple[Vectors, Vectors]) -> dict[str, Any]:
    """Write the vectors of all rows, and the tokens of those in use; returns their numbers."""
    tables = {side: one.values for side, one in zip(TABLES, vectors, strict=True)}
    write_bytes(place / VECTORS, pack(tables))
    arrays: dict[str, Any] = {side: table.numpy() for side, table in tables.items()}
    file = io.BytesIO()
    np.savez(file, **arrays)
    write_bytes(place / "embeddings.npz", file.getvalue())
    numbers: dict[str, Any] = {"dimension": vectors[0].values.shape[1]}
    for side, one, field in zip(TABLES, vectors, (train.uid_field, train.iid_field), strict=True):
        tokens = train.field2id_token[field][one.rows].astype(str)
        lines = io.BytesIO()
        pd.DataFrame({"row": one.rows, "token": tokens}).to_parquet(lines, index=False)
        write_bytes(place / f"{side}.parquet", lines.getvalue())
        numbers[side] = {"rows": len(one.values), "in_use": len(one.rows)}
    return numbers


def write_delta(place: Path, earlier: list[Vectors], now: tuple[Vectors, Vectors]) -> dict[str, dict[str, int]]:
    """Write the rows that moved since an earlier export; returns their numbers."""
    delta = {side: moved(*pair) for side, *pair in zip(TABLES, earlier, now, strict=True)}
    write_bytes(place / DELTA, pack({f"{side}.{key}": p for side, one in delta.items() for key, p in one.items()}))
    return {side: {"moved": len(one["rows"]), "removed": len(one["removed"])} for side, one in delta.items()}


def _read_earlier(core: Core, folder: Path) -> tuple[str, list[Vectors] | None]:
    """The fingerprint of an earlier export, and its vectors, None if the model was trained again since.

    Refused unless the ledger knows the fingerprint.
    """
    names = (VECTORS, *(f"{side}.parquet" for side in TABLES))
    try:
        about = read_json(folder / ABOUT)
        schema, fingerprint, has_vectors = int(about["schema"]), about["fingerprint"], about["vectors"] is not None
        contents = {name: read_regular(folder / name) for name in names if has_vectors}
        if any(about["files"][name]["sha256"] != digest(content) for name, content in contents.items()):
            raise ValueError("a file was changed")
        tables = unpack(contents[VECTORS]) if has_vectors else {}
        rows = [pd.read_parquet(io.BytesIO(contents[name]))["row"].to_numpy(np.int64) for name in names[1:] if tables]
        vectors = [Vectors(tables[side], own) for side, own in zip(TABLES, rows, strict=has_vectors)]
    except (ValueError, KeyError, TypeError) as error:
        raise UnlearnError(
            f"{shown(folder)} is not what an export wrote: it was changed or damaged. Give another export, or none "
            "for a full export."
        ) from error
    if schema > SCHEMA:
        raise UnlearnError(f"{shown(folder)} is of a newer version of recbole-unlearn. Update recbole-unlearn.")
    entries = core.database.entries()
    last = max((one["number"] for one in entries if one.get("after") == fingerprint), default=None)
    if last is None:
        raise UnlearnError(
            f"{shown(folder)} is an export of another state: the ledger of this one does not know its fingerprint. "
            "Give an export of this state, or none for a full export."
        )
    if any(one["what"] in TRAINED for one in entries[last:]):
        logger.warning("The model was trained again since that export: all vectors are others, so there is no delta.")
        return fingerprint, None
    if not has_vectors:
        raise UnlearnError(f"{shown(folder)} has no vectors, so there is no delta. Give another, or none.")
    return fingerprint, vectors


def load_suppression(path: str | os.PathLike, key: str | os.PathLike | bytes | None = None) -> Suppression:
    """The pairs of an export's `suppression.json`; test them with ``(user token, item token) in hidden``.

    ``key`` is the file with the key of the state, or the key itself as bytes; the user's own when None.
    """
    known = key if isinstance(key, bytes) else load_key(key, make=False)
    try:
        content = read_json(path, LARGEST_FILE)
        schema, hashes = content["schema"], content["hashes"]
        fits = known is not None and content["check"] == _list_hash(known, hashes)
    except (ValueError, KeyError, TypeError) as error:
        raise UnlearnError(
            f"{shown(path)} has no suppressed pairs, or is damaged. Give the suppression.json of an export."
        ) from error
    if schema != SCHEMA:
        raise UnlearnError(f"{shown(path)} is of a newer version of recbole-unlearn. Update recbole-unlearn.")
    if known is None or not fits:
        raise UnlearnError(
            f"{shown(path)} does not fit the key: it was made with another one, or it was changed. Give the state's "
            "own key, or export the state again."
        )
    return Suppression(known, set(hashes))


def _list_hash(key: bytes, hashes: list[str]) -> str:
    return keyed_hash(key, "suppression", "\n".join(hashes).encode())
