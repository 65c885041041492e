"""The status of a state: its requests, their deadlines, the budget, and the ledger's head, as text and as JSON.

Reads the database alone: neither the model nor the key. Sizes are in steps, so that they name no user.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from recbole_unlearn.state.database import LINES, STEPS, Database, Exactness, Spent, now
from recbole_unlearn.text import MISSING, counted, decimal, drawn, percent, wrapped

# The budget: from here on a model should be trained again; docs/requests.md says where the limits come from.
MOST_DELETED, MOST_DRIFT = 0.05, 0.1
WAITING = ("pending", "failed")  # a deadline matters to these
Row = dict[str, Any]
_SHOWN = ("id", "status", "submitted", "due", "finished", *STEPS, *LINES, "why")


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
    rows = database.rows("SELECT * FROM requests ORDER BY number") if id is None else [database.request(id)]
    now_exact, by_id = database.exactness()
    final = {id: entry["time"] for entry in database.entries() for id in entry.get("ids", ())}
    found = []
    for row in rows:
        exact, since = by_id.get(row["id"], (None, None))
        shown = {name: row[name] for name in _SHOWN}
        found.append({**shown, "published": final.get(row["id"]), "exact": exact, "since": since})
    approximate = sum(not one.exact for one in by_id.values())
    overdue = sum(row["status"] in WAITING and row["due"] is not None and row["due"] < now() for row in rows)
    model, dataset = database.about("model"), database.about("dataset")
    return Overview(model, dataset, found, overdue, *database.spent(), *database.head(), *now_exact, approximate)


def status_text(seen: Overview, state: str) -> str:
    """The status as text; ``state`` is the directory as it was typed."""
    rows, number = seen.rows, counted(len(seen.rows), "request")
    lines = [f"{seen.model} on {seen.dataset}: {number}, {seen.overdue} overdue. Times are UTC.", ""]
    if rows:
        head = ("id", "status", "submitted", "due", "done", "published", "exact since")
        cells = [
            [row["id"], row["status"], row["submitted"][:10], due(row),
             *((row[name] or MISSING)[:10] for name in ("finished", "published")),
             MISSING if row["exact"] is None else row["since"][:10] if row["exact"] else "approximate"]
            for row in rows
        ]  # fmt: skip
        lines += [drawn(head, cells, left=7), ""]
    failed = [wrapped(f"{row['id']} failed: {row['why']}") for row in rows if row["status"] == "failed"]
    left_out = [wrapped(f"{row['id']}: {lines_said(row)}") for row in rows if row[LINES[1]] or row[LINES[2]]]
    lines += [*failed, *left_out, ""] if failed or left_out else []
    time, command = f"since {seen.since[:16].replace('T', ' ')}", f"requests rebuild {state}`"
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
        advice = f"Retraining is due: `recbole-unlearn {command}, or `retrain`, or train a new model and `adopt` it."
    entries = "1 entry" if seen.entries == 1 else f"{seen.entries} entries"
    return "\n".join([*lines, wrapped(advice), f"Ledger: {entries}, head {seen.head}"])


def status_json(seen: Overview) -> str:
    """The status as JSON, with the fields of :class:`Overview`, what is spent of the budget in steps."""
    deleted, drift = Spent(seen.deleted_share, seen.drift).rounded()
    said = {**seen._asdict(), "deleted_share": deleted, "drift": drift, "retraining_is_due": seen.retraining_is_due}
    rows = said.pop("rows")
    return json.dumps({**said, "requests": rows}, indent=1)


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
