"""The page of `requests status --html=FILE`: requests over time, deadlines, the budget and the ledger's head.

Made as a run's report is: one file, nothing from the network, light and dark. It has ids of requests and counts, and
no names.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recbole_unlearn.report import (
    Html,
    decimal,
    drawing,
    duration,
    element,
    figures,
    flat,
    join,
    pairs,
    plain,
    section,
    table,
    write,
)
from recbole_unlearn.report.page import cards
from recbole_unlearn.state.database import COUNTS, Database
from recbole_unlearn.state.status import (
    MOST_DELETED,
    MOST_DRIFT,
    WAITING,
    Overview,
    due,
    history,
    minute,
    overview,
)
from recbole_unlearn.text import MISSING, counted, percent

Row = dict[str, Any]
_GROUPS = ("failed", "running", "pending", "done", "published", "rolled back")
_ROWS = 200  # of a kind of request, and the newest of them
_BARS = 20  # of the figure of deadlines
_ENTRIES = 12  # of the ledger


def write_status(database: Database, target: Path) -> Path:
    """Write the page of a state, and return its path."""
    seen = overview(database)
    entries = list(database.entries())
    rows: list[Row] = seen.requests.to_dict("records")
    now = datetime.datetime.now(datetime.UTC)
    title = f"Deletion requests: {seen.model} on {seen.dataset}"
    return write(
        target, title, _top(seen, title, now), _cards(seen, rows, entries), _time(rows, entries, now),
        _budget(database, entries, now), _table(rows), _ledger(seen, entries),
    )  # fmt: skip


def _top(seen: Overview, title: str, now: datetime.datetime) -> Html:
    worst = _todo(seen)
    level, text = ("under", worst) if worst else ("near", "Nothing is overdue, and retraining is not due.")
    return join(
        element("p", f"recbole-unlearn, {now:%Y-%m-%d %H:%M} UTC", class_="quiet"),
        element("div", element("h1", title, element("small", text)), class_=f"verdict {level}"),
    )


def _todo(seen: Overview) -> str:
    """What somebody should do soon."""
    failed = int((seen.requests["status"] == "failed").sum())
    parts = [
        f"{counted(seen.overdue, 'request')} overdue" if seen.overdue else "",
        f"{counted(failed, 'request')} failed" if failed else "",
        "retraining is due" if seen.retraining_is_due else "",
    ]
    text = "; ".join(part for part in parts if part)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _cards(seen: Overview, rows: Sequence[Row], entries: Sequence[Row]) -> Html:
    by = {name: sum(row["status"] == name for row in rows) for name in _GROUPS}
    took = [entry["measures"]["seconds"] for entry in entries if entry["what"] == "done"]
    return cards(
        [
            (
                "waiting",
                str(sum(by[name] for name in WAITING)),
                f"{seen.overdue} overdue, {by['failed']} failed",
            ),
            ("done, can be undone", str(by["done"]), "until they are published"),
            ("published", str(by["published"]), "final"),
            (
                "deleted",
                percent(seen.deleted_share, 2),
                f"of what it was trained on; budget {percent(MOST_DELETED)}",
            ),
            ("drift", decimal(seen.drift), f"of the weights' square; budget {MOST_DRIFT:g}"),
            ("a request takes", duration(statistics.median(took) if took else None), "median"),
        ]
    )


def _time(rows: Sequence[Row], entries: Sequence[Row], now: datetime.datetime) -> Html:
    submitted = [(_time_of(row["submitted"]), place + 1) for place, row in enumerate(rows)]
    finished = sorted(row["finished"] for row in rows if row["status"] in ("done", "published"))
    done = [(_time_of(time), place + 1) for place, time in enumerate(finished)]
    end = f"{now:%Y-%m-%d %H:%M:%S}"
    series = {"done": done, "submitted": submitted}
    series = {name: [*points, (end, points[-1][1])] for name, points in series.items() if points}
    waiting = [row for row in rows if row["status"] in WAITING and isinstance(row["due"], str)]
    first = sorted(waiting, key=lambda row: row["due"])[:_BARS]
    bars = [(row["id"], _time_of(row["submitted"]), _time_of(row["due"])) for row in reversed(first)]
    return section(
        "Requests over time",
        "" if rows else element("p", "Nothing was submitted so far."),
        element(
            "div",
            _drawn(
                figures.over_time(series, "requests", whole=True),
                "Submitted and done",
                "Undone requests do not count.",
            ),
            _drawn(
                figures.deadlines(bars, end),
                "What is due next",
                _left_out(len(waiting), len(first), "deadline"),
            ),
            class_="figures",
        ),
        element("p", "No request with a deadline is waiting.") if rows and not waiting else "",
    )


def _budget(database: Database, entries: Sequence[Row], now: datetime.datetime) -> Html:
    points = history(database)
    last = points[-1]._replace(time=now.isoformat())
    deleted = [(_time_of(point.time), point.deleted) for point in [*points, last]]
    drift = [(_time_of(point.time), point.drift) for point in [*points, last]]
    return section(
        "Since the model was trained",
        element(
            "p",
            "A model that has forgotten much is not the one that retraining would give. From the budget on, train it "
            "again with ",
            element("code", "requests retrain"),
            ".",
        ),
        element(
            "div",
            _drawn(
                figures.over_time({"deleted": deleted}, "deleted", MOST_DELETED, ".1%"),
                "Deleted", "Share of the training interactions of that time.",
            ),
            _drawn(
                figures.over_time({"drift": drift}, "drift", MOST_DRIFT),
                "Drift", "Sum of squared changes of the weights, relative to their square.",
            ),
            class_="figures",
        ),
        _measured(entries),
    )  # fmt: skip


def _measured(entries: Sequence[Row]) -> Html:
    """What was measured against a retrained model, where somebody did; the newest first."""
    found = [(entry, _distances(entry)) for entry in reversed(entries)]
    known = [(entry, values) for entry, values in found if values][:_ENTRIES]
    if not known:
        return element(
            "p",
            "How near the model is to a retrained one was not measured here; ",
            element("code", "run_unlearn.py --compare=retrain"),
            " measures it.",
            class_="quiet",
        )
    names = list(dict.fromkeys(name for _, values in known for name in values))
    rows = [
        [
            f"{entry['number']} {entry['what']}",
            minute(entry["time"]),
            *(plain(values.get(name)) for name in names),
        ]
        for entry, values in known
    ]
    return table("Distance to retraining, where it was measured", ["entry", "time (UTC)", *names], {"": rows})


def _distances(entry: Row) -> dict[str, Any]:
    return {
        name: value for name, value in flat(entry.get("measures", {})) if name not in ("seconds", "drift")
    }


def _table(rows: Sequence[Row]) -> Html:
    bodies, left_out = {}, []
    for name in _GROUPS:
        own = [row for row in reversed(rows) if row["status"] == name]
        if own:
            bodies[f"{name} ({len(own)})"] = [cells for row in own[:_ROWS] for cells in _cells(row)]
            left_out.append(_left_out(len(own), len(own[:_ROWS]), f"{name} request"))
    head = ("id", "due", "submitted", "finished", "training", "held out", "users", "items")
    if not bodies:
        return Html("")
    caption = " ".join(
        ["Interactions, users and items that each asks for; the newest first, times in UTC.", *left_out]
    )
    return section("All requests", table(caption.strip(), head, bodies))


def _cells(row: Row) -> Iterator[list[str]]:
    """A row of the table, and below it why the request failed."""
    finished = minute(row["finished"]) if isinstance(row["finished"], str) else MISSING
    yield [row["id"], due(row), minute(row["submitted"]), finished, *(f"{row[name]:,}" for name in COUNTS)]
    if row["why"]:
        yield [row["why"]]


def _ledger(seen: Overview, entries: Sequence[Row]) -> Html:
    newest = [
        [str(entry["number"]), minute(entry["time"]), entry["what"], entry.get("id", MISSING)]
        for entry in reversed(entries[-_ENTRIES:])
    ]
    return section(
        "Ledger",
        pairs(
            "Each entry holds all before it by a keyed hash. Note the head elsewhere: requests verify --head=LINK "
            "finds a ledger that was cut.",
            [("entries", f"{seen.entries:,}"), ("head", seen.head)],
        ),
        table("Newest entries", ["entry", "time (UTC)", "what", "request"], {"": newest}),
    )


def _drawn(figure: figures.Figure | None, title: str, caption: str) -> Iterator[str]:
    if figure is not None:
        yield drawing(figure, title, caption)


def _left_out(number: int, shown: int, noun: str) -> str:
    return f"{counted(number - shown, f'further {noun}')} not shown." if number > shown else ""


def _time_of(time: str) -> str:
    """A time for plotly, which takes no time zone; all are UTC."""
    return datetime.datetime.fromisoformat(time).astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
