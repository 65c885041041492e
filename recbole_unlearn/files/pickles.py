"""A pickle as plain description: what it says is parsed, and nothing it names is imported, called or built.

Python's own unpickler imports and calls what a file names. :class:`Machine` does not: a global is a :class:`Name`, a
call or an object is a :class:`Made` that remembers what it was to be made of, and a tensor's storage is a
:class:`Reference`. What may become a real array or tensor is decided in `rebuild.py`, from this description alone.
"""

from __future__ import annotations

import dataclasses
import pickletools
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

MOST_OPERATIONS = 50_000_000  # in one pickle
_SCALARS = (str, int, float, bool, bytes, type(None))


class RefusedError(Exception):
    """The file asks for something that a file of RecBole has no need of; the message completes "it asks for ..."."""


class UnknownNameError(RefusedError):
    """The file names a global that a file of RecBole has no need of."""

    def __init__(self, name: Name) -> None:
        super().__init__(str(name))
        self.name = name


class Name(NamedTuple):
    """A global that the file names."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclasses.dataclass(eq=False)
class Made:
    """An object as the file describes it: what makes it, from which arguments, with which state and content."""

    maker: Any
    args: tuple[Any, ...]
    state: Any = None
    entries: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)  # of a mapping
    values: list[Any] = dataclasses.field(default_factory=list)  # of a list or set


class Reference(NamedTuple):
    """A persistent id: where torch keeps a tensor's storage."""

    about: Any


class Machine:
    """Runs the operations of one pickle on a stack of plain data."""

    def __init__(self, allowed: Callable[[Name], bool]) -> None:
        """``allowed`` says which globals the file may name."""
        self.allowed = allowed
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def read(self, stream: BinaryIO) -> Any:
        """What the pickle at the stream's position describes; the position is behind it afterwards."""
        for count, (operation, argument, _) in enumerate(pickletools.genops(stream)):
            if operation.name == "STOP":
                return self.stack.pop()
            if count > MOST_OPERATIONS:
                raise RefusedError("more operations than a model or a dataset takes")
            self._do(operation.name, argument)
        raise EOFError("the pickle has no end")

    def _do(self, name: str, argument: Any) -> None:
        if name in _PUSHED:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _IGNORED:
            return
        elif (handler := getattr(self, f"_{name.lower()}", None)) is not None:
            handler(argument)
        elif name in _GETS:
            self.stack.append(self.memo[int(argument)])
        elif name in _PUTS:
            self.memo[int(argument)] = self.stack[-1]
        elif name in _TUPLES:
            size = _TUPLES[name]
            self.stack[-size:] = [tuple(self.stack[-size:])]
        else:
            raise RefusedError(f"the pickle operation {name}")

    def _popped(self) -> list[Any]:
        """What is above the last mark, taken from the stack."""
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def _mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def _pop(self, _: Any) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.stack.pop()

    def _pop_mark(self, _: Any) -> None:
        self._popped()

    def _dup(self, _: Any) -> None:
        self.stack.append(self.stack[-1])

    def _memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _tuple(self, _: Any) -> None:
        self.stack.append(tuple(self._popped()))

    def _list(self, _: Any) -> None:
        self.stack.append(self._popped())

    def _dict(self, _: Any) -> None:
        found = self._popped()
        self.stack.append({})
        self._put_entries(found)

    def _frozenset(self, _: Any) -> None:
        self.stack.append(frozenset(map(_hashable, self._popped())))

    def _append(self, _: Any) -> None:
        value = self.stack.pop()
        self._put_values([value])

    def _appends(self, _: Any) -> None:
        self._put_values(self._popped())

    def _additems(self, _: Any) -> None:
        found = self._popped()
        target = self.stack[-1]
        if not isinstance(target, set):
            raise RefusedError("items added to something that is no set")
        target.update(map(_hashable, found))

    def _put_values(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, Made):
            target.values.extend(values)
        else:
            raise RefusedError("values added to something that is no list")

    def _setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._put_entries([key, value])

    def _setitems(self, _: Any) -> None:
        self._put_entries(self._popped())

    def _put_entries(self, flat: list[Any]) -> None:
        target, pairs = self.stack[-1], zip(flat[::2], flat[1::2], strict=True)
        if isinstance(target, dict):
            target.update((_hashable(key), value) for key, value in pairs)
        elif isinstance(target, Made):
            target.entries.extend(pairs)
        else:
            raise RefusedError("entries added to something that is no mapping")

    def _global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(self._named(module, name))

    def _stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(self._named(module, name))

    def _named(self, module: Any, name: Any) -> Name:
        if not isinstance(module, str) or not isinstance(name, str):
            raise RefusedError("a global whose name is no text")
        found = Name(module, name)
        if not self.allowed(found):
            raise UnknownNameError(found)
        return found

    def _reduce(self, _: Any) -> None:
        args, maker = self.stack.pop(), self.stack.pop()
        self._make(maker, args)

    def _newobj(self, _: Any) -> None:
        self._reduce(_)

    def _newobj_ex(self, _: Any) -> None:
        keywords, args, maker = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self._make(maker, args)
        self.stack[-1].state = {"keywords": keywords}

    def _obj(self, _: Any) -> None:
        found = self._popped()
        self._make(found[0], tuple(found[1:]))

    def _inst(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._make(self._named(module, name), tuple(self._popped()))

    def _make(self, maker: Any, args: Any) -> None:
        if not isinstance(maker, Name) or not isinstance(args, tuple):
            raise RefusedError("a call of something that is no global")
        self.stack.append(Made(maker, args))

    def _build(self, _: Any) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, Made):
            raise RefusedError("a state for something that is no object")
        target.state = state

    def _binpersid(self, _: Any) -> None:
        self.stack.append(Reference(self.stack.pop()))

    def _persid(self, argument: str) -> None:
        self.stack.append(Reference(argument))


def _hashable(key: Any) -> Any:
    """A key of a mapping: a scalar or a description. Hashing nested tuples could overflow the interpreter's stack."""
    if not isinstance(key, (*_SCALARS, Made)):
        raise RefusedError(f"a key or member that is a {type(key).__name__}")
    return key


_PUSHED = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict, "EMPTY_SET": set,
}  # fmt: skip
_IGNORED = {"PROTO", "FRAME"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
