"""Deletion requests: what their columns and cells mean, and finding the interactions they mean.

A request names interactions, whole users and whole items by the dataset's own tokens: a row with a user and an item
is an interaction, a row with one of them is all that this one has. :func:`read_request` takes a file or Python data,
:func:`locate` finds the interactions in the training, validation and test split. Messages give the request's row
numbers and counts, never tokens: a log must not say who asked to be forgotten.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from recbole.data.dataset import Dataset

from recbole_unlearn.data.request_forms import Table, as_column, is_value, table_of
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Clock

logger = logging.getLogger(__name__)

SHOWN_ROWS = 5  # how many row numbers an error message gives
EMPTY = -1  # in the place of an id, where a request has none
# What people write beside a request. With only one of the two id columns, any other column could be a misspelt one.
_REMARKS = {
    "reason", "ticket", "case", "note", "notes", "comment", "comments", "remark", "remarks", "request", "requested",
    "status", "email",
}  # fmt: skip
_EXACT = 2**53  # whole numbers up to here are what they were before a reader made them floats


@dataclasses.dataclass(frozen=True)
class Fields:
    """The dataset's column names, from its config."""

    user: str
    item: str
    time: str | None

    @classmethod
    def of(cls, config: Any) -> Fields:
        """Read them from a RecBole config."""
        return cls(config["USER_ID_FIELD"], config["ITEM_ID_FIELD"], config["TIME_FIELD"])


@dataclasses.dataclass(frozen=True)
class ForgetRequest:
    """What is asked for, in tokens, each once.

    ``frame`` has the columns user, item (None: all users, or all items) and time (NaN: at any time).
    """

    frame: pd.DataFrame
    name: str  # how messages call the request
    rows: np.ndarray  # the row number of each request, as its author counts rows
    unit: str  # "line" in a text file, "row" elsewhere

    def where(self, bad: np.ndarray) -> str:
        """'lines 4, 9, 17 and 12 more' for the requests marked in ``bad``."""
        return _where(self.unit, self.rows[bad])


def _where(unit: str, numbers: np.ndarray) -> str:
    text = ", ".join(str(n) for n in numbers[:SHOWN_ROWS])
    more = f" and {len(numbers) - SHOWN_ROWS} more" if len(numbers) > SHOWN_ROWS else ""
    return f"{unit}{'s' if len(numbers) > 1 else ''} {text}{more}"


@dataclasses.dataclass(frozen=True)
class Located:
    """Which interactions of each split a request means (boolean masks), and how many requests were skipped."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    skipped: int = 0


def read_request(forget: Any, fields: Fields) -> ForgetRequest:
    """A request from a file, a DataFrame, a dict of columns, or a pair (users, items).

    A column is a list or an array; one value is a column of one.
    """
    table = table_of(forget, fields.user, fields.item, _expected(fields))
    cells = {key: _cells(table, header, given) for key, (header, given) in _known(table, fields).items()}
    lengths = {len(values) for values in cells.values()}
    if len(lengths) > 1:
        raise UnlearnError(
            f"The columns of {table.name} differ in length; repeat a value for each row that it belongs to."
        )
    number = lengths.pop()
    if number == 0:
        raise UnlearnError(f"{table.name} asks for nothing: it has a header but no rows.")
    rows = np.array(table.rows[:number])
    user, item, time = (cells.get(key, [None] * number) for key in ("user", "item", "time"))
    _check_rows(table, fields, rows, *(_filled(values) for values in (user, item, time)))
    if {"user", "item"} <= set(cells) and not all(_filled(user) & _filled(item)):
        # Without numbers: there may be a line for each interaction of one user.
        logger.warning(
            "%s: rows with an empty cell mean all interactions of a user or of an item.", table.name
        )
    columns = {
        "user": pd.Series(_tokens(table, fields.user, user, rows), dtype=object),
        "item": pd.Series(_tokens(table, fields.item, item, rows), dtype=object),
        "time": _times(table, fields, time, rows),
    }
    unique = pd.DataFrame(columns).drop_duplicates()
    return ForgetRequest(unique.reset_index(drop=True), table.name, rows[unique.index], table.unit)


def _known(table: Table, fields: Fields) -> dict[str, tuple[str, Any]]:
    """The columns that say what to forget, by what they are; the others are counted in the log, or refused."""
    wanted = {fields.user: "user", fields.item: "item"} | ({fields.time: "time"} if fields.time else {})
    # RecBole's own files write the type into the header (user_id:token); both spellings are taken.
    headers = [header.split(":")[0].strip() for header, _ in table.columns]
    known = [header for header in headers if header in wanted]
    others = [header for header in headers if header not in wanted]
    found = {wanted[header] for header in known}
    problem = ""
    if len(known) > len(found):
        problem = "has a column twice"
    elif not found & {"user", "item"}:
        # The first line of a file without a header is a request: what it says is not printed.
        problem = f"has {known[0]} alone" if known else "has no known column"
    elif not {"user", "item"} <= found and not all(_is_remark(header) for header in others):
        missing = fields.item if "user" in found else fields.user
        problem = (
            f"has {known[0]} and {len(others)} other column{'s' if len(others) > 1 else ''}, of which one could be a "
            f"misspelt {missing} (if not, add an empty column {missing})"
        )
    if problem:
        raise UnlearnError(f"{table.name}: the header {problem}; expected {_expected(fields)}.")
    if others:
        _say_ignored(table, others)
    places = {wanted[header]: place for place, header in enumerate(headers) if header in wanted}
    return {key: (headers[place], table.columns[place][1]) for key, place in places.items()}


def _is_remark(header: str) -> bool:
    """Whether a header is one of a remark: `reason`, `Ticket number`, `request_date`."""
    return bool(_REMARKS & set(re.split(r"[\W_]+", header.lower())))


def _say_ignored(table: Table, others: Sequence[str]) -> None:
    plain = [header for header in others if re.fullmatch(r"[A-Za-z_][\w .-]{0,40}", header)]
    names = f" ({', '.join(plain)})" if len(plain) == len(others) else ""
    logger.info(
        "%s: %d column%s beside those of the request %s not used%s.",
        table.name, len(others), "s" if len(others) > 1 else "", "are" if len(others) > 1 else "is", names,
    )  # fmt: skip


def _expected(fields: Fields) -> str:
    time = f", optionally {fields.time}" if fields.time else ""
    return f"columns {fields.user},{fields.item}{time}, or only {fields.user}, or only {fields.item}"


def _cells(table: Table, header: str, given: Any) -> list[Any]:
    """The cells of a column: text, numbers, and None where one is empty."""
    values = as_column(given)
    if values is None:
        raise UnlearnError(
            f"{table.name}: {header} cannot be a {type(given).__name__}; give one value, or a list or an array of "
            "values."
        )
    cells = [None if _is_empty(value) else value for value in values]
    bad = np.array([cell is not None and not is_value(cell) for cell in cells], dtype=bool)
    if bad.any():
        where = _where(table.unit, np.array(table.rows[: len(cells)])[bad])
        raise UnlearnError(f"{table.name}: {header} is neither text nor a number in {where}.")
    return cells


def _is_empty(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or value is pd.NA or (_is_float(value) and math.isnan(value))


def _is_float(value: Any) -> bool:
    return isinstance(value, (float, np.floating))


def _filled(cells: Sequence[Any]) -> np.ndarray:
    return np.array([cell is not None for cell in cells], dtype=bool)


def _tokens(table: Table, header: str, cells: Sequence[Any], rows: np.ndarray) -> list[str | None]:
    """Cells as tokens; whole numbers that a reader made floats (196.0) become 196 again."""
    bad = np.array([_is_float(cell) and not abs(cell) <= _EXACT for cell in cells], dtype=bool)
    if bad.any():
        where = _where(table.unit, rows[bad])
        raise UnlearnError(
            f"{table.name}: {header} is too large to be exact as a float in {where}; give it as text."
        )
    whole = all(float(cell).is_integer() for cell in cells if _is_float(cell))
    exact = [int(cell) if whole and _is_float(cell) else cell for cell in cells]
    return [None if cell is None else str(cell).strip() for cell in exact]


def _check_rows(
    table: Table, fields: Fields, rows: np.ndarray, user: np.ndarray, item: np.ndarray, time: np.ndarray
) -> None:
    """Refuse rows that name nobody, and times of all that somebody has; the arrays say where a cell is filled."""
    nobody = ~user & ~item
    if nobody.any():
        raise UnlearnError(
            f"{table.name}: neither a user nor an item is given in {_where(table.unit, rows[nobody])}; fill one in."
        )
    whole = time & ~(user & item)
    if whole.any():
        raise UnlearnError(
            f"{table.name}: {fields.time} is given with a whole user or item in {_where(table.unit, rows[whole])}. "
            f"It goes with both {fields.user} and {fields.item}; leave it empty there."
        )


def _times(table: Table, fields: Fields, cells: Sequence[Any], rows: np.ndarray) -> np.ndarray:
    """Timestamps (n,); NaN where none is given."""
    times = pd.to_numeric(pd.Series(cells, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    bad = _filled(cells) & ~np.isfinite(times)
    if bad.any():
        raise UnlearnError(f"{table.name}: {fields.time} is not a number in {_where(table.unit, rows[bad])}.")
    return times


def locate(
    request: ForgetRequest,
    splits: tuple[Dataset, Dataset, Dataset],
    on_missing: str = "error",
    clock: Clock | None = None,
    hint: str = "",
) -> Located:
    """Find the interactions of ``splits`` (train, valid, test) that ``request`` means.

    Args:
        request: what to forget.
        splits: RecBole datasets that share their ids.
        on_missing: "error" stops at a token or a pair that is nowhere in the data, "skip" leaves it out.
        clock: maps the request's timestamps to the dataset's, which RecBole may have normalised.
        hint: what else the error of something missing may say.

    """
    users, items = ids_of(request, splits[0])
    unknown = (users == 0) | (items == 0)
    if unknown.any():
        _missing(request, unknown, on_missing, "name a user or an item that is not in the dataset", hint)
    matched = [match(request, users, items, Candidates(split), clock) for split in splits]
    masks = [mask for mask, _ in matched]
    absent = ~np.any([found for _, found in matched], axis=0) & ~unknown
    if absent.any():
        _missing(request, absent, on_missing, "are not in the training data", hint)
    train_mask, valid_mask, test_mask = masks
    located = Located(train_mask, valid_mask, test_mask, int((unknown | absent).sum()))
    if not any(mask.any() for mask in masks):
        raise UnlearnError(
            f"{request.name}: nothing to forget. None of its rows is in the data; check the file, or the dataset and "
            f"its filters.{hint}"
        )
    if located.train.all():
        raise UnlearnError(
            f"{request.name} asks to forget all {len(located.train)} training interactions: there is no "
            "model without data. Delete the model instead, or ask for less."
        )
    return located


def is_gone(
    request: ForgetRequest, splits: tuple[Dataset, Dataset, Dataset], clock: Clock | None = None
) -> bool:
    """Whether no interaction of ``splits`` is meant by ``request``."""
    users, items = ids_of(request, splits[0])
    return not any(match(request, users, items, Candidates(split), clock)[0].any() for split in splits)


def ids_of(request: ForgetRequest, train: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The ids of users and of items in a request."""
    return (
        _ids(request.frame["user"], train.field2token_id[train.uid_field]),
        _ids(request.frame["item"], train.field2token_id[train.iid_field]),
    )


def _ids(tokens: pd.Series, known: dict[str, int]) -> np.ndarray:
    """Ids (n,) of tokens: 0 for an unknown one, ``EMPTY`` for none."""
    return np.array([EMPTY if token is None else known.get(token, 0) for token in tokens], dtype=np.int64)


def _missing(request: ForgetRequest, bad: np.ndarray, on_missing: str, what: str, hint: str) -> None:
    text = f"{request.name}: {int(bad.sum())} of {len(bad)} requests {what} ({request.where(bad)})"
    if on_missing == "error":
        raise UnlearnError(f"{text}. Correct them, or leave them out with --on_missing=skip.{hint}")
    # Without their number: there may be a line for each interaction of one user.
    logger.warning(
        "%s: requests that %s were skipped; --on_missing=error gives their numbers.", request.name, what
    )


class Candidates(NamedTuple):
    """Interactions of a split among which a request is looked for: all of them, or those that an index found."""

    split: Dataset
    numbers: np.ndarray | slice = slice(None)
    precision: float | None = None  # that timestamps have; None: of the largest timestamp of the split


def time_precision(split: Dataset) -> float:
    """How far a timestamp may be from what a request says: RecBole keeps float32."""
    times = (
        split.inter_feat[split.time_field].numpy() if split.time_field in split.inter_feat else np.zeros(0)
    )
    return 2 * float(np.spacing(np.float32(np.abs(times).max(initial=1.0))))


def match(
    request: ForgetRequest, users: np.ndarray, items: np.ndarray, near: Candidates, clock: Clock | None
) -> tuple[np.ndarray, np.ndarray]:
    """Which of the interactions ``near`` a request means, and which of its rows have one there (two masks).

    ``users`` and ``items`` are the ids of the request (:func:`ids_of`). The cost is that of ``near``.
    """
    split = near.split
    timed = request.frame["time"].notna().to_numpy()
    both = (users > 0) & (items > 0)
    wanted = {"user": users, "item": items, "pair": users * split.item_num + items}
    asked = {  # the rows of each kind whose tokens are known
        "user": (users > 0) & (items == EMPTY),
        "item": (users == EMPTY) & (items > 0),
        "pair": both & ~timed,
    }
    own = {
        "user": split.inter_feat[split.uid_field].numpy()[near.numbers],
        "item": split.inter_feat[split.iid_field].numpy()[near.numbers],
    }
    own["pair"] = own["user"] * split.item_num + own["item"]
    mask, found = np.zeros(len(own["user"]), dtype=bool), np.zeros(len(users), dtype=bool)
    for kind, rows in asked.items():
        mask |= np.isin(own[kind], wanted[kind][rows])
        found[rows] |= np.isin(wanted[kind][rows], own[kind])
    if timed.any():
        hits, hit = _match_times(
            request, np.where(both & timed, wanted["pair"], -1), own["pair"], near, clock
        )
        mask, found = mask | hits, found | hit
    return mask, found


def _match_times(
    request: ForgetRequest, wanted: np.ndarray, keys: np.ndarray, near: Candidates, clock: Clock | None
) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`match` for keys of pairs, with the timestamp too."""
    split = near.split
    if split.time_field not in split.inter_feat:
        raise UnlearnError(
            f"{request.name} gives {split.time_field}, but the dataset was loaded without it. "
            f"Drop that column, or load it with --load_col='{{inter: [..., {split.time_field}]}}'."
        )
    asked = request.frame["time"].to_numpy()
    asked = clock(asked) if clock else asked
    times = split.inter_feat[split.time_field].numpy()[near.numbers].astype(np.float64)
    precision = time_precision(split) if near.precision is None else near.precision
    present = pd.DataFrame({"key": keys, "time": times, "number": np.arange(len(keys))})
    requests = pd.DataFrame({"key": wanted, "asked": asked, "request": np.arange(len(wanted))})
    pairs = present[np.isin(keys, wanted)].merge(requests, on="key")
    pairs = pairs[(pairs["time"] - pairs["asked"]).abs() <= precision]
    mask, hit = np.zeros(len(keys), dtype=bool), np.zeros(len(wanted), dtype=bool)
    mask[pairs["number"].to_numpy()] = True
    hit[pairs["request"].to_numpy()] = True
    return mask, hit
