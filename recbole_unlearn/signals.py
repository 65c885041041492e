"""Being stopped: Ctrl-C and SIGTERM on the command line, and short moments in which both have to wait.

Both end a command in the same way, by an exception that lets every file and folder of the run be cleared up.
:func:`stopping` is for the command line alone: the handlers of a Python caller are the caller's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

_SAME = 5.0  # seconds in which another signal is the same wish: `timeout` and terminals send it twice


class Terminated(KeyboardInterrupt):
    """SIGTERM; whoever handles Ctrl-C handles it."""


def exit_code(stop: KeyboardInterrupt) -> int:
    """128 and the signal's number, as shells have it."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt and SIGTERM raise :class:`Terminated`, once; a forked child just ends.

    A signal that is ignored, or has a handler of somebody else, is left as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner, last = os.getpid(), -_SAME

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if os.getpid() != owner:
            os._exit(128 + number)
        earlier, last = last, time.monotonic()
        if last - earlier >= _SAME:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    taken = {number: handler for number, handler in usual.items() if signal.getsignal(number) == handler}
    try:
        for number in taken:
            signal.signal(number, stop)
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C, and SIGTERM where it is handled, wait until the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda *arrived: waiting.append(arrived))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
    for arrived, frame in waiting[:1]:
        held[signal.Signals(arrived)](arrived, frame)


@contextlib.contextmanager
def own_handlers() -> Iterator[None]:
    """Give a handler of SIGTERM back that the block replaces by its own."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def saying(what: str) -> Iterator[None]:
    """Let whoever is stopped in the block say ``what`` has become of the result by then."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = (what,)
        raise
