"""Which unlearning methods there are, as far as settings are concerned: name, help, declared keys and their values.

Methods register themselves (`methods/registry.py`). They are found by name, never imported from here: those of this
package are all modules below `recbole_unlearn.methods`, others come through the entry-point group of the same name. A
method of this package has its values in `properties/method/NAME.yaml`; one from elsewhere has them in `NAME.yaml`
beside its module, or as `default=` of its declarations.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recbole_unlearn.errors import UnlearnError, nearest
from recbole_unlearn.extensions import discover
from recbole_unlearn.settings import declare
from recbole_unlearn.settings.yaml_files import properties_dir, read_yaml

PACKAGE = "recbole_unlearn.methods"
ENTRY_POINTS = "recbole_unlearn.methods"


@dataclasses.dataclass(frozen=True)
class Method:
    """One method: what it is called and does, its settings class, and the trainer that does it."""

    name: str
    help: str
    settings: type
    trainer: type
    models: str  # which it works on, in words
    result: str  # exact, approximate, or what is exact about it
    recommended: str = ""  # when it is the one to use

    @property
    def is_ours(self) -> bool:
        """Whether it is part of this package."""
        return self.trainer.__module__.startswith(f"{PACKAGE}.")

    @property
    def folder(self) -> Path:
        """Where its YAML files are."""
        if self.is_ours:
            return properties_dir() / "method"
        return Path(inspect.getfile(self.trainer)).parent


_METHODS: dict[str, Method] = {}


def add(method: Method) -> None:
    """Make a method known; a name can be taken once."""
    other = _METHODS.get(method.name)
    if other is not None and other.trainer.__qualname__ != method.trainer.__qualname__:
        raise ValueError(f"An unlearning method named {method.name!r} is registered already.")
    _METHODS[method.name] = method


@functools.cache
def _discover() -> dict[str, str]:
    """Import all modules that register methods, once; returns why some could not be."""
    return discover(PACKAGE, ENTRY_POINTS)


def methods() -> list[Method]:
    """All methods, by name."""
    _discover()
    return registered()


def registered() -> list[Method]:
    """Those methods, by name, whose modules have been imported."""
    return [_METHODS[name] for name in sorted(_METHODS)]


def get(name: str) -> Method:
    """The method called ``name``."""
    known = {method.name: method for method in methods()}
    if name in known:
        return known[name]
    if name in (broken := _discover()):
        raise UnlearnError(f"The method {name} of another package cannot be used: {broken[name]}.")
    raise UnlearnError(
        f"Unknown unlearning method {name!r}.{nearest(str(name), known)} "
        f"--unlearn=? lists them: {', '.join(known)}."
    )


def values(name: str, model: str, dataset: str, kind: str = "") -> dict[str, Any]:
    """The values of a method's settings for a model and dataset, the most special file last.

    ``kind`` is the type of the model as RecBole calls it, in small letters.
    """
    method = get(name)
    found = declare.defaults(method.settings) | file_values(
        name, model, dataset, kind, lambda other: get(other).folder
    )
    missing = [key for key in declare.names(method.settings) if key not in found]
    if missing:
        raise UnlearnError(
            f"The method {name} has no value for {', '.join(missing)}: add it to "
            f"{method.folder / f'{name}.yaml'}, or give the declaration a default."
        )
    return found


def file_values(
    name: str, model: str, dataset: str, kind: str, folder_of: Callable[[str], Path]
) -> dict[str, Any]:
    """The values that are in the YAML files of a method; ``folder_of`` says where those of a method are.

    A file that begins with `preset_of: OTHER` holds only what differs from that method.
    """
    folder = folder_of(name)
    file = folder / f"{name}.yaml"
    own = read_yaml(file) if file.is_file() else {}
    base = own.pop("preset_of", None)
    found = own if base is None else file_values(base, model, dataset, kind, folder_of) | own
    for special in (kind, model, dataset, f"{model}-{dataset}"):
        if (more := folder / f"{name}-{special}.yaml").is_file():
            found |= read_yaml(more)
    return found


def owners(key: str) -> list[str]:
    """The methods that declare ``key``."""
    return [method.name for method in methods() if key in declare.names(method.settings)]
