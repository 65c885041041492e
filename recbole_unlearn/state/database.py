"""The SQLite file of a state: the queue, the ledger, and which files are current.

One transaction makes each step whole: what is not committed has not happened. Files are on the disk before the
transaction that names them; files that no transaction names are leftovers, and go with the next command that writes.
WAL, `synchronous=FULL`, and `secure_delete`: what is deleted is overwritten.

One process at a time works on a state (`run`, `rollback`, `publish`, `retrain`); others may submit and look. The
worker's lock is that of a second, empty SQLite file, which the operating system gives back when the process ends.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.inputs import shown

NAME, LOCK = "state.sqlite", "worker.sqlite"
VERSION = 1
COUNTS = ("interactions", "held_out", "users", "items")  # of a request
WAIT = 30.0  # seconds for another process's transaction, which takes milliseconds

_FIRST = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- What the model is made of: the base, and in order of their numbers the changes that were made to it since.
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

-- What a request asks for, by numbers in the base's training (0), validation (1) and test (2) interactions; gone when
-- it is published.
CREATE TABLE asked (
    request INTEGER NOT NULL REFERENCES requests (number), part INTEGER NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (request, part, number)
) WITHOUT ROWID;

-- Never to be recommended: ids of the base (0 for everybody, or for everything); once published, keyed hashes.
CREATE TABLE suppressed (
    request INTEGER NOT NULL REFERENCES requests (number), user INTEGER NOT NULL, item INTEGER NOT NULL,
    PRIMARY KEY (request, user, item)
) WITHOUT ROWID;
CREATE TABLE deleted (hash TEXT PRIMARY KEY) WITHOUT ROWID;

CREATE TABLE ledger (number INTEGER PRIMARY KEY, entry TEXT NOT NULL, link TEXT NOT NULL);
CREATE TRIGGER ledger_is_kept BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ledger_is_whole BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""

# MIGRATIONS[k] takes a database from version k to k + 1, inside one transaction.
MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [lambda connection: _script(connection, _FIRST)]


def _script(connection: sqlite3.Connection, text: str) -> None:
    """Statements one by one: `executescript` would commit in between."""
    statement = ""
    for line in text.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


class Database:
    """The connection of one process."""

    def __init__(self, folder: Path, new: bool = False) -> None:
        self.path = folder / NAME
        if not new and not self.path.is_file():
            raise UnlearnError(
                f"{shown(folder)} is not a state: it has no {NAME}. Make one with `requests init`, or check the path."
            )
        with self._said():
            self.connection = sqlite3.connect(self.path, timeout=WAIT, isolation_level=None)
            self.connection.row_factory = sqlite3.Row
            try:
                self._prepare(folder)
            except BaseException:
                self.connection.close()
                raise

    def _prepare(self, folder: Path) -> None:
        version = self.connection.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise UnlearnError(
                f"{shown(folder)} is a state of a newer version of recbole-unlearn (format {version}, this one reads "
                f"{VERSION}). Update recbole-unlearn."
            )
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "foreign_keys=ON"):
            self.connection.execute(f"PRAGMA {pragma}")
        if version < VERSION:
            with self.transaction():
                # Another process may have been here first.
                version = self.connection.execute("PRAGMA user_version").fetchone()[0]
                for migrate in MIGRATIONS[version:]:
                    migrate(self.connection)
                self.connection.execute(f"PRAGMA user_version={VERSION}")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; other processes that write wait."""
        with self._said():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # SQLite itself undoes what a full disk interrupts
                    self.connection.execute("ROLLBACK")
                raise

    def rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        """All rows of a query."""
        with self._said():
            return self.connection.execute(query, values).fetchall()

    def value(self, query: str, *values: object) -> object:
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
        return json.loads(str(found))

    def wipe(self) -> None:
        """Write the whole file again without its free pages, and empty the log: nothing deleted is left in them."""
        with self._said():
            self._empty_log()
            self.connection.execute("VACUUM")
            self._empty_log()

    def _empty_log(self) -> None:
        busy = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:  # after WAIT seconds; SQLite says so in a row, not as an error
            raise sqlite3.OperationalError("database is locked")

    def close(self) -> None:
        """Give the file back."""
        self.connection.close()

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        """SQLite's errors as one line."""
        try:
            yield
        except sqlite3.Error as error:
            if "locked" in str(error) or "busy" in str(error):
                what = "another process is using it. Run the same command again."
            else:
                what = f"{error}. Check the disk and its permissions, then `requests verify`."
            raise UnlearnError(f"The state {shown(self.path.parent)}: {what}") from error


@contextlib.contextmanager
def working(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Be the one process that works on a state; refused (after ``wait`` seconds) while another one does."""
    with contextlib.ExitStack() as open_until_the_end:
        try:
            connection = sqlite3.connect(folder / LOCK, timeout=wait, isolation_level=None)
            open_until_the_end.callback(connection.close)
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            if "locked" not in str(error):
                raise UnlearnError(
                    f"Cannot work on the state {shown(folder)}: {error}. Check the disk and its permissions."
                ) from error
            raise UnlearnError(
                f"Another process is working on the state {shown(folder)}. Wait for it, or stop its `requests run "
                "--watch`; new requests can be submitted meanwhile."
            ) from error
        yield
