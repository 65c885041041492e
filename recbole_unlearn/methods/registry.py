"""The decorator that makes a trainer an unlearning method.

A method is one file in this folder whose trainer class carries ``@method``, and one YAML file of the same name in
`properties/method/`. A method of another package names its module under the entry-point group
`recbole_unlearn.methods`. Nothing in the plugin knows a method by its name; see docs/adding-a-method.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from recbole_unlearn.methods.base import UnlearnTrainer
from recbole_unlearn.settings import catalogue

T = TypeVar("T", bound=type[UnlearnTrainer])


def method(name: str, help: str, settings: type) -> Callable[[T], T]:
    """Class decorator: make a trainer available as ``--unlearn=name``."""

    def add(cls: T) -> T:
        catalogue.add(catalogue.Method(name, help, settings, cls))
        cls.name, cls.help, cls.Settings = name, help, settings
        return cls

    return add


def methods() -> list[type[UnlearnTrainer]]:
    """All methods, by name."""
    return [cast("type[UnlearnTrainer]", entry.trainer) for entry in catalogue.methods()]


def get(name: str) -> type[UnlearnTrainer]:
    """The method called ``name``."""
    return cast("type[UnlearnTrainer]", catalogue.get(name).trainer)
