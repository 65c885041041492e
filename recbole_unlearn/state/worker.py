"""The worker: carries requests out, and undoes them. One process at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import sqlite3
import time
from collections.abc import Iterator, Sequence

import numpy as np

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.inputs import shown
from recbole_unlearn.session import own_threads
from recbole_unlearn.state.base import versions
from recbole_unlearn.state.context import Core, Receipt, now, set_requests, span
from recbole_unlearn.state.database import COUNTS, working
from recbole_unlearn.state.deltas import digest
from recbole_unlearn.state.live import Masks
from recbole_unlearn.state.publish import finish

Window = str | datetime.timedelta | None


@contextlib.contextmanager
def alone(core: Core) -> Iterator[None]:
    """Be the worker. What an earlier one left half done is as if it had not begun."""
    with working(core.folder), own_threads(core.config["threads"]):
        core.version()  # says so where the state is not finished
        with core.database.transaction() as connection:
            connection.execute("UPDATE requests SET status = 'pending' WHERE status = 'running'")
        if core.store.names() - core.named_files():
            finish(core)
        yield


def run(core: Core, window: Window) -> Iterator[Receipt]:
    """Carry out what is pending, in order; yields each request when it is done."""
    while done := step(core, window):
        yield from done


def step(core: Core, window: Window) -> list[Receipt]:
    """Carry out what is next: one request, or those within the window as one; nothing when nothing is pending."""
    batch, start = _next(core, window), time.perf_counter()
    done = _carry_out(core, batch) if batch else []
    seconds = time.perf_counter() - start
    return [receipt._replace(seconds=seconds) for receipt in done]


def _next(core: Core, window: Window) -> list[sqlite3.Row]:
    """The requests to do next: the first that is pending, with those that were submitted soon after it."""
    rows = core.database.rows("SELECT * FROM requests WHERE status = 'pending' ORDER BY number")
    if not rows or window is None:
        return rows[:1]
    last = datetime.datetime.fromisoformat(rows[0]["submitted"]) + span(window)
    return [row for row in rows if datetime.datetime.fromisoformat(row["submitted"]) <= last]


def _carry_out(core: Core, batch: Sequence[sqlite3.Row]) -> list[Receipt]:
    numbers = [row["number"] for row in batch]
    with core.database.transaction() as connection:
        set_requests(connection, numbers, status="running")
    try:
        _change(core, batch, numbers)
    except BaseException:
        core.drop()  # the model in memory may have changed, and what is on the disk has not
        with contextlib.suppress(UnlearnError), core.database.transaction() as connection:
            set_requests(connection, numbers, status="pending")  # else the next worker does so
        raise
    return core.receipts(numbers)


def _change(core: Core, batch: Sequence[sqlite3.Row], numbers: Sequence[int]) -> None:
    """Change the model in memory, then on the disk."""
    before, start = core.fingerprint(), time.perf_counter()
    live = core.live
    asked = _asked(core, numbers, live.removed)
    try:
        core.finder.refuse_emptying("The request", asked)
        change = live.forget(asked)
    except UnlearnError as error:
        core.drop()
        _failed(core, batch, str(error))
        return
    core.finder.remove(asked)
    file = core.store.write(change.pack())
    after = digest(f"{before} {file}".encode())
    seconds = time.perf_counter() - start
    with core.database.transaction() as connection:
        number = connection.execute(
            "INSERT INTO changes (file, fingerprint, drift) VALUES (?, ?, ?)", (file, after, change.drift)
        ).lastrowid
        set_requests(connection, numbers, status="done", finished=now(), change=number)
        for row in batch:
            core.enter(
                connection, "done", id=row["id"], request=row["digest"], together=len(batch),
                **{name: row[name] for name in COUNTS}, before=before, after=after, method="obliviate",
                settings=dataclasses.asdict(live.options),
                measures={"seconds": round(seconds, 4), "drift": change.drift}, versions=versions(),
            )  # fmt: skip
    core.keep()


def _failed(core: Core, batch: Sequence[sqlite3.Row], why: str) -> None:
    numbers = [row["number"] for row in batch]
    with core.database.transaction() as connection:
        set_requests(connection, numbers, status="failed", finished=now(), why=why)
        for row in batch:
            core.enter(connection, "failed", id=row["id"], request=row["digest"], why=why)


def _asked(core: Core, requests: Sequence[int], removed: Masks) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What requests ask for and is still there, by part."""
    parts: list[set[int]] = [set(), set(), set()]
    for request in requests:
        for part, number in core.database.rows("SELECT part, number FROM asked WHERE request = ?", request):
            parts[part].add(number)
    found = [np.array(sorted(part), dtype=np.int64) for part in parts]
    train, valid, test = (part[~gone[part]] for part, gone in zip(found, removed, strict=True))
    return train, valid, test


def rollback(core: Core, id: str) -> None:
    """Undo a request that is not published: the model before it, exactly. Later requests are pending again."""
    rows = core.database.rows("SELECT * FROM requests WHERE id = ?", id)
    if not rows:
        raise UnlearnError(f"There is no request {shown(id)}; `requests status` lists them.")
    row = rows[0]
    if row["status"] == "published":
        raise UnlearnError(f"The request {id} is published: what it deleted is gone and cannot come back.")
    if row["status"] == "rolled back":
        return  # by a command that was killed: what comes after is still to be done
    if row["status"] not in ("pending", "done"):
        raise UnlearnError(f"The request {id} is {row['status']}; there is nothing to undo.")
    before = core.fingerprint()
    with core.database.transaction() as connection:
        change = row["change"]
        if change is not None:
            connection.execute(
                "UPDATE requests SET status = 'pending', finished = NULL, change = NULL WHERE change >= ?",
                (change,),
            )
            connection.execute("DELETE FROM changes WHERE number >= ?", (change,))
        for table in ("asked", "suppressed"):
            connection.execute(f"DELETE FROM {table} WHERE request = ?", (row["number"],))
        set_requests(connection, [row["number"]], status="rolled back", finished=now(), change=None)
        after = core.fingerprint()
        core.enter(connection, "rolled back", id=id, request=row["digest"], before=before, after=after)
    core.store.destroy_others(core.named_files())
