"""Tables and sentences that fit the screen: as wide as the terminal, or 110 columns where there is none."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from tabulate import tabulate

_NARROWEST, _USUAL, _WIDEST = 60, 110, 120
_GAP = 2  # spaces between two columns, and beside a head


def width() -> int:
    """How wide what is printed may be."""
    if not sys.stdout.isatty():
        return _USUAL
    return min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)


def wrapped(text: str, columns: int | None = None, indent: str = "") -> str:
    """``text`` in lines of at most ``columns``, the second and further ones after ``indent``; no word is cut."""
    return textwrap.fill(
        text,
        columns or width(),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def drawn(
    head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, columns: int | None = None
) -> str:
    """A table; where it is wider than ``columns``, several below each other, all with the first ``left`` columns.

    These are aligned to the left and the others to the right. No column is left out.
    """
    sizes = [max([len(head[place]) + _GAP, *(len(row[place]) for row in rows)]) for place in range(len(head))]
    fixed = sum(size + _GAP for size in sizes[:left])
    blocks = _blocks(sizes, left, (columns or width()) - fixed + _GAP)
    return "\n\n".join(_one([_part(line, left, block) for line in [head, *rows]], left) for block in blocks)


def _blocks(sizes: Sequence[int], left: int, room: int) -> list[list[int]]:
    """The places of the columns after the first ``left``, in parts that need no more than ``room``."""
    blocks: list[list[int]] = [[]]
    used = 0
    for place in range(left, len(sizes)):
        used += sizes[place] + _GAP
        if blocks[-1] and used > room:
            blocks.append([])
            used = sizes[place] + _GAP
        blocks[-1].append(place)
    return blocks


def _part(line: Sequence[str], left: int, block: Iterable[int]) -> list[str]:
    return [*line[:left], *(line[place] for place in block)]


def _one(lines: list[list[str]], left: int) -> str:
    head, rows = lines[0], lines[1:]
    sides = ["left"] * left + ["right"] * (len(head) - left)
    return tabulate(rows, headers=head, disable_numparse=True, colalign=sides if rows else None)
