"""Numbers, sentences and tables for the screen: never "-0%", "0.0x" or "1 users"; an unknown value is a dash."""

import itertools
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

MISSING = "–"
_SMALLEST_FACTOR = 0.001  # smaller factors are all shown as "<0.001x"
_NARROWEST, _DEFAULT, _WIDEST = 60, 110, 120  # columns
_GAP = 2  # spaces between two columns


def properties_dir() -> Path:
    """`properties/`: inside the package when installed from a wheel, at the top of a checkout otherwise."""
    package = Path(__file__).resolve().parent
    installed = package / "properties"
    return installed if installed.is_dir() else package.parent / "properties"


def counted(number: float | None, noun: str) -> str:
    """`1 user`, `7 users`, `– users`."""
    return f"{MISSING if number is None else number} {noun if number == 1 else f'{noun}s'}"


def ranges(numbers: Sequence[int]) -> str:
    """`4, 9-12` for ascending numbers."""
    grouped = itertools.groupby(enumerate(numbers), lambda one: one[1] - one[0])
    runs = ([number for _, number in run] for _, run in grouped)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def decimal(value: float | None, digits: int = 4) -> str:
    """0.1234, or a dash."""
    return MISSING if value is None else f"{value:z.{digits}f}"


def signed(value: float | None, digits: int = 3) -> str:
    """+0.013 or -0.130, 0.000 without a sign, or a dash."""
    if value is None:
        return MISSING
    return f"{value:z.{digits}f}" if round(value, digits) == 0 else f"{value:+.{digits}f}"


def percent(value: float | None, digits: int = 0) -> str:
    """113%, or a dash."""
    return MISSING if value is None else f"{value:z,.{digits}%}"


def times(value: float | None, sign: str = "x") -> str:
    """29.1x, 1,204x, 0.45x, 0.04x, or a dash; at least one significant digit."""
    if value is None:
        return MISSING
    if value < _SMALLEST_FACTOR:
        return f"<{_SMALLEST_FACTOR:g}{sign}"
    if value < 0.95:
        return f"{value:.2g}{sign}"
    return f"{value:,.{0 if value >= 100 else 1}f}{sign}"


def speed(value: float, sign: str = "x") -> str:
    """A speed-up in words: `29.1x as fast as retraining`, or that it is slower."""
    if value < 0.95:
        return f"slower than retraining: {times(value, sign)} its speed"
    return f"{times(value, sign)} as fast as retraining"


def duration(seconds: float | None) -> str:
    """0.03 s, 1.5 s, 43.7 s, 4 min 56 s, 2 h 05 min, or a dash."""
    if seconds is None:
        return MISSING
    if seconds < 99.95:
        return f"{seconds:{'.2g' if seconds < 0.95 else '.1f'}} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def width() -> int:
    """Columns to print: those of the terminal within limits, 110 without a terminal."""
    if not sys.stdout.isatty():
        return _DEFAULT
    return min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)


def wrapped(text: str, columns: int | None = None, indent: str = "") -> str:
    """``text`` in lines of at most ``columns``, all but the first after ``indent``; words are never cut."""
    return textwrap.fill(
        text, columns or width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def drawn(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, columns: int | None = None) -> str:
    """A table; one wider than ``columns`` is split, and every part repeats the first ``left`` ones, left-aligned."""
    sizes = [_GAP + max([len(name) + _GAP, *(len(row[at]) for row in rows)]) for at, name in enumerate(head)]
    room = (columns or width()) - sum(sizes[:left]) + _GAP
    blocks: list[list[int]] = [[]]  # the positions of the columns in each part
    for at in range(left, len(sizes)):
        if blocks[-1] and sum(sizes[other] for other in blocks[-1]) + sizes[at] > room:
            blocks.append([])
        blocks[-1].append(at)
    parts = []
    for block in blocks:
        names, *lines = [[*line[:left], *(line[at] for at in block)] for line in [head, *rows]]
        sides = ["left"] * left + ["right"] * len(block) if lines else None
        parts.append(tabulate(lines, headers=names, disable_numparse=True, colalign=sides))
    return "\n\n".join(parts)
