"""From the files of a dataset to its splits as RecBole does it, bit for bit, in a fifth of the time.

RecBole asks pandas for its parser in Python, which takes three quarters of that time. pandas' parser in C reads
regular files alike; all others are left to the one in Python. RecBole selects rows by lists, which torch makes into
a tensor anew for every column; here that happens once.
"""

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction

from recbole_unlearn.recbole_compat import replaced

_EXACT = 2.0**53  # integers below it are the same number in both parsers
_read_csv = pd.read_csv
_rows_of = Interaction.__getitem__


@contextlib.contextmanager
def fast_loading() -> Iterator[None]:
    """Let RecBole read, group and select with the functions below in the block."""
    with (
        replaced(pd, "read_csv", read_csv),
        replaced(Dataset, "_grouped_index", grouped_index),
        replaced(Interaction, "__getitem__", rows_of),
    ):
        yield


def read_csv(path: str, **options: Any) -> pd.DataFrame:
    """As pandas with these options; a file that both of its parsers read alike is read by the one in C."""
    content = Path(path).read_bytes().rstrip(b"\r\n")
    if _is_regular(content, str(options.get("delimiter")), options.get("encoding") or "utf-8"):
        with contextlib.suppress(ValueError):  # the parser in Python takes more, or says what is wrong
            frame = _read_csv(io.BytesIO(content), **options | {"engine": "c"})
            if not _has_odd_numbers(frame):
                return frame
    return _read_csv(path, **options)


def _is_regular(content: bytes, separator: str, encoding: str) -> bool:
    """Whether it is UTF-8 without quotes, and all lines have the same number of fields, at least two."""
    if encoding.lower() not in ("utf-8", "utf8") or len(separator) != 1 or not separator.isascii():
        return False
    sign = separator.encode()
    marks = content.translate(None, bytes(set(range(256)) - set(sign + b'\n"\0'))) + b"\n"
    line = sign * marks.partition(b"\n")[0].count(sign) + b"\n"
    is_even = line != b"\n" and marks == line * marks.count(b"\n")
    return is_even and content.count(b"\r") == content.count(b"\r\n")


def _has_odd_numbers(frame: pd.DataFrame) -> bool:
    """Whether it has a number that the parser in Python, which reads integers as such, may have otherwise."""
    numbers = frame.select_dtypes("float64").to_numpy()
    return bool(((np.abs(numbers) >= _EXACT) | (numbers == 0) & np.signbit(numbers)).any())


def grouped_index(_: Dataset, keys: np.ndarray) -> Sequence[list[int]]:
    """The places of each key in ``keys`` (n,), keys in the order in which they come first."""
    groups, _unique = pd.factorize(keys)
    places = np.argsort(groups, kind="stable").tolist()
    ends = np.cumsum(np.bincount(groups)).tolist()
    return [places[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def rows_of(self: Interaction, index: Any) -> Interaction:
    """The rows of a list, range, array or tensor of numbers, or of a mask; other indices as RecBole does it."""
    if isinstance(index, list | range | np.ndarray | torch.Tensor):
        rows = np.asarray(index)
        if rows.ndim == 1 and rows.dtype in (np.int64, np.bool_):
            which = torch.from_numpy(rows)
            return Interaction({field: values[which] for field, values in self.interaction.items()})
    return _rows_of(self, index)
