r"""The tables of `paper.py` as HTML, Markdown and LaTeX.

All three write the same text; here is only how it is set. LaTeX comes as a whole document that needs booktabs and
geometry, ASCII only: what TeX would read as a command is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from recbole_unlearn.report import page
from recbole_unlearn.report.entries import GridPlan
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.paper import NOTE, Table

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$", "→": r"$\to$", "−": r"$-$", "×": r"$\times$",
    "–": "--", "·": r"$\cdot$", "“": "``", "”": "''", "’": "'", "\N{NO-BREAK SPACE}": "~",
}  # fmt: skip
_PREAMBLE = r"""% Written by recbole-unlearn; take single tables from it, or compile it as it is.
\documentclass[10pt]{article}
\usepackage[T1]{fontenc}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}  % outlines, where T1 has bitmaps otherwise
\usepackage{booktabs}
\usepackage[a4paper,landscape,margin=12mm]{geometry}
\begin{document}
"""
_MISSING_TITLE = "Missing"
_AT_ONCE = 4  # tables that LaTeX has to hold before it may place them; it gives up at 18


def sections(tables: Sequence[Table], plan: GridPlan) -> Html:
    """The tables as parts of a page."""
    parts = [
        page.section(
            title,
            (page.table(f"{table.subject}. {table.caption}", table.head, table.bodies) for table in group),
        )
        for title, group in _by_title(tables)
    ]
    missing = page.section(_MISSING_TITLE, page.pairs("Cells without a result.", plan.missing.items()))
    note = page.section("Tables of the paper", page.element("p", NOTE)) if tables else Html("")
    return page.join(note, parts, missing if plan.missing else "")


def _by_title(tables: Sequence[Table]) -> Iterator[tuple[str, list[Table]]]:
    for title, group in groupby(tables, key=lambda table: table.title):
        yield title, list(group)


def markdown(tables: Sequence[Table], plan: GridPlan) -> str:
    """The tables as Markdown."""
    lines = ["# Tables", "", NOTE]
    for title, group in _by_title(tables):
        lines += ["", f"## {title}", "", _one_line(group[0].caption)]
        for table in group:
            width = len(table.head)
            lines += ["", f"### {_marked(table.subject)}", ""]
            lines += [_line(table.head), "|" + "---|" + "---:|" * (width - 1)]
            for model, rows in table.bodies.items():
                lines += [
                    _line([f"**{_marked(model)}**", *[""] * (width - 1)], escape=False),
                    *map(_line, rows),
                ]
    if plan.missing:
        lines += ["", f"## {_MISSING_TITLE}", ""]
        lines += [f"- {_marked(name)}: {_marked(why)}" for name, why in plan.missing.items()]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str], escape: bool = True) -> str:
    return "| " + " | ".join(_marked(cell) if escape else cell for cell in cells) + " |"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _marked(text: str) -> str:
    """Text in which Markdown finds no markup of its own."""
    # An underscore inside a word, as in no_lua, is none.
    return "".join(f"\\{sign}" if sign in "\\`*[]<>|#" else sign for sign in _one_line(text))


def latex(tables: Sequence[Table], plan: GridPlan) -> str:
    """The tables as a LaTeX document."""
    lines = [_PREAMBLE, rf"\noindent {escaped(NOTE)}", ""]
    for place, table in enumerate(tables):
        width = len(table.head)
        lines += [
            *([r"\clearpage"] if place % _AT_ONCE == 0 else []),
            r"\begin{table}[p]",
            r"\centering\scriptsize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{\textbf{{{escaped(table.title)}, {escaped(table.subject)}.}} {escaped(table.caption)}}}",
            rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}",
            r"\toprule",
            _tex_line(table.head),
        ]
        for model, rows in table.bodies.items():
            lines += [r"\midrule", rf"\multicolumn{{{width}}}{{l}}{{\textbf{{{escaped(model)}}}}} \\"]
            lines += map(_tex_line, rows)
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    if plan.missing:
        lines += [r"\clearpage", rf"\section*{{{_MISSING_TITLE}}}", r"\begin{itemize}"]
        lines += [rf"\item {escaped(name)}: {escaped(why)}" for name, why in plan.missing.items()]
        lines += [r"\end{itemize}"]
    return "\n".join([*lines, r"\end{document}", ""])


def _tex_line(cells: Sequence[str]) -> str:
    return " & ".join(escaped(cell) for cell in cells) + r" \\"


def escaped(text: str) -> str:
    r"""Text as LaTeX prints it; a sign that has no ASCII way to be written becomes its number, as in U+4E2D."""
    signs = (_LATEX.get(sign, sign) for sign in _one_line_kept(text))
    return "".join(sign if sign.isascii() else f"U+{ord(sign):04X}" for sign in signs)


def _one_line_kept(text: str) -> str:
    """Without line breaks and control characters; a no-break space stays one."""
    return "".join(" " if sign in "\t\r\n" else sign for sign in text if sign >= " " or sign in "\t\r\n")
