"""Logging of a run: short lines on the screen, and the same with every epoch in OUTPUT_DIR/run.log.

RecBole logs through Python's root logger, so handlers are put there for the time of a run and taken away
afterwards. What RecBole itself says (epochs, losses, validation scores) goes to the file; the screen has its
warnings. Lines count people; they never name them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

from recbole.utils import set_color
from tqdm import tqdm

from recbole_unlearn.errors import UnlearnError

_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class _OneLine(logging.Formatter):
    """A line a message, without RecBole's colours."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the name is logging's
        """The line, without a traceback."""
        return " ".join(_COLOURS.sub("", super().formatMessage(record)).split("\n"))


def _of_screen(record: logging.LogRecord) -> bool:
    """Whether a line is for the screen: ours are, and warnings of everybody."""
    return record.name != "root" or record.levelno != logging.INFO


class LogFile(logging.FileHandler):
    """A log that is never written through a link: it would end up in somebody else's file."""

    _before: int | None = None  # the size of the file that was there

    def take_back(self) -> None:
        """Leave the file as it was before this log, or none where there was none."""
        if self.stream is None:  # nothing was written
            return
        self.close()
        if self._before is None:
            os.unlink(self.baseFilename)
        else:
            os.truncate(self.baseFilename, self._before)

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        with contextlib.suppress(FileNotFoundError):
            self._before = os.lstat(self.baseFilename).st_size
        try:
            return os.fdopen(os.open(self.baseFilename, flags, 0o666), "a", encoding=self.encoding)
        except OSError as error:
            raise UnlearnError(
                f"Cannot write the log {self.baseFilename}: {error.strerror}. Remove it, or choose another directory."
            ) from error


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Without those of RecBole 1.2.x on today's pandas and torch; nothing a user of this plugin can act on."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"recbole\.")
        warnings.filterwarnings("ignore", category=UserWarning, module=r"recbole\.|torch\.")
        yield


@contextlib.contextmanager
def logging_to(directory: Path, level: str = "INFO", shown: str = "") -> Iterator[LogFile]:
    """Log to ``directory``/run.log, and to the screen unless the caller has set up logging already.

    The file is there from the first line on. With ``shown``, the screen shows what the logger of that name says and
    nothing else.
    """
    root = logging.getLogger()
    before = root.level
    file = LogFile(directory / "run.log", encoding="utf-8", delay=True)
    handlers: list[logging.Handler] = [file]
    if not root.handlers:
        screen = logging.StreamHandler()
        screen.addFilter(logging.Filter(shown))
        screen.addFilter(_of_screen)
        handlers.append(screen)
    for handler in handlers:
        handler.setFormatter(_OneLine(_FORMAT, "%H:%M:%S"))
        root.addHandler(handler)
    root.setLevel(getattr(logging, str(level).upper(), logging.INFO))
    try:
        with without_warnings():
            yield file
    finally:
        root.setLevel(before)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def on_terminal() -> bool:
    """Whether somebody sees progress bars move; in a file, each of their frames would be a line."""
    return sys.stderr is not None and sys.stderr.isatty()


def progress(label: str, total: int, shown: bool, unit: str = "it") -> tqdm:
    """A progress bar in RecBole's manner."""
    return tqdm(total=total, ncols=100, desc=set_color(label, "pink"), unit=unit, disable=not shown)
