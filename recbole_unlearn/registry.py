"""The registry: unlearning methods, measures and faster models register themselves, and are found by name.

Discovery imports every module below a package of ours, and every entry point that another package declares in a
group. A method is one file in `recbole_unlearn/methods` whose trainer carries ``@method``, and one YAML file of the
same name in `properties/method/`. A method of another package names its module in the entry-point group
`recbole_unlearn.methods`. No other module knows a method by its name; see docs/extending.md.
"""

import dataclasses
import importlib
import logging
import pkgutil
from collections.abc import Callable
from importlib import metadata
from typing import Any, Generic, TypeVar

from recbole_unlearn.errors import UnlearnError, nearest, one_line

T = TypeVar("T")
C = TypeVar("C", bound=type)
logger = logging.getLogger(__name__)


class Registry(Generic[T]):
    """Entries of one ``kind`` by name, from all modules below ``package`` and from ``entry_points`` of other ones."""

    def __init__(self, kind: str, package: str, entry_points: str | None = None) -> None:
        self.kind, self.package, self.entry_points = kind, package, entry_points
        self.entries: dict[Any, T] = {}
        self._sources: dict[Any, str] = {}
        self._failed: dict[str, str] | None = None  # entry points and reasons; None before discovery

    def add(self, name: Any, entry: T, source: Any = None) -> None:
        """Register ``entry``, made from ``source``; under a taken name only the same source (a notebook's cell)."""
        made_from: Any = source or entry
        origin = made_from.__qualname__
        if name in self.entries and self._sources[name] != origin:
            raise ValueError(f"There is already a {self.kind} named {name!r}.")
        self.entries[name], self._sources[name] = entry, origin

    def discover(self) -> dict[str, str]:
        """Import all modules that register entries, once; returns the entry points that failed, with the reason."""
        if self._failed is None:
            for module in pkgutil.walk_packages(importlib.import_module(self.package).__path__, f"{self.package}."):
                importlib.import_module(module.name)
            self._failed = {}
            for point in metadata.entry_points(group=self.entry_points) if self.entry_points else ():
                try:
                    point.load()
                except Exception as error:  # a fault of another package must not stop ours
                    reason = self._failed[point.name] = one_line(error)
                    logger.warning("%s of another package cannot be used: %s", point.name, reason)
        return self._failed

    def all(self) -> list[T]:
        """All entries, by name."""
        self.discover()
        return [self.entries[name] for name in sorted(self.entries, key=str)]

    def get(self, name: str) -> T:
        """The entry called ``name``."""
        failed = self.discover()
        if name in self.entries:
            return self.entries[name]
        if name in failed:
            raise UnlearnError(f"The {self.kind} {name} of another package cannot be used: {failed[name]}.")
        known = sorted(self.entries, key=str)
        raise UnlearnError(f"Unknown {self.kind} {name!r}.{nearest(name, known)} Known are: {', '.join(known)}.")


AUTO = "auto"  # the value of `unlearn` that stands for quickest_exact()
METHODS: Registry[type[Any]] = Registry(  # of subclasses of UnlearnTrainer
    "unlearning method", "recbole_unlearn.methods", "recbole_unlearn.methods"
)


def quickest_exact(model: type) -> type[Any]:
    """The quickest exact method for models of a class."""
    suiting = [one for one in METHODS.all() if one.auto_order is not None and one.suits(model)]
    return min(suiting, key=lambda one: one.auto_order)


@dataclasses.dataclass(frozen=True)
class NoSettings:
    """Of a method without any."""


def method(
    name: str, help: str, settings: type = NoSettings, *, models: str = "", result: str = "", recommended: str = ""
) -> Callable[[C], C]:
    """Class decorator: make a trainer available as ``--unlearn=name``, with the dataclass of its ``settings``.

    In words: what it does (``help``), the ``models`` it works on (by default those of its base, or derived from the
    class), whether its ``result`` is exact (by default derived from the class), and when it is ``recommended``.
    """

    def add(cls: Any) -> Any:
        cls.name, cls.help, cls.Settings, cls.recommended = name, help, settings, recommended
        cls.models = models or getattr(cls, "models", "differentiable" if cls.needs_gradients else "all")
        cls.result = result or ("exact" if cls.exact else "approximate")
        METHODS.add(name, cls)
        return cls

    return add
