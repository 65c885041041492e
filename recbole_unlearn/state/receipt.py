"""The receipt of a request: one page for a data protection officer, and the same as JSON.

From the database alone, as the status: sizes are in steps, hashes are keyed, and no user or item is named.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.state.database import LINES, STEPS, TRAINED, Database, now
from recbole_unlearn.state.status import overview

SCHEMA = 1
_MARK = b"<title>Receipt of "


def receipt(database: Database, id: str) -> dict[str, Any]:
    """What the ledger says about a request."""
    seen = overview(database, id)
    row = seen.rows[0]
    entries = database.entries()
    asked = next(one for one in entries if one["what"] == "submitted" and one["id"] == id)
    names = {id, asked.get("same_as", id)}  # the same request under another id shares what was done for the first
    own = [one for one in entries if names & {one.get("id"), *one.get("ids", ()), *one.get("again", ())}]
    own += [one for one in entries if row["exact"] and one["time"] == row["since"] and one not in own]
    is_in = row["exact"] is not None
    done: dict[str, Any] = next((one for one in reversed(own) if is_in and one["what"] == "done"), {})
    final: dict[str, Any] = next((one for one in reversed(own) if id in one.get("ids", ())), {})
    trained = [one["what"] for one in own if one["what"] in TRAINED and one["time"] == row["since"]]
    return {
        "schema": SCHEMA, "date": now(), "request": id, "model": seen.model, "dataset": seen.dataset,
        "status": row["status"], "why": row["why"],
        "asked": {name: row[name] for name in (*STEPS, *LINES)},
        "dates": {
            "submitted": row["submitted"], "due": row["due"], "done": row["finished"], "published": row["published"],
            "exact since": row["since"] if row["exact"] else None,
        },
        "methods": [*([done["method"]] if done else []), *trained],
        "exact": row["exact"], "measured": done.get("measures", {}), "settings": done.get("settings", {}),
        "hashes": {
            "request": asked["request"], "model before": done.get("before", final.get("before")),
            "model after": done.get("after"), "model published": final.get("after"), "ledger head": seen.head,
        },
        "ledger": [{key: one[key] for key in ("number", "time", "what", "link")} for one in own],
        "versions": (done or final).get("versions", {}),
    }  # fmt: skip


def write_receipt(database: Database, id: str, folder: Path) -> list[Path]:
    """Write `receipt-ID.html` and `.json` into ``folder``; only an earlier receipt is replaced."""
    from recbole_unlearn.files import make_directory, write_json
    from recbole_unlearn.report import day, write_page

    found = receipt(database, id)
    page, data = (folder / f"receipt-{id}.{kind}" for kind in ("html", "json"))
    for path, mark in ((page, _MARK), (data, b'"schema"')):
        if os.path.lexists(path) and not (path.is_file() and mark in path.read_bytes()[:4096]):
            raise UnlearnError(f"{shown(path)} exists and is not a receipt. Choose another directory with --out.")
    make_directory(folder)
    write_json(data, found)
    dates = [(name, day(time)) for name, time in found["dates"].items()]
    rows = [([one["what"], day(one["time"])], [f"{one['number']}: {one['link']}"]) for one in found["ledger"]]
    write_page(
        page, "receipt.html", title=f"Receipt of {id}", found=found, dates=dates, ledger=[*itertools.chain(*rows)]
    )
    return [page, data]
