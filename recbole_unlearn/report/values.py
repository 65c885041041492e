"""Numbers, names and settings written for people: what is not known (None) is a dash on the page, never zero."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from recbole_unlearn import text
from recbole_unlearn.measures import SHORT as SHORT  # what a verdict is called in a table
from recbole_unlearn.results import SECOND
from recbole_unlearn.text import MISSING


def difference(value: float | None, reference: float | None) -> float | None:
    """``value`` − ``reference``, when both are known."""
    return None if value is None or reference is None else value - reference


def phase_title(name: str) -> str:
    """What a phase is called on a page."""
    return "retrained 2" if name == SECOND else name


def run_title(method: str | None, model: str | None, dataset: str | None, seed: int | str | None) -> str:
    """What a run is called on a page: obliviate · LightGCN · ml-100k · seed 2020, less what is not known."""
    names = [method, model, dataset, None if seed is None else f"seed {seed}"]
    return " · ".join(name for name in names if name)


def decimal(value: float | None, digits: int = 3) -> str:
    """0.8110, or a dash."""
    return text.decimal(value, digits).replace("-", "−")


def signed(value: float | None, digits: int = 3) -> str:
    """+0.013 or −0.130, or a dash."""
    return text.signed(value, digits).replace("-", "−")


def percent(value: float | None) -> str:
    """113%, or a dash."""
    return text.percent(value).replace("-", "−")


def times(value: float | None) -> str:
    """29.1×, 0.45×; no decimals from 100 on."""
    return text.times(value, "×")


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


def duration(seconds: float | None) -> str:
    """0.03 s, 1.5 s, 43.7 s, 4 min 56 s, 2 h 05 min, or a dash."""
    if seconds is None:
        return MISSING
    if seconds < 0.95:
        return f"{seconds:.2g}\N{NO-BREAK SPACE}s"
    if seconds < 99.95:
        return f"{seconds:.1f}\N{NO-BREAK SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def plain(value: Any) -> str:
    """Any value of a setting or certificate, numbers to four digits that count."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if isinstance(value, float):
        return (f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:z.4g}").replace("-", "−")
    if value is None:
        return MISSING
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else str(value)


def flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings, each with its path: ``margin, mean``."""
    for key, value in tree.items():
        name = f"{above}, {key}" if above else str(key)
        if isinstance(value, Mapping) and value:
            yield from flat(value, name)
        else:
            yield name, value


def names_a_path(value: Any) -> bool:
    """Whether a setting says where somebody keeps their files."""
    texts = [entry for entry in (value if isinstance(value, list) else [value]) if isinstance(entry, str)]
    return any(
        t.startswith("~") or PurePosixPath(t).is_absolute() or PureWindowsPath(t).is_absolute() for t in texts
    )
