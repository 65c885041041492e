"""The log of a run, progress bars, and the signals that stop a command.

RecBole logs through Python's root logger, so handlers are added there for the time of a run. RecBole's own lines
(epochs, losses, validation scores) go to OUTPUT_DIR/run.log; the screen shows ours, and all warnings.

Ctrl-C and SIGTERM end a command by an exception, so that all files of the run are cleaned up. :func:`stopping` is for
the command line only; the signal handlers of a Python caller are not changed.
"""

import contextlib
import logging
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any

from tqdm import tqdm

from recbole_unlearn.errors import UnlearnError, printable

_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_REPEATED = 5.0  # seconds in which a second signal is the same one: `timeout` and terminals send it twice


class _OneLine(logging.Formatter):
    """One line per message, without RecBole's colours."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the name is logging's
        return printable(re.sub(r"[\n\t]", " ", _COLOURS.sub("", super().formatMessage(record))))


class LogFile(logging.FileHandler):
    """A log file that is never written through a symbolic link."""

    _before: int | None = None  # size of the file before this log

    def take_back(self) -> None:
        """Restore the file to its earlier size, or remove it if there was none."""
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
            why = f"{error.strerror}. Remove it, or choose another directory."
            raise UnlearnError(f"Cannot write the log {self.baseFilename}: {why}") from error


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Hide warnings that RecBole 1.2.x causes in current pandas and torch; users cannot act on them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"recbole\.")
        warnings.filterwarnings("ignore", category=UserWarning, module=r"recbole\.|torch\.")
        yield


@contextlib.contextmanager
def without_messages() -> Iterator[None]:
    """In the block, only warnings and errors are logged."""
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def logging_to(directory: Path, level: str = "INFO", shown: str = "") -> Iterator[LogFile]:
    """Log to ``directory``/run.log, and to the screen (the logger ``shown`` alone) unless logging is configured."""
    root = logging.getLogger()
    before = root.level
    file = LogFile(directory / "run.log", encoding="utf-8", delay=True)
    handlers: list[logging.Handler] = [file]
    if not root.handlers:
        screen = logging.StreamHandler()
        screen.addFilter(logging.Filter(shown))
        screen.addFilter(lambda record: record.name != "root" or record.levelno != logging.INFO)
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
    """Whether progress bars go to a terminal; in a file, each of their frames would be a line."""
    return sys.stderr is not None and sys.stderr.isatty()


def progress_bar(label: str, total: int, shown: bool, unit: str = "it") -> tqdm:
    """A progress bar in RecBole's style."""
    from recbole.utils import set_color  # with torch, which not every command needs

    return tqdm(total=total, ncols=100, desc=set_color(label, "pink"), unit=unit, disable=not shown)


class Terminated(KeyboardInterrupt):
    """SIGTERM; code that handles Ctrl-C handles it too."""


def exit_code(stop: KeyboardInterrupt) -> int:
    """128 plus the signal's number, the convention of shells."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


@contextlib.contextmanager
def _handled_by(handler: Any, numbers: Iterable[int]) -> Iterator[None]:
    """Give signals a handler in the block; only the main thread can."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers if in_main_thread}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Make Ctrl-C and SIGTERM raise, once, unless they are ignored or handled otherwise; a forked child exits."""
    owner, last = os.getpid(), -_REPEATED

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if os.getpid() != owner:
            os._exit(128 + number)
        earlier, last = last, time.monotonic()
        if last - earlier >= _REPEATED:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    with _handled_by(stop, [number for number, own in defaults.items() if signal.getsignal(number) == own]):
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C, and SIGTERM where it is handled, until the block has ended."""
    waiting: list[tuple[int, FrameType | None]] = []
    held = [number for number in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(number))]
    with _handled_by(lambda *arrived: waiting.append(arrived), held):
        yield
    for number, frame in waiting[:1]:
        handler = signal.getsignal(number)
        if callable(handler):
            handler(number, frame)


def own_handlers() -> contextlib.AbstractContextManager[None]:
    """Restore our handler of SIGTERM after a block that replaces it, as Ray does."""
    ours = signal.getsignal(signal.SIGTERM)
    return _handled_by(ours, [signal.SIGTERM] if callable(ours) else [])


@contextlib.contextmanager
def saying(state_of_result: str) -> Iterator[None]:
    """Put the state of the result into the message of a Ctrl-C or SIGTERM in this block."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = (state_of_result,)
        raise
