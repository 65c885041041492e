"""Files of vectors in an export, and an earlier export read to tell what moved since.

An earlier export has to be of a model that the state's ledger knows, and as it was written.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from recbole.data.dataset import Dataset

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import write_bytes
from recbole_unlearn.inputs import read_regular, shown
from recbole_unlearn.state import ledger
from recbole_unlearn.state.context import Core
from recbole_unlearn.state.deltas import pack, unpack
from recbole_unlearn.state.vectors import SIDES, Moved, Vectors

SCHEMA = 1
ABOUT, VECTORS, DELTA = "export.json", "embeddings.safetensors", "delta.safetensors"
LARGEST = 2**40  # bytes of a file


class Earlier(NamedTuple):
    """What an export had."""

    fingerprint: str
    vectors: tuple[Vectors, Vectors]  # of users and items


def write_vectors(place: Path, train: Dataset, vectors: tuple[Vectors, Vectors]) -> None:
    """Write the vectors of all rows, and whose those in use are."""
    tables = {side: one.values for side, one in zip(SIDES, vectors, strict=True)}
    write_bytes(place / VECTORS, pack(tables))
    arrays = io.BytesIO()
    np.savez(arrays, **{side: table.numpy() for side, table in tables.items()})
    write_bytes(place / "embeddings.npz", arrays.getvalue())
    for side, one, field in zip(SIDES, vectors, (train.uid_field, train.iid_field), strict=True):
        tokens = train.field2id_token[field][one.rows].astype(str)
        lines = io.BytesIO()
        pd.DataFrame({"row": one.rows, "token": tokens}).to_parquet(lines, index=False)
        write_bytes(place / f"{side}.parquet", lines.getvalue())


def write_delta(place: Path, moved: Sequence[Moved]) -> None:
    """Write `users.rows`, `users.vectors`, `users.removed`, and the same for items."""
    tensors = {}
    for side, one in zip(SIDES, moved, strict=True):
        tensors[f"{side}.rows"] = torch.from_numpy(one.rows)
        tensors[f"{side}.vectors"] = one.values
        tensors[f"{side}.removed"] = torch.from_numpy(one.removed)
    write_bytes(place / DELTA, pack(tensors))


def read_earlier(core: Core, folder: Path) -> Earlier:
    """The vectors of an export; refused unless the ledger knows the model it is of."""
    about = _about(folder)
    if (about.get("model"), about.get("dataset")) != (core.about("model"), core.about("dataset")):
        raise UnlearnError(f"{shown(folder)} is an export of another model. Give one of this state.")
    known = {entry["after"] for entry in ledger.entries(core.database.connection) if "after" in entry}
    if about.get("fingerprint") not in known:
        raise UnlearnError(
            f"{shown(folder)} is an export of another state: the ledger of this one does not know its fingerprint. "
            "Give an export of this state, or none for a whole one."
        )
    if about.get("vectors") is None:
        raise UnlearnError(
            f"{shown(folder)} has no vectors, so there is no delta since. Give another, or none."
        )
    files = about.get("files")
    tables = unpack(_file(folder, VECTORS, files))
    users, items = (_side(folder, side, tables, files) for side in SIDES)
    return Earlier(about["fingerprint"], (users, items))


def _about(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read(folder, ABOUT))
    except ValueError as error:
        raise _damaged(folder, ABOUT) from error
    if not isinstance(content, dict) or not isinstance(content.get("schema"), int):
        raise _damaged(folder, ABOUT)
    if content["schema"] > SCHEMA:
        raise UnlearnError(
            f"{shown(folder)} is of a newer version of recbole-unlearn. Update recbole-unlearn."
        )
    return content


def _side(folder: Path, side: str, tables: dict[str, Any], files: Any) -> Vectors:
    lines = io.BytesIO(_file(folder, f"{side}.parquet", files))
    try:
        rows = pd.read_parquet(lines, columns=["row"])["row"].to_numpy(dtype=np.int64)
        return Vectors(tables[side], rows)
    except (ValueError, KeyError) as error:
        raise _damaged(folder, VECTORS) from error


def _file(folder: Path, name: str, files: Any) -> bytes:
    """A file of an export; refused if it is not the one that was written."""
    content = _read(folder, name)
    said = files.get(name) if isinstance(files, dict) else None
    if not isinstance(said, dict) or said.get("sha256") != hashlib.sha256(content).hexdigest():
        raise _damaged(folder, name)
    return content


def _read(folder: Path, name: str) -> bytes:
    try:
        return read_regular(folder / name, LARGEST)
    except OSError as error:
        raise UnlearnError(f"Cannot read {shown(folder / name)}: {error.strerror or error}.") from error


def _damaged(folder: Path, name: str) -> UnlearnError:
    return UnlearnError(
        f"{shown(folder / name)} is not what an export wrote: it was changed or damaged. Give another export, or "
        "none for a whole one."
    )
