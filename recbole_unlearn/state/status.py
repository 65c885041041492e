"""The status of a state: its requests, their deadlines, the budget, and the ledger's head, as a text or as a page.

Reads the database alone: neither the model nor the key. Sizes are in steps, so that they name no user.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.state.database import LINES, STEPS, TRAINED, Database, Exactness, Spent, now
from recbole_unlearn.text import MISSING, counted, decimal, drawn, percent, wrapped

# The budget: from here on a model should be trained again; docs/requests.md says where the limits come from.
MOST_DELETED, MOST_DRIFT = 0.05, 0.1
WAITING = ("pending", "failed")  # a deadline matters to these
Row = dict[str, Any]
# Of the page: groups of requests, requests of a group, entries of the ledger.
_GROUPS = ("failed", "pending", "done", "published", "rolled back")
_MARK = b"<title>Deletion requests: "
_ROWS, _ENTRIES = 200, 12
_SHOWN = ("id", "status", "submitted", "due", "finished", *STEPS, *LINES, "why")


def history(database: Database) -> list[tuple[str, Spent]]:
    """The budget since the last training, by the ledger, with times; the first is zero."""
    points: list[tuple[str, Spent]] = []
    for entry in database.entries():
        if entry["what"] in TRAINED:
            points = []
        if entry["what"] not in ("submitted", "failed"):
            points.append((entry["time"], Spent(**entry["spent"])))
    return points


class Overview(NamedTuple):
    """The result of `status`."""

    model: str
    dataset: str
    rows: Sequence[Row]  # of the requests
    overdue: int
    deleted_share: float  # as in Spent
    drift: float
    entries: int
    head: str  # of the ledger
    exact: bool  # the model as it is now, as in Exactness
    since: str
    approximate: int  # requests in it that are not exact

    @property
    def requests(self) -> Any:
        """A DataFrame: id, status, dates, sizes in steps (…_up_to), why, published, exact, since."""
        import pandas as pd  # which the commands do not need

        frame = pd.DataFrame(self.rows, columns=[*_SHOWN, "published", *Exactness._fields])
        return frame.astype(dict.fromkeys(Exactness._fields, object))

    @property
    def retraining_is_due(self) -> bool:
        """Whether the budget is spent, and not by a closed form, which stays exact."""
        return not self.exact and (self.deleted_share >= MOST_DELETED or self.drift >= MOST_DRIFT)


def overview(database: Database, id: str | None = None) -> Overview:
    """The status of a state; with ``id``, of one request."""
    rows = database.rows(f"SELECT {', '.join(_SHOWN)} FROM requests ORDER BY number")
    if id is not None:
        rows = [row for row in rows if row["id"] == id]
        if not rows:
            raise UnlearnError(f"There is no request {shown(id)}; `requests status` lists them.")
    now_exact, by_id = database.exactness()
    unknown = dict.fromkeys(Exactness._fields)
    final = {id: entry["time"] for entry in database.entries() for id in entry.get("ids", ())}
    found = [
        {**row, "published": final.get(row["id"]), **(by_id[row["id"]]._asdict() if row["id"] in by_id else unknown)}
        for row in rows
    ]
    approximate = sum(not one.exact for one in by_id.values())
    overdue = sum(row["status"] in WAITING and row["due"] is not None and row["due"] < now() for row in rows)
    model, dataset = database.about("model"), database.about("dataset")
    return Overview(model, dataset, found, overdue, *database.spent(), *database.head(), *now_exact, approximate)


def status_text(database: Database, state: str, id: str | None = None) -> str:
    """The status as text; ``state`` is the directory as it was typed."""
    seen = overview(database, id)
    rows, number = seen.rows, counted(len(seen.rows), "request")
    lines = [f"{seen.model} on {seen.dataset}: {number}, {seen.overdue} overdue. Times are UTC.", ""]
    if rows:
        head = ("id", "status", "submitted", "due", "done", "published", "exact since")
        cells = [
            [row["id"], row["status"], row["submitted"][:10], due(row),
             *((row[name] or MISSING)[:10] for name in ("finished", "published")), exact_since(row).split()[0]]
            for row in rows
        ]  # fmt: skip
        lines += [drawn(head, cells, left=7), ""]
    failed = [wrapped(f"{row['id']} failed: {row['why']}") for row in rows if row["status"] == "failed"]
    left_out = [wrapped(f"{row['id']}: {lines_said(row)}") for row in rows if row[LINES[1]] or row[LINES[2]]]
    lines += [*failed, *left_out, ""] if failed or left_out else []
    time, command = f"since {_plain_time(seen.since)[:16]}", f"requests rebuild {state}`"
    number = f" ({counted(seen.approximate, 'request')} by obliviate)" if seen.approximate else ""
    model = f"exact {time}: it comes from the retained data alone."
    if not seen.exact:
        model = f"approximate {time}{number}; `{command} makes it exact."
    lines.append(wrapped(f"The model is {model}"))
    spent = Spent(seen.deleted_share, seen.drift).rounded()
    lines.append(
        f"Deleted since the model was trained: {percent(spent.deleted, 1)} of its interactions "
        f"(budget {percent(MOST_DELETED)}); drift {decimal(spent.drift, 2)} (budget {MOST_DRIFT:g})."
    )
    advice = "Retraining is not due."
    if seen.retraining_is_due:
        advice = f"Retraining is due: `recbole-unlearn {command}, or `retrain`, or train a new model and `init` it."
    entries = "1 entry" if seen.entries == 1 else f"{seen.entries} entries"
    return "\n".join([*lines, wrapped(advice), f"Ledger: {entries}, head {seen.head}"])


def status_json(database: Database, id: str | None = None) -> str:
    """The status as JSON, with the fields of :class:`Overview`, what is spent of the budget in steps."""
    seen = overview(database, id)
    deleted, drift = Spent(seen.deleted_share, seen.drift).rounded()
    said = {**seen._asdict(), "deleted_share": deleted, "drift": drift, "retraining_is_due": seen.retraining_is_due}
    return json.dumps({**said, "requests": said.pop("rows")}, indent=1)


def lines_said(row: Row) -> str:
    """The states of the lines of a request, in steps."""
    queued, unknown, before = (row[name] for name in LINES)
    return f"up to {queued} queued, {unknown} unknown, {before} deleted before"


def due(row: Row) -> str:
    """The day on which a request is due and the time left, or the day alone once it is done."""
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


def exact_since(row: Row) -> str:
    """The time since which a request is exact, or that it is approximate."""
    if row["exact"] is None:
        return MISSING
    return _plain_time(row["since"])[:16] if row["exact"] else "approximate"


def write_status(database: Database, target: Path) -> Path:
    """Write the page of a state and return its path: ids of requests and counts, but no names of users or items."""
    from recbole_unlearn.report import figures, write_page

    if os.path.lexists(target) and not (target.is_file() and _MARK in target.read_bytes()[:4096]):
        raise UnlearnError(f"{shown(target)} exists and is not a page of `requests status`. Choose another file.")
    seen, entries, points = overview(database), list(database.entries()), history(database)
    end = now()
    rows = seen.rows
    by_status = {name: [row for row in reversed(rows) if row["status"] == name] for name in _GROUPS}
    spent = [(_plain_time(time), point) for time, point in [*points, (end, points[-1][1])]]
    took = [entry["measures"]["seconds"] for entry in entries if entry["what"] == "done"]
    return write_page(
        target, "status.html", title=f"Deletion requests: {seen.model} on {seen.dataset}", seen=seen,
        since=_plain_time(seen.since)[:16],
        spent=Spent(seen.deleted_share, seen.drift).rounded(),
        now=_plain_time(end), number={name: len(own) for name, own in by_status.items()},
        seconds=statistics.median(took) if took else None, most_deleted=MOST_DELETED, most_drift=MOST_DRIFT,
        deleted=figures.over_time("deleted", [(t, p.deleted) for t, p in spent], MOST_DELETED, True),
        drift=figures.over_time("drift", [(t, p.drift) for t, p in spent], MOST_DRIFT),
        groups={
            f"{name} ({len(own)})": [cells for row in own[:_ROWS] for cells in _cells(row)]
            for name, own in by_status.items()
            if own
        },
        omitted=" ".join(_omitted(own, own[:_ROWS], f"{name} request") for name, own in by_status.items()),
        newest=[
            [entry["number"], _plain_time(entry["time"])[:16], entry["what"], entry.get("id", MISSING)]
            for entry in reversed(entries[-_ENTRIES:])
        ],
    )  # fmt: skip


def _cells(row: Row) -> list[list[str]]:
    """A row of the table, and below it the reason of a failure."""
    found = (row["submitted"], row["finished"], row["published"])
    times = (_plain_time(time)[:16] if isinstance(time, str) else MISSING for time in found)
    cells = [row["id"], due(row), *times, exact_since(row), *(f"{row[name]:,}" for name in STEPS)]
    return [cells, [row["why"]]] if row["why"] else [cells]


def _omitted(rows: Sequence[Row], drawn: Sequence[Row], noun: str) -> str:
    number = len(rows) - len(drawn)
    return f"{counted(number, f'further {noun}')} not shown." if number else ""


def _plain_time(time: str) -> str:
    """A stored time without its zone; all are UTC."""
    return datetime.datetime.fromisoformat(time).astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
