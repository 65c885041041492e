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


def method(
    name: str, help: str, settings: type, *, models: str = "", result: str = "", recommended: str = ""
) -> Callable[[T], T]:
    """Class decorator: make a trainer available as ``--unlearn=name``.

    Args:
        name: what people type.
        help: one sentence on what it does.
        settings: the dataclass that declares its settings.
        models: which models it works on, in words; by default what the class says it needs.
        result: "exact", "approximate" or what is exact about it; by default what the class says.
        recommended: when it is the one to use.

    """

    def add(cls: T) -> T:
        works_on = models or ("differentiable" if cls.needs_gradients else "all")
        gives = result or ("exact" if cls.exact else "approximate")
        catalogue.add(catalogue.Method(name, help, settings, cls, works_on, gives, recommended))
        cls.name, cls.help, cls.Settings = name, help, settings
        return cls

    return add


def methods() -> list[type[UnlearnTrainer]]:
    """All methods, by name."""
    return [cast("type[UnlearnTrainer]", entry.trainer) for entry in catalogue.methods()]


def get(name: str) -> type[UnlearnTrainer]:
    """The method called ``name``."""
    return cast("type[UnlearnTrainer]", catalogue.get(name).trainer)
