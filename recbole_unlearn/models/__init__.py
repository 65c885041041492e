"""Faster versions of RecBole's models: the same numbers, the same state_dict, less time.

A file here registers a subclass for one model of RecBole; configs then use it wherever RecBole's class was
asked for. A checkpoint of either loads into the other.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

_FAST: dict[type, type] = {}


def faster(original: type) -> Callable[[type], type]:
    """Class decorator: use this subclass in place of RecBole's ``original``."""

    def add(cls: type) -> type:
        _FAST[original] = cls
        return cls

    return add


def fast_class(model_class: type) -> type:
    """The faster version of ``model_class``, or itself when there is none."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _FAST.get(model_class, model_class)


def plain_class(model_class: type) -> type:
    """RecBole's class that ``model_class`` is a faster version of, or itself."""
    return next((plain for plain, fast in _FAST.items() if fast is model_class), model_class)
