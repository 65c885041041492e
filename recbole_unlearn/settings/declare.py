"""How a setting is declared, and how its value is read.

A dataclass (in `groups.py` or in a method's file) declares each key once: its type, its help text, its limits and
its :class:`Role`. Everything else that has to know about a key is derived from that declaration: `--help`, how the
command line reads it, whether it goes to `result.json`, whether a grid may set it. The *value* of a key is in one
place only, `properties/*.yaml` (a method outside this package may give a default instead), so that `--help`, the
documentation and a run can never disagree. :func:`read` takes the values from a config and checks them.
"""

from __future__ import annotations

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
    """What a setting decides."""

    RESULT = "what comes out of a run"
    SUBJECT = "what a run is about; result.json has it at its top"
    SPEED = "how long a run takes, what it keeps and what it shows, but no figure"
    PLACE = "where something is on this machine or in its network; goes into no result"


@dataclasses.dataclass(frozen=True)
class Declared:
    """The declaration of one key."""

    name: str
    types: tuple[type, ...]  # accepted, without None
    optional: bool
    help: str
    choices: tuple[str, ...] | None
    words: tuple[str, ...]
    low: float | None
    high: float | None
    role: Role
    per_run: bool

    @property
    def is_name(self) -> bool:
        """Whether the command line takes the value as it is typed: a folder called 1e3 is a name, not a number."""
        return self.types == (str,)

    def expected(self) -> str:
        """What a value has to be, in words."""
        if self.choices:
            return f"choose from {', '.join(self.choices)}"
        kinds = [
            _TYPE_WORDS.get(kind, kind.__name__) for kind in self.types if not (kind is str and self.words)
        ]
        text = " or ".join(kinds)
        if self.low is not None and self.high is not None:
            text += f" from {self.low:g} to {self.high:g}"
        elif self.low is not None:
            text += f", at least {self.low:g}"
        if self.words:
            text += f", or {' or '.join(self.words)}"
        return f"expected {text}"


def setting(
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
    words: tuple[str, ...] = (),
    role: Role = Role.RESULT,
    per_run: bool = True,
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declare one key.

    Args:
        help: one or two sentences for `--help`.
        choices: all values it can have.
        low: the least number.
        high: the largest number.
        words: what is accepted instead of a number, for example "auto".
        role: what it decides.
        per_run: False when it belongs to a command as a whole, so that the runs of a grid cannot have it.
        default: for methods outside this package, which have no YAML in `properties/`.

    """
    about = {
        "help": help, "choices": choices, "low": low, "high": high, "words": words, "role": role, "per_run": per_run,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=about)


@functools.cache
def declared(cls: type) -> dict[str, Declared]:
    """The declarations of a settings class, by key."""
    hints = typing.get_type_hints(cls)
    found = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kinds = tuple(
            typing.get_origin(option) or option for option in options if option is not types.NoneType
        )
        found[field.name] = Declared(field.name, kinds, types.NoneType in options, **field.metadata)
    return found


def names(cls: type) -> list[str]:
    """The keys a settings class declares."""
    return [f.name for f in dataclasses.fields(cls)]


def defaults(cls: type) -> dict[str, Any]:
    """The values that are given with the declarations, where they are."""
    return {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}


def read(cls: type[T], values: Mapping[str, Any] | Any) -> T:
    """Build ``cls`` from ``values[key]`` (a dict or a RecBole config), checking types and limits."""
    own: dict[str, Declared] = declared(cls)  # type: ignore[arg-type]  # a class is hashable
    return cls(**{key: _checked(about, values[key]) for key, about in own.items()})


def as_list(value: Any) -> list[str]:
    """`a,b`, a list, one number or nothing, as a list of names."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [str(value)]
    items = value.split(",") if isinstance(value, str) else list(value or [])
    return [str(item).strip() for item in items if str(item).strip()]


def _checked(about: Declared, value: Any) -> Any:
    """``value`` as the type that is declared; refuses one that does not fit."""
    if value is None and about.optional:
        return None
    if list in about.types:
        return as_list(value)
    value = _converted(about, value)
    fits = type(value) in about.types
    if isinstance(value, str):
        allowed = about.choices or about.words
        fits = fits and (not allowed or value in allowed)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        fits = fits and value == value
        fits = fits and (about.low is None or value >= about.low)
        fits = fits and (about.high is None or value <= about.high)
    if not fits:
        raise UnlearnError(f"{about.name}={value!r} is not valid: {about.expected()}.")
    return value


def _converted(about: Declared, value: Any) -> Any:
    """A whole number where a number is asked for, and a number where a word is: YAML cannot know."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and int not in about.types and float in about.types:
        return float(value)
    if isinstance(value, (int, float)) and about.types == (str,):
        return str(value)
    return value
