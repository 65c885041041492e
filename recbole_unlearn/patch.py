"""`patch_recbole()`: people's own scripts of plain RecBole run with today's torch, numpy and scipy.

    from recbole_unlearn import patch_recbole
    patch_recbole()
    from recbole.quick_start import run_recbole, load_data_and_model

Changed is what fails, and only for RecBole: its calls of `torch.load` read checkpoints as data (torch >= 2.6 refuses
them, and older versions run what a file says), `Collector` copes with plain numbers, and the names that numpy 2 and
scipy 1.13 dropped are there. `torch.load` of everybody else is as before. Nothing here imports `recbole.quick_start`,
which would pull in Ray.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from recbole_unlearn import compat
from recbole_unlearn.files import load_for_recbole

_active: contextlib.ExitStack | None = None  # what is to be undone


class Patch:
    """What :func:`patch_recbole` did; ``undo()`` takes it back, and so does the end of a ``with`` block."""

    def __init__(self, done: contextlib.ExitStack) -> None:
        self._done = done

    def undo(self) -> None:
        """Leave RecBole, torch, numpy and scipy as they were; a second call changes nothing."""
        self._done.close()

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def patch_recbole() -> Patch:
    """Make plain RecBole run in this environment, until the :class:`Patch` that is returned is undone.

    Calling it again while it is in effect changes nothing, and undoing that second patch neither.
    """
    global _active
    done = contextlib.ExitStack()
    if _active is None:
        _active = done  # it stays in effect when nobody keeps what is returned
        done.callback(_forget)
        for repair in (_own_loads, compat.numpy_names, compat.dok_update, compat.tolerant_collector):
            done.enter_context(repair())
    return Patch(done)


def _forget() -> None:
    global _active
    _active = None


@contextlib.contextmanager
def _own_loads() -> Iterator[None]:
    """Let RecBole's own calls of `torch.load` read files as data."""
    original = torch.load

    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.partition(".")[0] == "recbole" and isinstance(f, (str, os.PathLike)):
            return load_for_recbole(Path(os.path.abspath(f)), map_location)
        return original(f, map_location, *args, **kwargs)

    torch.load = load
    try:
        yield
    finally:
        torch.load = original
