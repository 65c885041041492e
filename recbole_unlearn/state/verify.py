"""Verification: the state is what its ledger says, and no deleted pair is in its data or in data to be trained on."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.state.context import Core, Suppression
from recbole_unlearn.state.deltas import digest


def faults(core: Core, head: str | None) -> Iterator[str]:
    """The faults of a state, in words; see :meth:`State.fault`."""
    problem = core.database.ledger_fault()
    if problem:
        yield problem
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
    yield from _requests(core)
    yield from _fingerprints(core)
    yield from _data(core)


def _requests(core: Core) -> Iterator[str]:
    """The status of every request in the ledger, against the queue."""
    last: dict[str, str] = {}
    for entry in core.database.entries():
        if entry["what"] in ("published", "retrained"):
            last = {id: "published" if status == "done" else status for id, status in last.items()}
        last |= dict.fromkeys(entry.get("again", ()), "pending")
        if "id" in entry:
            last[entry["id"]] = entry["what"].replace("submitted", "pending")
    rows = {row["id"]: row["status"] for row in core.database.rows("SELECT id, status FROM requests")}
    for id in sorted(last.keys() | rows.keys()):
        if id not in rows or id not in last:
            where = "the queue" if id not in rows else "the ledger"
            yield f"the request {id} is missing in {where}"
        elif rows[id] != last[id]:
            yield f"the request {id} is {rows[id]} in the queue, and {last[id]} in the ledger"
    kept = "SELECT 1 FROM requests WHERE status = 'published' AND length(asked || suppressed) > 0"
    if core.database.value(kept):
        yield "interactions of a published request are still in the database"


def _fingerprints(core: Core) -> Iterator[str]:
    now = core.database.value("SELECT fingerprint FROM base")
    if core.version().base.fingerprint != now:
        yield "the base's fingerprint is not that of its weights"
    for row in core.database.rows("SELECT * FROM changes ORDER BY number"):
        if digest(f"{now} {row['file']}".encode()) != row["fingerprint"]:
            yield f"the fingerprint of change {row['number']} does not follow from the one before"
        now = row["fingerprint"]
    said = [entry["after"] for entry in core.database.entries() if "after" in entry]
    if not said or said[-1] != now:
        yield "the model is not the one that the ledger's last entry left"


def _data(core: Core) -> Iterator[str]:
    """Published pairs in the data of the state."""
    if not (hashes := core.deleted()):
        return
    known, train = Suppression(core.key, hashes), core.live.base.splits.train
    names = [train.field2id_token[field] for field in (train.uid_field, train.iid_field)]
    for index, part in zip(core.live.parts, ("training", "validation", "test"), strict=True):
        found = _count(known, names[0][index.ids["user"]], names[1][index.ids["item"]])
        if found:
            yield f"{found} deleted pairs are in the {part} data of the state"


def _count(known: Suppression, users: Iterable[object], items: Iterable[object]) -> int:
    """How many distinct pairs are suppressed."""
    pairs = {(str(user), str(item)) for user, item in zip(users, items, strict=True)}
    return sum(pair in known for pair in pairs)


def check(core: Core, path: str | Path) -> dict[str, int]:
    """How many deleted pairs each file of a dataset holds: a folder, a RecBole file, CSV, TSV or parquet."""
    path, kinds = Path(path), (".inter", ".csv", ".tsv", ".parquet")
    files = [path]
    if path.is_dir():
        files = [one for one in sorted(path.iterdir()) if one.name.removesuffix(".gz").endswith(kinds)]
    if not files:
        raise UnlearnError(f"{shown(path)} has no file of interactions ({', '.join(kinds)}).")
    known = core.suppression()
    fields = [core.config["USER_ID_FIELD"], core.config["ITEM_ID_FIELD"]]
    found = {}
    for file in files:
        frame = _frame(file)
        if not set(fields) <= set(frame.columns):
            raise UnlearnError(f"{shown(file)} has no columns {fields[0]} and {fields[1]}.")
        found[file.name] = _count(known, *(frame[field] for field in fields))
    return found


def _frame(path: Path) -> pd.DataFrame:
    name = path.name.removesuffix(".gz")
    try:
        if name.endswith(".parquet"):
            frame = pd.read_parquet(path)
        else:
            separator = "," if name.endswith(".csv") else "\t"
            frame = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError, gzip.BadGzipFile) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnlearnError(f"{shown(path)} cannot be read: {reason}.") from error
    return frame.rename(columns=lambda column: str(column).split(":")[0].strip())
