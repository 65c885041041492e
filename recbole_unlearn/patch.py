"""`patch_recbole()`: scripts of plain RecBole run with current torch, numpy and scipy.

    from recbole_unlearn import patch_recbole
    patch_recbole()
    from recbole.quick_start import run_recbole, load_data_and_model

Only what fails is changed, and only for RecBole: its calls of `torch.load` read checkpoints as data (torch >= 2.6
refuses them, and older versions run code from the file), `Collector` accepts plain numbers, and the names that
numpy 2 and scipy 1.13 removed exist. Nothing here imports `recbole.quick_start`, which would import Ray.
"""

import contextlib
import functools
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recbole.evaluator import Collector

from recbole_unlearn.files import load_for_recbole
from recbole_unlearn.recbole_compat import NUMPY_1_NAMES, TensorCollector, added, dok_update, replaced


class Patch(contextlib.ExitStack):
    """The changes made by :func:`patch_recbole`; ``undo()`` or the end of a ``with`` block reverts them."""

    undo = contextlib.ExitStack.close  # a second call changes nothing


_active: list[Patch] = []  # referenced here, since a patch that is garbage-collected would be undone


def patch_recbole() -> Patch:
    """Make plain RecBole run here until the returned :class:`Patch` is undone; a second call changes nothing."""
    patch = Patch()
    if not _active:
        _active.append(patch)
        patch.callback(_active.clear)
        patch.enter_context(_load_as_data())
        patch.enter_context(added(np, NUMPY_1_NAMES))
        patch.enter_context(dok_update())
        patch.enter_context(replaced(Collector, "get_data_struct", TensorCollector.get_data_struct))
    return patch


def _load_as_data() -> contextlib.AbstractContextManager[None]:
    original = torch.load

    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.partition(".")[0] == "recbole" and isinstance(f, (str, os.PathLike)):
            return load_for_recbole(Path(os.path.abspath(f)), map_location)
        return original(f, map_location, *args, **kwargs)

    return replaced(torch, "load", load)
