"""What methods declare, read from their source: `--help` and `--unlearn=?` need not wait for torch.

A method of this package is a class with ``@method(NAME, HELP, SETTINGS, ...)`` over it, and its settings are lines
`key: type = setting(HELP, ...)` of a class. Both are written out, so they can be read with :mod:`ast`, and nothing is
imported; tests compare what is read here with what is registered. Methods of other packages have to be imported.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from recbole_unlearn.settings import catalogue, declare
from recbole_unlearn.settings.yaml_files import properties_dir

METHODS = Path(__file__).resolve().parent.parent / "methods"


class Key(NamedTuple):
    """A setting of a method."""

    name: str
    help: str
    choices: tuple[str, ...] | None
    is_name: bool  # taken as it is typed, see `Declared`


@dataclasses.dataclass(frozen=True)
class Description:
    """A method, for people who have to choose one."""

    name: str
    help: str
    models: str
    result: str
    recommended: str
    base: str | None  # the method that it is a preset of
    keys: tuple[Key, ...]
    folder: Path  # of its YAML files
    defaults: dict[str, Any]  # of its declarations, where it has no such file

    @classmethod
    def of(cls, method: catalogue.Method) -> Description:
        """Of a method that has been imported."""
        keys = tuple(
            Key(key, about.help, about.choices, about.is_name)
            for key, about in declare.declared(method.settings).items()
        )
        above = {other.trainer: other.name for other in catalogue.registered()}
        base = next((above[one] for one in method.trainer.__mro__[1:] if one in above), None)
        return cls(
            method.name, method.help, method.models, method.result, method.recommended, base, keys,
            method.folder, declare.defaults(method.settings),
        )  # fmt: skip


def methods() -> list[Description]:
    """All methods, by name."""
    found = {one.name: one for one in from_source()}
    others = catalogue.registered()
    if _others_have_methods(tuple(sys.path)):
        others = catalogue.methods()
    found |= {one.name: Description.of(one) for one in others if not one.is_ours}
    return [found[name] for name in sorted(found)]


@functools.lru_cache(maxsize=1)
def _others_have_methods(places: tuple[str, ...]) -> bool:
    """Whether a package on ``places``, which are those of `sys.path`, says that it has methods; all are looked at."""
    return bool(metadata.entry_points(group=catalogue.ENTRY_POINTS))


@functools.cache
def from_source() -> tuple[Description, ...]:
    """The methods of this package."""
    return tuple(_from_source())


def _from_source() -> Iterator[Description]:
    classes: dict[str, ast.ClassDef] = {}
    for path in sorted(METHODS.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes |= {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    calls = {name: call for name, node in classes.items() if (call := _decorator(node)) is not None}
    named = {name: str(ast.literal_eval(call.args[0])) for name, call in calls.items()}
    for name, call in calls.items():
        about = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        bases = [base.id for base in classes[name].bases if isinstance(base, ast.Name)]
        settings = call.args[2]
        assert isinstance(settings, ast.Name)
        yield Description(
            named[name],
            ast.literal_eval(call.args[1]),
            about["models"],
            about.get("result", "approximate"),
            about.get("recommended", ""),
            next((named[base] for base in bases if base in named), None),
            tuple(_keys(classes[settings.id])),
            properties_dir() / "method",
            {},
        )


def _decorator(node: ast.ClassDef) -> ast.Call | None:
    """The call of ``@method`` over a class."""
    for one in node.decorator_list:
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "method":
            return one
    return None


def _keys(node: ast.ClassDef) -> Iterator[Key]:
    """The settings that a class declares."""
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.value, ast.Call):
            assert isinstance(line.target, ast.Name)
            words = {word.arg: word.value for word in line.value.keywords}
            choices = ast.literal_eval(words["choices"]) if "choices" in words else None
            kinds = set(ast.unparse(line.annotation).split(" | ")) - {"None"}
            yield Key(line.target.id, ast.literal_eval(line.value.args[0]), choices, kinds == {"str"})
