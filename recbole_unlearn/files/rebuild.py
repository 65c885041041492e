"""From the description of a pickle to arrays, tensors and frames: a short list, each checked and built here.

A dtype comes from a list and never has fields; an array's bytes must be as many as its shape says; a tensor must
lie within its storage and be no larger than it; a sparse matrix must be well formed. All else (RecBole's config, a
logger) stays a description that does nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from recbole.utils import FeatureSource, FeatureType

from recbole_unlearn.files.pickles import Made, Name, Reference, RefusedError

Storages = Callable[[str], bytes]  # the bytes of a storage by its key
Consent = Callable[[Name], bool]  # which further globals a file may name, each of them as a description only

DEEPEST = 200  # nesting of lists and mappings
MOST_DIMENSIONS = 16
_STAND_INS = ("recbole", "recbole_unlearn", "yaml", "logging")
_LAYERS = "torch.nn.modules."  # descriptions too: SASRecF keeps one of its layers beside its weights
_DTYPE = re.compile(r"[<>=|]?(b1|i[1248]|u[1248]|f[248]|c(8|16)|[US]\d{1,6}|O8?)")
_STORAGES = {
    "FloatStorage": torch.float32, "DoubleStorage": torch.float64, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip
_TORCH = {
    "_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter", "_rebuild_parameter_with_state",
    "_rebuild_sparse_tensor",
}  # fmt: skip
_ARRAYS = {"ndarray", "matrix", "recarray"}
_SPARSE = {"csr", "csc", "coo", "lil", "dok"}
_PANDAS = {
    ("pandas._libs.internals", "_unpickle_block"), ("pandas.core.frame", "DataFrame"),
    ("pandas.core.indexes.base", "Index"), ("pandas.core.indexes.base", "_new_Index"),
    ("pandas.core.indexes.range", "RangeIndex"), ("pandas.core.internals.managers", "BlockManager"),
}  # fmt: skip
_KEYS = (str, int, float, bool, bytes, type(None), np.generic, FeatureType, FeatureSource)
_ENUMS = {"FeatureType": FeatureType, "FeatureSource": FeatureSource}
_BUILTINS = {"set", "frozenset", "slice", "complex", "bytearray", "range", "object", "dict", "list", "tuple"}


def no_other(name: Name) -> bool:
    """Consent to no further global."""
    return False


def may_be_named(name: Name) -> bool:
    """Whether a file of RecBole may name this global; none of them is ever imported for it."""
    root = name.module.split(".")[0]
    if root in _STAND_INS or tuple(name) in _PANDAS:
        return True
    if "." in name.name:
        return False
    if root == "torch":
        return (
            (name.module == "torch._utils" and name.name in _TORCH)
            or (name.module, name.name)
            in (("torch.serialization", "_get_layout"), ("torch.nn.parameter", "Parameter"))
            or name.module.startswith(_LAYERS)
            or (
                name.module == "torch"
                and (name.name in {*_STORAGES, "device", "Size", "Tensor"} or _dtype_of(name))
            )
        )
    if root == "numpy":
        return name.name in {*_ARRAYS, "dtype", "_reconstruct", "scalar", "_frombuffer"} or _is_scalar_type(
            name
        )
    if root == "scipy":
        return _sparse_format(name) is not None
    return tuple(name) in {
        ("collections", "OrderedDict"), ("collections", "defaultdict"), ("_codecs", "encode"),
        ("copyreg", "_reconstructor"), ("copy_reg", "_reconstructor"),
    } or (name.module in ("builtins", "__builtin__") and name.name in _BUILTINS)  # fmt: skip


def _dtype_of(name: Name) -> bool:
    return isinstance(getattr(torch, name.name, None), torch.dtype)


def _is_scalar_type(name: Name) -> bool:
    found = getattr(np, name.name, None)
    return name.module == "numpy" and isinstance(found, type) and issubclass(found, np.generic)


def _sparse_format(name: Name) -> str | None:
    """csr, for scipy.sparse._csr.csr_matrix and csr_array."""
    found = re.fullmatch(r"([a-z]{3})_(matrix|array)", name.name)
    right = name.module.startswith("scipy.sparse") and found is not None and found[1] in _SPARSE
    return found[1] if right and found is not None else None


class Rebuilder:
    """Builds what a pickle describes; one for each file."""

    def __init__(self, storages: Storages | None = None, consent: Consent = no_other) -> None:
        self.storages, self.consent = storages, consent
        self._done: dict[
            int, Any
        ] = {}  # by the description's identity: what is referred to twice is built once
        self._depth = 0

    def build(self, described: Any) -> Any:
        """The object that is described, or the description itself where it is none of ours."""
        if not isinstance(described, (list, tuple, dict, Made, Name, Reference)):
            return described
        if isinstance(described, Name):
            return (
                getattr(torch, described.name)
                if described.module == "torch" and _dtype_of(described)
                else described
            )
        if isinstance(described, Reference):
            raise RefusedError("a storage that belongs to no tensor")
        if id(described) in self._done:
            return self._done[id(described)]
        if self._depth >= DEEPEST:
            raise RefusedError(f"more than {DEEPEST} levels of nesting")
        self._depth += 1
        try:
            found = self._done[id(described)] = self._built(described)
        finally:
            self._depth -= 1
        return found

    def _built(self, described: Any) -> Any:
        if isinstance(described, list):
            return [self.build(value) for value in described]
        if isinstance(described, tuple):
            return tuple(self.build(value) for value in described)
        if isinstance(described, dict):
            return self._entries(described.items())
        return self._made(described)

    def _entries(self, pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        built = [
            (self.build(key) if isinstance(key, Made) else key, self.build(value)) for key, value in pairs
        ]
        if any(not isinstance(key, _KEYS) for key, _ in built):
            raise RefusedError("a mapping whose keys are no plain values")
        return dict(built)

    def _made(self, made: Made) -> Any:
        module, name = made.maker
        root = module.split(".")[0]
        if root in _STAND_INS or module.startswith(_LAYERS):
            return self._stand_in(made)
        if root == "torch":
            return self._torch(made)
        if root == "numpy":
            return self._numpy(made)
        if root == "pandas":
            return self._pandas(made)
        if (form := _sparse_format(made.maker)) is not None:
            return self._sparse(form, made)
        if module == "collections":
            return self._mapping(made)
        if name == "encode":
            text, *coding = made.args
            if coding not in ([], ["latin1"], ["latin-1"]) or not isinstance(text, str):
                raise RefusedError("bytes in an unknown coding")
            return text.encode("latin-1")
        if module in ("builtins", "__builtin__"):
            return self._builtin(made)
        if name == "_reconstructor" and isinstance(made.args[0], Name):
            return self._made(Made(made.args[0], (), made.state, made.entries, made.values))
        if self.consent(made.maker):
            return self._stand_in(made)
        raise RefusedError(str(made.maker))

    def _stand_in(self, made: Made) -> Any:
        if made.maker.module == "recbole.utils.enum_type" and made.maker.name in _ENUMS:
            (value,) = made.args
            return _ENUMS[made.maker.name](value)
        inner = made.args[0] if made.maker.name == "_reconstructor" and made.args else made.maker
        kept = Made(inner, tuple(self.build(value) for value in made.args), None, [], [])
        self._done[id(made)] = kept  # its state may refer back to it
        kept.state = self.build(made.state)
        kept.entries = [(self.build(key), self.build(value)) for key, value in made.entries]
        kept.values = [self.build(value) for value in made.values]
        return kept

    def _mapping(self, made: Made) -> dict[Any, Any]:
        pairs = list(made.entries)
        if made.args and isinstance(
            made.args[0], list
        ):  # OrderedDict([(key, value), ...]), as old pickles have it
            pairs += [(pair[0], pair[1]) for pair in made.args[0]]
        return self._entries(pairs)

    def _builtin(self, made: Made) -> Any:
        name = made.maker.name
        if name in ("set", "frozenset", "list", "tuple"):
            values = [self.build(value) for value in (made.args[0] if made.args else [])] + made.values
            kinds: dict[str, Callable[[list[Any]], Any]] = {
                "set": set, "frozenset": frozenset, "list": list, "tuple": tuple,
            }  # fmt: skip
            return kinds[name](values)
        if name == "dict":
            return self._mapping(made)
        if name == "slice" and all(value is None or type(value) is int for value in made.args):
            return slice(*made.args)
        raise RefusedError(str(made.maker))

    # torch

    def _torch(self, made: Made) -> Any:
        name, args = made.maker.name, made.args
        if name in ("_rebuild_tensor", "_rebuild_tensor_v2"):
            return self._tensor(*args[:4])
        if name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
            return _as_tensor(self.build(args[0]))
        if name == "_rebuild_sparse_tensor":
            return self._sparse_tensor(args)
        if name == "Size":
            return tuple(int(size) for size in args[0])
        return made  # a device, a layout: text that says where something was

    def _tensor(self, storage: Any, offset: Any, size: Any, stride: Any) -> torch.Tensor:
        dtype, key, number = storage_of(storage)
        shape, steps = _whole_numbers(size, "shape"), _whole_numbers(stride, "strides")
        if len(shape) != len(steps) or not isinstance(offset, int) or offset < 0:
            raise RefusedError("a tensor whose shape and strides do not fit")
        count = math.prod(shape)
        last = offset + sum((length - 1) * step for length, step in zip(shape, steps, strict=True))
        if count > number or (count and last >= number):
            raise RefusedError("a tensor that is larger than its storage")
        if self.storages is None:
            raise RefusedError("a tensor in a file that has none")
        raw = self.storages(key)
        if len(raw) != number * dtype.itemsize:
            raise RefusedError("a storage of another size than it says")
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8 if dtype is torch.bool else dtype)
        if dtype is torch.bool:
            flat = flat.ne(0)
        return flat.as_strided(shape, steps, offset).clone(memory_format=torch.contiguous_format)

    def _sparse_tensor(self, args: tuple[Any, ...]) -> torch.Tensor:
        layout, parts = args[0], [self.build(part) for part in args[1]]
        if not isinstance(layout, Made) or layout.args != ("torch.sparse_coo",):
            raise RefusedError("a sparse tensor that is not in coordinate form")
        indices, values, size = _as_tensor(parts[0]), _as_tensor(parts[1]), _whole_numbers(parts[2], "shape")
        return torch.sparse_coo_tensor(indices, values, size, check_invariants=True)

    # numpy and scipy

    def _numpy(self, made: Made) -> Any:
        name = made.maker.name
        if name == "dtype":
            return _dtype(made)
        if name == "scalar":
            dtype, raw = self.build(made.args[0]), self.build(made.args[1])
            return _array(raw, dtype, (), "C")[()]
        if name == "_frombuffer":
            raw, dtype, shape, order = (self.build(value) for value in made.args)
            return _array(raw, dtype, shape, order)
        if name == "_reconstruct":
            return self._reconstructed(made)
        raise RefusedError(str(made.maker))

    def _reconstructed(self, made: Made) -> np.ndarray:
        if not isinstance(made.state, tuple) or len(made.state) != 5:
            raise RefusedError("an array without its content")
        _, shape, dtype, fortran, content = made.state
        dtype = self.build(dtype)
        order = "F" if fortran else "C"
        if isinstance(dtype, np.dtype) and dtype.hasobject:
            found = _object_array(self.build(content), shape, order)
        else:
            found = _array(self.build(content), dtype, shape, order)
        kind = made.args[0]
        return found.view(np.matrix) if isinstance(kind, Name) and kind.name == "matrix" else found

    def _sparse(self, form: str, made: Made) -> Any:
        state = self.build(made.state)
        if not isinstance(state, dict):
            raise RefusedError("a sparse matrix without its content")
        shape = _whole_numbers(state.get("_shape"), "shape")
        if len(shape) != 2:
            raise RefusedError("a sparse matrix that has not two dimensions")
        if form == "lil":
            return _from_lists(state, shape)
        if form == "dok":
            raise RefusedError("a sparse matrix in dictionary form")
        if form == "coo" and isinstance(state.get("coords"), tuple) and len(state["coords"]) == 2:
            state |= dict(zip(("row", "col"), state["coords"], strict=True))  # as scipy has it since 1.13
        keys = ("row", "col") if form == "coo" else ("indices", "indptr")
        data, first, second = (_vector(state.get(key)) for key in ("data", *keys))
        if form == "coo":
            _within(first, shape[0])
            _within(second, shape[1])
            if not len(data) == len(first) == len(second):
                raise RefusedError("a sparse matrix whose parts differ in length")
            return sp.coo_matrix((data, (first, second)), shape)
        _check_compressed(data, first, second, shape if form == "csr" else shape[::-1])
        kind = sp.csr_matrix if form == "csr" else sp.csc_matrix
        return kind((data, first, second), shape)

    # pandas

    def _pandas(self, made: Made) -> Any:
        name = made.maker.name
        if name == "DataFrame":
            state = made.state if isinstance(made.state, dict) else {}
            manager = state.get("_mgr")
            if not isinstance(manager, Made) or manager.maker.name != "BlockManager":
                raise RefusedError("a table without its columns")
            return self._frame(*manager.args)
        if name == "_new_Index":
            return self._index(made)
        return made

    def _index(self, made: Made) -> pd.Index:
        kind, about = made.args[0], self.build(made.args[1])
        if isinstance(kind, Name) and kind.name == "RangeIndex":
            ends = [about.get(key) for key in ("start", "stop", "step")]
            if any(type(end) is not int for end in ends) or ends[2] == 0:
                raise RefusedError("a table whose lines are numbered oddly")
            return pd.RangeIndex(*ends)
        data = about.get("data")
        if not isinstance(data, np.ndarray) or data.ndim != 1:
            raise RefusedError("a table whose lines or columns have odd names")
        return pd.Index(data)

    def _frame(self, blocks: Any, axes: Any) -> pd.DataFrame:
        columns, lines = (self.build(axis) for axis in axes)
        if not all(isinstance(axis, pd.Index) for axis in (columns, lines)) or not isinstance(blocks, tuple):
            raise RefusedError("a table without lines or columns")
        found: dict[int, np.ndarray] = {}
        for block in blocks:
            values, place, _ = (self.build(part) for part in block.args)
            if not isinstance(values, np.ndarray) or values.ndim != 2 or values.shape[1] != len(lines):
                raise RefusedError("a table whose columns differ in length")
            places = (
                range(*place.indices(len(columns)))
                if isinstance(place, slice)
                else np.asarray(place).tolist()
            )
            if len(places) != len(values):
                raise RefusedError("a table whose columns do not fit their names")
            found |= {int(at): column for at, column in zip(places, values, strict=True)}
        if sorted(found) != list(range(len(columns))) or len(set(columns)) != len(columns):
            raise RefusedError("a table in which columns are missing")
        return pd.DataFrame({str(columns[at]): found[at] for at in range(len(columns))}, index=lines)


def storage_of(storage: Any) -> tuple[torch.dtype, str, int]:
    """Type, key and length of a storage, from its persistent id."""
    about = storage.about if isinstance(storage, Reference) else None
    if (
        not isinstance(about, tuple)
        or len(about) not in (5, 6)
        or about[0] != "storage"
        or about[5:] not in ((), (None,))
    ):
        raise RefusedError("a storage in an unknown form")
    _, kind, key, _, number = about[:5]
    if not isinstance(kind, Name) or kind.name not in _STORAGES or not isinstance(key, str):
        raise RefusedError(f"a storage of the type {kind}")
    if type(number) is not int or number < 0:
        raise RefusedError("a storage of negative size")
    return _STORAGES[kind.name], key, number


def _as_tensor(value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise RefusedError("a parameter that is no tensor")
    return value


def _whole_numbers(values: Any, what: str) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)) or len(values) > MOST_DIMENSIONS:
        raise RefusedError(f"a {what} that is none")
    if any(type(value) is not int or value < 0 for value in values):
        raise RefusedError(f"a {what} that has other than whole numbers")
    return tuple(values)


def _dtype(made: Made) -> np.dtype:
    """A dtype of the short list; its state may only say the byte order."""
    code, order = made.args[0], "="
    if isinstance(made.state, tuple):
        if len(made.state) < 5 or any(part is not None for part in made.state[2:5]):
            raise RefusedError("a structured dtype")
        order = made.state[1]
    code = code.name if isinstance(code, Name) else code
    if not isinstance(code, str) or not _DTYPE.fullmatch(code) or order not in ("<", ">", "=", "|"):
        raise RefusedError(f"the dtype {code!r}")
    found = np.dtype(code)
    if found.hasobject or order not in ("<", ">"):
        return found
    return found.newbyteorder("<" if order == "<" else ">")


def _array(raw: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    """An array of ``dtype`` from its bytes, which must be as many as its shape takes."""
    if isinstance(raw, str):
        raw = raw.encode("latin-1")
    sizes = _whole_numbers(shape, "shape")
    if not isinstance(dtype, np.dtype) or dtype.hasobject or not isinstance(raw, (bytes, bytearray)):
        raise RefusedError("an array without plain content")
    if order not in ("C", "F") or math.prod(sizes) * dtype.itemsize != len(raw):
        raise RefusedError("an array of another size than it says")
    return np.frombuffer(bytes(raw), dtype).reshape(sizes, order=order).astype(dtype.newbyteorder("="))


def _object_array(content: Any, shape: Any, order: str) -> np.ndarray:
    """An array of texts, numbers, lists or arrays, one for each place."""
    sizes = _whole_numbers(shape, "shape")
    if not isinstance(content, list) or len(content) != math.prod(sizes):
        raise RefusedError("an array of objects of another size than it says")
    if not all(_is_plain(value) for value in content):
        raise RefusedError("an array of objects that are no plain data")
    found = np.empty(len(content), dtype=object)
    for place, value in enumerate(content):
        found[place] = value
    return found.reshape(sizes, order=order)  # type: ignore[call-overload]


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(one, (str, int, float, bool, np.generic, type(None))) for one in value)
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    return isinstance(value, (str, int, float, bool, np.generic, type(None)))


def _vector(value: Any) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.hasobject:
        raise RefusedError("a sparse matrix without its parts")
    return value


def _within(places: np.ndarray, size: int) -> None:
    if places.dtype.kind not in "iu" or (
        len(places) and not 0 <= int(places.min()) <= int(places.max()) < size
    ):
        raise RefusedError("a sparse matrix with entries outside it")


def _check_compressed(
    data: np.ndarray, indices: np.ndarray, starts: np.ndarray, shape: tuple[int, ...]
) -> None:
    _within(indices, shape[1])
    ordered = starts.dtype.kind in "iu" and len(starts) == shape[0] + 1 and bool((np.diff(starts) >= 0).all())
    if not ordered or starts[0] != 0 or starts[-1] != len(indices) or len(data) != len(indices):
        raise RefusedError("a sparse matrix that is not well formed")


def _from_lists(state: Mapping[str, Any], shape: tuple[int, ...]) -> sp.lil_matrix:
    rows, data = state.get("rows"), state.get("data")
    if not all(isinstance(part, np.ndarray) and part.shape == shape[:1] for part in (rows, data)):
        raise RefusedError("a sparse matrix without its parts")
    assert isinstance(rows, np.ndarray)
    assert isinstance(data, np.ndarray)
    counts = [len(columns) for columns in rows]
    if counts != [len(values) for values in data]:
        raise RefusedError("a sparse matrix whose parts differ in length")
    columns = np.array([column for several in rows for column in several], dtype=np.int64)
    values = np.array([float(value) for several in data for value in several])
    _within(columns, shape[1])
    return sp.coo_matrix((values, (np.repeat(np.arange(shape[0]), counts), columns)), shape).tolil()
