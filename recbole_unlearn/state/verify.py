"""Proof: that a state is what its ledger says, and that what was deleted is in no file and in no new data."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.inputs import shown
from recbole_unlearn.state import ledger
from recbole_unlearn.state.base import fingerprint_of
from recbole_unlearn.state.context import Core
from recbole_unlearn.state.deltas import digest
from recbole_unlearn.state.serving import suppression
from recbole_unlearn.state.suppression import Suppression


def verify(core: Core, head: str | None = None) -> str | None:
    """The first thing that does not fit, in words; None when all of it does.

    ``head`` is a link of the ledger that was noted elsewhere: with it, entries that were cut off are missed.
    """
    checks = (_ledger(core, head), _files(core), _requests(core), _fingerprints(core), _data(core))
    return next((problem for check in checks for problem in check), None)


def refuse(core: Core, head: str | None = None) -> None:
    """As :func:`verify`; raises an error with what does not fit."""
    problem = verify(core, head)
    if problem:
        raise UnlearnError(f"The state does not fit its ledger: {problem}.")


def _ledger(core: Core, head: str | None) -> Iterator[str]:
    problem = ledger.fault(core.database.connection, core.key)
    if problem:
        yield problem
    if head is not None and not core.database.value("SELECT 1 FROM ledger WHERE link = ?", head):
        yield "the ledger has no entry with the link that was noted: its end was cut off"


def _files(core: Core) -> Iterator[str]:
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


def _requests(core: Core) -> Iterator[str]:
    """What the ledger says of every request, against the queue."""
    last = _last(ledger.entries(core.database.connection))
    meant = {"submitted": {"pending", "running"}}
    rows = {row["id"]: row["status"] for row in core.database.rows("SELECT id, status FROM requests")}
    for id in sorted(last.keys() | rows.keys()):
        if id not in rows or id not in last:
            where = "the queue" if id not in rows else "the ledger"
            yield f"the request {id} is missing in {where}"
        elif rows[id] not in meant.get(last[id], {last[id]}):
            yield f"the request {id} is {rows[id]} in the queue, and {last[id]} in the ledger"
    kept = "SELECT count(*) FROM {0} JOIN requests ON requests.number = request WHERE status = 'published'"
    for table in ("asked", "suppressed"):
        if core.database.value(kept.format(table)):
            yield f"the table {table} still has what a published request asked for"


def _last(entries: Iterable[dict[str, Any]]) -> dict[str, str]:
    """By id, what the ledger says last of every request."""
    last: dict[str, str] = {}
    done: list[tuple[str, str]] = []  # since the last publication: id, and the fingerprint after
    for entry in entries:
        if entry["what"] in ("published", "retrained"):
            last |= {id: "published" for id, _ in done}
            done = []
        elif entry["what"] == "done":
            done.append((entry["id"], entry["after"]))
        elif entry["what"] == "rolled back":
            # Its change is undone and all that followed; what was done with it or after it waits again.
            change = dict(done).get(entry["id"])
            first = next((k for k, (_, after) in enumerate(done) if after == change), len(done))
            last |= {id: "submitted" for id, _ in done[first:]}
            done = done[:first]
        if "id" in entry:
            last[entry["id"]] = entry["what"]
    return last


def _fingerprints(core: Core) -> Iterator[str]:
    rows = core.database.rows("SELECT weights, fingerprint FROM base")
    now = rows[0]["fingerprint"]
    if fingerprint_of(rows[0]["weights"]) != now:
        yield "the base's fingerprint is not that of its weights"
    for row in core.database.rows("SELECT * FROM changes ORDER BY number"):
        if digest(f"{now} {row['file']}".encode()) != row["fingerprint"]:
            yield f"the fingerprint of change {row['number']} does not follow from the one before"
        now = row["fingerprint"]
    said = [entry["after"] for entry in ledger.entries(core.database.connection) if "after" in entry]
    if not said or said[-1] != now:
        yield "the model is not the one that the ledger's last entry left"


def _data(core: Core) -> Iterator[str]:
    """Whether a published deletion is in the data of the state."""
    finder = core.finder
    dataset = finder.dataset
    names = [dataset.field2id_token[field] for field in (dataset.uid_field, dataset.iid_field)]
    hashes = {row[0] for row in core.database.rows("SELECT hash FROM deleted")}
    if not hashes:
        return
    known = Suppression(core.key, set(), hashes)
    for index, part in zip(finder.parts, ("training", "validation", "test"), strict=True):
        users, items = (names[k][index.ids[side]] for k, side in enumerate(("user", "item")))
        pairs = {(str(user), str(item)) for user, item in zip(users, items, strict=True)}
        found = sum(pair in known for pair in pairs)
        if found:
            yield f"{found} deleted pairs are in the {part} data of the state"


def check(core: Core, path: str | Path) -> dict[str, int]:
    """How many deleted pairs each file of a dataset holds: a folder, a RecBole file, CSV, TSV or parquet."""
    path = Path(path)
    files = sorted(entry for entry in path.iterdir() if _is_data(entry)) if path.is_dir() else [path]
    if not files:
        raise UnlearnError(f"{shown(path)} has no file of interactions (.inter, .csv, .tsv, .parquet).")
    known = suppression(core)
    return {file.name: _held(core, file, known) for file in files}


def _is_data(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith((".inter", ".csv", ".tsv", ".parquet"))


def _held(core: Core, path: Path, known: Suppression) -> int:
    fields = [core.config["USER_ID_FIELD"], core.config["ITEM_ID_FIELD"]]
    try:
        frame = _frame(path)
    except (OSError, ValueError, gzip.BadGzipFile) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnlearnError(f"{shown(path)} cannot be read: {reason}.") from error
    frame = frame.rename(columns=lambda column: str(column).split(":")[0].strip())
    if not set(fields) <= set(frame.columns):
        raise UnlearnError(f"{shown(path)} has no columns {fields[0]} and {fields[1]}.")
    pairs = {(str(user), str(item)) for user, item in zip(frame[fields[0]], frame[fields[1]], strict=True)}
    return sum(pair in known for pair in pairs)


def _frame(path: Path) -> pd.DataFrame:
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        return pd.read_parquet(path)
    separator = "," if name.endswith(".csv") else "\t"
    return pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig")
