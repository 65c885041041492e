"""A pickle as plain description: it is parsed, and nothing that it names is imported, called or built.

Python's unpickler imports and calls the globals of a file, and its C code crashes or fills the memory on some
pickles before a subclass is asked (a deeply nested key is hashed, a memo of 2^31 entries is allocated).
:func:`parse` does neither: a global is a :class:`Global`, a call or an object is a :class:`StandIn` that holds its
arguments, and the storage of a tensor is a :class:`Reference`. `safe_load.py` builds arrays and tensors from these.
"""

import dataclasses
import pickletools
from collections.abc import Callable
from typing import Any, NamedTuple

MOST_OPERATIONS = 50_000_000  # in one pickle
# One byte of a pickle can ask for a list of 64 bytes, or for an entry of the memo of 80.
FREE_CONTAINERS, BYTES_PER_CONTAINER = 100_000, 4
_SCALARS = (str, int, float, bool, bytes, type(None))
_PUSHED = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


class Global(NamedTuple):
    """A function or class that the file names."""

    module: str
    name: str

    @property
    def root(self) -> str:
        """The package, by its name of today."""
        root = self.module.partition(".")[0]
        return {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(root, root)

    def __str__(self) -> str:
        return f"{self.module:.150}.{self.name:.150}"


class RefusedError(Exception):
    """The file asks for something that no file of RecBole needs; the message completes "it asks for ..."."""

    def __init__(self, asked: str, name: Global | None = None) -> None:
        super().__init__(asked)
        self.name = name  # the unknown global that it asks for


def require(fits: Any, otherwise: str) -> None:
    """Refuse the file with the text ``otherwise`` unless ``fits``."""
    if not fits:
        raise RefusedError(otherwise)


@dataclasses.dataclass(eq=False, slots=True)
class StandIn:
    """An object as the file describes it: its class or function, its arguments, state and content."""

    maker: Global
    args: tuple[Any, ...]
    state: Any = None
    entries: Any = ()  # (key, value) of a mapping; a list once there are some
    values: Any = ()  # of a list or set, in the same way


class Reference(NamedTuple):
    """A persistent id: where torch keeps the storage of a tensor."""

    about: Any


def parse(pickled: bytes, allowed: Callable[[Global], bool]) -> Any:
    """The content of a pickle; ``allowed`` says which globals it may name."""
    machine = _Machine(allowed, FREE_CONTAINERS + len(pickled) // BYTES_PER_CONTAINER)
    for count, (operation, argument, _) in enumerate(pickletools.genops(pickled)):
        if operation.name == "STOP":
            return machine.stack.pop()
        require(count <= MOST_OPERATIONS, "more operations than a model or a dataset takes")
        machine.do(operation.name, argument)
    raise EOFError("the pickle has no end")


class _Machine:
    """Runs the operations of one pickle on a stack of plain data."""

    def __init__(self, allowed: Callable[[Global], bool], containers: int) -> None:
        self.allowed, self.containers, self.most = allowed, containers, containers
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def do(self, name: str, argument: Any) -> None:
        """Run one operation; all that are not here (extensions, classes of Python 2, outside buffers) are refused."""
        stack, pop = self.stack, self.stack.pop
        match name:
            case _ if name in _PUSHED:
                # Larger numbers are equal in their hashes as often as a file likes: a dict of them is quadratic.
                small = not isinstance(argument, int) or argument.bit_length() <= 64
                require(small, "a number of more than 64 bits")
                stack.append(argument)
            case "MEMOIZE" | "PUT" | "BINPUT" | "LONG_BINPUT":
                self.memo[len(self.memo) if name == "MEMOIZE" else argument] = stack[-1]
                require(len(self.memo) <= self.most, "a memo that is larger than the file")
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "MARK":
                self.marks.append(len(stack))
                require(len(self.marks) <= self.most, "more marks than a file of its size has")
            case "NONE" | "NEWTRUE" | "NEWFALSE" | "EMPTY_TUPLE":
                stack.append(_CONSTANTS[name])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self._push(tuple([pop() for _ in range(int(name[-1]))][::-1]))
            case "TUPLE" | "LIST":
                self._push(tuple(self._popped()) if name == "TUPLE" else self._popped())
            case "EMPTY_LIST" | "EMPTY_DICT":
                self._push([] if name == "EMPTY_LIST" else {})
            case "EMPTY_SET" | "FROZENSET":
                kind, values = ("set", ()) if name == "EMPTY_SET" else ("frozenset", self._popped())
                self._push(StandIn(Global("builtins", kind), (), values=values))
            case "APPEND" | "APPENDS" | "ADDITEMS":
                self._add_values([pop()] if name == "APPEND" else self._popped())
            case "SETITEM" | "SETITEMS":
                self._add_entries([pop(), pop()][::-1] if name == "SETITEM" else self._popped())
            case "DICT":
                found = self._popped()
                self._push({})
                self._add_entries(found)
            case "GLOBAL":
                stack.append(self._global(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                text, module = pop(), pop()
                stack.append(self._global(module, text))
            case "REDUCE" | "NEWOBJ" | "NEWOBJ_EX":
                state = {"keywords": pop()} if name == "NEWOBJ_EX" else None
                args, maker = pop(), pop()
                self._make(maker, args, state)
            case "BUILD":
                state = pop()
                require(isinstance(stack[-1], StandIn), "a state for something that is no object")
                stack[-1].state = state
            case "BINPERSID":
                self._push(Reference(pop()))
            case "POP" if not self.marks or self.marks[-1] != len(stack):
                pop()
            case "POP" | "POP_MARK":
                self._popped()
            case "PROTO" | "FRAME":
                pass
            case _:
                raise RefusedError(f"the pickle operation {name}")

    def _push(self, container: Any) -> None:
        self.containers -= 1
        require(self.containers >= 0, "more objects than a file of its size has")
        self.stack.append(container)

    def _popped(self) -> list[Any]:
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def _add_values(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, StandIn):
            target.values = target.values or []
            target.values += values
        else:
            raise RefusedError("values added to something that is no list")

    def _add_entries(self, flat: list[Any]) -> None:
        target, pairs = self.stack[-1], zip(flat[::2], flat[1::2], strict=True)
        if isinstance(target, dict):
            for key, value in pairs:
                # Hashing nested tuples could overflow the stack of the interpreter.
                require(isinstance(key, (*_SCALARS, StandIn)), "a key that is no plain value")
                target[key] = value
        elif isinstance(target, StandIn):
            target.entries = target.entries or []
            target.entries += pairs
        else:
            raise RefusedError("entries added to something that is no mapping")

    def _global(self, module: Any, name: Any) -> Global:
        require(isinstance(module, str) and isinstance(name, str), "a global whose name is no text")
        found = Global(module, name)
        if not self.allowed(found):
            raise RefusedError(str(found), found)
        return found

    def _make(self, maker: Any, args: Any, state: Any = None) -> None:
        if isinstance(maker, Global) and maker.root == "copyreg":  # _reconstructor(class, object, None)
            maker, args = args[0], ()
        require(isinstance(maker, Global) and isinstance(args, tuple), "a call of something that is no global")
        self._push(StandIn(maker, args, state))
