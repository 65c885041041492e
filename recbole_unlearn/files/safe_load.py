"""Reading RecBole's checkpoints and saved datasets as data, from any source.

:func:`load_torch` reads files of `torch.save`, as a zip archive or in the legacy form, :func:`load_pickle` plain
pickles. A zip archive is read by one parser, Python's; TorchScript, tar archives and compressed records are
refused. `safe_pickle.py` parses; here :data:`_CONSTRUCTORS`, a short table, builds tensors, arrays, sparse matrices
and tables. Each constructor checks dtype, shape, strides and the number of bytes before a library is asked for
memory, and all of them together get at most a few times the size of the file. A class of RecBole, or one that the
caller consents to, stays a description (:class:`~recbole_unlearn.files.safe_pickle.StandIn`). Every failure ends in
one line.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from recbole.utils import FeatureSource, FeatureType

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files.safe_pickle import (
    Global,
    Reference,
    RefusedError,
    StandIn,
    UnknownGlobalError,
    parse,
)  # fmt: skip
from recbole_unlearn.inputs import read_regular, shown

Consent = Callable[
    [Global], bool
]  # which further globals a file may name, each of them as a description only

LARGEST_FILE = min(64 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
MOST_RECORDS = 100_000  # in a zip archive
COPIES = 4  # tensors and arrays may take this many times the bytes of the file: some share a storage
DEEPEST = 200  # nesting of lists and mappings
MOST_VALUES = 100_000_000  # a value that is in two places counts twice
MOST_DIMENSIONS, MOST_NUMBERS = 16, 2**62
MOST_LINES = 2**27  # of a sparse matrix, which has memory for each
_LEGACY_MAGIC, _LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_ZIP, _ZIP_RECORD, _PICKLE = b"PK\x03\x04", b"PK\x01\x02", b"\x80"

_DESCRIBED = ("recbole", "recbole_unlearn", "yaml", "logging")  # packages whose objects stay descriptions
_LAYERS = "torch.nn.modules."  # the same: SASRecF keeps one of its layers with its weights
_DTYPE = re.compile(r"[<>=|]?(b1|i[1248]|u[1248]|f[248]|c(8|16)|[US][1-9]\d{0,5}|O8?)")
_TORCH_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_STORAGES = {
    "FloatStorage": torch.float32, "DoubleStorage": torch.float64, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip
_PLAIN = (str, int, float, bool, np.generic, type(None))
_KEYS = (*_PLAIN, bytes, FeatureType, FeatureSource)
_ENUMS = {"FeatureType": FeatureType, "FeatureSource": FeatureSource}


def load_torch(path: Path, consent: Consent = lambda name: False) -> Any:
    """The content that `torch.save` wrote to ``path``, with descriptions in place of RecBole's objects."""
    return _guarded(path, lambda content: (_zip if content.startswith(_ZIP) else _legacy)(content, consent))


def load_pickle(path: Path, consent: Consent = lambda name: False) -> Any:
    """The content that `pickle.dump` wrote to ``path``, with descriptions in place of RecBole's objects."""
    return _guarded(path, lambda content: _Builder(content, consent).build(_parsed(content, consent)))


def only(model: type | None) -> Consent:
    """Consent to the name of a model class that the caller holds, in whatever module the file says it was."""
    return lambda name: model is not None and name.name.rpartition(".")[2] == model.__name__


def _guarded(path: Path, load: Callable[[bytes], Any]) -> Any:
    """``load`` on the content of a file; every failure becomes one line."""
    try:
        return load(read_regular(path, LARGEST_FILE))
    except UnlearnError:
        raise
    except RefusedError as error:
        raise UnlearnError(
            f"Refused to read {shown(path)}: it asks for {error}, which a file of RecBole does not contain. "
            f"Nothing in it was run. {_advice(error)}"
        ) from error
    except OSError as error:
        raise UnlearnError(f"Cannot read {shown(path)}: {error.strerror or error}.") from error
    except MemoryError as error:
        raise UnlearnError(f"Cannot read {shown(path)}: it does not fit into memory.") from error
    except Exception as error:  # a damaged file can make the parsers raise anything
        raise UnlearnError(
            f"Cannot read {shown(path)}: it is damaged, cut off, or not a file of RecBole "
            f"({type(error).__name__}). Copy or save it again."
        ) from error


def _advice(error: RefusedError) -> str:
    """The next step: an unknown class may be the user's own model."""
    if isinstance(error, UnknownGlobalError):
        root, own = error.name.root, error.name.name.rpartition(".")[2]
        is_class = re.fullmatch(r"([A-Za-z]\w{0,99}\.)?[A-Z]\w{0,99}", error.name.name, re.ASCII)
        libraries = {*sys.stdlib_module_names, "torch", "numpy", "scipy", "pandas"}
        if is_class and root.isidentifier() and root not in libraries:
            given = f"--model=package.module:{own}, or the class in Python"
            return f"If {own} is a model class of yours, give it: {given}."
    return "Use a file from a source you trust, written by RecBole."


# Files


def _parsed(content: bytes | io.BytesIO, consent: Consent) -> Any:
    stream = io.BytesIO(content) if isinstance(content, bytes) else content
    return parse(stream, stream.getbuffer().nbytes, lambda name: _may_be_named(name) or consent(name))


def _zip(content: bytes, consent: Consent) -> Any:
    """A zip archive of torch: NAME/data.pkl, and the storages under NAME/data/."""
    if content.count(_ZIP_RECORD) > MOST_RECORDS:
        raise RefusedError("more records than a model has")
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
        described = _parsed(archive.read(main), consent)
        return _Builder(content, consent, lambda key: archive.read(f"{folder}data/{key}")).build(described)


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
    sizes, found = _storage_sizes(described), {}
    for key in keys:
        (number,) = struct.unpack("<q", stream.read(8))
        if number < 0 or number * sizes.get(key, 0) > len(content):
            raise RefusedError("a storage that is larger than the file")
        found[key] = stream.read(number * sizes.get(key, 0))
    return _Builder(content, consent, found.__getitem__).build(described)


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
            dtype, key, _ = _storage(one)
            sizes[key] = dtype.itemsize
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, (list, tuple)):
            waiting += one
        elif isinstance(one, StandIn):
            waiting += [one.args, one.state, one.entries, one.values]
    return sizes


# From the description to objects


class _Builder:
    """Builds the objects that a pickle describes; one for each file."""

    def __init__(
        self, content: bytes, consent: Consent, storages: Callable[[str], bytes] | None = None
    ) -> None:
        self.consent, self.storages = consent, storages
        self.room = COPIES * len(content)
        self.flat: dict[tuple[str, torch.dtype], torch.Tensor] = {}  # storages
        self._done: dict[int, tuple[Any, int]] = {}  # by the identity of the description; with its values
        self._depth = self._values = 0

    def build(self, described: Any) -> Any:
        """The object that is described, or the description itself where it has no constructor."""
        if isinstance(described, Global):
            return _TORCH_DTYPES.get(described.name, described) if described.root == "torch" else described
        if isinstance(described, Reference):
            raise RefusedError("a storage that belongs to no tensor")
        if not isinstance(described, (list, tuple, dict, StandIn)):
            return described
        before, known = self._values, self._done.get(id(described))
        self._values += known[1] if known else 1 if isinstance(described, StandIn) else 1 + len(described)
        if self._values > MOST_VALUES:
            raise RefusedError("one list or mapping in too many places")
        if known:
            return known[0]
        if self._depth >= DEEPEST:
            raise RefusedError(f"more than {DEEPEST} levels of nesting")
        self._depth += 1
        if isinstance(described, StandIn):
            found = self._object(described)
        elif isinstance(described, dict):
            found = self.mapping(described.items())
        else:
            found = type(described)(list(map(self.build, described)))
        self._depth -= 1
        self._done[id(described)] = found, self._values - before
        return found

    def mapping(self, pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        """A dict of built keys and values."""
        found = {}
        for key, value in pairs:
            key = self.build(key) if isinstance(key, StandIn) else key
            if not isinstance(key, _KEYS):
                raise RefusedError("a mapping whose keys are no plain values")
            found[key] = self.build(value)
        return found

    def charge(self, size: int) -> None:
        """Take ``size`` bytes of memory for a tensor or an array."""
        self.room -= size
        if self.room < 0:
            raise RefusedError("tensors or arrays that are larger than the file")

    def _object(self, made: StandIn) -> Any:
        maker = made.maker
        if maker.root in _DESCRIBED or maker.module.startswith(_LAYERS):
            if maker.module == "recbole.utils.enum_type" and maker.name in _ENUMS:
                return _ENUMS[maker.name](*made.args)
            return self._described(made)
        constructor = _CONSTRUCTORS.get(_key(maker))
        if constructor is not None:
            return constructor(self, made)
        if self.consent(maker):
            return self._described(made)
        raise UnknownGlobalError(maker)

    def _described(self, made: StandIn) -> StandIn:
        kept = StandIn(made.maker, self.build(made.args))
        self._done[id(made)] = kept, 1  # its state may refer back to it
        kept.state = self.build(made.state)
        kept.entries = [(self.build(key), self.build(value)) for key, value in made.entries]
        kept.values = [self.build(value) for value in made.values]
        return kept


def _as_is(builder: _Builder, made: StandIn) -> StandIn:
    """A device or a layout, or a part of a table that its table reads."""
    return made


def _several(builder: _Builder, made: StandIn) -> Any:
    kind = {"set": set, "frozenset": frozenset, "list": list, "tuple": tuple}[made.maker.name]
    first = builder.build(made.args[0]) if made.args else []
    if not isinstance(first, (list, tuple)):
        raise RefusedError("a list or set of something that is none")
    values = [*first, *map(builder.build, made.values)]
    if kind in (set, frozenset) and not all(isinstance(value, _KEYS) for value in values):
        raise RefusedError("a set of other than plain values")
    return kind(values)


def _dict(builder: _Builder, made: StandIn) -> dict[Any, Any]:
    return builder.mapping(made.entries)


def _slice(builder: _Builder, made: StandIn) -> slice:
    if not all(value is None or type(value) is int for value in made.args):
        raise RefusedError("a slice of other than numbers")
    return slice(*made.args)


def _encoded(builder: _Builder, made: StandIn) -> bytes:
    text, *coding = made.args
    if coding not in ([], ["latin1"], ["latin-1"]) or not isinstance(text, str):
        raise RefusedError("bytes in an unknown coding")
    builder.charge(len(text))
    return text.encode("latin-1")


def _whole_numbers(values: Any, what: str = "shape") -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)) or len(values) > MOST_DIMENSIONS:
        raise RefusedError(f"a {what} that is none")
    if any(type(value) is not int or not 0 <= value <= MOST_NUMBERS for value in values):
        raise RefusedError(f"a {what} that has other than whole numbers")
    if math.prod(max(1, value) for value in values) > MOST_NUMBERS:
        raise RefusedError(f"a {what} that is too large")
    return tuple(values)


# torch


def _storage(storage: Any) -> tuple[torch.dtype, str, int]:
    """Type, key and length of a storage, from its persistent id."""
    about = storage.about if isinstance(storage, Reference) else None
    if not isinstance(about, tuple) or len(about) not in (5, 6) or about[5:] not in ((), (None,)):
        raise RefusedError("a storage in an unknown form")
    tag, kind, key, _, number = about[:5]
    if tag != "storage" or not isinstance(kind, Global) or not isinstance(key, str):
        raise RefusedError("a storage in an unknown form")
    if kind.name not in _STORAGES or type(number) is not int or not 0 <= number <= MOST_NUMBERS:
        raise RefusedError("a storage of an unknown type or a negative size")
    return _STORAGES[kind.name], key, number


def _tensor(builder: _Builder, made: StandIn) -> torch.Tensor:
    """A copy of the part of a storage that a tensor takes; the part must lie inside, and be no larger."""
    storage, offset, size, stride = made.args[:4]
    dtype, key, number = _storage(storage)
    shape, steps = _whole_numbers(size), _whole_numbers(stride, "stride")
    if len(shape) != len(steps) or type(offset) is not int or offset < 0:
        raise RefusedError("a tensor whose shape and strides do not fit")
    count = math.prod(shape)
    last = offset + sum((length - 1) * step for length, step in zip(shape, steps, strict=True))
    if count > number or (count and last >= number):
        raise RefusedError("a tensor that is larger than its storage")
    if builder.storages is None:
        raise RefusedError("a tensor in a file that has none")
    builder.charge(count * dtype.itemsize)
    if (key, dtype) not in builder.flat:
        raw = builder.storages(key)
        if len(raw) != number * dtype.itemsize:
            raise RefusedError("a storage of another size than it says")
        stored = torch.uint8 if dtype is torch.bool else dtype
        flat = torch.frombuffer(bytearray(raw), dtype=stored) if raw else torch.empty(0, dtype=stored)
        builder.flat[key, dtype] = flat.ne(0) if dtype is torch.bool else flat
    flat = builder.flat[key, dtype]
    if len(flat) != number:
        raise RefusedError("a storage of two sizes")
    return flat.as_strided(shape, steps, offset if count else 0).clone(memory_format=torch.contiguous_format)


def _as_tensor(value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise RefusedError("a parameter that is no tensor")
    return value


def _parameter(builder: _Builder, made: StandIn) -> torch.Tensor:
    return _as_tensor(builder.build(made.args[0]))


def _sparse_tensor(builder: _Builder, made: StandIn) -> torch.Tensor:
    layout = made.args[0]
    if not isinstance(layout, StandIn) or layout.args != ("torch.sparse_coo",):
        raise RefusedError("a sparse tensor that is not in coordinate form")
    indices, values, size = builder.build(made.args[1])[:3]
    return torch.sparse_coo_tensor(
        _as_tensor(indices), _as_tensor(values), _whole_numbers(size), check_invariants=True
    )


def _size(builder: _Builder, made: StandIn) -> tuple[int, ...]:
    return _whole_numbers(made.args[0])


# numpy and scipy


def _dtype(builder: _Builder, made: StandIn) -> np.dtype:
    """A dtype of the short list; its state may only say the byte order."""
    code, order = made.args[0], "="
    if isinstance(made.state, tuple):
        if len(made.state) < 5 or any(part is not None for part in made.state[2:5]):
            raise RefusedError("a structured dtype")
        order = made.state[1]
    if not isinstance(code, str) or not _DTYPE.fullmatch(code) or order not in ("<", ">", "=", "|"):
        raise RefusedError("an unknown dtype")
    found = np.dtype(code)
    return found.newbyteorder(order) if order in ("<", ">") and not found.hasobject else found


def _array(builder: _Builder, raw: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    """An array of ``dtype`` from its bytes, which must be as many as its shape takes."""
    sizes = _whole_numbers(shape)
    if isinstance(raw, str):
        raw = raw.encode("latin-1")
    if not isinstance(dtype, np.dtype) or dtype.hasobject or not isinstance(raw, (bytes, bytearray)):
        raise RefusedError("an array without plain content")
    if order not in ("C", "F") or math.prod(sizes) * dtype.itemsize != len(raw):
        raise RefusedError("an array of another size than it says")
    builder.charge(len(raw))
    return np.frombuffer(raw, dtype).reshape(sizes, order=order).astype(dtype.newbyteorder("="))


def _object_array(builder: _Builder, content: Any, shape: Any, order: Any) -> np.ndarray:
    """An array of texts, numbers, lists or arrays, one for each place."""
    sizes = _whole_numbers(shape)
    if not isinstance(content, list) or len(content) != math.prod(sizes):
        raise RefusedError("an array of objects of another size than it says")
    builder.charge(len(content))
    found = np.empty(len(content), dtype=object)
    for place, value in enumerate(content):
        texts = isinstance(value, list) and all(isinstance(one, _PLAIN) for one in value)
        numbers = isinstance(value, np.ndarray) and not value.dtype.hasobject
        if not texts and not numbers and not isinstance(value, _PLAIN):
            raise RefusedError("an array of objects that are no plain data")
        found[place] = value
    return found.reshape(sizes, order=order)


def _scalar(builder: _Builder, made: StandIn) -> Any:
    dtype, raw = builder.build(made.args)
    return _array(builder, raw, dtype, (), "C")[()]


def _frombuffer(builder: _Builder, made: StandIn) -> np.ndarray:
    raw, dtype, shape, order = builder.build(made.args)
    return _array(builder, raw, dtype, shape, order)


def _reconstructed(builder: _Builder, made: StandIn) -> np.ndarray:
    if not isinstance(made.state, tuple) or len(made.state) != 5:
        raise RefusedError("an array without its content")
    _, shape, dtype, fortran, content = builder.build(made.state)
    objects = isinstance(dtype, np.dtype) and dtype.hasobject
    order = "F" if fortran is True else "C"
    found = (
        _object_array(builder, content, shape, order)
        if objects
        else _array(builder, content, dtype, shape, order)
    )
    kind = made.args[0]
    return found.view(np.matrix) if isinstance(kind, Global) and kind.name == "matrix" else found


def _sparse(builder: _Builder, made: StandIn) -> Any:
    """A sparse matrix, checked to be well formed: scipy's own code trusts the indices."""
    form, state = made.maker.name[:3], builder.build(made.state)
    if not isinstance(state, dict):
        raise RefusedError("a sparse matrix without its content")
    shape = _whole_numbers(state.get("_shape"))
    if len(shape) != 2 or max(shape) > MOST_LINES:
        raise RefusedError("a sparse matrix that is too large, or has not two dimensions")
    if form == "lil":
        return _from_lists(state, shape)
    if form == "coo" and isinstance(state.get("coords"), tuple) and len(state["coords"]) == 2:
        state = state | dict(zip(("row", "col"), state["coords"], strict=True))  # as scipy has it since 1.13
    parts = [
        state.get(key) for key in ("data", *(("row", "col") if form == "coo" else ("indices", "indptr")))
    ]
    if any(not isinstance(part, np.ndarray) or part.ndim != 1 or part.dtype.hasobject for part in parts):
        raise RefusedError("a sparse matrix without its parts")
    data, first, second = parts
    if form == "coo":
        _check_within(first, shape[0])
        _check_within(second, shape[1])
        if not len(data) == len(first) == len(second):
            raise RefusedError("a sparse matrix whose parts differ in length")
        return sp.coo_matrix((data, (first, second)), shape)
    lines, width = shape if form == "csr" else shape[::-1]
    _check_within(first, width)
    if second.dtype.kind not in "iu" or len(second) != lines + 1 or (second[1:] < second[:-1]).any():
        raise RefusedError("a sparse matrix that is not well formed")
    if second[0] != 0 or second[-1] != len(first) or len(data) != len(first):
        raise RefusedError("a sparse matrix that is not well formed")
    return (sp.csr_matrix if form == "csr" else sp.csc_matrix)((data, first, second), shape)


def _check_within(places: np.ndarray, size: int) -> None:
    inside = places.dtype.kind in "iu" and (not len(places) or 0 <= places.min() <= places.max() < size)
    if not inside:
        raise RefusedError("a sparse matrix with entries outside it")


def _from_lists(state: dict[str, Any], shape: tuple[int, ...]) -> sp.lil_matrix:
    rows, data = state.get("rows"), state.get("data")
    if not isinstance(rows, np.ndarray) or not isinstance(data, np.ndarray):
        raise RefusedError("a sparse matrix without its parts")
    counts = [len(columns) for columns in rows]
    if not rows.shape == data.shape == shape[:1] or counts != [len(values) for values in data]:
        raise RefusedError("a sparse matrix whose parts differ in length")
    columns = np.array([column for several in rows for column in several], dtype=np.int64)
    values = np.array([float(value) for several in data for value in several])
    _check_within(columns, shape[1])
    return sp.coo_matrix((values, (np.repeat(np.arange(shape[0]), counts), columns)), shape).tolil()


# pandas


def _index(builder: _Builder, made: StandIn) -> pd.Index:
    kind, about = made.args[0], builder.build(made.args[1])
    if isinstance(kind, Global) and kind.name == "RangeIndex":
        ends = [about.get(key) for key in ("start", "stop", "step")]
        if any(type(end) is not int or abs(end) > MOST_NUMBERS for end in ends) or ends[2] == 0:
            raise RefusedError("a table whose lines are numbered oddly")
        return pd.RangeIndex(*ends)
    data = about.get("data")
    if not isinstance(data, np.ndarray) or data.ndim != 1:
        raise RefusedError("a table whose lines or columns have odd names")
    return pd.Index(data)


def _frame(builder: _Builder, made: StandIn) -> pd.DataFrame:
    manager = made.state.get("_mgr") if isinstance(made.state, dict) else None
    if not isinstance(manager, StandIn) or manager.maker.name != "BlockManager":
        raise RefusedError("a table without its columns")
    blocks, axes = manager.args
    columns, lines = builder.build(axes)
    if not all(isinstance(axis, pd.Index) for axis in (columns, lines)) or not len(columns):
        raise RefusedError("a table without lines or columns")
    found: dict[int, np.ndarray] = {}
    for block in blocks:
        values, place, _ = builder.build(block.args)
        if not isinstance(values, np.ndarray) or values.ndim != 2 or values.shape[1] != len(lines):
            raise RefusedError("a table whose columns differ in length")
        builder.charge(values.size)
        places = range(*place.indices(len(columns))) if isinstance(place, slice) else place.tolist()
        found |= dict(zip(places, values, strict=True))
    if sorted(found) != list(range(len(columns))) or len(set(columns)) != len(columns):
        raise RefusedError("a table in which columns are missing")
    return pd.DataFrame({str(columns[at]): found[at] for at in range(len(columns))}, index=lines)


# The globals that a file may name: by package and name; in whatever module of the package, since none is imported.
_CONSTRUCTORS: dict[tuple[str, str], Callable[[_Builder, StandIn], Any]] = {
    ("builtins", "set"): _several, ("builtins", "frozenset"): _several, ("builtins", "list"): _several,
    ("builtins", "tuple"): _several, ("builtins", "dict"): _dict, ("builtins", "slice"): _slice,
    ("collections", "OrderedDict"): _dict, ("collections", "defaultdict"): _dict, ("_codecs", "encode"): _encoded,
    ("torch", "_rebuild_tensor"): _tensor, ("torch", "_rebuild_tensor_v2"): _tensor,
    ("torch", "_rebuild_parameter"): _parameter, ("torch", "_rebuild_parameter_with_state"): _parameter,
    ("torch", "_rebuild_sparse_tensor"): _sparse_tensor, ("torch", "Size"): _size,
    ("torch", "device"): _as_is, ("torch", "_get_layout"): _as_is,
    ("numpy", "dtype"): _dtype, ("numpy", "scalar"): _scalar, ("numpy", "_frombuffer"): _frombuffer,
    ("numpy", "_reconstruct"): _reconstructed,
    ("scipy", "csr"): _sparse, ("scipy", "csc"): _sparse, ("scipy", "coo"): _sparse, ("scipy", "lil"): _sparse,
    ("pandas", "DataFrame"): _frame, ("pandas", "_new_Index"): _index, ("pandas", "BlockManager"): _as_is,
    ("pandas", "_unpickle_block"): _as_is,
}  # fmt: skip
_ARGUMENTS = {
    "builtins": {"object"}, "copyreg": {"_reconstructor"}, "pandas": {"Index", "RangeIndex"},
    "torch": {*_STORAGES, *_TORCH_DTYPES, "Parameter", "Tensor"},
    "numpy": {"ndarray", "matrix", "recarray", *(kind.__name__ for kind in np.sctypeDict.values())},
}  # fmt: skip


def _key(name: Global) -> tuple[str, str]:
    """The place in the table: ("scipy", "csr") for scipy.sparse._csr.csr_matrix and csr_array."""
    sparse = re.fullmatch(r"([a-z]{3})_(matrix|array)", name.name) if name.root == "scipy" else None
    return name.root, sparse[1] if sparse else name.name


def _may_be_named(name: Global) -> bool:
    """Whether a file of RecBole may name this global; none of them is ever imported for it."""
    if name.root in _DESCRIBED or name.module.startswith(_LAYERS):
        return True
    return _key(name) in _CONSTRUCTORS or name.name in _ARGUMENTS.get(name.root, ())
