"""Requests are checked when they are submitted, and put into the queue; any process may submit.

Every line of a request is queued, unknown or deleted before. From the submission on, the pairs of a request are not
recommended any more.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
from typing import Any, NamedTuple

import numpy as np
import torch

from recbole_unlearn.data import EMPTY, Candidates, Fields, ForgetRequest, ids_of, match, read_request
from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.files import request_digest
from recbole_unlearn.results.disclosure import coarse
from recbole_unlearn.rows import SIDES
from recbole_unlearn.state.context import Core, Lines, Receipt, Span, Suppression, due_at
from recbole_unlearn.state.database import LINES, STEPS, asked, now, packed
from recbole_unlearn.state.live import Arrays, LiveModel

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Found(NamedTuple):
    """The interactions that a request means in training, validation and test data."""

    numbers: Arrays  # of those that are left, ascending
    all: list[tuple[int, int]]  # (part, number) of these, and of those that earlier requests deleted
    suppressed: list[tuple[int, int]]  # (user, item), sorted; 0 for all users, or for all items
    users: int
    items: int
    there: np.ndarray  # (rows of the request,), the rows that name something that is left
    gone: np.ndarray  # (rows of the request,), those that name something that earlier requests deleted


def find(live: LiveModel, request: ForgetRequest) -> Found:
    """Find a request by the indices of a model: the cost is that of its users and items.

    An earlier request can be undone until it is published. Interactions that this request asks for as well must
    stay deleted then.
    """
    users, items = ids_of(request, live.base.splits.train)
    own = torch.from_numpy(np.unique(users[users > 0]))
    whole = torch.from_numpy(np.unique(items[(items > 0) & (users == EMPTY)]))
    there, gone = np.zeros(len(users), dtype=bool), np.zeros(len(users), dtype=bool)
    left: set[tuple[int, int]] = set()  # pairs
    numbers: list[np.ndarray] = []
    everything, suppressed = list[tuple[int, int]](), set[tuple[int, int]]()
    for part, (index, precision) in enumerate(zip(live.parts, live.precisions, strict=True)):
        for of in (index.of, index.removed_of):
            near = torch.unique(torch.cat([of("user", own), of("item", whole)])).numpy()
            mask, hit = match(request, users, items, Candidates(index.train, near, precision), live.base.clock)
            found = near[mask]
            pairs = set(zip(*(index.ids[side][torch.from_numpy(found)].tolist() for side in SIDES), strict=True))
            everything += [(part, number) for number in found.tolist()]
            suppressed |= pairs
            if of == index.of:
                there |= hit
                left |= pairs
                numbers.append(found)
            else:
                gone |= hit
    suppressed |= {(0, int(item)) for item in items[there & (users == EMPTY)]}
    suppressed |= {(int(user), 0) for user in users[there & (items == EMPTY)]}
    user_count, item_count = (len({pair[side] for pair in left}) for side in (0, 1))
    return Found(numbers, everything, sorted(suppressed), user_count, item_count, there, gone & ~there)


def refuse_emptying(live: LiveModel, name: str, numbers: Arrays) -> None:
    """Refuse to delete the last interactions of a part of the data; ``name`` is the request's."""
    for index, part, data in zip(live.parts, numbers, ("training", "validation", "test"), strict=True):
        if len(index) and int((~index.removed[torch.from_numpy(part)]).sum()) == len(index):
            raise UnlearnError(
                f"{name}: no {data} interaction would be left, and there is no model without. Ask for less, or "
                "delete the model."
            )


def submit(core: Core, forget: Any, id: str | None, deadline: Span | None, dry_run: bool) -> Receipt:
    """Check a request and put it into the queue; see :meth:`State.submit`."""
    if id is not None and not _ID.fullmatch(id):
        raise UnlearnError(f"id={shown(id)}: an id has letters, digits, dots, dashes and _, 64 at most.")
    due = None if deadline is None else due_at(deadline)
    request = forget if isinstance(forget, ForgetRequest) else read_request(forget, Fields.of(core.config))
    known = request_digest(core.key, request.frame)
    while True:
        base = core.refreshed().base
        found = find(core.live, request)
        lines = _lines(core, request, found)
        with core.database.transaction():
            if core.version().base == base:  # else published meanwhile, and the numbers are others
                return _submitted(core, request, known, found, lines, {"id": id, "due": due}, dry_run)


def _submitted(
    core: Core, request: ForgetRequest, known: str, found: Found, lines: Lines, named: dict[str, Any], dry_run: bool
) -> Receipt:  # fmt: skip
    """The receipt of a request; inside a transaction, which queues it unless it was submitted before.

    Under another id it is recorded as it stands, and shares the change that was made for the first.
    """
    id, database, first = named["id"], core.database, _submitted_before(core, known, found, named["id"])
    row = {} if first is None else dict(first)
    more = {"same_as": row["id"]} if row else {}
    if not row or id not in (None, row["id"]):
        if id is not None and database.value("SELECT 1 FROM requests WHERE id = ?", id):
            raise UnlearnError(f"There is another request with the id {id}. Choose another.")
        row |= named | {"id": id or f"r-{secrets.token_hex(6)}", "submitted": now(), "number": None, "seal": ""}
        row |= {} if more else {"digest": known, **_content(core, request, found, lines)}
        if dry_run:
            row["status"] = "not submitted"
        else:
            marks = ", ".join("?" * len(row))
            database.write(f"INSERT INTO requests ({', '.join(row)}) VALUES ({marks})", *row.values())
            steps = {name: row[name] for name in (*STEPS, *LINES)}
            database.enter("submitted", id=row["id"], request=known, due=row["due"], **steps, **more)
    if not more:
        return Receipt.of(row)._replace(lines=lines)
    exact = database.exactness()[1].get(row["id"])
    return Receipt.of(row)._replace(**more, **exact._asdict() if exact else {})


def _submitted_before(core: Core, known: str, found: Found, id: str | None) -> sqlite3.Row | None:
    """The same request, submitted earlier; not one that failed, was undone, or has something left to do."""
    same = "SELECT * FROM requests WHERE digest = ? AND status NOT IN ('failed', 'rolled back') ORDER BY id != ?"
    rows = core.database.rows(same, known, id or "")
    return next((row for row in rows if not any(map(len, map(np.setdiff1d, found.numbers, asked([row]))))), None)


def _lines(core: Core, request: ForgetRequest, found: Found) -> Lines:
    """The states of the lines of a request; one is deleted before if what is left of earlier requests names it."""
    before, unknown, known = found.gone.copy(), dict[str, list[int]](), Suppression(core.key, core.deleted())
    ids, fields = ids_of(request, core.live.base.splits.train), Fields.of(core.config)[:2]
    pairs = request.frame[[*SIDES]].to_numpy(dtype=object)
    for row in np.flatnonzero(~found.there & ~found.gone):
        before[row] = tuple(pairs[row]) in known
        if not before[row]:
            columns = [str(field) for field, own in zip(fields, ids, strict=True) if own[row] == 0]
            name = " and ".join(columns) or "pair"
            unknown.setdefault(name, []).append(int(request.rows[row]))
    return Lines(request.unit, request.rows[found.there].tolist(), unknown, request.rows[before].tolist())


def _content(core: Core, request: ForgetRequest, found: Found, lines: Lines) -> dict[str, Any]:
    """What a request asks for, as it is stored; refused if it is nothing, or if no data would be left.

    In steps it is shown without the key, never more than ten users have.
    """
    if not lines.queued:
        said = "; ".join(lines.others())
        raise UnlearnError(
            f"{request.name}: nothing is queued, none of its {lines.unit}s names data that is left ({said})."
        )
    refuse_emptying(core.live, request.name, _with_pending(core, found))
    train, *held_out = map(len, found.numbers)
    most, (queued, unknown, before) = max(1, found.users * core.live.usual), lines.counts()
    steps = min(train + sum(held_out), most), found.users, min(queued, most), unknown, min(before, most)
    return {
        "status": "pending", "why": "",
        "interactions": train, "held_out": sum(held_out), "users": found.users, "items": found.items,
        **dict(zip((*STEPS, *LINES), map(coarse, steps), strict=True)),
        "asked": packed(found.all), "suppressed": packed(found.suppressed),
    }  # fmt: skip


def _with_pending(core: Core, found: Found) -> Arrays:
    """The numbers of the interactions of a request and of those before it in the queue together."""
    pending = core.database.rows("SELECT asked FROM requests WHERE status = 'pending'")
    return [np.union1d(*both) for both in zip(found.numbers, asked(pending), strict=True)]
