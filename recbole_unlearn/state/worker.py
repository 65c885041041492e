"""The worker: it carries requests out and undoes them; one process at a time is the worker."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import sqlite3
import time
from collections.abc import Iterator, Sequence

import torch

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.files import claimed
from recbole_unlearn.recbole_compat import own_environment
from recbole_unlearn.state.context import Core, Receipt, Span, span, versions
from recbole_unlearn.state.database import CLEARED, STEPS, asked, now
from recbole_unlearn.state.deltas import digest
from recbole_unlearn.state.publish import finish
from recbole_unlearn.state.submit import refuse_emptying

PATIENCE, PAUSE = 5.0, 0.01  # seconds: for another worker, and between two requests for others


@contextlib.contextmanager
def alone(core: Core, patience: float | None = None) -> Iterator[None]:
    """Be the worker, after at most ``patience`` seconds; first undo or finish the steps that a killed worker left.

    What a failed step wrote is removed. Files from before stay: while one is there, a publication is not finished.
    """
    busy = f"Another process is working on the state {shown(core.folder)}. Wait for it; new requests can be "
    busy += "submitted meanwhile."
    with claimed(core.folder, busy, PATIENCE if patience is None else patience), own_environment():
        threads = core.config["threads"]
        torch.set_num_threads(1 if threads == "auto" else threads)  # a request touches few rows
        if core.store.names() - core.named_files():
            finish(core)
        before = core.store.names()
        try:
            yield
        except BaseException:  # what was written and not named, as on a full disk
            with contextlib.suppress(UnlearnError):  # the next worker removes it
                core.store.destroy_others(before | core.named_files())
            raise


def run(core: Core, window: Span | None) -> Iterator[Receipt]:
    """Carry out all pending requests, in order; yields each request when it is done."""
    while done := step(core, window):
        yield from done


def step(core: Core, window: Span | None) -> list[Receipt]:
    """Carry out the next request, or the requests within the window as one; nothing when none is pending."""
    start = time.perf_counter()
    batch = core.database.rows("SELECT * FROM requests WHERE status = 'pending' ORDER BY number")
    if not batch:
        return []
    if window is not None:
        last = datetime.datetime.fromisoformat(batch[0]["submitted"]) + span(window)
        batch = [row for row in batch if datetime.datetime.fromisoformat(row["submitted"]) <= last]
    else:
        batch = batch[:1]
    core.database.check(batch)
    try:
        exact = _carry_out(core, batch)
    except BaseException:
        core.drop()  # the model in memory may have changed, and the one on the disk has not
        raise
    seconds = time.perf_counter() - start
    rows = [core.database.request(row["id"]) for row in batch]
    since = None if exact is None else rows[0]["finished"]
    return [Receipt.of(row)._replace(seconds=seconds, exact=exact, since=since) for row in rows]


def _carry_out(core: Core, batch: Sequence[sqlite3.Row]) -> bool | None:
    """Change the model in memory, then on the disk; returns whether that is exact, or None if it failed."""
    before, start = core.fingerprint(), time.perf_counter()
    live, database = core.live, core.database
    left = [part[~gone[part]] for part, gone in zip(asked(batch), live.removed, strict=True)]
    try:
        refuse_emptying(live, "The request", left)
        change = live.forget(left)
    except UnlearnError as error:
        core.drop()
        failed = "UPDATE requests SET status = 'failed', finished = ?, why = ? WHERE number = ?"
        with database.transaction():
            for row in batch:
                database.write(failed, now(), str(error), row["number"])
                database.enter("failed", id=row["id"], request=row["digest"], why=str(error))
        return None
    file = core.store.write(change.pack())
    after = digest(f"{before} {file}".encode())
    seconds = time.perf_counter() - start
    done = "UPDATE requests SET status = 'done', finished = ?, change = ? WHERE number = ?"
    with database.transaction():
        time_done = now()  # the same in the queue and in the ledger
        insert = "INSERT INTO changes (file, fingerprint, drift) VALUES (?, ?, ?)"
        number = database.write(insert, file, after, change.drift)
        for row in batch:
            database.write(done, time_done, number, row["number"])
        for row in batch:
            database.enter(
                "done", id=row["id"], request=row["digest"], together=len(batch),
                **{name: row[name] for name in STEPS}, before=before, after=after, time=time_done,
                method="closed form" if live.closed_form else "obliviate", exact=live.closed_form,
                settings=dataclasses.asdict(live.options),
                measures={"seconds": float(f"{seconds:.0e}")}, versions=versions(),
            )  # fmt: skip
    core.keep()
    return live.closed_form


def rollback(core: Core, id: str) -> None:
    """Restore the model before a request that is not published, exactly; later requests are pending again."""
    row = core.database.request(id)
    if row["status"] == "published":
        raise UnlearnError(f"The request {id} is published: its data is destroyed and cannot be restored.")
    if row["status"] == "rolled back":
        return  # by a command that was killed: later requests may still be pending
    if row["status"] not in ("pending", "done"):
        raise UnlearnError(f"The request {id} is {row['status']}; there is nothing to undo.")
    before, database = core.fingerprint(), core.database
    undone = f"UPDATE requests SET status = 'rolled back', finished = ?, change = NULL, {CLEARED}"
    with database.transaction():
        database.write(f"{undone} WHERE number = ?", now(), row["number"])
        again = core.redo(row["change"] - 1) if row["change"] else []  # a pending request made no change
        after = core.fingerprint()
        database.enter("rolled back", id=id, request=row["digest"], again=again, before=before, after=after)
    core.store.destroy_others(core.named_files())
