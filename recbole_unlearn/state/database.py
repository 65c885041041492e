"""The SQLite file of a state: queue, ledger, and the names of the current files.

Each step is one transaction; without a commit it has not happened. Files are on the disk before the transaction that
names them; files that no transaction names are leftovers, which the next worker destroys. The settings are WAL,
`synchronous=FULL`, and `secure_delete`, which overwrites deleted rows.

The ledger is a table of what was done, when, and to about how much, as canonical JSON with keyed hashes, but no
names. Every step appends an entry with the seals of what it left,

    seal of a table = HMAC(key, its rows in order),    seal of the schema = HMAC(key, tables, indices, triggers)

and the link HMAC(key, link of the entry before, entry). A request is long and seldom changes: in the seal of its
table, its number and the seal of its row stand for it. Everything large is in files, and the rows have their names,
which are HMACs of their content. So the last link stands for every byte that the state rests on.

Who can do what:

* A holder of the key submits, works and verifies. :meth:`Database.check` compares seals with the last entry, and the
  ledger with its links: in every transaction before it writes, and before a read after another process wrote. Rows of
  requests are compared with their seals in the latter case, and before they are carried out. So no step
  starts from, and no entry is linked to, what no holder of the key wrote.
* A writer without the key can damage a state, which is found, and can put an older copy of all of it back, which is
  found by a link that was noted elsewhere (`verify --head`). They cannot make a request look done or undone.
* A reader of the directory (mode 0700, files 0600) has the model, its data, and the requests that are not published.
* A reader of `status`, `receipt` and `ledger`, which need no key, sees ids, times, and sizes in the steps of
  :func:`rounded` and of `disclosure.coarse`, which at least ten users could have asked for.

One process at a time works on a state (`run`, `rollback`, `publish`, and all that train); others may submit and read.
The worker's lock is a lock on the directory, which the operating system releases when the process ends.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from recbole_unlearn.errors import UnlearnError, shown

NAME, FILES = "state.sqlite", "files"
COUNTS = ("interactions", "held_out", "users", "items")  # of a request
STEPS = ("interactions_up_to", "users_up_to")  # how much it asks for, as shown without the key
LINES = ("queued_up_to", "unknown_up_to", "deleted_before_up_to")  # its lines by their states, likewise
CLEARED = ", ".join([*(f"{name} = NULL" for name in COUNTS), "asked = x''", "suppressed = x''"])
WAIT = 30.0  # seconds for another process's transaction, which takes milliseconds
START = "0" * 64  # the link before the first entry
# What entries of the ledger are about after which the budget starts again.
TAKEN, REBUILT, RETRAINED, LEARNED, ADOPTED = TRAINED = (
    "taken under care", "rebuilt", "retrained", "learned", "adopted",
)  # fmt: skip

PUBLISHED = "published"
NOT_FINAL = "status IN ('pending', 'done', 'failed')"  # of requests

VERSION = 3  # of the format, schema.sql
SEALED = ("about", "base", "changes", "requests", "sqlite_sequence")


class Spent(NamedTuple):
    """The budget that was spent since the last training."""

    deleted: float  # share of the training interactions of that training
    drift: float  # Σ ‖θ' − θ‖² of all requests since, relative to ‖θ‖² then

    def rounded(self) -> Spent:
        """In steps of a tenth of the budget: from figures in full one can tell who asked, by trying all users."""
        drift = round(self.drift, 2) if self.drift < 0.1 else float(f"{self.drift:.0e}")
        return Spent(round(round(self.deleted / 0.005) * 0.005, 3), drift)


class Exactness(NamedTuple):
    """Whether a model, or a request in it, is exact: the model is a function of the retained data alone."""

    exact: bool
    since: str  # a time


def now() -> str:
    """The time, as it is stored."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def canonical(entry: Mapping[str, Any]) -> str:
    """One line of JSON, the same for the same content."""
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def packed(pairs: ArrayLike) -> bytes:
    """Pairs of numbers (n, 2) as they are stored."""
    return np.asarray(pairs, dtype="<i8").tobytes()


def unpacked(content: bytes) -> np.ndarray:
    """The pairs (n, 2) that were :func:`packed`."""
    return np.frombuffer(content, dtype="<i8").reshape(-1, 2)


def asked(rows: Sequence[sqlite3.Row]) -> list[np.ndarray]:
    """The interactions of requests by their numbers in training, validation and test data, ascending."""
    pairs = unpacked(b"".join(row["asked"] for row in rows))
    return [np.unique(pairs[pairs[:, 0] == part, 1]) for part in range(3)]


def _hash(key: bytes, what: str, content: bytes) -> str:
    from recbole_unlearn.files import keyed_hash  # with torch, which readers without the key do not need

    return keyed_hash(key, what, content)


def _link(key: bytes, before: str, entry: str) -> str:
    """The keyed hash of an entry and, through ``before``, of all entries before it."""
    return _hash(key, "ledger", f"{before}\n{entry}".encode())


class Database:
    """The connection of one process."""

    def __init__(self, folder: Path, new: bool = False) -> None:
        self.path = folder / NAME
        self._key: bytes | None = None
        self._new = new
        self._seen: tuple[int, str] = (0, START)  # number and link of the last entry but one that was checked
        self._version: int | None = None  # of the file, when it was checked
        if not new and not self.path.is_file():
            raise UnlearnError(
                f"{shown(folder)} is not a state: it has no {NAME}. Make one with `requests init`, or check the path."
            )
        _make_private(folder, new)
        with self._one_line_errors():
            self.connection = sqlite3.connect(self.path, timeout=WAIT, isolation_level=None)
            self.connection.row_factory = sqlite3.Row
            try:
                self._prepare(folder, new)
            except BaseException:
                self.connection.close()
                raise

    def _prepare(self, folder: Path, new: bool) -> None:
        version = VERSION if new else self.value("PRAGMA user_version")
        if version != VERSION:
            age = "a newer" if version > VERSION else "an earlier"
            raise UnlearnError(
                f"{shown(folder)} is a state of {age} version of recbole-unlearn (format {version}, this one reads "
                f"{VERSION}). Use that version; its last export can be the checkpoint of a new state."
            )
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "foreign_keys=ON"):
            self.connection.execute(f"PRAGMA {pragma}")
        if new:
            schema = (Path(__file__).parent / "schema.sql").read_text("utf-8")
            self.connection.executescript(f"{schema} PRAGMA user_version={VERSION}")

    def use_key(self, key: bytes) -> None:
        """Link entries with ``key``; refused if it is not the one of the first entry."""
        first = self.rows("SELECT entry, link FROM ledger WHERE number = 1")
        if first and _link(key, START, first[0]["entry"]) != first[0]["link"]:
            raise UnlearnError(
                f"This is not the key that {shown(self.path.parent)} was made with, or the first entry of its ledger "
                "was changed. Give the state's own key with --hash_key=FILE."
            )
        self._key = key

    def fault(self, requests: Iterable[sqlite3.Row] | None = None) -> str | None:
        """The first thing that is not as the ledger says, in words; None when all is.

        The seals of all requests are compared with the ledger, and the rows ``requests``, or all, with their seals.
        """
        assert self._key is not None
        (place, before), last = self._seen, ""
        with self._reading():
            for number, text, link in self.connection.execute("SELECT * FROM ledger WHERE number > ?", (place,)):
                if number != place + 1:
                    return f"entry {place + 1} of the ledger is missing"
                if _link(self._key, before, text) != link:
                    return f"entry {number} of the ledger does not fit the one before: changed, or of another key"
                self._seen = place, before
                place, before, last = number, link, text
            if not last:
                return "the end of the ledger is missing"
            for name, seal in self._seals():
                if json.loads(last)["seals"].get(name) != seal:
                    return f"{name} is not as entry {place} of the ledger left it"
            for row in self.connection.execute("SELECT * FROM requests") if requests is None else requests:
                if row["seal"] != self._row_seal(row):
                    return f"the request {row['id']} is not as the ledger left it"
            self._version = self._data_version()
        return None

    def check(self, requests: Iterable[sqlite3.Row] | None = None) -> None:
        """Refuse a database with a :meth:`fault`; one without a key, or without an entry, has none."""
        problem = self.fault(requests) if self._key is not None and not self._new else None
        if problem:
            raise UnlearnError(
                f"The state {shown(self.path.parent)} does not fit its ledger: {problem}. It was changed without its "
                "key, or is damaged, and nothing is done with it. Restore it from a backup."
            )

    def _seals(self) -> Iterator[tuple[str, str]]:
        """The keyed hashes of the schema and of each table, half as long as others."""
        assert self._key is not None
        cursor = self.connection.cursor()
        cursor.row_factory = None
        queries = {"the schema": "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"}
        queries |= {f"the table {name}": f"SELECT * FROM {name} ORDER BY 1" for name in SEALED}
        queries["the table requests"] = "SELECT number, seal FROM requests ORDER BY 1"
        for name, query in queries.items():
            yield name, _hash(self._key, name, ascii(cursor.execute(query).fetchall()).encode())[:32]

    def _row_seal(self, row: sqlite3.Row) -> str:
        assert self._key is not None
        cells = [row[name] for name in row.keys() if name != "seal"]  # noqa: SIM118, a row iterates over its values
        return _hash(self._key, "row", ascii(cells).encode())[:32]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Read one version of the file, whatever other processes write meanwhile."""
        if self.connection.in_transaction:
            yield
            return
        self.connection.execute("BEGIN")
        try:
            yield
        finally:
            if self.connection.in_transaction:
                self.connection.execute("END")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing of what is written meanwhile; other processes that write wait."""
        with self._one_line_errors():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                self.check(None if self._data_version() != self._version else ())
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # SQLite itself rolls back after a full disk
                    self.connection.execute("ROLLBACK")
                raise

    def write(self, statement: str, *values: object) -> int | None:
        """Execute a statement inside a transaction; returns the number of the row that it adds."""
        return self.connection.execute(statement, values).lastrowid

    def enter(self, what: str, **more: Any) -> None:
        """Append an entry to the ledger, inside a transaction."""
        assert self._key is not None
        for row in self.connection.execute("SELECT * FROM requests WHERE seal = ''").fetchall():
            self.write("UPDATE requests SET seal = ? WHERE number = ?", self._row_seal(row), row["number"])
        number, before = self.head()
        spent = self.spent().rounded()._asdict()
        head = {"number": number + 1, "what": what, "time": now(), "spent": spent, "seals": dict(self._seals())}
        text = canonical({**head, **more})
        self.write("INSERT INTO ledger VALUES (?, ?, ?)", number + 1, text, _link(self._key, before, text))

    def rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        """All rows of a query; refused if another process wrote what is not as the ledger says."""
        with self._one_line_errors(), self._reading():
            if self._data_version() != self._version:
                self.check()
            return self.connection.execute(query, values).fetchall()

    def _data_version(self) -> int:
        """A number that changes when another connection writes."""
        return int(self.connection.execute("PRAGMA data_version").fetchone()[0])

    def value(self, query: str, *values: object) -> Any:
        """The first column of the first row, or None."""
        found = self.rows(query, *values)
        return found[0][0] if found else None

    def about(self, key: str) -> Any:
        """A value that was set when the state was made."""
        return json.loads(self.value("SELECT value FROM about WHERE key = ?", key))

    def request(self, id: str) -> sqlite3.Row:
        """The row of a request."""
        rows = self.rows("SELECT * FROM requests WHERE id = ?", id)
        if not rows:
            raise UnlearnError(f"There is no request {shown(id)}; `requests status` lists them.")
        return rows[0]

    def newest(self) -> int:
        """The number of the newest request, 0 when there is none."""
        return int(self.value("SELECT coalesce(max(number), 0) FROM requests"))

    def spent(self) -> Spent:
        """The budget that was spent since the last training."""
        deleted = float(len(asked(self.rows("SELECT asked FROM requests WHERE status = 'done'"))[0]))
        drift = "(drift + (SELECT total(drift) FROM changes)) / max(1e-30, norm)"
        return Spent(*self.rows(f"SELECT (gone + ?) / max(1.0, trained_on), {drift} FROM base", deleted)[0])

    def exactness(self) -> tuple[Exactness, dict[str, Exactness]]:
        """Whether the model is exact, and by their ids the requests that are in it, by the ledger alone.

        Obliviate is approximate, until a later training or a rollback; a closed form is exact. A request for held-out
        interactions alone counts as approximate too, so that it is not shown to be one.
        """
        model, requests, approximate, taken = Exactness(True, ""), dict[str, Exactness](), set[str](), True
        for entry in self.entries():
            what, time, id = entry["what"], entry["time"], entry.get("id", "")
            if "again" in entry:  # undone, or to be done again
                approximate -= {id, *entry["again"]}
                requests = {one: how for one, how in requests.items() if one not in (id, *entry["again"])}
            if what in TRAINED:
                taken = entry.get("exact", what != TAKEN)
                new = {one for one in entry.get("ids", ()) if one not in requests}  # answered by an adopted model
                requests |= dict.fromkeys(approximate | new if taken else new, Exactness(taken, time))
                approximate = set() if taken else approximate | new
            elif what == "done" or entry.get("same_as") in requests:
                requests[id] = requests.get(entry.get("same_as", ""), Exactness(entry.get("exact", False), time))
                approximate |= set() if requests[id].exact else {id}
            exact = taken and not approximate
            if what in TRAINED or exact != model.exact:
                model = Exactness(exact, time)
        return model, requests

    def head(self) -> tuple[int, str]:
        """The number of entries of the ledger, and the link of the last."""
        rows = self.rows("SELECT number, link FROM ledger ORDER BY number DESC LIMIT 1")
        return (rows[0][0], rows[0][1]) if rows else (0, START)

    def entries(self) -> list[dict[str, Any]]:
        """The entries of the ledger in order, each with its link."""
        rows = self.rows("SELECT entry, link FROM ledger ORDER BY number")
        return [{**json.loads(entry), "link": link} for entry, link in rows]

    def ledger(self) -> str:
        """The ledger as JSON Lines."""
        return "".join(f"{canonical(entry)}\n" for entry in self.entries())

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


def _make_private(folder: Path, new: bool) -> None:
    """Take the permissions of all other users away; SQLite gives its log the mode of its database."""
    try:
        if new:
            os.close(os.open(folder / NAME, os.O_CREAT | os.O_EXCL, 0o600))
        for path in (folder, *folder.iterdir(), *(folder / FILES).glob("*")):
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                mode = path.lstat().st_mode
                if mode & 0o077 and not stat.S_ISLNK(mode):
                    path.chmod(stat.S_IMODE(mode) & 0o700)
    except OSError as error:
        raise UnlearnError(
            f"The state {shown(folder)} must be private, and its mode cannot be changed: {error.strerror}. Its owner "
            f"can run: chmod -R go= {shown(folder)}"
        ) from error
