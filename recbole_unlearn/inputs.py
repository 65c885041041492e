"""Reading a file that somebody names: a regular file, of a sensible size, or one line that says why not."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from recbole_unlearn.errors import UnlearnError


def read_regular(path: str | os.PathLike, largest: int) -> bytes:
    """The bytes of a regular file of at most ``largest`` bytes; a pipe or a device would keep us waiting forever.

    Raises:
        UnlearnError: there is no such file, it is no regular one, or it is too large.
        OSError: it cannot be read.

    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise UnlearnError(f"There is no file {shown(path)}. Check the path.") from error
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise UnlearnError(
                f"There is no file {shown(path)}: it is a directory, a pipe or a device. Check the path."
            )
        if about.st_size > largest:
            raise UnlearnError(
                f"{shown(path)} is too large: {about.st_size} bytes, at most {largest} are read."
            )
    except BaseException:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read(about.st_size)


def shown(path: str | os.PathLike) -> str:
    """A path as messages have it: one line, whatever characters are in it, and not too long."""
    text = str(Path(path)).encode("utf-8", "backslashreplace").decode()
    text = "".join(sign if sign.isprintable() else "?" for sign in text)
    return text if len(text) <= 300 else f"{text[:140]}…{text[-140:]}"
