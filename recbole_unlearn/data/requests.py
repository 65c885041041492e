"""Deletion requests, read from files or Python data.

A request names interactions, whole users and whole items by the dataset's own tokens: a row with a user and an item
is an interaction, a row with one of them means all interactions of it. `matching.py` finds the interactions. Messages
give row numbers and counts, never content: a log must not say who asked to be forgotten.
"""

import codecs
import csv
import dataclasses
import io
import json
import logging
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.settings import read_regular

logger = logging.getLogger(__name__)

LARGEST = 1 << 30  # bytes of a file of requests
DENSEST, CELLS, FREE = 100, 4, 1 << 20  # unpacked bytes and cells for each byte of a file, besides a million
MOST_COLUMNS, LONGEST_TOKEN = 1000, 4096
SHOWN_ROWS = 5  # how many row numbers an error message gives
EMPTY = -1  # in the place of an id, where a request has none
# Columns of remarks. With only one of the two id columns, any other column could be a misspelt one.
_REMARKS = {
    "reason", "ticket", "case", "note", "notes", "comment", "comments", "remark", "remarks", "request", "requested",
    "status", "email",
}  # fmt: skip
_EXACT = 2**53  # whole numbers up to here survive a reader that makes them floats
_FLOATS: Any = (float, np.floating)


class Fields(NamedTuple):
    """The dataset's column names, from its config."""

    user: str
    item: str
    time: str | None

    @classmethod
    def of(cls, config: Any) -> Self:
        """Read them from a RecBole config."""
        return cls(config["USER_ID_FIELD"], config["ITEM_ID_FIELD"], config["TIME_FIELD"])

    def __str__(self) -> str:
        """The columns that a request may have."""
        time = f", optionally {self.time}" if self.time else ""
        return f"columns {self.user},{self.item}{time}, or only {self.user}, or only {self.item}"


@dataclasses.dataclass(frozen=True)
class ForgetRequest:
    """A request in tokens, each row once: columns user and item (None: all) and time (NaN: any) of ``frame``."""

    frame: pd.DataFrame
    name: str  # the request in messages
    rows: np.ndarray  # the row number of each request, as its author counts rows
    unit: str  # "line" in a text file, "row" elsewhere

    def where(self, bad: np.ndarray) -> str:
        """'lines 4, 9, 17 and 12 more' for the requests marked in ``bad``."""
        return _where(self.unit, self.rows[bad])


class _Table(NamedTuple):
    """A request as given: cells that are not interpreted yet."""

    name: str  # the request in messages
    unit: str  # "line" in a text file, "row" elsewhere
    columns: list[tuple[str, Any]]  # header and values; a header may be there twice
    rows: Sequence[int]  # the number of each row as its author counts; there may be more than rows

    def refuse(self, bad: Sequence[Any] | np.ndarray, problem: str, advice: str = "") -> None:
        """Refuse a request because of the rows that are marked in ``bad``."""
        marked = np.array(bad, dtype=bool)
        if marked.any():
            where = _where(self.unit, np.array(self.rows[: len(marked)])[marked])
            raise UnlearnError(f"{self.name}: {problem} in {where}{advice}.")


def _where(unit: str, numbers: np.ndarray) -> str:
    text = ", ".join(str(n) for n in numbers[:SHOWN_ROWS])
    more = f" and {len(numbers) - SHOWN_ROWS} more" if len(numbers) > SHOWN_ROWS else ""
    return f"{unit}{'s' if len(numbers) > 1 else ''} {text}{more}"


def read_request(forget: Any, fields: Fields) -> ForgetRequest:
    """A request from a file, a DataFrame, a dict of columns (of one or more values), or a pair (users, items)."""
    return _read(_table_of(forget, fields), fields)


def read_requests(forget: Any, fields: Fields, per: str) -> dict[str, ForgetRequest]:
    """The requests in a table, one for each value of its column ``per``, such as tickets."""
    table = _table_of(forget, fields)
    named = {header.split(":")[0].strip(): list(values) for header, values in table.columns}
    if per not in named:
        raise UnlearnError(f"{table.name} has no column {shown(per)}, by which to make requests of it.")
    values = _tokens(table, per, _cells(table, per, named.pop(per)))
    table.refuse([value is None for value in values], f"{per} is empty")
    found = {}
    for value in dict.fromkeys(map(str, values)):
        own = [place for place, one in enumerate(values) if one == value]
        columns: list[tuple[str, Any]] = [(name, [cells[place] for place in own]) for name, cells in named.items()]
        found[value] = _read(_Table(table.name, table.unit, columns, [table.rows[place] for place in own]), fields)
    return found


def _read(table: _Table, fields: Fields) -> ForgetRequest:
    cells = {key: _cells(table, header, given) for key, (header, given) in _known(table, fields).items()}
    lengths = {len(values) for values in cells.values()}
    if len(lengths) > 1:
        raise UnlearnError(
            f"The columns of {table.name} differ in length; repeat a value for each row that it belongs to."
        )
    number = lengths.pop()
    if number == 0:
        raise UnlearnError(f"{table.name} asks for nothing: it has a header but no rows.")
    user, item, time = (cells.get(key, [None] * number) for key in ("user", "item", "time"))
    has_user, has_item, has_time = (np.array([c is not None for c in part]) for part in (user, item, time))
    table.refuse(~has_user & ~has_item, "neither a user nor an item is given", "; fill one in")
    table.refuse(
        has_time & ~(has_user & has_item), f"{fields.time} is given with a whole user or item",
        f". It goes with both {fields.user} and {fields.item}; leave it empty there",
    )  # fmt: skip
    if {"user", "item"} <= set(cells) and not all(has_user & has_item):
        # Without numbers: there may be a line for each interaction of one user.
        logger.warning("%s: rows with an empty cell mean all interactions of a user or an item.", table.name)
    times = pd.to_numeric(pd.Series(time, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    table.refuse(has_time & ~np.isfinite(times), f"{fields.time} is not a number")
    users, items = _tokens(table, fields.user, user), _tokens(table, fields.item, item)
    columns = {name: pd.Series(own, dtype=object) for name, own in (("user", users), ("item", items))}
    unique = pd.DataFrame({**columns, "time": times}).drop_duplicates()
    rows = np.array(table.rows[:number])[unique.index]
    return ForgetRequest(unique.reset_index(drop=True), table.name, rows, table.unit)


def _known(table: _Table, fields: Fields) -> dict[str, tuple[str, Any]]:
    """Header and values of the columns user, item and time; the others are counted in the log, or refused."""
    wanted = {fields.user: "user", fields.item: "item"} | ({fields.time: "time"} if fields.time else {})
    # RecBole's own files write the type into the header (user_id:token); both spellings are accepted.
    headers = [header.split(":")[0].strip() for header, _ in table.columns]
    known = [header for header in headers if header in wanted]
    others = [header for header in headers if header not in wanted]
    found = {wanted[header] for header in known}
    remarks = [_REMARKS & set(re.split(r"[\W_]+", header.lower())) for header in others]  # Ticket number, …
    problem = ""
    if len(known) > len(found):
        problem = "has a column twice"
    elif not found & {"user", "item"}:
        # The first line of a file without a header is a request: its content is not printed.
        problem = f"has {known[0]} alone" if known else "has no known column"
    elif not {"user", "item"} <= found and not all(remarks):
        missing = fields.item if "user" in found else fields.user
        problem = (
            f"has {known[0]} and {len(others)} other column{'s' if len(others) > 1 else ''}, of which one could be a "
            f"misspelt {missing} (if not, add an empty column {missing})"
        )
    if problem:
        raise UnlearnError(f"{table.name}: the header {problem}; expected {fields}.")
    if others:
        are_names = all(re.fullmatch(r"[A-Za-z_][\w .-]{0,40}", header) for header in others)
        amount = f"{len(others)} other columns are" if len(others) > 1 else "1 other column is"
        logger.info("%s: %s not used%s.", table.name, amount, f" ({', '.join(others)})" if are_names else "")
    return {
        wanted[header]: (header, given)
        for header, (_, given) in zip(headers, table.columns, strict=True)
        if header in wanted
    }


def _cells(table: _Table, header: str, given: Any) -> list[Any]:
    """The cells of a column: text, numbers, and None where one is empty; one value is a column of one."""
    if _is_value(given):
        values = [given]
    elif (isinstance(given, np.ndarray) and given.ndim == 1) or (
        isinstance(given, (pd.Series, pd.Index, pd.api.extensions.ExtensionArray, Sequence))
        and not isinstance(given, (str, bytes, bytearray, memoryview))
    ):
        values = list(given)
    else:
        raise UnlearnError(
            f"{table.name}: {header} cannot be a {type(given).__name__}; give one value, or a list or array of them."
        )
    cells = [None if _is_empty(value) else value for value in values]
    bad = [cell is not None and not _is_value(cell) for cell in cells]
    table.refuse(bad, f"{header} is neither text nor a number")
    return cells


def _is_value(given: Any) -> bool:
    return isinstance(given, (str, int, float, np.integer, np.floating)) and not isinstance(given, bool)


def _is_empty(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or value is pd.NA or (isinstance(value, _FLOATS) and math.isnan(value))


def _tokens(table: _Table, header: str, cells: Sequence[Any]) -> list[str | None]:
    inexact = [isinstance(cell, _FLOATS) and not abs(cell) <= _EXACT for cell in cells]
    table.refuse(inexact, f"{header} is too large to be exact as a float", "; give it as text")
    found = tokens(cells)
    table.refuse([token is not None and len(token) > LONGEST_TOKEN for token in found], f"{header} is too long")
    return found


def tokens(cells: Sequence[Any]) -> list[str | None]:
    """Cells of a column as tokens, None for an empty one: without spaces around them, and 196.0 as 196."""
    given: list[Any] = [None if _is_empty(cell) else cell for cell in cells]
    whole = all(float(cell).is_integer() for cell in given if isinstance(cell, _FLOATS))
    exact = [int(cell) if whole and isinstance(cell, _FLOATS) else cell for cell in given]
    return [None if cell is None else str(cell).strip() for cell in exact]


def _table_of(forget: Any, fields: Fields) -> _Table:
    if isinstance(forget, (str, Path)):
        return _of_file(Path(forget), fields)
    if isinstance(forget, pd.DataFrame):
        columns = _frame_columns(forget)
    elif isinstance(forget, dict):
        columns = [(str(name), values) for name, values in forget.items()]
    elif isinstance(forget, (tuple, list)) and len(forget) == 2:
        if isinstance(forget, list) and any(_is_value(part) for part in forget):
            raise UnlearnError(
                "A list of two values can mean two users, or a user and an item. Give {'user_id': [...]} with your "
                "column's name for users, or a tuple (user, item) for an interaction."
            )
        columns = [(fields.user, forget[0]), (fields.item, forget[1])]
    else:
        raise UnlearnError(
            f"A forget request cannot be a {type(forget).__name__}: give a file, a DataFrame, a dict of "
            "columns, or a pair of arrays (users, items)."
        )
    return _Table("the forget request", "row", columns, range(sys.maxsize))


def _frame_columns(frame: pd.DataFrame) -> list[tuple[str, Any]]:
    return [(str(header), frame.iloc[:, place]) for place, header in enumerate(frame.columns)]


class _UnreadableError(Exception):
    """Why a file is not of its kind, without its content."""


def _of_file(path: Path, fields: Fields) -> _Table:
    name, kind = shown(path), path.suffix.lower()
    if kind not in _READERS:
        raise UnlearnError(
            f"Forget request {name}: unknown kind of file; use {', '.join(_READERS)}, unpacked, or 'injected'."
        )
    if not path.is_file():
        raise UnlearnError(f"Forget request {name}: no such file. Check the path given to --forget.")
    try:
        return _READERS[kind](name, read_regular(path, LARGEST))
    except _UnreadableError as error:
        raise UnlearnError(
            f"Forget request {name} cannot be read as {kind[1:]}: {error}. Expected {fields}."
        ) from error


def _bounded(rows: int, columns: int, size: int) -> None:
    """Refuse a table that has many more cells than the ``size`` bytes of its file can tell apart."""
    if columns > MOST_COLUMNS or rows * columns > FREE + CELLS * size:
        raise _UnreadableError("it has more columns or rows than a request of its size; leave out what is not needed")


def _text(content: bytes) -> str:
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        said = f"it is not {encoding.removesuffix('-sig').upper()} text from byte {error.start} on"
        raise _UnreadableError(f"{said}; save it as UTF-8") from error


def _separated(name: str, content: bytes, separator: str = ",") -> _Table:
    lines = _lines(_text(content), separator)
    header, _ = next(lines, ([], 0))
    if not any(cell.strip() for cell in header):
        raise _UnreadableError("it is empty")
    _bounded(1, len(header), len(content))
    cells: list[list[str]] = [[] for _ in header]
    rows: list[int] = []
    for line, number in lines:
        _bounded(len(rows), len(header), len(content))
        if not any(cell.strip() for cell in line):
            continue  # a blank line, or what a spreadsheet leaves of one
        if any(cell.strip() for cell in line[len(header) :]):
            raise _UnreadableError(f"line {number} has more values than the header")
        rows.append(number)
        for place, column in enumerate(cells):
            column.append(line[place] if place < len(line) else "")
    named = [(head, own) for head, own in zip(header, cells, strict=True) if head.strip() or any(own)]
    return _Table(name, "line", named, rows)


def _lines(text: str, separator: str) -> Iterator[tuple[list[str], int]]:
    """The cells of each line with its number; a quoted cell may have line breaks in it."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    number = 1
    try:
        for line in reader:
            yield line, number
            number = reader.line_num + 1
    except csv.Error as error:
        raise _UnreadableError(f"line {number} has quotes that do not match, or a very long cell") from error


def _json_lines(name: str, content: bytes) -> _Table:
    found: dict[int, dict[str, Any]] = {}  # by line
    for number, line in enumerate(_text(content).split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line, object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError) as error:
            raise _UnreadableError(f"line {number} is not JSON, or has a name twice") from error
        if not isinstance(entry, dict):
            raise _UnreadableError(f"line {number} is not an object with names and values")
        found[number] = entry
    if not found:
        raise _UnreadableError("it is empty")
    names = dict.fromkeys(key for entry in found.values() for key in entry)
    _bounded(len(found), len(names), len(content))
    return _Table(name, "line", [(key, [entry.get(key) for entry in found.values()]) for key in names], list(found))


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entry = dict(pairs)
    if len(entry) != len(pairs):
        raise ValueError("a name twice")
    return entry


def _parquet(name: str, content: bytes) -> _Table:
    from pyarrow import parquet, types  # takes a while, and few requests need it

    try:
        file = parquet.ParquetFile(io.BytesIO(content))
        about = file.metadata
        _bounded(about.num_rows, len(file.schema_arrow), len(content))
        size = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
        if size > FREE + DENSEST * len(content):
            raise _UnreadableError(f"it has {size} bytes when unpacked; divide it")
        # A text stays one object, in however many rows it is.
        named = [field.name for field in file.schema_arrow if types.is_string(field.type)]
        frame = parquet.read_table(io.BytesIO(content), read_dictionary=named).to_pandas()
    except (ValueError, OSError, NotImplementedError, LookupError, TypeError) as error:  # as pyarrow's are
        raise _UnreadableError("it is damaged, or another kind of file") from error
    return _Table(name, "row", _frame_columns(frame), range(1, sys.maxsize))


_READERS: dict[str, Callable[[str, bytes], _Table]] = {
    ".csv": _separated, ".tsv": lambda name, content: _separated(name, content, "\t"), ".jsonl": _json_lines,
    ".parquet": _parquet,
}  # fmt: skip
