"""The frame of a page: HTML that escapes by default, the style sheet, tables, and plotly.js inside the file.

Everything is built with :func:`element`, which escapes whatever is not :class:`Html` already. A page asks for nothing
from the network, and its content security policy makes the browser hold it to that.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from recbole_unlearn.files import write_bytes
from recbole_unlearn.report.figures import Figure

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_VOID = {"meta"}

_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --panel: #f5f6f8; --ink: #1c2127; --quiet: #5a626d; --line: #d9dde3;
  --near: #00795a; --under: #b84f00; --over: #7a4fc4; --unknown: #5a626d;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --panel: #1e2227; --ink: #e8eaed; --quiet: #a3abb5; --line: #363c45;
    --near: #3cc79c; --under: #f2914a; --over: #b596f0; --unknown: #a3abb5;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 70rem; padding: 2.5rem 1.5rem 4rem;
  background: var(--paper); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif;
}
h1 { margin: .3rem 0 0; font-size: clamp(1.4rem, 4vw, 2rem); line-height: 1.25; text-wrap: balance; }
h1 small { display: block; margin-top: .6rem; font-size: 1.05rem; font-weight: 400; line-height: 1.45; }
h2 { margin: 3rem 0 .4rem; font-size: 1.3rem; }
p { margin: .4rem 0; max-width: 46rem; }
h1, h2, p, th, td, dd, summary { overflow-wrap: anywhere; }
small, caption, figcaption, .quiet { color: var(--quiet); font-size: .86rem; }
.verdict { border-left: .4rem solid var(--level, var(--unknown)); padding-left: 1.1rem; }
.level { color: var(--level, var(--unknown)); font-weight: 650; margin: .2rem 0 0; }
.near { --level: var(--near); } .under { --level: var(--under); } .over { --level: var(--over); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.4rem, 1fr)); gap: .75rem; margin: 2rem 0 0; }
.card { background: var(--panel); border-radius: .5rem; padding: .8rem; }
.card dt { color: var(--quiet); font-size: .82rem; }
.card dd { margin: 0; line-height: 1.35; white-space: pre-line; }
.card .big { font-size: 1.75rem; font-weight: 650; font-variant-numeric: tabular-nums; line-height: 1.3; }
.note { border: 1px solid var(--line); border-left: .4rem solid var(--under); border-radius: .3rem;
  padding: .6rem 1.1rem; margin: 1.5rem 0 0; }
.note ul { margin: .3rem 0; padding-left: 1.2rem; }
.account { margin: 1.2rem 0 0; }
pre { background: var(--panel); border-radius: .3rem; padding: .7rem .9rem; margin: .6rem 0 1.2rem;
  font: .86rem/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
code { font: .92em ui-monospace, monospace; }
p code, li code, small code { white-space: nowrap; }
pre span { display: inline-block; max-width: 100%; white-space: pre-wrap; }
ul { max-width: 46rem; padding-left: 1.2rem; } li { margin: .2rem 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: 0 0 .4rem; }
th, td { padding: .32rem .7rem; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 500; }
thead th { color: var(--quiet); vertical-align: bottom; overflow-wrap: normal; }
th:first-child { text-align: left; padding-left: 0; min-width: 8.5rem; }
td { white-space: nowrap; }
.scroll th:first-child { position: sticky; left: 0; background: var(--paper); }
.scroll th[scope=rowgroup] { position: static; }
tr:has(+ .remark) > * { border-bottom: 0; }
.remark td { padding: 0 0 .5rem; text-align: left; white-space: normal; }
.remark div { position: sticky; left: 0; max-width: min(46rem, 100vw - 3rem); color: var(--quiet);
  font-size: .83rem; line-height: 1.4; overflow-wrap: anywhere; }
.remark small { font-size: 1em; }
th:first-child:has(small) { min-width: min(18rem, 45vw); }
th:has(.chip) { white-space: nowrap; }
td small, th small { display: block; font-size: .9em; line-height: 1.3; }
th[scope=rowgroup] { font-weight: 650; padding-top: 1rem; }
.pairs { margin: 1rem 0; } .pairs th { width: 40%; } .pairs td { text-align: left; white-space: normal; }
.chip { display: inline-block; width: .75em; height: .75em; border-radius: .2em; margin-right: .15em; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 1rem 2rem; }
figure { margin: 1rem 0 0; min-width: 0; display: flex; flex-direction: column; justify-content: space-between; }
figure:only-child { grid-column: 1 / -1; }
figcaption { max-width: 46rem; }
.plot { height: 22rem; }
.plot text { fill: var(--ink) !important; }
.plot .hoverlayer text { fill: #ffffff !important; }
.plot .gridlayer path { stroke: var(--line) !important; }
.plot .zerolinelayer path { stroke: var(--quiet) !important; }
details { margin: .8rem 0; } summary { cursor: pointer; }
:focus-visible { outline: 2px solid #1f7ac2; outline-offset: 2px; }
@media (max-width: 40rem) {
  body { padding: 1.25rem 1rem 3rem; }
  .cards { grid-template-columns: 1fr 1fr; }
  th:first-child, th:first-child:has(small) { min-width: 8.2rem; }
  th, td { padding: .32rem .4rem; }
  .pairs th { width: 50%; }
  .plot { height: calc(17rem + 1.1rem * var(--traces, 3)); }
}
.printing { width: 178mm; padding: 0; }
.printing .figures { grid-template-columns: 1fr 1fr; gap: 1rem; }
.printing .plot { height: calc(14rem + 1.1rem * var(--traces, 3)); }
@media print {
  @page { size: A4; margin: 16mm; }
  body { font-size: 10pt; padding: 0; max-width: none; print-color-adjust: exact; }
  h2, p.quiet { break-after: avoid; }
  h2 { margin-top: 1.6rem; }
  .card, figure, p, tr, tbody, .pairs, .note, .scroll:not(:has(tbody + tbody)) { break-inside: avoid; }
  .cards { grid-template-columns: repeat(3, 1fr); }
  .scroll { overflow: visible; }
  table, .remark div { font-size: 7.5pt; }
  tr:has(+ .remark) { break-after: avoid; }
  th, td { padding: .2rem .3rem; }
  th:first-child, th:first-child:has(small) { min-width: 0; }
  details:not([open]) { display: none; }
}
"""

# Printing needs the figures at the width of the paper before the browser lays the pages out; plotly's own answer to a
# new width comes too late.
_DRAW = """
const plots = [...document.querySelectorAll(".plot")];
for (const plot of plots) {
  const figure = JSON.parse(plot.dataset.figure);
  Plotly.newPlot(plot, figure.data, figure.layout, {displayModeBar: false, responsive: true});
}
addEventListener("beforeprint", () => {
  document.body.classList.add("printing");
  for (const plot of plots) Plotly.relayout(plot, {width: plot.clientWidth, height: plot.clientHeight});
});
addEventListener("afterprint", () => {
  document.body.classList.remove("printing");
  for (const plot of plots) Plotly.relayout(plot, {width: null, height: null, autosize: true});
});
"""


class Html(str):
    """Text that is markup already. Joining or formatting it gives a plain `str`, which is escaped again."""

    __slots__ = ()


Content = str | Iterable[str]


def element(name: str, /, *content: Content, **attributes: str) -> Html:
    """``<name attributes>content</name>``; ``class_`` is written as class, and ``aria_label`` as aria-label."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items()
    )
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(*content)}</{name}>")


def join(*content: Content) -> Html:
    """The parts one after the other, each escaped unless it is markup."""
    parts = (part for piece in content for part in ([piece] if isinstance(piece, str) else piece))
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def prose(text: str) -> Html:
    """Text in which options of the command line are set as such, and are not broken after their hyphens."""
    return join(
        element("code", part) if part.startswith("--") else part
        for part in re.split(r"(--\w[\w=-]*(?:,\w+)*)", text)
    )


def shell(command: str) -> Html:
    """A command line, which breaks between its words."""
    words = (element("span", word) for word in re.split(r"(?<= )(?=--|')", command))
    return element("pre", element("code", words), tabindex="0")


def chip(color: str, text: str) -> Html:
    """``text`` behind a small square in the colour it has in the figures."""
    square = element("span", class_="chip", style=f"background:{color}", aria_hidden="true")
    return join(square, "\N{NO-BREAK SPACE}", text)


def lines(first: str, *below: str) -> Html:
    """``first``, and what is ``below`` it small."""
    return join(first, (element("small", line) for line in below))


def table(caption: str, head: Sequence[str], bodies: Mapping[str, Sequence[Sequence[str]]]) -> Html:
    """A table with a heading over each of its ``bodies`` (none where the heading is empty).

    The first cell of a row is its heading; a row of one cell is a remark on the row before, over the whole width. A
    table that is too wide for the screen scrolls by itself, its first column and its remarks stay.
    """
    width = str(len(head))
    groups = []
    for title, rows in bodies.items():
        over = [element("tr", element("th", title, scope="rowgroup", colspan=width))] if title else []
        groups.append(
            element("tbody", over, (_row(row) if len(row) > 1 else _remark(row[0], width) for row in rows))
        )
    columns = element("thead", element("tr", (element("th", cell, scope="col") for cell in head)))
    content = element("table", columns, groups, aria_label=caption)
    # The caption stays outside, where it is not as wide as the table; a focus lets the keyboard scroll.
    area = element("div", content, class_="scroll", tabindex="0", role="region", aria_label=caption)
    return join(element("p", caption, class_="quiet"), area)


def _row(cells: Sequence[str]) -> Html:
    first, *rest = cells
    return element("tr", element("th", first, scope="row"), (element("td", cell) for cell in rest))


def _remark(text: str, width: str) -> Html:
    cell = element("td", element("div", text), colspan=width)
    return element("tr", cell, class_="remark")


def pairs(caption: str, entries: Iterable[tuple[str, str]]) -> Html:
    """A table of two columns: names and values."""
    rows = map(_row, entries)
    return element("table", element("caption", caption), element("tbody", rows), class_="pairs")


def drawing(figure: Figure, title: str, caption: str = "") -> Html:
    """A figure; ``title`` is above it and is what a screen reader says."""
    data = json.dumps(figure, separators=(",", ":"), allow_nan=False)
    # A legend takes more room where the screen is narrow.
    room = f"--traces:{len(figure['data'])}"
    plot = element("div", class_="plot", role="img", aria_label=title, style=room, data_figure=data)
    text = element("figcaption", element("strong", title), f" {caption}" if caption else "")
    return element("figure", text, plot)


def section(title: str, *content: Content) -> Html:
    """A part of the page under its own heading; nothing when there is no content."""
    inside = join(*content)
    return element("section", element("h2", title), inside) if inside else Html("")


def cards(entries: Iterable[tuple[str, str, str]]) -> Html:
    """Key figures: what it is, the figure, and what it is to be held against."""
    boxes = (
        element(
            "div",
            element("dt", title),
            element("dd", value, class_="big"),
            element("dd", element("small", beside)),
            class_="card",
        )
        for title, value, beside in entries
    )
    return element("dl", boxes, class_="cards")


def write(target: Path, title: str, *content: Content) -> Path:
    """Write a whole page to ``target`` and return its path."""
    write_bytes(target, document(title, *content))
    return target


def document(title: str, *content: Content) -> bytes:
    """The whole file."""
    head: list[Any] = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Html(_STYLE)),
    ]
    silent = element(
        "noscript", element("p", "The figures need JavaScript; the tables do without.", class_="note")
    )
    scripts = [element("script", Html(get_plotlyjs())), element("script", Html(_DRAW))]
    body = element("body", element("main", silent, *content), scripts)
    page = "<!DOCTYPE html>\n" + element("html", element("head", head), body, lang="en")
    # A lone surrogate, which JSON can carry, has no UTF-8.
    return page.encode("utf-8", "replace")


def drawings(*entries: tuple[Any, str, str]) -> Html:
    """Figures with their titles and captions side by side; those that are None are left out."""
    drawn = [drawing(figure, title, caption) for figure, title, caption in entries if figure]
    return element("div", drawn, class_="figures") if drawn else Html("")
