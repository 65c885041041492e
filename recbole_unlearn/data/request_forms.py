"""A deletion request as people write it (a file, a DataFrame, a dict, a pair) as one table of cells.

Nothing is interpreted here: :mod:`~recbole_unlearn.data.requests` says which columns mean what. What a file contains
is never part of a message, because it names people; line numbers are.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.inputs import read_regular, shown

LARGEST = 1 << 30  # bytes of a file of requests, unpacked
# By their byte order marks, the longer first: one of them begins with another.
_ENCODINGS = (
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_BINARY = (bytes, bytearray, memoryview)


class Table(NamedTuple):
    """A request before anybody has looked at it."""

    name: str  # how messages call it
    unit: str  # "line" in a text file, "row" elsewhere
    columns: list[tuple[str, Any]]  # header and values, as given; a header may be there twice
    rows: Sequence[int]  # the number of each row as its author counts; there may be more than rows


def table_of(forget: Any, user: str, item: str, expected: str) -> Table:
    """The table of a request; a pair has the columns ``user`` and ``item``, ``expected`` says what a file has."""
    if isinstance(forget, (str, Path)):
        return _of_file(Path(forget), expected)
    if isinstance(forget, pd.DataFrame):
        columns = [(str(name), forget.iloc[:, place]) for place, name in enumerate(forget.columns)]
    elif isinstance(forget, dict):
        columns = [(str(name), values) for name, values in forget.items()]
    elif isinstance(forget, (tuple, list)) and len(forget) == 2:
        if isinstance(forget, list) and any(is_value(part) for part in forget):
            raise UnlearnError(
                "A list of two values can mean two users, or a user and an item. Give {'user_id': [...]} with your "
                "column's name for users, or a tuple (user, item) for an interaction."
            )
        columns = [(user, forget[0]), (item, forget[1])]
    else:
        raise UnlearnError(
            f"A forget request cannot be a {type(forget).__name__}: give a file, a DataFrame, a dict of "
            "columns, or a pair of arrays (users, items)."
        )
    return Table("the forget request", "row", columns, range(sys.maxsize))


def is_value(given: Any) -> bool:
    """Whether something is one value: text or a number, of Python or of numpy."""
    return isinstance(given, (str, int, float, np.integer, np.floating)) and not isinstance(given, bool)


def as_column(given: Any) -> list[Any] | None:
    """The values of a column; one value is a column of one, and None is returned for what is no column."""
    if is_value(given):
        return [given]
    if isinstance(given, np.ndarray):
        return list(given) if given.ndim == 1 else None
    if isinstance(given, (pd.Series, pd.Index, pd.api.extensions.ExtensionArray)):
        return list(given)
    if isinstance(given, Sequence) and not isinstance(given, (str, *_BINARY)):
        return list(given)
    return None


# ---- files ----


def _of_file(path: Path, expected: str) -> Table:
    name = shown(path)
    kind = path.suffix.lower()
    packed = kind == ".gz"
    if packed:
        kind = Path(path.stem).suffix.lower()
    if kind not in _READERS or (packed and kind == ".parquet"):
        raise UnlearnError(
            f"Forget request {name}: unknown kind of file; use {', '.join(_READERS)} (text also with .gz), or "
            "'injected'."
        )
    if not path.is_file():
        raise UnlearnError(f"Forget request {name}: no such file. Check the path given to --forget.")
    try:
        content = read_regular(path, LARGEST)
        return _READERS[kind](name, _unpacked(content) if packed else content)
    except _UnreadableError as error:
        raise UnlearnError(
            f"Forget request {name} cannot be read as {kind[1:]}: {error}. Expected {expected}."
        ) from error
    except OSError as error:
        raise UnlearnError(f"Forget request {name} cannot be read: {error.strerror or error}.") from error


class _UnreadableError(Exception):
    """Why a file is not of its kind, without its content."""


def _unpacked(content: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            unpacked = stream.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _UnreadableError("the gzip file is damaged; pack it again") from error
    if len(unpacked) > LARGEST:
        raise _UnreadableError(f"it has more than {LARGEST} bytes when unpacked; divide it")
    return unpacked


def _text(content: bytes) -> str:
    encoding = next((name for mark, name in _ENCODINGS if content.startswith(mark)), "utf-8-sig")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        kind = encoding.removesuffix("-sig").upper()
        raise _UnreadableError(
            f"it is not {kind} text from byte {error.start} on; save it as UTF-8"
        ) from error


def _separated(separator: str) -> Callable[[str, bytes], Table]:
    def read(name: str, content: bytes) -> Table:
        lines = _lines(_text(content), separator)
        header, _ = next(lines, ([], 0))
        if not any(cell.strip() for cell in header):
            raise _UnreadableError("it is empty")
        cells: list[list[str]] = [[] for _ in header]
        rows = []
        for line, number in lines:
            if not any(cell.strip() for cell in line):
                continue  # a blank line, or what a spreadsheet leaves of one
            if any(cell.strip() for cell in line[len(header) :]):
                raise _UnreadableError(f"line {number} has more values than the header")
            rows.append(number)
            for place, column in enumerate(cells):
                column.append(line[place] if place < len(line) else "")
        named = [(head, own) for head, own in zip(header, cells, strict=True) if head.strip() or any(own)]
        return Table(name, "line", named, rows)

    return read


def _lines(text: str, separator: str) -> Iterator[tuple[list[str], int]]:
    """The cells of each line with its number; a quoted cell may have line breaks in it."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    number = 1
    while True:
        try:
            line = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise _UnreadableError(
                f"line {number} has quotes that do not match, or a very long cell"
            ) from error
        yield line, number
        number = reader.line_num + 1


def _json_lines(name: str, content: bytes) -> Table:
    found: list[dict[str, Any]] = []
    rows = []
    for number, line in enumerate(_text(content).split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise _UnreadableError(f"line {number} is not JSON, or has a name twice") from error
        if not isinstance(entry, dict):
            raise _UnreadableError(f"line {number} is not an object with names and values")
        found.append(entry)
        rows.append(number)
    if not found:
        raise _UnreadableError("it is empty")
    names = dict.fromkeys(key for entry in found for key in entry)
    return Table(name, "line", [(key, [entry.get(key) for entry in found]) for key in names], rows)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entry = dict(pairs)
    if len(entry) != len(pairs):
        raise ValueError("a name twice")
    return entry


def _parquet(name: str, content: bytes) -> Table:
    try:
        frame = pd.read_parquet(io.BytesIO(content))
    except (ValueError, OSError, NotImplementedError, LookupError, TypeError) as error:  # as pyarrow's are
        raise _UnreadableError("it is damaged, or another kind of file") from error
    columns = [(str(header), frame.iloc[:, place]) for place, header in enumerate(frame.columns)]
    return Table(name, "row", columns, range(1, sys.maxsize))


_READERS: dict[str, Callable[[str, bytes], Table]] = {
    ".csv": _separated(","),
    ".tsv": _separated("\t"),
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
