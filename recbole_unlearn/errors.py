"""The one exception that is meant for users, and words and paths in its messages.

Its message is a single line: what was wrong, where, and what to do next. The command line
prints it without a traceback and exits with :data:`EXIT_CODE`; Python callers catch it.
"""

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

EXIT_CODE = 2
# What RecBole raises at a setting of the wrong type or value; it checks few of them.
BAD_SETTING = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, NotImplementedError, AssertionError,
)  # fmt: skip


class UnlearnError(Exception):
    """Bad input or an environment that cannot do the work; never a bug of ours.

    Messages name files, columns and settings, which others may have chosen: control characters become "?".
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(str(message)))


def printable(text: str) -> str:
    """One line that a terminal prints as it is: no line breaks, escape sequences or marks that turn text around."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def one_line(error: Exception) -> str:
    """The first line of an error; with its type, unless it is ours."""
    first = printable((str(error).strip().splitlines() or [""])[0])
    is_ours = isinstance(error, UnlearnError) and first
    return first if is_ours else f"{type(error).__name__}: {first}".rstrip(": ")


def reason(error: BaseException) -> str:
    """The first line of an error without its full stop, for the middle of a sentence; its type if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def nearest(word: str, known: Iterable[str]) -> str:
    """' Did you mean X?', or nothing when nothing is near."""
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f" Did you mean {by_lower[found[0]]}?" if found else ""


def shown(path: str | os.PathLike) -> str:
    """A path for messages: one line of printable characters, shortened in the middle."""
    text = printable(str(Path(path)))
    return text if len(text) <= 300 else f"{text[:140]}…{text[-140:]}"
