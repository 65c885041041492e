"""A result as a piece of HTML for notebooks: the verdict and the tables; it needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from recbole_unlearn.measures import SHORT
from recbole_unlearn.results.schema import RunResult
from recbole_unlearn.results.table import Block, blocks, closing_lines

_CELL = "padding: 0.1em 0.6em; text-align: {}"


def page(result: RunResult) -> str:
    """The verdict in short, the tables of a run, and the lines below them."""
    names = " · ".join(str(name) for name in (result.method, result.model, result.dataset) if name)
    said = result.verdict
    head = f"<strong>{escape(names)}</strong>"
    if said is not None:
        looks = said.provisional.looks if said.provisional else said.level
        short = SHORT.get(looks, looks)
        head += f": {escape(short)}" + (" (provisional)" if said.provisional else "")
    lines = [f"<p>{escape(line)}</p>" for line in closing_lines(result)]
    return "\n".join(["<div>", f"<p>{head}</p>", *map(_table, blocks(result)), *lines, "</div>"])


def _table(block: Block) -> str:
    head = _row(block.head, block.left, "th")
    rows = "\n".join(_row(row, block.left, "td") for row in block.rows)
    return f'<table style="display: block; overflow-x: auto">\n{head}\n{rows}\n</table>'


def _row(cells: Sequence[str], left: int, tag: str) -> str:
    sides = ["left" if place < left else "right" for place in range(len(cells))]
    inner = "".join(
        f'<{tag} style="{_CELL.format(side)}">{escape(cell)}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{inner}</tr>"
