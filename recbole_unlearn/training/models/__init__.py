"""Faster versions of RecBole's models: the same numbers, the same state_dict, less time.

A file here registers a subclass for one model of RecBole; trainings then use it wherever RecBole's class was asked
for. A checkpoint of either loads into the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from recbole_unlearn.extensions import discover

_FAST: dict[type, type] = {}
_FILED: dict[type, str] = {}


def faster(original: type, filed_as: str | None = None) -> Callable[[type], type]:
    """Class decorator: use this subclass in place of RecBole's ``original``.

    ``filed_as`` is the name that trained models are kept under; it never changes, or all would be trained again.
    """

    def add(cls: type) -> type:
        if original in _FAST and _FAST[original].__qualname__ != cls.__qualname__:
            raise ValueError(f"There is a faster {original.__name__} already.")
        _FAST[original] = cls
        _FILED[original] = filed_as or _qualified(cls)
        return cls

    return add


@functools.cache
def _discover() -> None:
    discover(__name__)


def fast_class(model_class: type) -> type:
    """The faster version of ``model_class``, or itself when there is none."""
    _discover()
    return _FAST.get(model_class, model_class)


def filed_as(model_class: type) -> str:
    """The name under which trained models of RecBole's ``model_class`` are kept."""
    _discover()
    return _FILED.get(model_class) or _qualified(model_class)


def _qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
