"""How a setting is declared, and how its value is read.

A dataclass (in `groups.py` or in a method's file) declares each key once: type, help text, limits and :class:`Role`.
`--help`, how the command line reads it, whether it goes to `result.json` and whether a grid may set it are derived
from that. The *value* of a key is in `properties/*.yaml` only (a method outside this package may give a default).
"""

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from recbole_unlearn.errors import UnlearnError

T = TypeVar("T")
_TYPE_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a word"}


class Role(enum.Enum):
    """The effect of a setting."""

    RESULT = "the figures of a run"
    SUBJECT = "what a run is about; at the top of result.json"
    SPEED = "how long a run takes, what it keeps and what it shows, but no figure"
    PLACE = "where something is on this machine or in its network; goes into no result"


@dataclasses.dataclass(frozen=True)
class Declared:
    """The declaration of one key."""

    name: str
    types: tuple[type, ...]  # accepted, without None
    optional: bool
    help: str  # one or two sentences for `--help`
    choices: tuple[str, ...] | None = None  # all values it can have
    words: tuple[str, ...] = ()  # accepted instead of a number, for example "auto"
    low: float | None = None
    high: float | None = None
    role: Role = Role.RESULT
    per_run: bool = True  # False for a setting of a whole command, which the runs of a grid cannot have

    @property
    def is_name(self) -> bool:
        """Whether the command line takes the value as typed: a folder called 1e3 is a name, not a number."""
        return self.types == (str,)

    def expected(self) -> str:
        """The accepted values, in words."""
        if self.choices:
            return f"choose from {', '.join(self.choices)}"
        kinds = [kind for kind in self.types if not (kind is str and self.words)]
        text = " or ".join(_TYPE_WORDS.get(kind, kind.__name__) for kind in kinds)
        if self.low is not None and self.high is not None:
            text += f" from {self.low:g} to {self.high:g}"
        elif self.low is not None:
            text += f", at least {self.low:g}"
        return f"expected {text}" + (f", or {' or '.join(self.words)}" if self.words else "")

    def checked(self, value: Any) -> Any:
        """``value`` as the declared type; refuses one that does not fit."""
        if value is None and self.optional:
            return None
        if list in self.types:
            return as_list(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            # YAML does not know which is meant.
            if self.types == (str,):
                value = str(value)
            elif int not in self.types and float in self.types:
                value = float(value)
        fits = type(value) in self.types
        if isinstance(value, str):
            allowed = self.choices or self.words
            fits = fits and (not allowed or value in allowed)
        elif fits and not isinstance(value, bool):  # false for nan
            fits = value == value and (self.low is None or self.low <= value)
            fits = fits and (self.high is None or value <= self.high)
        if not fits:
            raise UnlearnError(f"{self.name}={value!r} is not valid: {self.expected()}.")
        return value


def setting(help: str, *, default: Any = dataclasses.MISSING, **about: Any) -> Any:
    """Declare a key; ``about`` are fields of :class:`Declared`, ``default`` is for methods of other packages."""
    return dataclasses.field(default=default, metadata={"help": help, **about})


@functools.cache
def declared(cls: type) -> dict[str, Declared]:
    """The declarations of a settings class, by key."""
    hints = typing.get_type_hints(cls)
    found = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kinds = tuple(typing.get_origin(one) or one for one in options if one is not types.NoneType)
        found[field.name] = Declared(field.name, kinds, types.NoneType in options, **field.metadata)
    return found


def names(cls: type) -> list[str]:
    """The keys a settings class declares."""
    return [f.name for f in dataclasses.fields(cls)]


def read(cls: type[T], values: Mapping[str, Any] | Any) -> T:
    """Build ``cls`` from ``values[key]`` (a dict or a RecBole config), checking types and limits."""
    own: dict[str, Declared] = declared(cls)  # type: ignore[arg-type]  # a class is hashable
    return cls(**{key: about.checked(values[key]) for key, about in own.items()})


def as_list(value: Any) -> list[str]:
    """`a,b`, a list, one number or nothing, as a list of names."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [str(value)]
    items = value.split(",") if isinstance(value, str) else list(value or [])
    return [str(item).strip() for item in items if str(item).strip()]
