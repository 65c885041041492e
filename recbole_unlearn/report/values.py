"""Reading a result in which any key may be missing, and writing its numbers for people.

What is missing, or is not a finite number where one belongs, is None here and a dash on the page: never zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

MISSING = "–"
RETRAINED, SECOND = "retrained", "retrained_2"
_TOO_LARGE = 1e300  # JSON knows integers that no float holds
_FIRST = ("original", "unlearned", RETRAINED, SECOND)


def mapping(tree: Any, *keys: str) -> dict[str, Any]:
    """The mapping under ``keys``; empty when it is not there."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return dict(tree) if isinstance(tree, Mapping) else {}


def number(tree: Any, *keys: str) -> float | None:
    """The finite number under ``keys``, or None."""
    value = mapping(tree, *keys[:-1]).get(keys[-1]) if keys else tree
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) < _TOO_LARGE else None


def text(tree: Any, key: str) -> str | None:
    """The value under ``key`` as text, or None."""
    value = mapping(tree).get(key)
    return None if value is None else str(value)


def difference(value: float | None, reference: float | None) -> float | None:
    """``value`` − ``reference``, when both are known."""
    return None if value is None or reference is None else value - reference


def phases_of(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The phases of a run: those every run may have, in the order they are made, then the compared methods."""
    phases = {name: phase for name, phase in mapping(result, "phases").items() if isinstance(phase, Mapping)}
    names = [name for name in _FIRST if name in phases]
    return {name: dict(phases[name]) for name in dict.fromkeys([*names, *phases])}


def phase_title(name: str) -> str:
    """What a phase is called on a page."""
    return "retrained 2" if name == SECOND else name


def decimal(value: float | None, digits: int = 3) -> str:
    """0.8110, or a dash."""
    return MISSING if value is None else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float | None, digits: int = 3) -> str:
    """+0.013 or −0.130, or a dash."""
    return MISSING if value is None else f"{value:+.{digits}f}".replace("-", "−")


def percent(value: float | None) -> str:
    """113%, or a dash."""
    return MISSING if value is None else f"{value:,.0%}".replace("-", "−")


def times(value: float | None) -> str:
    """29.1×; no decimals from 100 on."""
    return MISSING if value is None else f"{value:,.{0 if value >= 100 else 1}f}×"


def count(value: float | None) -> str:
    """7,191, or a dash."""
    return MISSING if value is None else f"{value:,.0f}"


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
        return (f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}").replace("-", "−")
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
