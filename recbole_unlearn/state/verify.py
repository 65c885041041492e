"""Verification: the state is what its ledger says, and no deleted pair is in its data or in data to be trained on.

Rows, schema and ledger are compared by :meth:`Database.fault`, files by their names, which are keyed hashes.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from recbole_unlearn.data import Splits, tokens
from recbole_unlearn.errors import UnlearnError, reason, shown
from recbole_unlearn.state.context import Core, Suppression


def faults(core: Core, head: str | None) -> Iterator[str]:
    """The faults of a state, in words; see :meth:`State.fault`."""
    if problem := core.database.fault():
        yield problem
        return  # nothing else can be read
    damage = core.database.value("PRAGMA integrity_check")
    if damage != "ok":
        yield f"the database is damaged: {damage.splitlines()[0]}"
    if head is not None and not core.database.value("SELECT 1 FROM ledger WHERE link = ?", head):
        yield "the ledger has no entry with the link that was noted: its end was cut off"
    named = core.named_files()
    for name in sorted(named):
        try:
            core.store.read(name)
        except UnlearnError as error:
            yield str(error)
    others = core.store.names() - named
    if others:
        yield (
            f"{len(others)} files in {shown(core.store.folder)} belong to nothing: a command was interrupted. "
            "`requests publish` or `requests run` removes them"
        )
    if hashes := core.deleted():
        for part, found in deleted_in(Suppression(core.key, hashes), core.live.base.splits).items():
            if found:
                yield f"{found} deleted pairs are in the {part} data of the state"


def deleted_in(known: Suppression, splits: Splits) -> dict[str, int]:
    """How many distinct pairs of training, validation and test data are suppressed."""
    found = {}
    for part, name in zip(splits, ("training", "validation", "test"), strict=True):
        fields = (part.uid_field, part.iid_field)
        found[name] = _count(known, *(part.field2id_token[one][part.inter_feat[one].numpy()] for one in fields))
    return found


def _count(known: Suppression, users: Sequence[object], items: Sequence[object]) -> int:
    """How many distinct pairs are suppressed; text such as 196.0, which a table with gaps has, also means 196."""
    pairs = pd.DataFrame({"user": _names(users), "item": _names(items)}).dropna().drop_duplicates()
    plain = pairs.replace(r"^(\d+)\.0$", r"\1", regex=True)
    forms = [pairs] if plain.equals(pairs) else [pairs, plain]
    found = [
        known.of(*(form[side].tolist() for form, side in zip(pair, pairs, strict=True)))
        for pair in itertools.product(forms, repeat=2)
    ]
    return int(np.any(found, axis=0).sum())


def _names(column: Sequence[object]) -> np.ndarray:
    """The tokens in a column, each distinct value made one once; None for an empty one."""
    codes, values = pd.factorize(pd.Series(column))
    return np.array([*tokens(values.tolist()), None], dtype=object)[codes]


def check(core: Core, path: str | Path) -> dict[str, int]:
    """How many deleted pairs each file of a dataset holds; see :func:`tables`."""
    known, found = core.suppression(), {}
    fields = [core.config["USER_ID_FIELD"], core.config["ITEM_ID_FIELD"]]
    for name, frame in tables(path):
        if not set(fields) <= set(frame.columns):
            raise UnlearnError(f"{shown(name)} has no columns {fields[0]} and {fields[1]}.")
        found[name] = _count(known, *(frame[field].tolist() for field in fields))
    return found


def tables(path: str | Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """The tables of interactions in a folder, or in a RecBole file, CSV, TSV or parquet, with their names."""
    path, kinds = Path(path), (".inter", ".csv", ".tsv", ".parquet")
    files = [path]
    if path.is_dir():
        files = [one for one in sorted(path.iterdir()) if one.name.removesuffix(".gz").endswith(kinds)]
    if not files:
        raise UnlearnError(f"{shown(path)} has no file of interactions ({', '.join(kinds)}).")
    for file in files:
        yield file.name, _frame(file)


def _frame(path: Path) -> pd.DataFrame:
    name = path.name.removesuffix(".gz")
    try:
        if name.endswith(".parquet"):
            frame = pd.read_parquet(path)
        else:
            separator = "," if name.endswith(".csv") else "\t"
            frame = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError, gzip.BadGzipFile) as error:
        raise UnlearnError(f"{shown(path)} cannot be read: {reason(error)}.") from error
    return frame.rename(columns=lambda column: str(column).split(":")[0].strip())
