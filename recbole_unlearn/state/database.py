"""The SQLite file of a state: queue, ledger, and the names of the current files.

Each step is one transaction; without a commit it has not happened. Files are on the disk before the transaction that
names them; files that no transaction names are leftovers, which the next worker destroys. The settings are WAL,
`synchronous=FULL`, and `secure_delete`, which overwrites deleted rows.

All rows are written by :class:`Transaction`. The ledger is a table of what was done, when, and to how much, as
canonical JSON with counts, keyed hashes and fingerprints, but no names. The link of an entry is HMAC(key, link of the
entry before, entry), so that entries cannot be changed, dropped or added unnoticed without the key.

One process at a time works on a state (`run`, `rollback`, `publish`, `retrain`); others may submit and read. The
worker's lock is a lock on a second, empty SQLite file, which the operating system releases when the process ends.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.files import keyed_hash

NAME, LOCK = "state.sqlite", "worker.sqlite"
COUNTS = ("interactions", "held_out", "users", "items")  # of a request
WAIT = 30.0  # seconds for another process's transaction, which takes milliseconds
START = "0" * 64  # the link before the first entry

# MIGRATIONS[k] takes a database from version k to k + 1; a line ends with a semicolon where its statement ends.
MIGRATIONS = [
    """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- The model is the base and, in order of their numbers, the changes made to it since.
CREATE TABLE base (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    weights TEXT NOT NULL, moments TEXT NOT NULL, dataset TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    -- Of the model when it was last trained: its training interactions, ‖θ‖², and the drift of merged changes.
    trained_on INTEGER NOT NULL, norm REAL NOT NULL, drift REAL NOT NULL
);
CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    file TEXT NOT NULL, fingerprint TEXT NOT NULL, drift REAL NOT NULL
);

CREATE TABLE requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    digest TEXT NOT NULL,  -- keyed
    status TEXT NOT NULL CHECK (status IN ('pending', 'running', 'done', 'failed', 'rolled back', 'published')),
    submitted TEXT NOT NULL, due TEXT, finished TEXT,
    interactions INTEGER NOT NULL, held_out INTEGER NOT NULL, users INTEGER NOT NULL, items INTEGER NOT NULL,
    why TEXT NOT NULL DEFAULT '',
    change INTEGER REFERENCES changes (number)
);
CREATE INDEX requests_by_digest ON requests (digest);

-- The interactions of a request, by numbers in the base's training (0), validation (1) and test (2) data; deleted
-- when it is published.
CREATE TABLE asked (
    request INTEGER NOT NULL REFERENCES requests (number), part INTEGER NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (request, part, number)
) WITHOUT ROWID;

-- Pairs that are never recommended: ids of the base (0 for all users or items); once published, keyed hashes.
CREATE TABLE suppressed (
    request INTEGER NOT NULL REFERENCES requests (number), user INTEGER NOT NULL, item INTEGER NOT NULL,
    PRIMARY KEY (request, user, item)
) WITHOUT ROWID;
CREATE TABLE deleted (hash TEXT PRIMARY KEY) WITHOUT ROWID;

CREATE TABLE ledger (number INTEGER PRIMARY KEY, entry TEXT NOT NULL, link TEXT NOT NULL);
CREATE TRIGGER ledger_is_kept BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ledger_is_whole BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""
]
VERSION = len(MIGRATIONS)


def now() -> str:
    """The time, as it is stored."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def canonical(entry: Mapping[str, Any]) -> str:
    """One line of JSON, the same for the same content."""
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


class Transaction:
    """The writes of one transaction."""

    def __init__(self, connection: sqlite3.Connection, key: bytes | None) -> None:
        self._execute, self._key = connection.execute, key

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int | None:
        """Add rows; returns the number of the last one."""
        marks, number = ", ".join("?" * len(columns)), None
        query = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"
        for row in rows:
            number = self._execute(query, row).lastrowid
        return number

    def update(self, table: str, values: Mapping[str, Any], where: str = "true", *given: Any) -> None:
        """Set columns of the rows that fit ``where``."""
        columns = ", ".join(f"{name} = ?" for name in values)
        self._execute(f"UPDATE {table} SET {columns} WHERE {where}", (*values.values(), *given))

    def delete(self, table: str, where: str = "true", *given: Any) -> None:
        """Delete the rows that fit ``where``."""
        self._execute(f"DELETE FROM {table} WHERE {where}", given)

    def set_requests(self, numbers: Iterable[int], **values: Any) -> None:
        """Set columns of requests."""
        for number in numbers:
            self.update("requests", values, "number = ?", number)

    def drop_asked(self, number: int) -> None:
        """Delete the interactions and pairs of a request."""
        for table in ("asked", "suppressed"):
            self.delete(table, "request = ?", number)

    def enter(self, what: str, **more: Any) -> None:
        """Append an entry to the ledger."""
        assert self._key is not None
        last = self._execute("SELECT number, link FROM ledger ORDER BY number DESC LIMIT 1").fetchone()
        number, before = last or (0, START)
        text = canonical({"number": number + 1, "what": what, "time": now(), **more})
        row = (number + 1, text, _link(self._key, before, text))
        self.insert("ledger", ("number", "entry", "link"), [row])


def _link(key: bytes, before: str, entry: str) -> str:
    """The keyed hash of an entry and, through ``before``, of all entries before it."""
    return keyed_hash(key, "ledger", f"{before}\n{entry}".encode())


class Database:
    """The connection of one process."""

    def __init__(self, folder: Path, new: bool = False) -> None:
        self.path = folder / NAME
        self._key: bytes | None = None
        if not new and not self.path.is_file():
            raise UnlearnError(
                f"{shown(folder)} is not a state: it has no {NAME}. Make one with `requests init`, or check the path."
            )
        with self._one_line_errors():
            self.connection = sqlite3.connect(self.path, timeout=WAIT, isolation_level=None)
            self.connection.row_factory = sqlite3.Row
            try:
                self._prepare(folder)
            except BaseException:
                self.connection.close()
                raise

    def _prepare(self, folder: Path) -> None:
        version = self.value("PRAGMA user_version")
        if version > VERSION:
            raise UnlearnError(
                f"{shown(folder)} is a state of a newer version of recbole-unlearn (format {version}, this one reads "
                f"{VERSION}). Update recbole-unlearn."
            )
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "foreign_keys=ON"):
            self.connection.execute(f"PRAGMA {pragma}")
        if version < VERSION:
            with self.transaction():
                version = self.value("PRAGMA user_version")  # another process may have been first
                for script in MIGRATIONS[version:]:
                    for statement in script.split(";\n"):  # `executescript` would commit in between
                        self.connection.execute(statement)
                self.connection.execute(f"PRAGMA user_version={VERSION}")

    def use_key(self, key: bytes) -> None:
        """Link entries with ``key``; refused if it is not the one of the first entry."""
        first = self.rows("SELECT entry, link FROM ledger WHERE number = 1")
        if first and _link(key, START, first[0]["entry"]) != first[0]["link"]:
            raise UnlearnError(
                f"This is not the key that {shown(self.path.parent)} was made with, or the first entry of its ledger "
                "was changed. Give the state's own key with --hash_key=FILE."
            )
        self._key = key

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """All or nothing; other processes that write wait."""
        with self._one_line_errors():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield Transaction(self.connection, self._key)
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # SQLite itself rolls back after a full disk
                    self.connection.execute("ROLLBACK")
                raise

    def rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        """All rows of a query."""
        with self._one_line_errors():
            return self.connection.execute(query, values).fetchall()

    def value(self, query: str, *values: object) -> Any:
        """The first column of the first row, or None."""
        found = self.rows(query, *values)
        return found[0][0] if found else None

    def about(self, key: str) -> Any:
        """A value that was set when the state was made."""
        found = self.value("SELECT value FROM about WHERE key = ?", key)
        if found is None:
            raise UnlearnError(
                f"{shown(self.path.parent)} is a state that was not finished. Remove it, and make it again."
            )
        return json.loads(found)

    def head(self) -> tuple[int, str]:
        """The number of entries of the ledger, and the link of the last."""
        rows = self.rows("SELECT number, link FROM ledger ORDER BY number DESC LIMIT 1")
        return (rows[0][0], rows[0][1]) if rows else (0, START)

    def entries(self) -> Iterator[dict[str, Any]]:
        """The entries of the ledger, in order."""
        return (json.loads(row[0]) for row in self.rows("SELECT entry FROM ledger ORDER BY number"))

    def ledger_lines(self) -> Iterator[str]:
        """The ledger as JSON Lines, each entry with its link."""
        for entry, link in self.rows("SELECT entry, link FROM ledger ORDER BY number"):
            yield canonical({**json.loads(entry), "link": link}) + "\n"

    def ledger_fault(self) -> str | None:
        """The first entry of the ledger that does not fit the one before; None when all fit."""
        assert self._key is not None
        before = START
        for expected, (number, text, link) in enumerate(self.rows("SELECT * FROM ledger ORDER BY number"), 1):
            if number != expected:
                return f"entry {expected} of the ledger is missing"
            if _link(self._key, before, text) != link:
                return f"entry {number} of the ledger does not fit the one before: changed, or linked by another key"
            before = link
        return None

    def wipe(self) -> None:
        """Rewrite the file without its free pages and empty the log, so that no deleted row is left in them."""
        with self._one_line_errors():
            self._empty_log()
            self.connection.execute("VACUUM")
            self._empty_log()

    def _empty_log(self) -> None:
        busy = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:  # after WAIT seconds; SQLite says so in a row, not by an error
            raise sqlite3.OperationalError("database is locked")

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    @contextlib.contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if "locked" in str(error) or "busy" in str(error):
                what = "another process is using it. Run the same command again."
            else:
                what = f"{error}. Check the disk and its permissions, then `requests verify`."
            raise UnlearnError(f"The state {shown(self.path.parent)}: {what}") from error


@contextlib.contextmanager
def working(folder: Path) -> Iterator[None]:
    """Hold the lock of the worker; refused while another process has it."""
    with contextlib.ExitStack() as stack:
        try:
            connection = sqlite3.connect(folder / LOCK, timeout=0.0, isolation_level=None)
            stack.callback(connection.close)
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            why = f"Cannot work on the state {shown(folder)}: {error}. Check the disk and its permissions."
            if "locked" in str(error):
                why = f"Another process is working on the state {shown(folder)}. Wait for it, or stop its `requests "
                why += "run --watch`; new requests can be submitted meanwhile."
            raise UnlearnError(why) from error
        yield
