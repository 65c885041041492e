"""Numbers written for people, so that nothing says "-0%", "0.0x" or "1 users"; None is a dash, never zero."""

from __future__ import annotations

MISSING = "–"
_LEAST = 0.001  # factors below are not told apart


def counted(number: float | None, noun: str) -> str:
    """`1 user`, `7 users`, `– users`."""
    return f"{MISSING if number is None else number} {noun if number == 1 else f'{noun}s'}"


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
    """29.1x, 1,204x, 0.45x, 0.04x, or a dash: there is always a digit that counts."""
    if value is None:
        return MISSING
    if value < _LEAST:
        return f"<{_LEAST:g}{sign}"
    if value < 0.95:
        return f"{value:.2g}{sign}"
    return f"{value:,.{0 if value >= 100 else 1}f}{sign}"


def speed(value: float, sign: str = "x") -> str:
    """A speed-up in words: `29.1x as fast as retraining`, or that it is slower."""
    if value < 0.95:
        return f"slower than retraining: {times(value, sign)} its speed"
    return f"{times(value, sign)} as fast as retraining"
