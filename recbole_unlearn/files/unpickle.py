"""Reading RecBole's checkpoints and saved datasets as data, whoever wrote them.

Two kinds of files: those of `torch.save` (:func:`load_torch`), as a zip archive or in the plain legacy form, and
plain pickles (:func:`load_pickle`). A zip archive is read by one parser, Python's; TorchScript, tar archives and
compressed members are refused. Inside, `pickles.py` parses and `rebuild.py` builds: nothing that a file names is ever
imported or called. That holds for what a caller consents to as well, such as the name of their own model class: it
becomes a description. Every way in which reading can fail ends in one line.
"""

from __future__ import annotations

import io
import re
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files.pickles import Machine, Made, Name, Reference, RefusedError, UnknownNameError
from recbole_unlearn.files.rebuild import Consent, Rebuilder, may_be_named, no_other, storage_of
from recbole_unlearn.inputs import read_regular, shown

LARGEST_FILE = 64 << 30
_LEGACY_MAGIC, _LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"

StandIn = Made  # what a file says of an object that is not built


def load_torch(path: Path, consent: Consent = no_other) -> Any:
    """What `torch.save` wrote to ``path``, with descriptions in the place of RecBole's objects."""

    def load(content: bytes) -> Any:
        return _zip(content, consent) if content.startswith(_ZIP) else _legacy(content, consent)

    return _guarded(path, load)


def load_pickle(path: Path, consent: Consent = no_other) -> Any:
    """What `pickle.dump` wrote to ``path``, with descriptions in the place of RecBole's objects."""
    return _guarded(
        path, lambda content: Rebuilder(consent=consent).build(_parsed(io.BytesIO(content), consent))
    )


def only(model: type | None) -> Consent:
    """Consent to the name of a model class that the caller holds, in whatever module the file says it was."""
    return lambda name: model is not None and name.name.rpartition(".")[2] == model.__name__


def _parsed(stream: io.BytesIO, consent: Consent) -> Any:
    return Machine(lambda name: may_be_named(name) or consent(name)).read(stream)


def _zip(content: bytes, consent: Consent) -> Any:
    """A zip archive of torch: NAME/data.pkl, and the storages under NAME/data/."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        names = [member.filename for member in members]
        if len(set(names)) != len(names):
            raise RefusedError("two records of one name")
        if any(name.endswith("/constants.pkl") or "/code/" in name for name in names):
            raise RefusedError("TorchScript code")
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise RefusedError("compressed records")
        if sum(member.file_size for member in members) > len(content):
            raise RefusedError("records that are larger than the file")
        (main,) = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
        folder = main.removesuffix("data.pkl")
        if f"{folder}byteorder" in names and archive.read(f"{folder}byteorder") != b"little":
            raise RefusedError("numbers in another byte order")
        described = _parsed(io.BytesIO(archive.read(main)), consent)
        return Rebuilder(lambda key: archive.read(f"{folder}data/{key}"), consent).build(described)


def _legacy(content: bytes, consent: Consent) -> Any:
    """The form of torch before 1.6: five pickles, then the storages one after the other."""
    if not content.startswith(_PICKLE):
        raise RefusedError("a format that is neither torch's zip nor its plain pickle")
    stream = io.BytesIO(content)
    if _parsed(stream, consent) != _LEGACY_MAGIC or _parsed(stream, consent) != _LEGACY_PROTOCOL:
        raise RefusedError("a pickle that torch did not write")
    about = _parsed(stream, consent)
    if not isinstance(about, dict) or about.get("little_endian") is not True:
        raise RefusedError("numbers in another byte order")
    described, keys = _parsed(stream, consent), _parsed(stream, consent)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise RefusedError("storages without names")
    sizes = _storage_sizes(described)
    found: dict[str, bytes] = {}
    for key in keys:
        (number,) = struct.unpack("<q", stream.read(8))
        width = sizes.get(key, 0)
        if number < 0 or number * width > len(content):
            raise RefusedError("a storage that is larger than the file")
        found[key] = stream.read(number * width)
    return Rebuilder(lambda key: found[key], consent).build(described)


def _storage_sizes(described: Any) -> dict[str, int]:
    """The bytes of one number in each storage that a description refers to."""
    sizes: dict[str, int] = {}
    seen: set[int] = set()
    waiting = [described]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Reference):
            dtype, key, _ = storage_of(one)
            sizes[key] = dtype.itemsize
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, (list, tuple)):
            waiting += one
        elif isinstance(one, Made):
            waiting += [one.args, one.state, one.entries, one.values]
    return sizes


def _way_out(error: RefusedError) -> str:
    """What to do next: where a file names somebody's class, that may be the model it is of."""
    name = error.name if isinstance(error, UnknownNameError) else None
    if name is not None and _may_be_a_model(name):
        own = name.name.rpartition(".")[2]
        return f"If {own} is a model class of yours, give it: --model=package.module:{own}, or the class in Python."
    return "Use a file from a source you trust, written by RecBole."


def _may_be_a_model(name: Name) -> bool:
    root = name.module.partition(".")[0]
    is_class = re.fullmatch(r"([A-Za-z]\w{0,99}\.)?[A-Z]\w{0,99}", name.name, re.ASCII)
    return (
        bool(is_class)
        and root.isidentifier()
        and root not in {*sys.stdlib_module_names, "torch", "numpy", "scipy", "pandas"}
    )


def _guarded(path: Path, load: Callable[[bytes], Any]) -> Any:
    """``load`` on the file's content, turning every way it can fail into one line."""
    try:
        return load(read_regular(path, LARGEST_FILE))
    except UnlearnError:
        raise
    except RefusedError as error:
        raise UnlearnError(
            f"Refused to read {shown(path)}: it asks for {error}, which a file of RecBole does not contain. "
            f"Nothing in it was run. {_way_out(error)}"
        ) from error
    except OSError as error:
        raise UnlearnError(f"Cannot read {shown(path)}: {error.strerror or error}.") from error
    except MemoryError as error:
        raise UnlearnError(f"Cannot read {shown(path)}: it does not fit into memory.") from error
    except Exception as error:  # whatever a damaged file makes the parsers raise
        raise UnlearnError(
            f"Cannot read {shown(path)}: it is damaged, cut off, or not a file of RecBole "
            f"({type(error).__name__}). Copy or save it again."
        ) from error
