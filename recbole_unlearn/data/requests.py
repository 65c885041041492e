"""Deletion requests: reading them, and finding the interactions they mean.

A request names interactions, whole users or whole items by the dataset's own tokens; its columns decide which of the
three. :func:`read_request` takes a file or Python data, :func:`locate` finds the interactions in the training,
validation and test split. Messages give the request's row numbers and counts, never tokens: a log must not say who
asked to be forgotten.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from recbole.data.dataset import Dataset

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Clock

logger = logging.getLogger(__name__)

SHOWN_ROWS = 5  # how many row numbers an error message gives


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
    """What is asked for, in tokens. ``frame`` has the columns user, item, time that the request gives."""

    kind: Literal["interactions", "users", "items"]
    frame: pd.DataFrame
    name: str  # how messages call the request
    rows: np.ndarray  # the row number of each request, as its author counts rows
    unit: str  # "line" in a text file, "row" elsewhere

    def where(self, bad: np.ndarray) -> str:
        """'lines 4, 9, 17 and 12 more' for the requests marked in ``bad``."""
        numbers = self.rows[bad]
        text = ", ".join(str(n) for n in numbers[:SHOWN_ROWS])
        more = f" and {len(numbers) - SHOWN_ROWS} more" if len(numbers) > SHOWN_ROWS else ""
        return f"{self.unit}{'s' if len(numbers) > 1 else ''} {text}{more}"


@dataclasses.dataclass(frozen=True)
class Located:
    """Which interactions of each split a request means (boolean masks), and how many requests were skipped."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    skipped: int = 0


def read_request(forget: Any, fields: Fields) -> ForgetRequest:
    """A request from a file, a DataFrame, a dict of columns, or a pair of arrays (users, items)."""
    if isinstance(forget, (str, Path)):
        return _from_file(Path(forget), fields)
    if isinstance(forget, pd.DataFrame):
        frame = forget.copy()
    elif isinstance(forget, dict):
        frame = _frame_of({str(key): list(value) for key, value in forget.items()})
    elif isinstance(forget, (tuple, list)) and len(forget) == 2:
        frame = _frame_of({fields.user: list(forget[0]), fields.item: list(forget[1])})
    else:
        raise UnlearnError(
            f"A forget request cannot be a {type(forget).__name__}: give a file, a DataFrame, a dict of "
            "columns, or a pair of arrays (users, items)."
        )
    return _from_frame(frame.reset_index(drop=True), fields, "the forget request", 0, "row")


def _frame_of(columns: dict[str, list]) -> pd.DataFrame:
    try:
        return pd.DataFrame(columns)
    except ValueError as error:
        raise UnlearnError("The columns of the forget request differ in length.") from error


def _read_jsonl(path: Path) -> pd.DataFrame:
    return pd.read_json(path, lines=True, dtype=False, convert_dates=False)


def _text_reader(separator: str) -> Callable[[Path], pd.DataFrame]:
    def read(path: Path) -> pd.DataFrame:
        frame = pd.read_csv(
            path,
            sep=separator,
            dtype=str,
            keep_default_na=False,
            na_values=[""],
            encoding="utf-8-sig",
            skip_blank_lines=False,
        )
        if not isinstance(frame.index, pd.RangeIndex):  # pandas takes surplus values for an index
            raise ValueError("its lines have more values than its header")
        return frame

    return read


# How a file is read, by its suffix: the reader, the number of its first row, what a row is called.
_READERS: dict[str, tuple[Callable[[Path], pd.DataFrame], int, str]] = {
    ".csv": (_text_reader(","), 2, "line"),
    ".tsv": (_text_reader("\t"), 2, "line"),
    ".jsonl": (_read_jsonl, 1, "line"),
    ".parquet": (pd.read_parquet, 1, "row"),
}


def _from_file(path: Path, fields: Fields) -> ForgetRequest:
    if path.suffix.lower() not in _READERS:
        raise UnlearnError(
            f"Forget request {path}: unknown kind of file; use {', '.join(_READERS)}, or 'injected'."
        )
    if not path.is_file():
        raise UnlearnError(f"Forget request {path}: no such file. Check the path given to --forget.")
    reader, first, unit = _READERS[path.suffix.lower()]
    try:
        frame = reader(path)
    except pd.errors.EmptyDataError as error:
        raise UnlearnError(f"Forget request {path} is empty; expected {_expected(fields)}.") from error
    except (ValueError, OSError) as error:  # also UnicodeDecodeError, ParserError and ArrowInvalid
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnlearnError(
            f"Forget request {path} cannot be read as {path.suffix[1:]}: {reason.rstrip('.')}. "
            f"Expected {_expected(fields)}."
        ) from error
    return _from_frame(frame, fields, str(path), first, unit)


def _expected(fields: Fields) -> str:
    time = f", optionally {fields.time}" if fields.time else ""
    return f"columns {fields.user},{fields.item}{time}, or only {fields.user}, or only {fields.item}"


def _from_frame(frame: pd.DataFrame, fields: Fields, name: str, first: int, unit: str) -> ForgetRequest:
    # RecBole's own files write the type into the header (user_id:token); both spellings are taken.
    frame = frame.rename(columns=lambda column: str(column).split(":")[0].strip())
    wanted = {fields.user: "user", fields.item: "item"} | ({fields.time: "time"} if fields.time else {})
    unknown = [column for column in frame.columns if column not in wanted]
    given = {wanted[column] for column in frame.columns if column in wanted}
    if (
        unknown
        or len(frame.columns) != len(given)
        or not given & {"user", "item"}
        or ("time" in given and len(given) < 3)
    ):
        # The first line of a file without a header is a request: what it says is not printed.
        known = [column for column in frame.columns if column in wanted]
        found = f"has {', '.join(known)} and {len(unknown)} others" if known else "has no known column"
        raise UnlearnError(f"{name}: the header {found}; expected {_expected(fields)}.")
    rows = np.arange(len(frame)) + first
    frame = frame.rename(columns=wanted)
    blank = frame.isna().all(axis=1).to_numpy()
    frame, rows = frame[~blank].reset_index(drop=True), rows[~blank]
    request = ForgetRequest(_kind(given), frame, name, rows, unit)
    if len(frame) == 0:
        raise UnlearnError(f"{name} asks for nothing: it has a header but no rows.")
    missing = frame.isna().any(axis=1).to_numpy()
    if missing.any():
        raise UnlearnError(f"{name}: a value is missing in {request.where(missing)}; fill it in.")
    columns = {column: _tokens(frame[column]) for column in ("user", "item") if column in frame}
    if "time" in frame:
        times = pd.to_numeric(frame["time"], errors="coerce")
        if times.isna().any():
            bad = times.isna().to_numpy()
            raise UnlearnError(f"{name}: {fields.time} is not a number in {request.where(bad)}.")
        columns["time"] = times.astype(np.float64)
    unique = pd.DataFrame(columns).drop_duplicates()
    return dataclasses.replace(request, frame=unique.reset_index(drop=True), rows=rows[unique.index])


def _kind(given: set[str]) -> Literal["interactions", "users", "items"]:
    if {"user", "item"} <= given:
        return "interactions"
    return "users" if "user" in given else "items"


def _tokens(column: pd.Series) -> pd.Series:
    """Tokens as strings; whole numbers that a reader made floats (196.0) become 196 again."""
    if pd.api.types.is_float_dtype(column) and (column % 1 == 0).all():
        column = column.astype(np.int64)
    return column.astype(str).str.strip()


def locate(
    request: ForgetRequest,
    splits: tuple[Dataset, Dataset, Dataset],
    on_missing: str = "error",
    clock: Clock | None = None,
) -> Located:
    """Find the interactions of ``splits`` (train, valid, test) that ``request`` means.

    Args:
        request: what to forget.
        splits: RecBole datasets that share their ids.
        on_missing: "error" stops at a token or a pair that is nowhere in the data, "skip" leaves it out.
        clock: maps the request's timestamps to the dataset's, which RecBole may have normalised.

    """
    train = splits[0]
    ids = {}
    unknown = np.zeros(len(request.frame), dtype=bool)
    for column, field in (("user", train.uid_field), ("item", train.iid_field)):
        if column in request.frame:
            known = train.field2token_id[field]
            ids[column] = np.array([known.get(token, 0) for token in request.frame[column]], dtype=np.int64)
            unknown |= ids[column] == 0
    if unknown.any():
        _missing(request, unknown, on_missing, "name a user or an item that is not in the dataset")
    masks, found = _match(request, ids, splits, clock)
    absent = ~found & ~unknown
    if absent.any():
        _missing(request, absent, on_missing, "are not in the training data")
    train_mask, valid_mask, test_mask = masks
    located = Located(train_mask, valid_mask, test_mask, int((unknown | absent).sum()))
    if not any(mask.any() for mask in masks):
        raise UnlearnError(
            f"{request.name}: nothing to forget. None of its rows is in the data; check the file, or the dataset and "
            "its filters."
        )
    if located.train.all():
        raise UnlearnError(
            f"{request.name} asks to forget all {len(located.train)} training interactions: there is no "
            "model without data. Delete the model instead, or ask for less."
        )
    return located


def _missing(request: ForgetRequest, bad: np.ndarray, on_missing: str, what: str) -> None:
    text = f"{request.name}: {int(bad.sum())} of {len(bad)} requests {what} ({request.where(bad)})"
    if on_missing == "error":
        raise UnlearnError(f"{text}. Correct them, or leave them out with --on_missing=skip.")
    # Without their number: there may be a line for each interaction of one user.
    logger.warning(
        "%s: requests that %s were skipped; --on_missing=error gives their numbers.", request.name, what
    )


def _match(
    request: ForgetRequest,
    ids: dict[str, np.ndarray],
    splits: tuple[Dataset, Dataset, Dataset],
    clock: Clock | None,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Masks of the interactions in each split, and which requests were found in any of them."""
    wanted = _keys(ids, splits[0].item_num)
    valid_keys = np.where(np.any([column == 0 for column in ids.values()], axis=0), -1, wanted)
    found = np.zeros(len(wanted), dtype=bool)
    masks = []
    for split in splits:
        present = {
            "user": split.inter_feat[split.uid_field].numpy(),
            "item": split.inter_feat[split.iid_field].numpy(),
        }
        keys = _keys({column: present[column] for column in ids}, split.item_num)
        if "time" in request.frame:
            mask, hit = _match_times(request, valid_keys, keys, split, clock)
        else:
            mask, hit = np.isin(keys, valid_keys), np.isin(valid_keys, keys)
        masks.append(mask)
        found |= hit
    return masks, found


def _keys(ids: dict[str, np.ndarray], item_num: int) -> np.ndarray:
    """One number for each interaction or request: user * items + item, or the one id that is given."""
    if len(ids) == 2:
        return ids["user"] * item_num + ids["item"]
    return next(iter(ids.values()))


def _match_times(
    request: ForgetRequest,
    wanted: np.ndarray,
    keys: np.ndarray,
    split: Dataset,
    clock: Clock | None,
) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`_match`, with the timestamp too, within the precision RecBole keeps (float32)."""
    if split.time_field not in split.inter_feat:
        raise UnlearnError(
            f"{request.name} gives {split.time_field}, but the dataset was loaded without it. "
            f"Drop that column, or load it with --load_col='{{inter: [..., {split.time_field}]}}'."
        )
    asked = request.frame["time"].to_numpy()
    asked = clock(asked) if clock else asked
    times = split.inter_feat[split.time_field].numpy().astype(np.float64)
    slack = 2 * float(np.spacing(np.float32(np.abs(times).max(initial=1.0))))
    present = pd.DataFrame({"key": keys, "time": times, "number": np.arange(len(keys))})
    requests = pd.DataFrame({"key": wanted, "asked": asked, "request": np.arange(len(wanted))})
    pairs = present[np.isin(keys, wanted)].merge(requests, on="key")
    pairs = pairs[(pairs["time"] - pairs["asked"]).abs() <= slack]
    mask, hit = np.zeros(len(keys), dtype=bool), np.zeros(len(wanted), dtype=bool)
    mask[pairs["number"].to_numpy()] = True
    hit[pairs["request"].to_numpy()] = True
    return mask, hit
