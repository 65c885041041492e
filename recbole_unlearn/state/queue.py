"""The queue: a request is checked when it is submitted, and from then on its pairs are not recommended any more."""

from __future__ import annotations

import datetime
import re
import secrets
import sqlite3
from typing import Any

import numpy as np

from recbole_unlearn.data import Fields, ForgetRequest, read_request
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import request_digest
from recbole_unlearn.inputs import shown
from recbole_unlearn.state.context import Core, Receipt, now, span
from recbole_unlearn.state.database import COUNTS
from recbole_unlearn.state.locate import Found

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def submit(
    core: Core, forget: Any, id: str | None, deadline: str | datetime.timedelta | None, on_missing: str
) -> Receipt:
    """Check a request and put it into the queue; see :meth:`State.submit`."""
    if id is not None and not _ID.fullmatch(id):
        raise UnlearnError(f"id={shown(id)}: an id has letters, digits, dots, dashes and _, 64 at most.")
    due = None
    if deadline is not None:
        due = (datetime.datetime.now(datetime.UTC) + span(deadline)).isoformat(timespec="seconds")
    request = read_request(forget, Fields.of(core.config))
    known = request_digest(core.key, request.frame)
    while True:
        version = core.refreshed()
        again = _submitted_before(core, known, id)
        if again is not None:
            return again
        found = _found(core, request, on_missing)
        with core.database.transaction() as connection:
            if core.version().base != version.base:
                continue  # published meanwhile, so interactions have other numbers
            return _submitted_before(core, known, id) or _queue(core, connection, known, found, id, due)


def _submitted_before(core: Core, known: str, id: str | None) -> Receipt | None:
    """The same request, submitted earlier; one that failed or was undone may come again."""
    rows = core.database.rows(
        "SELECT * FROM requests WHERE digest = ? AND status NOT IN ('failed', 'rolled back')", known
    )
    if rows:
        return Receipt.of(rows[0])
    if id is not None and core.database.value("SELECT 1 FROM requests WHERE id = ?", id):
        raise UnlearnError(f"There is another request with the id {id}. Choose another.")
    return None


def _found(core: Core, request: ForgetRequest, on_missing: str) -> Found:
    """What a request means; refused if there is nothing of it, or if nothing would be left."""
    finder = core.finder
    found = finder.find(request)
    if found.missing.any() and on_missing == "error":
        raise UnlearnError(
            f"{request.name}: {int(found.missing.sum())} of {len(found.missing)} rows name nothing that is in the "
            f"model's data, or what was deleted before ({request.where(found.missing)}). Correct them, or leave them "
            "out with --on_missing=skip."
        )
    if not any(len(part) for part in found.numbers):
        raise UnlearnError(f"{request.name}: nothing to forget; none of its rows is in the model's data.")
    finder.refuse_emptying(request.name, _with_pending(core, found))
    return found


def _with_pending(core: Core, found: Found) -> list[np.ndarray]:
    """The numbers of what a request and those before it in the queue take out together."""
    pending = "FROM requests WHERE status IN ('pending', 'running')"
    most = int(core.database.rows(f"SELECT total(interactions + held_out) {pending}")[0][0])
    if all(
        len(index) > len(part) + most for index, part in zip(core.finder.parts, found.numbers, strict=True)
    ):
        return list(found.numbers)  # what is pending need not be read
    parts = [set(part.tolist()) for part in found.numbers]
    rows = core.database.rows(f"SELECT part, number FROM asked WHERE request IN (SELECT number {pending})")
    for part, number in rows:
        parts[part].add(number)
    return [np.array(sorted(part), dtype=np.int64) for part in parts]


def _queue(
    core: Core, connection: sqlite3.Connection, known: str, found: Found, id: str | None, due: str | None
) -> Receipt:
    id = id or f"r-{secrets.token_hex(6)}"
    held_out = len(found.numbers[1]) + len(found.numbers[2])
    counts = (len(found.numbers[0]), held_out, found.users, found.items)
    number = connection.execute(
        "INSERT INTO requests (id, digest, status, submitted, due, interactions, held_out, users, items) "
        "VALUES (?, ?, 'pending', ?, ?, ?, ?, ?, ?)",
        (id, known, now(), due, *counts),
    ).lastrowid
    asked = (np.concatenate(both) for both in zip(found.numbers, found.gone, strict=True))
    connection.executemany(
        "INSERT INTO asked VALUES (?, ?, ?)",
        ((number, part, int(n)) for part, numbers in enumerate(asked) for n in numbers),
    )
    connection.executemany(
        "INSERT INTO suppressed VALUES (?, ?, ?)", ((number, user, item) for user, item in found.suppressed)
    )
    core.enter(
        connection, "submitted", id=id, request=known, due=due, **dict(zip(COUNTS, counts, strict=True))
    )
    return Receipt(id, "pending", *counts)
