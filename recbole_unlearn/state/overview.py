"""How a state is: its requests, what is due when, and whether the model should be trained again."""

from __future__ import annotations

import datetime
from typing import NamedTuple

import pandas as pd

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.inputs import shown
from recbole_unlearn.state import ledger
from recbole_unlearn.state.core import COUNTS, Core

# From here on a model should be trained again: see docs/requests.md for what they are from.
MOST_DELETED, MOST_DRIFT = 0.05, 0.5


class Overview(NamedTuple):
    """What `status` shows."""

    model: str
    dataset: str
    requests: pd.DataFrame  # number, id, status, submitted, due, finished, counts, why
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


def overview(core: Core, id: str | None = None) -> Overview:
    """How the state is; with ``id``, of one request."""
    rows = core.database.rows(f"SELECT {', '.join(_SHOWN)} FROM requests ORDER BY number")
    if id is not None:
        rows = [row for row in rows if row["id"] == id]
        if not rows:
            raise UnlearnError(f"There is no request {shown(id)}; `requests status` lists them.")
    frame = pd.DataFrame([tuple(row) for row in rows], columns=list(_SHOWN))
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    waiting = frame["status"].isin(["pending", "running", "failed"]) & frame["due"].notna()
    entries, head = ledger.head(core.database.connection)
    base = core.database.rows("SELECT * FROM base")[0]
    drift = base["drift"] + float(str(core.database.value("SELECT total(drift) FROM changes")))
    return Overview(
        core.about("model"), core.about("dataset"), frame, int((waiting & (frame["due"] < now)).sum()),
        _deleted(core) / max(1, base["trained_on"]), drift / max(base["norm"], 1e-30), entries, head,
    )  # fmt: skip


def _deleted(core: Core) -> int:
    """Training interactions that were deleted since the model was last trained; the ledger says how many."""
    total, waiting = 0, {}
    for entry in ledger.entries(core.database.connection):
        if entry["what"] in ("taken under care", "retrained"):
            total, waiting = 0, {}
        elif entry["what"] == "done":
            waiting[entry["id"]] = entry["interactions"]
        elif entry["what"] == "rolled back":
            waiting.pop(entry["id"], None)
        elif entry["what"] == "published":
            total, waiting = total + sum(waiting.values()), {}
    return total + sum(waiting.values())
