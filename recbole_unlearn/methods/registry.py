"""The registry of unlearning methods: a name, a help text, a settings class, a trainer.

A method is one file in this folder whose trainer class carries ``@register``, and one YAML file of the
same name in `properties/method/`. Nothing else in the plugin knows a method by its name.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING

from recbole_unlearn.errors import UnlearnError

if TYPE_CHECKING:
    from recbole_unlearn.trainer import UnlearnTrainer

_METHODS: dict[str, type[UnlearnTrainer]] = {}


def register(name: str, help: str, settings: type) -> Callable[[type[UnlearnTrainer]], type[UnlearnTrainer]]:
    """Class decorator: make a trainer available as ``--unlearn=name``."""

    def add(cls: type[UnlearnTrainer]) -> type[UnlearnTrainer]:
        if name in _METHODS and _METHODS[name].__qualname__ != cls.__qualname__:
            raise ValueError(f"An unlearning method named {name!r} is registered already.")
        cls.name, cls.help, cls.Settings = name, help, settings
        _METHODS[name] = cls
        return cls

    return add


def methods() -> list[type[UnlearnTrainer]]:
    """All methods, by name. The first call imports the files of this folder."""
    package = importlib.import_module("recbole_unlearn.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return [_METHODS[name] for name in sorted(_METHODS)]


def get(name: str) -> type[UnlearnTrainer]:
    """The method called ``name``."""
    known = {method.name: method for method in methods()}
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UnlearnError(
            f"Unknown unlearning method {name!r}.{hint} --unlearn=? lists them: {', '.join(known)}."
        )
    return known[name]
