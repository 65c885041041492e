"""The ledger: what was done, when, to how much; each entry holds the one before it by a keyed hash.

An entry is canonical JSON. Its link is HMAC(key, link before it, entry), so that nobody without the key can change,
drop or add one unseen, and nobody at all can read from it who asked: it has counts, keyed hashes and fingerprints.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.inputs import shown
from recbole_unlearn.state.database import Database

START = "0" * 64


def canonical(entry: dict[str, Any]) -> str:
    """One line of JSON, the same for the same content."""
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def link(key: bytes, before: str, entry: str) -> str:
    """The keyed hash of an entry and of all before it."""
    # With it comes torch, which those who just read a ledger do not wait for.
    from recbole_unlearn.files import keyed_hash

    return keyed_hash(key, "ledger", f"{before}\n{entry}".encode())


def head(connection: sqlite3.Connection) -> tuple[int, str]:
    """How many entries there are, and the link of the last."""
    row = connection.execute("SELECT number, link FROM ledger ORDER BY number DESC LIMIT 1").fetchone()
    return (row[0], row[1]) if row else (0, START)


def append(connection: sqlite3.Connection, key: bytes, entry: dict[str, Any]) -> str:
    """Add an entry inside a transaction; returns its link."""
    number, before = head(connection)
    text = canonical({"number": number + 1, **entry})
    now = link(key, before, text)
    connection.execute("INSERT INTO ledger VALUES (?, ?, ?)", (number + 1, text, now))
    return now


def entries(connection: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """All entries in order."""
    for row in connection.execute("SELECT entry FROM ledger ORDER BY number"):
        yield json.loads(row[0])


def lines(connection: sqlite3.Connection) -> Iterator[str]:
    """JSON Lines: all entries in order, each with its link."""
    for row in connection.execute("SELECT entry, link FROM ledger ORDER BY number"):
        yield canonical({**json.loads(row[0]), "link": row[1]}) + "\n"


def fault(connection: sqlite3.Connection, key: bytes) -> str | None:
    """The first thing in the chain that does not fit, in words; None when all of it does."""
    before = START
    for expected, row in enumerate(connection.execute("SELECT * FROM ledger ORDER BY number"), 1):
        number, text, now = row
        if number != expected:
            return f"entry {expected} of the ledger is missing"
        if link(key, before, text) != now:
            return f"entry {number} of the ledger does not fit the one before: it was changed, or the key is another"
        before = now
    return None


def refuse_another_key(database: Database, key: bytes) -> None:
    """An entry that is linked by another key could never be verified again."""
    first = database.rows("SELECT entry, link FROM ledger WHERE number = 1")
    if first and link(key, START, first[0]["entry"]) != first[0]["link"]:
        raise UnlearnError(
            f"This is not the key that {shown(database.path.parent)} was made with, or the first entry of its ledger "
            "was changed. Give the state's own key with --hash_key=FILE."
        )
