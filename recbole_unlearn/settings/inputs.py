"""Reading files that a user names: regular files of a limited size, JSON and YAML as data; errors are one line."""

import copy
import functools
import json
import math
import os
import re
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from recbole_unlearn.errors import UnlearnError, nearest, shown
from recbole_unlearn.text import properties_dir

LARGEST_YAML, LARGEST_JSON = 1 << 18, 1 << 24  # bytes
LARGEST_FILE = min(64 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)  # half of the memory
MOST_VALUES = 200_000  # of a YAML file, in which an alias counts as all that it stands for


def read_regular(path: str | os.PathLike, largest: int = LARGEST_FILE) -> bytes:
    """The bytes of a regular file (a pipe might never end) of at most ``largest``."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            about = os.fstat(stream.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise UnlearnError(f"There is no file {shown(path)}: it is a pipe or a device. Check the path.")
            if about.st_size > largest:
                raise UnlearnError(f"{shown(path)} is too large: {about.st_size} bytes, at most {largest} are read.")
            return stream.read(about.st_size)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError) as error:
        raise UnlearnError(f"There is no file {shown(path)}. Check the path.") from error
    except OSError as error:
        raise UnlearnError(f"Cannot read {shown(path)}: {error.strerror or error}. Check its mode.") from error


def read_json(path: str | os.PathLike, largest: int = LARGEST_JSON) -> Any:
    """The JSON in a regular file; ValueError if it is something else, and otherwise as :func:`read_regular`."""
    try:
        return json.loads(read_regular(path, largest))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def packaged(name: str | Path, folder: str, option: str) -> Path:
    """The file that ``option`` names: a path, or a name without suffix (`smoke`) in ``folder`` of `properties/`."""
    path = Path(name)
    if path.name != str(name) or path.suffix or path.is_file():
        return path
    known = {file.stem: file for file in sorted((properties_dir() / folder).glob("*.yaml"))}
    if path.name not in known:
        raise UnlearnError(
            f"{option}={shown(path)} is neither a file here nor one of {', '.join(known)}."
            f"{nearest(path.name, known)} Give a file of your own with its suffix, FILE.yaml."
        )
    return known[path.name]


class YamlLoader(yaml.SafeLoader):
    """YAML without Python objects and duplicate keys, and with `1e-4` read as a number, as RecBole's files expect."""

    def get_single_node(self) -> yaml.Node | None:
        """As the base class; refused if aliases stand for more values, or a number is longer, than settings are."""
        node = super().get_single_node()
        if _values(node, {}) > MOST_VALUES:
            raise UnlearnError("its aliases (*name) stand for too many values, or a number has no end.")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """As the base class, which silently takes the second of two equal keys."""
        seen = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, int) and name.bit_length() > 64:  # as many as one likes have the same hash
                raise UnlearnError(f"a key in line {key.start_mark.line + 1} is not a name.")
            if isinstance(name, Hashable) and name in seen:
                raise UnlearnError(f"{name} is there twice (line {key.start_mark.line + 1}); leave one out.")
            seen.add(name if isinstance(name, Hashable) else str(name))
        return super().construct_mapping(node, deep)


def _values(node: Any, known: dict[int, float]) -> float:
    """How many values a node of YAML stands for; without end if it is inside itself, or a number of many digits."""
    if id(node) not in known:
        known[id(node)] = math.inf
        if isinstance(node, yaml.ScalarNode) and node.tag.endswith((":int", ":float")) and len(node.value) > 1000:
            return math.inf  # numbers of base 60 (1:59:59) are worked out in quadratic time
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        pairs = (part if isinstance(part, tuple) else (part,) for part in parts)
        known[id(node)] = 1 + sum(_values(one, known) for pair in pairs for one in pair)
    return known[id(node)]


YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:(?:\d[\d_]*\.[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+"
        r"|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def parse_value(text: str) -> Any:
    """Read a command-line value as YAML (`0.1`, `[10,20]`, `{'RS':[8,1,1]}`), Python's None included."""
    if text == "None":
        return None
    try:
        value = yaml.load(text, Loader=YamlLoader)
    except yaml.YAMLError:
        return text
    # Only text in brackets is a collection: "?" and "a: b" are YAML mappings, but not meant so.
    return text if isinstance(value, (dict, list)) and text.lstrip()[0] not in "[{" else value


@functools.lru_cache(maxsize=128)
def _parsed(text: str) -> Any:
    """YAML as data, parsed once: every config reads the same dozen files of RecBole and of this package."""
    return yaml.load(text, Loader=YamlLoader)


def read_yaml(
    path: Path, what: str = "config file", option: str = "the path", expected: str = "key: value"
) -> dict[str, Any]:
    """The mapping in a YAML file; messages say ``what`` it is, which ``option`` names it and which lines it has."""
    try:  # only small files are kept; a copy, because callers change what they get
        text = read_regular(path, LARGEST_YAML).decode("utf-8-sig")
        content = copy.deepcopy(_parsed(text)) if len(text) < 65536 else _parsed.__wrapped__(text)
    except UnlearnError as error:
        raise UnlearnError(f"Cannot read the {what} {shown(path)}: {error} Check {option}.") from error
    except UnicodeDecodeError as error:
        raise UnlearnError(f"{shown(path)} is not UTF-8 text. Check {option}.") from error
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        place = getattr(error, "problem_mark", None)
        line = f", line {place.line + 1}," if place else ""
        raise UnlearnError(f"{shown(path)}{line} is not valid YAML; expected lines of '{expected}'.") from error
    if not isinstance(content, dict | None):
        raise UnlearnError(f"{shown(path)} is not a mapping; expected lines of '{expected}'.")
    odd = next((key for key in content or () if not isinstance(key, str)), None)
    if odd is not None:
        raise UnlearnError(f"{shown(path)}: the key {odd!r} is not a name; expected lines of '{expected}'.")
    return content or {}
