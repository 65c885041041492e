"""Reading RecBole's checkpoints and saved datasets as data, from any source.

:func:`load_torch` reads the zip archives of `torch.save`, :func:`load_pickle` plain pickles. An archive is read by
one parser, Python's; TorchScript, compressed records and the forms that torch had before 1.6 are refused.
`safe_pickle.py` parses; here :data:`_CONSTRUCTORS`, a short table, builds tensors, arrays, sparse matrices and
tables. Each constructor checks dtype, shape, strides and the number of bytes before a library is asked for memory,
and all of them together get at most a few times the size of the file. A class of RecBole, or one that the caller
consents to, stays a description (a `StandIn` of `safe_pickle.py`). Every failure ends in one line.
"""

import io
import math
import re
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from recbole.utils import EvaluatorType, FeatureSource, FeatureType, InputType, ModelType

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.files.safe_pickle import Global, Reference, RefusedError, StandIn, parse, require
from recbole_unlearn.settings import read_regular

Consent = Callable[[Global], bool]  # which further globals a file may name, as a description only

MOST_RECORDS = 100_000  # in a zip archive
# What a file may take: bytes of tensors and arrays, and as many values in lists and mappings. Both are counted once
# for each place that they are in, since those who walk through the result do not know what is shared.
FREE, COPIES = 1_000_000, 4  # and this many times the bytes of the file
DEEPEST = 200  # nesting of lists and mappings
MOST_DIMENSIONS, MOST_NUMBERS = 16, 2**62
MOST_COLUMNS = 10_000  # of a table, which has an object for each
_DESCRIBED = ("recbole", "recbole_unlearn", "yaml", "logging")  # packages whose objects stay descriptions
_LAYERS = "torch.nn.modules."  # the same: SASRecF keeps one of its layers with its weights
_DTYPE = re.compile(r"[<>=|]?(b1|i[1248]|u[1248]|f[248]|[US][1-9]\d{0,5}|O8?)")
_TORCH_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_STORAGES = {
    "FloatStorage": torch.float32, "DoubleStorage": torch.float64, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip
_PLAIN = (str, int, float, bool, np.generic, type(None))
_KEYS = (*_PLAIN, bytes, FeatureType, FeatureSource)
_ENUMS = {kind.__name__: kind for kind in (FeatureType, FeatureSource, ModelType, InputType, EvaluatorType)}


def load_torch(path: Path, consent: Consent = lambda name: False) -> Any:
    """The content that `torch.save` wrote to ``path``, with descriptions in place of RecBole's objects."""
    return _guarded(path, _torch, consent)


def load_pickle(path: Path, consent: Consent = lambda name: False) -> Any:
    """The content that `pickle.dump` wrote to ``path``, with descriptions in place of RecBole's objects."""
    nothing: dict[str, bytes] = {}  # no tensors
    build = lambda content, _: _Builder(content, nothing.__getitem__).build(_parsed(content, consent))  # noqa: E731
    return _guarded(path, build, consent)


def only(model: type | None) -> Consent:
    """Consent to the name of a model class that the caller holds, in whatever module the file says it was."""
    return lambda name: model is not None and name.name.rpartition(".")[2] == model.__name__


def _guarded(path: Path, reader: Callable[[bytes, Consent], Any], consent: Consent) -> Any:
    try:
        return reader(read_regular(path), consent)
    except UnlearnError:
        raise
    except RefusedError as error:
        raise UnlearnError(
            f"Refused to read {shown(path)}: it asks for {error}, which a file of RecBole does not contain. "
            f"Nothing in it was run. {_advice(error)}"
        ) from error
    except MemoryError as error:
        raise UnlearnError(f"Cannot read {shown(path)}: it does not fit into memory.") from error
    except Exception as error:  # a damaged file can make the parsers raise anything
        raise UnlearnError(
            f"Cannot read {shown(path)}: it is damaged, cut off, or not a file of RecBole "
            f"({type(error).__name__}). Copy or save it again."
        ) from error


def _advice(error: RefusedError) -> str:
    """The next step: an unknown class may be the user's own model."""
    if error.name is not None:
        root, own = error.name.root, error.name.name.rpartition(".")[2]
        is_class = re.fullmatch(r"([A-Za-z]\w{0,99}\.)?[A-Z]\w{0,99}", error.name.name, re.ASCII)
        libraries = {*sys.stdlib_module_names, "torch", "numpy", "scipy", "pandas"}
        if is_class and root.isidentifier() and root not in libraries:
            return f"If {own} is a model class of yours, give it: --model=package.module:{own}, or in Python."
    return "Use a file from a source you trust, written by RecBole."


def _parsed(pickled: bytes, consent: Consent) -> Any:
    """The description in a pickle, with the globals that this table, or the caller, lets it name."""

    def allowed(name: Global) -> bool:
        listed = name.name in _CONSTRUCTORS.get(name.root, ()) or name.name in _ARGUMENTS.get(name.root, ())
        return listed or _is_described(name) or consent(name)

    return parse(pickled, allowed)


def _torch(content: bytes, consent: Consent) -> Any:
    """A zip archive of torch: NAME/data.pkl, and the storages under NAME/data/."""
    require(content.startswith(b"PK\x03\x04"), "a format that torch has not written since 1.6, or never has")
    require(content.count(b"PK\x01\x02") <= MOST_RECORDS, "more records than a model has")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        names = {member.filename for member in members}
        require(len(names) == len(members), "two records of one name")
        require(not any(name.endswith("/constants.pkl") or "/code/" in name for name in names), "TorchScript code")
        require(all(one.compress_type == zipfile.ZIP_STORED for one in members), "compressed records")
        require(sum(member.file_size for member in members) <= len(content), "records that are larger than the file")
        (main,) = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
        folder = main.removesuffix("data.pkl")
        little = f"{folder}byteorder" not in names or archive.read(f"{folder}byteorder") == b"little"
        require(little, "numbers in another byte order")
        storages: Callable[[str], bytes] = lambda key: archive.read(f"{folder}data/{key}")  # noqa: E731
        return _Builder(content, storages).build(_parsed(archive.read(main), consent))


class _Builder:
    """Builds the objects that a pickle describes; one for each file. ``storages`` gives the bytes of a tensor."""

    def __init__(self, content: bytes, storages: Callable[[str], bytes]) -> None:
        self.storages = storages
        self.flat: dict[str, torch.Tensor] = {}  # storages
        self._done: dict[int, tuple[Any, int, int]] = {}  # by the identity of the description: with values, bytes
        self._values_left = self._bytes_left = FREE + COPIES * len(content)
        self._depth = 0

    def build(self, described: Any) -> Any:
        """The object that is described, or the description itself where it has no constructor."""
        if isinstance(described, Global):
            return _TORCH_DTYPES.get(described.name, described) if described.root == "torch" else described
        require(not isinstance(described, Reference), "a storage that belongs to no tensor")
        if not isinstance(described, (list, tuple, dict, StandIn)):
            return described
        values, size = self._values_left, self._bytes_left
        if id(described) in self._done:
            found, known_values, known_size = self._done[id(described)]
            self.charge(known_size, known_values)
            return found
        self.charge(0, 1 if isinstance(described, StandIn) else 1 + len(described))
        self._depth += 1
        require(self._depth <= DEEPEST, f"more than {DEEPEST} levels of nesting")
        if isinstance(described, StandIn):
            found = self._object(described)
        elif isinstance(described, dict):
            found = self.mapping(described.items())
        else:
            found = type(described)(list(map(self.build, described)))
        self._depth -= 1
        self._done[id(described)] = found, values - self._values_left, size - self._bytes_left
        return found

    def mapping(self, pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        """A dict of built keys and values."""
        found = {}
        for key, value in pairs:
            key = self.build(key) if isinstance(key, StandIn) else key
            require(isinstance(key, _KEYS), "a mapping whose keys are no plain values")
            found[key] = self.build(value)
        return found

    def charge(self, size: int, values: int = 0) -> None:
        """Take ``size`` bytes of memory for a tensor or an array, and ``values`` in lists and mappings."""
        self._bytes_left -= size
        self._values_left -= values
        require(self._bytes_left >= 0, "tensors or arrays that are larger than the file")
        require(self._values_left >= 0, "one list or mapping in too many places")

    def _object(self, made: StandIn) -> Any:
        maker = made.maker
        if maker.module == "recbole.utils.enum_type" and maker.name in _ENUMS:
            return _ENUMS[maker.name](*self.build(made.args))
        constructor = _CONSTRUCTORS.get(maker.root, {}).get(maker.name)
        if constructor is not None and not _is_described(maker):
            return constructor(self, made)
        require(maker.name not in _ARGUMENTS.get(maker.root, ()), f"a call of {maker}")
        kept = StandIn(maker, self.build(made.args))
        self._done[id(made)] = kept, 1, 0  # its state may refer back to it
        kept.state = self.build(made.state)
        kept.entries = [(self.build(key), self.build(value)) for key, value in made.entries]
        kept.values = [self.build(value) for value in made.values]
        return kept


def _several(builder: _Builder, made: StandIn) -> Any:
    kind = {"set": set, "frozenset": frozenset, "list": list, "tuple": tuple}[made.maker.name]
    first = builder.build(made.args[0]) if made.args else []
    require(isinstance(first, (list, tuple)), "a list or set of something that is none")
    values = [*first, *map(builder.build, made.values)]
    if kind in (set, frozenset):
        require(all(isinstance(value, _KEYS) for value in values), "a set of other than plain values")
    return kind(values)


def _slice(builder: _Builder, made: StandIn) -> slice:
    require(all(value is None or type(value) is int for value in made.args), "a slice of other than numbers")
    return slice(*made.args)


def _encoded(builder: _Builder, made: StandIn) -> bytes:
    """Bytes as protocols 0 to 2 have them: text in latin-1, and `bytes()` for none."""
    text, *coding = made.args or ("",)
    require(coding in ([], ["latin1"], ["latin-1"]), "bytes in an unknown coding")
    builder.charge(len(text))
    return text.encode("latin-1")


def _whole_numbers(values: Any) -> tuple[int, ...]:
    """A shape or strides: a few whole numbers whose product is a number of places in memory."""
    few = isinstance(values, (tuple, list)) and len(values) <= MOST_DIMENSIONS
    whole = few and all(type(value) is int and 0 <= value <= MOST_NUMBERS for value in values)
    require(whole and math.prod(max(1, value) for value in values) <= MOST_NUMBERS, "a shape that no array has")
    return tuple(values)


def _storage(storage: Any) -> tuple[torch.dtype, str, int]:
    """Type, key and length of a storage, from its persistent id: ("storage", type, key, device, length, view)."""
    about: Any = storage.about if isinstance(storage, Reference) else None
    fits = isinstance(about, tuple) and len(about) in (5, 6) and about[5:] in ((), (None,))
    require(fits and about[0] == "storage", "a storage in an unknown form")
    kind, key, number = about[1], about[2], about[4]
    known = isinstance(kind, Global) and kind.name in _STORAGES
    require(known and isinstance(key, str), "a storage of an unknown type")
    require(type(number) is int and 0 <= number <= MOST_NUMBERS, "a storage of an odd size")
    return _STORAGES[kind.name], key, number


def _tensor(builder: _Builder, made: StandIn) -> torch.Tensor:
    """A copy of the part of a storage that a tensor takes; the part must lie inside, and be no larger."""
    storage, offset, size, stride = made.args[:4]
    dtype, key, number = _storage(storage)
    shape, steps = _whole_numbers(size), _whole_numbers(stride)
    fits = len(shape) == len(steps) and type(offset) is int and offset >= 0
    require(fits, "a tensor whose shape and strides do not fit")
    count = math.prod(shape)
    last = offset + sum((length - 1) * step for length, step in zip(shape, steps, strict=True))
    require(count <= number and (not count or last < number), "a tensor that is larger than its storage")
    builder.charge(count * dtype.itemsize)
    if key not in builder.flat:
        raw = bytearray(builder.storages(key))
        stored = torch.uint8 if dtype is torch.bool else dtype
        require(len(raw) % stored.itemsize == 0, "a storage of a broken number")
        flat = torch.frombuffer(raw, dtype=stored) if raw else torch.empty(0, dtype=stored)
        builder.flat[key] = flat.ne(0) if dtype is torch.bool else flat
    flat = builder.flat[key]
    require(len(flat) == number and flat.dtype is dtype, "a storage of another size or type than it says")
    return flat.as_strided(shape, steps, offset if count else 0).clone(memory_format=torch.contiguous_format)


def _places(values: np.ndarray, size: int) -> np.ndarray:
    """Places on an axis of ``size`` as int64, all of them inside: the code of scipy and torch trusts them."""
    inside = values.dtype.kind in "iu" and values.ndim == 1 and ((values >= 0) & (values < size)).all()
    require(inside, "a sparse matrix with entries outside it")
    return values.astype(np.int64)


def _dtype(builder: _Builder, made: StandIn) -> np.dtype:
    """A dtype of the short list; its state may only say the byte order."""
    code, state = made.args[0], made.state or (3, "|", None, None, None)
    require(state[2] is state[3] is state[4] is None, "a structured dtype")
    order: Any = state[1]
    require(isinstance(code, str) and _DTYPE.fullmatch(code) and order in ("<", ">", "=", "|"), "an unknown dtype")
    found = np.dtype(code)
    return found.newbyteorder(order) if order in "<>" and not found.hasobject else found


def _array(builder: _Builder, content: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    """An array of ``dtype`` from as many bytes as its shape takes, or from a list of texts, numbers or arrays."""
    sizes = _whole_numbers(shape)
    require(isinstance(dtype, np.dtype) and order in ("C", "F"), "an array without a dtype or an order")
    count = math.prod(sizes)
    if dtype.hasobject:
        whole = isinstance(content, list) and len(content) == count
        require(whole, "an array of objects of another size than it says")
        builder.charge(8 * count)
        found = np.empty(count, dtype=object)
        for place, value in enumerate(content):
            numbers = isinstance(value, np.ndarray) and not value.dtype.hasobject
            plain = all(isinstance(one, _PLAIN) for one in (value if isinstance(value, list) else [value]))
            require(numbers or plain, "an array of objects that are no plain data")
            found[place] = value
        return found.reshape(sizes, order=order)
    raw = content.encode("latin-1") if isinstance(content, str) else content
    whole = isinstance(raw, (bytes, bytearray)) and count * dtype.itemsize == len(raw)
    require(whole, "an array of another size than it says")
    builder.charge(len(raw))
    return np.frombuffer(raw, dtype).reshape(sizes, order=order).astype(dtype.newbyteorder("="))


def _scalar(builder: _Builder, made: StandIn) -> Any:
    dtype, raw = builder.build(made.args)
    require(isinstance(dtype, np.dtype) and not dtype.hasobject, "a scalar that is an object")
    return _array(builder, raw, dtype, (), "C")[()]


def _reconstructed(builder: _Builder, made: StandIn) -> np.ndarray:
    _, shape, dtype, fortran, content = builder.build(made.state)
    found = _array(builder, content, dtype, shape, "F" if fortran is True else "C")
    kind = made.args[0]
    return found.view(np.matrix) if isinstance(kind, Global) and kind.name == "matrix" else found


def _sparse(builder: _Builder, made: StandIn) -> Any:
    """A sparse matrix; all of its index arrays are checked before scipy sees them."""
    form, state = made.maker.name[:3], builder.build(made.state)
    shape = _whole_numbers(state.get("_shape"))
    require(len(shape) == 2, "a sparse matrix of such a shape")
    builder.charge(8 * sum(shape))  # it has memory for each line or column
    parts = [state.get(key) for key in (("data", "rows", "rows") if form == "lil" else ("data", "indices", "indptr"))]
    fits = all(isinstance(part, np.ndarray) and part.ndim == 1 for part in parts)
    require(fits, "a sparse matrix without its parts")
    data, first, second = parts
    if form == "lil":  # for each line the list of its columns and that of its values
        counts = [len(columns) for columns in first]
        same = len(first) == len(data) == shape[0] and counts == [len(values) for values in data]
        require(same, "a sparse matrix whose parts differ in length")
        builder.charge(24 * sum(counts))
        second = np.array([column for several in first for column in several], dtype=np.int64)
        data = np.array([float(value) for several in data for value in several])
        first = np.repeat(np.arange(shape[0]), counts)
    require(data.dtype.kind in "biuf" and data.dtype.itemsize <= 8, "a sparse matrix of other than numbers")
    if form == "lil":
        return sp.coo_matrix((data, (first, _places(second, shape[1]))), shape).tolil()
    lines, width = shape if form == "csr" else shape[::-1]
    columns, starts = _places(first, width), _places(second, len(first) + 1)
    rising = len(starts) == lines + 1 and starts[0] == 0 and (np.diff(starts) >= 0).all()
    require(rising and starts[-1] == len(columns) == len(data), "a sparse matrix that is not well formed")
    return (sp.csr_matrix if form == "csr" else sp.csc_matrix)((data, columns, starts), shape)


def _index(builder: _Builder, made: StandIn) -> pd.Index:
    kind, about = made.args[0], builder.build(made.args[1])
    if isinstance(kind, Global) and kind.name == "RangeIndex":
        ends = [about.get(key) for key in ("start", "stop", "step")]
        whole = all(type(end) is int and abs(end) <= MOST_NUMBERS for end in ends) and ends[2] != 0
        require(whole, "a table whose lines are numbered oddly")
        return pd.RangeIndex(*ends)
    data = about.get("data")
    require(isinstance(data, np.ndarray) and data.ndim == 1, "a table whose lines or columns have odd names")
    return pd.Index(data)


def _frame(builder: _Builder, made: StandIn) -> pd.DataFrame:
    blocks, axes = made.state["_mgr"].args
    columns, lines = builder.build(axes)
    fits = isinstance(columns, pd.Index) and isinstance(lines, pd.Index) and 0 < len(columns) <= MOST_COLUMNS
    require(fits, "a table without lines or columns, or of too many")
    found: dict[int, np.ndarray] = {}
    for block in blocks:
        values, place, _ = builder.build(block.args)
        fits = isinstance(values, np.ndarray) and values.ndim == 2 and values.shape[1] == len(lines)
        require(fits, "a table whose columns differ in length")
        builder.charge(values.nbytes)
        places = range(*place.indices(len(columns))) if isinstance(place, slice) else place.tolist()
        found |= dict(zip(places, values, strict=True))
    whole = len(set(columns)) == len(columns) and sorted(found) == list(range(len(columns)))
    require(whole, "a table in which columns are missing")
    return pd.DataFrame({str(columns[at]): found[at] for at in range(len(columns))}, index=lines)


_Constructor = Callable[[_Builder, StandIn], Any]
_dict: _Constructor = lambda builder, made: builder.mapping(made.entries)  # noqa: E731
_as_is: _Constructor = lambda builder, made: made  # noqa: E731
_parameter: _Constructor = lambda builder, made: builder.build(made.args[0])  # noqa: E731
# The globals that a file may name, by package and name; in whatever module of the package, since none is imported.
_CONSTRUCTORS: dict[str, dict[str, _Constructor]] = {
    "builtins": {
        **dict.fromkeys(("set", "frozenset", "list", "tuple"), _several), "dict": _dict, "slice": _slice,
        "bytes": _encoded,
    },
    "collections": {"OrderedDict": _dict, "defaultdict": _dict}, "_codecs": {"encode": _encoded},
    "torch": {
        "_rebuild_tensor": _tensor, "_rebuild_tensor_v2": _tensor, "_rebuild_parameter": _parameter,
        "_rebuild_parameter_with_state": _parameter,
        "Size": lambda _, made: _whole_numbers(made.args[0]), "device": _as_is,
    },
    "numpy": {
        "dtype": _dtype, "scalar": _scalar, "_reconstruct": _reconstructed,
        "_frombuffer": lambda builder, made: _array(builder, *builder.build(made.args)),
    },
    "scipy": {f"{form}_{kind}": _sparse for form in ("csr", "csc", "lil") for kind in ("matrix", "array")},
    "pandas": {"DataFrame": _frame, "_new_Index": _index, "BlockManager": _as_is, "_unpickle_block": _as_is},
}  # fmt: skip
_ARGUMENTS = {
    "builtins": {"object"}, "copyreg": {"_reconstructor"}, "pandas": {"Index", "RangeIndex"},
    "torch": {*_STORAGES, *_TORCH_DTYPES, "Parameter", "Tensor"},
    "numpy": {"ndarray", "matrix", "recarray", *(kind.__name__ for kind in np.sctypeDict.values())},
}  # fmt: skip


def _is_described(name: Global) -> bool:
    return name.root in _DESCRIBED or name.module.startswith(_LAYERS)
