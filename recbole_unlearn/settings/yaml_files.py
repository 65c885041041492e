"""Reading YAML: the plugin's `properties/`, a user's config files, and values from the command line.

Nothing read here becomes a Python object other than plain data.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from recbole_unlearn.errors import UnlearnError, nearest
from recbole_unlearn.inputs import read_regular, shown

LARGEST = 16 << 20  # bytes of a file of settings
_SHORT = 1 << 16  # characters of a file that is kept as it was parsed


def properties_dir() -> Path:
    """`properties/`: inside the package when installed from a wheel, at the top of a checkout otherwise."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "properties"
    return installed if installed.is_dir() else package.parent / "properties"


def packaged(name: str | Path, folder: str, option: str) -> Path:
    """The file that ``option`` names: a path, or (`smoke`) the name of a file in ``folder`` of `properties/`.

    A name has no directory and no ending. A file of exactly that name in the working directory comes first.
    """
    path = Path(name)
    if path.name != str(name) or path.suffix or path.is_file():
        return path
    known = {file.stem: file for file in sorted((properties_dir() / folder).glob("*.yaml"))}
    if path.name not in known:
        raise UnlearnError(
            f"{option}={shown(path)} is neither a file here nor one of {', '.join(known)}."
            f"{nearest(path.name, known)} Files of your own are given with their ending, FILE.yaml."
        )
    return known[path.name]


class YamlLoader(yaml.SafeLoader):
    """YAML without Python objects, and with `1e-4` read as a number, as RecBole's own files expect."""


YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:(?:\d[\d_]*\.[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+"
        r"|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


class _StrictLoader(YamlLoader):
    """YAML that refuses a key that is there twice; plain YAML silently takes the second."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """As the base class."""
        seen = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, Hashable) and name in seen:
                raise UnlearnError(f"{name} is there twice (line {key.start_mark.line + 1}); leave one out.")
            seen.add(name if isinstance(name, Hashable) else str(name))
        return super().construct_mapping(node, deep)


def parse_value(text: str) -> Any:
    """Read a command-line value as YAML (`0.1`, `[10,20]`, `{'RS':[8,1,1]}`), Python's None included."""
    if text == "None":
        return None
    try:
        value = yaml.load(text, Loader=YamlLoader)
    except yaml.YAMLError:
        return text
    # Only what is written in brackets is a collection: "?" and "a: b" are YAML mappings, but not meant so.
    return text if isinstance(value, (dict, list)) and text.lstrip()[0] not in "[{" else value


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping of settings; an empty one is an empty mapping."""
    return _read(path, YamlLoader, "config file", "the path", "key: value")


def read_strictly(path: Path, what: str, option: str, expected: str) -> dict[Any, Any]:
    """As :func:`read_yaml` for a file that is ``what``, named by ``option``; no key may be in it twice."""
    return _read(path, _StrictLoader, what, option, expected)


@functools.lru_cache(maxsize=128)
def _parsed(text: str, loader: type) -> Any:
    """YAML as data, parsed once: every config reads the same dozen files of RecBole and of this package."""
    return yaml.load(text, Loader=loader)


def _read(path: Path, loader: type, what: str, option: str, expected: str) -> dict[Any, Any]:
    try:
        text = read_regular(path, LARGEST).decode("utf-8-sig")
    except (OSError, UnlearnError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        if isinstance(error, UnicodeDecodeError):
            reason = "it is not UTF-8 text"
        raise UnlearnError(f"Cannot read the {what} {shown(path)}: {reason}. Check {option}.") from error
    try:
        content = (
            copy.deepcopy(_parsed(text, loader)) if len(text) <= _SHORT else yaml.load(text, Loader=loader)
        )
    except UnlearnError as error:
        raise UnlearnError(f"{shown(path)}: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        place = getattr(error, "problem_mark", None)
        line = f", line {place.line + 1}," if place else ""
        raise UnlearnError(
            f"{shown(path)}{line} is not valid YAML; expected lines of '{expected}'."
        ) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UnlearnError(f"{shown(path)} is not a mapping; expected lines of '{expected}'.")
    odd = next((key for key in content if not isinstance(key, str)), None)
    if odd is not None:
        raise UnlearnError(f"{shown(path)}: the key {odd!r} is not a name; expected lines of '{expected}'.")
    return content
