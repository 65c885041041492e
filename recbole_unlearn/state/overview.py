"""How a state is: its requests, what is due when, and whether the model should be trained again.

Needs the database alone: neither the model nor the key, and no torch.
"""

from __future__ import annotations

import datetime
from typing import NamedTuple

import pandas as pd

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.inputs import shown
from recbole_unlearn.state import ledger
from recbole_unlearn.state.database import COUNTS, Database

# From here on a model should be trained again: see docs/requests.md for what they are from.
MOST_DELETED, MOST_DRIFT = 0.05, 0.1
WAITING = ("pending", "running", "failed")  # a deadline matters to these


class Spent(NamedTuple):
    """What requests have used of the budget by some time."""

    time: str
    deleted: float  # share of the training interactions that the model was last trained on
    drift: float  # Σ ‖θ' − θ‖² of all requests since, relative to ‖θ‖² then


class Overview(NamedTuple):
    """What `status` shows."""

    model: str
    dataset: str
    requests: pd.DataFrame  # id, status, submitted, due, finished, counts, why
    overdue: int
    deleted_share: float  # of the training interactions that the model was last trained on
    drift: float  # Σ ‖θ' − θ‖² of all requests since, relative to ‖θ‖²
    entries: int
    head: str  # of the ledger

    @property
    def retraining_is_due(self) -> bool:
        """Whether the budget is spent."""
        return self.deleted_share >= MOST_DELETED or self.drift >= MOST_DRIFT


_SHOWN = ("id", "status", "submitted", "due", "finished", *COUNTS, "why")


def overview(database: Database, id: str | None = None) -> Overview:
    """How the state is; with ``id``, of one request."""
    rows = database.rows(f"SELECT {', '.join(_SHOWN)} FROM requests ORDER BY number")
    if id is not None:
        rows = [row for row in rows if row["id"] == id]
        if not rows:
            raise UnlearnError(f"There is no request {shown(id)}; `requests status` lists them.")
    frame = pd.DataFrame([tuple(row) for row in rows], columns=list(_SHOWN))
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    waiting = frame["status"].isin(WAITING) & frame["due"].notna()
    model, dataset = database.about("model"), database.about("dataset")
    entries, head = ledger.head(database.connection)
    spent = history(database)[-1]
    return Overview(
        model,
        dataset,
        frame,
        int((waiting & (frame["due"] < now)).sum()),
        spent.deleted,
        spent.drift,
        entries,
        head,
    )


def history(database: Database) -> list[Spent]:
    """How the budget was spent since the model was last trained, by the ledger; the first is zero."""
    base = database.rows("SELECT trained_on, norm FROM base")[0]
    points: list[Spent] = []
    undoable: list[_Done] = []
    deleted, drift = 0, 0.0
    for entry in ledger.entries(database.connection):
        if entry["what"] in ("taken under care", "retrained"):
            points, undoable, deleted, drift = [], [], 0, 0.0
        elif entry["what"] == "done":
            again = (
                bool(undoable) and undoable[-1].after == entry["after"]
            )  # done as one: they have one change
            undoable.append(_Done(entry["id"], entry["after"], deleted, drift))
            deleted += entry["interactions"]
            drift += 0.0 if again else entry["measures"]["drift"]
        elif entry["what"] == "rolled back":
            # Its change is undone with all that followed; what was done with it or after it comes again.
            change = next((one.after for one in undoable if one.id == entry["id"]), None)
            place = next((k for k, one in enumerate(undoable) if one.after == change), None)
            if place is not None:
                _, _, deleted, drift = undoable[place]
                del undoable[place:]
        elif entry["what"] == "published":
            undoable = []
        else:
            continue
        points.append(
            Spent(entry["time"], deleted / max(1, base["trained_on"]), drift / max(base["norm"], 1e-30))
        )
    return points


class _Done(NamedTuple):
    """A request that is done, and what had been spent before it."""

    id: str
    after: str  # the model's fingerprint
    deleted: int
    drift: float
