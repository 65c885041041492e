"""What `requests status` and `requests ledger` print: requests, the budget and the ledger's head; all its entries."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

from recbole_unlearn.state import ledger
from recbole_unlearn.state.database import Database
from recbole_unlearn.state.overview import MOST_DELETED, MOST_DRIFT, WAITING, Overview, overview
from recbole_unlearn.text import MISSING, counted, decimal, drawn, percent, wrapped

_HEAD = ("id", "status", "submitted", "due", "training", "held out", "users", "items")


def status_of(database: Database, state: str, id: str | None = None) -> str:
    """What a state looks like now; with ``id``, one request of it."""
    return status_text(overview(database, id), state)


def ledger_lines(database: Database) -> Iterator[str]:
    """The ledger as JSON Lines, each entry with its link."""
    return ledger.lines(database.connection)


def status_text(seen: Overview, state: str) -> str:
    """All of it; ``state`` is the directory as people typed it."""
    return "\n".join(_lines(seen, state))


def _lines(seen: Overview, state: str) -> Iterator[str]:
    number = counted(len(seen.requests), "request")
    yield f"{seen.model} on {seen.dataset}: {number}, {seen.overdue} overdue. Times are UTC."
    rows = seen.requests.to_dict("records")
    if rows:
        yield ""
        yield drawn(_HEAD, [_row(row) for row in rows], left=4)
    reasons = [f"{row['id']} failed: {row['why']}" for row in rows if row["status"] == "failed"]
    yield from ["", *map(wrapped, reasons)] if reasons else []
    yield ""
    yield budget(seen)
    yield wrapped(advice(seen, state))
    yield f"Ledger: {'1 entry' if seen.entries == 1 else f'{seen.entries} entries'}, head {seen.head}"


def _row(row: dict[str, Any]) -> list[str]:
    counts = [str(row[name]) for name in ("interactions", "held_out", "users", "items")]
    return [row["id"], row["status"], row["submitted"][:10], due(row), *counts]


def minute(time: str) -> str:
    """2026-11-17 18:02 of a time in the database."""
    return datetime.datetime.fromisoformat(time).strftime("%Y-%m-%d %H:%M")


def due(row: dict[str, Any]) -> str:
    """When a request is due, and how long that is; just the day once it is done."""
    if not isinstance(row["due"], str):
        return MISSING
    day = row["due"][:10]
    if row["status"] not in WAITING:
        return day
    left = datetime.datetime.fromisoformat(row["due"]) - datetime.datetime.now(datetime.UTC)
    if left < datetime.timedelta():
        return f"{day}, overdue"
    hours = left / datetime.timedelta(hours=1)
    return f"{day}, in {counted(round(hours / 24), 'day') if hours > 36 else counted(round(hours), 'hour')}"


def budget(seen: Overview) -> str:
    """What is spent of the budget."""
    return (
        f"Deleted since the model was trained: {percent(seen.deleted_share, 2)} of its interactions "
        f"(budget {percent(MOST_DELETED)}); drift {decimal(seen.drift, 3)} (budget {MOST_DRIFT:g})."
    )


def advice(seen: Overview, state: str) -> str:
    """What to do next."""
    if seen.retraining_is_due:
        return f"Retraining is due: `recbole-unlearn requests retrain {state}`, or train a new model and `init` that."
    return "Retraining is not due."
