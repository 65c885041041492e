"""Pages and how they write values: Jinja2 templates with autoescape, figures as SVG inside the file.

A page asks for nothing from the network. An unknown value (None) is a dash on it, never zero.
"""

import functools
import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import jinja2
from markupsafe import Markup, escape

from recbole_unlearn import text
from recbole_unlearn.files import write_bytes
from recbole_unlearn.results import SECOND, flat
from recbole_unlearn.text import MISSING, duration

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$", "→": r"$\to$", "−": r"$-$", "×": r"$\times$",
    "–": "--", "·": r"$\cdot$", "“": "``", "”": "''", "’": "'", "\N{NO-BREAK SPACE}": "~",
    "\t": " ", "\r": " ", "\n": " ",
}  # fmt: skip


def render(template: str, **values: Any) -> bytes:
    """The content of a file from one of `templates/`; a page extends `base.html`, which needs a ``title``."""
    made = _environment(template.rpartition(".")[2]).get_template(template)
    # A lone surrogate, which JSON can carry, has no UTF-8.
    return made.render(**values).encode("utf-8", "replace")


def write_page(target: Path, template: str, **values: Any) -> Path:
    """Write a page to ``target`` and return its path."""
    write_bytes(target, render(template, **values))
    return target


@functools.cache
def _environment(kind: str) -> jinja2.Environment:
    """Every value that a template prints is escaped for its ``kind``: html, md or tex."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("recbole_unlearn.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    own = (chip, count, counted, day, decimal, difference, duration, flat, lines, listed, metric_title,
           percent, phase_title, plain, signed, times, without_gaps)  # fmt: skip
    made.filters |= {one.__name__: one for one in own}
    if kind == "html":
        return made
    return made.overlay(
        autoescape=False, finalize={"md": markdown_text, "tex": latex_text}[kind], keep_trailing_newline=True,
        block_start_string="<%", block_end_string="%>", variable_start_string="<<", variable_end_string=">>",
        comment_start_string="<#", comment_end_string="#>",
    )  # fmt: skip


def markdown_text(value: Any) -> str:
    """Text on one line in which Markdown finds no markup of its own; an underscore inside a word is none."""
    return re.sub(r"([\\`*\[\]<>|#])", r"\\\1", " ".join(str(value).split()))


def latex_text(value: Any) -> str:
    """Text as LaTeX prints it, on one line; a character that ASCII cannot write becomes its number, as in U+4E2D."""
    signs = (_LATEX.get(sign, sign if sign >= " " else "") for sign in str(value))
    return "".join(sign if sign.isascii() else f"U+{ord(sign):04X}" for sign in signs)


def chip(title: str, color: str) -> Markup:
    """``title`` behind a small square in the color it has in the figures."""
    square = Markup('<span class="chip" style="background:{}" aria-hidden="true"></span>').format(color)
    return Markup("{}\N{NO-BREAK SPACE}{}").format(square, title)


def lines(first: str, *below: str) -> Markup:
    """``first``, and the lines ``below`` it small."""
    return escape(first) + Markup("").join(Markup("<small>{}</small>").format(one) for one in below)


def difference(value: float | None, reference: float | None) -> float | None:
    """``value`` − ``reference``, when both are known."""
    return None if value is None or reference is None else value - reference


def phase_title(name: str) -> str:
    """The name of a phase on a page."""
    return "retrained 2" if name == SECOND else name


def metric_title(metric: str) -> str:
    """NDCG@20 of ndcg@20, Recall@20 of recall@20, ItemCoverage@20 of itemcoverage@20."""
    name, at, cut = metric.partition("@")
    words = re.sub("coverage|popularity|entropy|index|percentage", lambda word: word[0].title(), name.capitalize())
    return (name.upper() if name in ("ndcg", "mrr", "map", "gauc") else words) + at + cut


def run_title(method: str | None, model: str | None, dataset: str | None, seed: int | str | None) -> str:
    """The name of a run on a page: obliviate · LightGCN · ml-100k · seed 2020, without unknown parts."""
    names = [method, model, dataset, None if seed is None else f"seed {seed}"]
    return " · ".join(name for name in names if name)


def _typeset(write: Callable[..., str], default: int | str) -> Callable[..., str]:
    """A function of `text.py` that writes a minus sign, with another ``default`` for its second argument."""

    @functools.wraps(write)
    def written(value: float | None, second: int | str = default) -> str:
        return write(value, second).replace("-", "−")

    return written


decimal, signed, percent = _typeset(text.decimal, 3), _typeset(text.signed, 3), _typeset(text.percent, 0)
times = _typeset(text.times, "×")


def spread(known: Sequence[float], digits: int, written: Callable[[float, int], str] = decimal) -> str:
    """Mean ± standard deviation, the latter where there are several."""
    if not known:
        return MISSING
    deviation = f" ± {decimal(statistics.stdev(known), digits)}" if len(known) > 1 else ""
    return written(statistics.fmean(known), digits) + deviation


def count(value: float | None) -> str:
    """7,191, or a dash."""
    return MISSING if value is None else f"{value:,.0f}"


def counted(amount: float, noun: str) -> str:
    """1 user, 7,191 users."""
    return f"{count(amount)} {noun}" if amount == 1 else f"{count(amount)} {noun}s"


def listed(words: Sequence[str], last: str = "and") -> str:
    """One, two and three."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def day(date: Any) -> str | None:
    """17 November 2026, 17:24 UTC, of an ISO 8601 date; None where it is none."""
    try:
        moment = datetime.fromisoformat(str(date))
        moment = moment if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"


def plain(value: Any) -> str:
    """Any value of a setting or certificate; numbers with four significant digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if isinstance(value, float):
        return (f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:z.4g}").replace("-", "−")
    if value is None:
        return MISSING
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else str(value)


def names_a_path(value: Any) -> bool:
    """Whether a setting contains a path of the user's machine."""
    if isinstance(value, Mapping):
        return any(map(names_a_path, value.values()))
    texts = [entry for entry in (value if isinstance(value, list) else [value]) if isinstance(entry, str)]
    return any(t.startswith("~") or PurePosixPath(t).is_absolute() or PureWindowsPath(t).is_absolute() for t in texts)


def without_gaps(head: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """A table without the columns that have no value in any row."""
    kept = [at for at in range(len(head)) if any(row[at] not in ("", MISSING) for row in rows)]
    return [head[at] for at in kept], [[row[at] for at in kept] for row in rows]
