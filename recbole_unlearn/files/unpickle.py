"""Reading pickles without running code from them.

RecBole's checkpoints and saved datasets are pickles that hold live objects. :func:`load_torch` and
:func:`load_pickle` read them with an unpickler that knows a short list of tensor, numpy, scipy and pandas
constructors, puts an inert stand-in wherever the file names a class of RecBole, yaml or logging, and refuses
everything else. Nothing of RecBole is instantiated; what is needed is taken from a stand-in's state.
"""

from __future__ import annotations

import builtins
import collections
import importlib
import pickle
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from recbole.utils import FeatureSource, FeatureType

from recbole_unlearn.errors import UnlearnError

_SAFE_BUILTINS = {"set", "frozenset", "slice", "complex", "bytearray", "range", "object"}
_SAFE_TORCH = {
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_parameter_with_state"),
    ("torch._utils", "_rebuild_sparse_tensor"),
    ("torch.serialization", "_get_layout"),
    ("torch", "device"),
    ("torch", "Size"),
    ("torch", "Tensor"),
    ("torch.nn.parameter", "Parameter"),
}
_SAFE_PANDAS = {
    ("pandas._libs.internals", "_unpickle_block"),
    ("pandas.core.frame", "DataFrame"),
    ("pandas.core.indexes.base", "Index"),
    ("pandas.core.indexes.base", "_new_Index"),
    ("pandas.core.indexes.range", "RangeIndex"),
    ("pandas.core.internals.managers", "BlockManager"),
}
_SAFE_ENUMS = {
    ("recbole.utils.enum_type", "FeatureType"): FeatureType,
    ("recbole.utils.enum_type", "FeatureSource"): FeatureSource,
}
_STAND_INS = ("recbole", "recbole_unlearn", "yaml", "logging")


class StandIn:
    """An object of a class that is not to be built: keeps what the file says of it and does nothing."""

    args: tuple = ()
    state: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> StandIn:  # noqa: D102
        self = object.__new__(cls)
        self.args = args
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _RefusedError(pickle.UnpicklingError):
    """The file asks for something a checkpoint has no need of."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Called for every global the file names."""
        found = _allowed(module, name)
        if found is None:
            raise _RefusedError(f"{module}.{name}")
        return found


def _allowed(module: str, name: str) -> Any:
    """The object the file may use under this name, a stand-in class, or None."""
    root = module.split(".")[0]
    if (module, name) in _SAFE_ENUMS:
        return _SAFE_ENUMS[module, name]
    if root in _STAND_INS:
        return type(name.split(".")[-1], (StandIn,), {"__module__": f"stand_in.{module}"})
    if (module, name) in _SAFE_TORCH | _SAFE_PANDAS:
        return getattr(importlib.import_module(module), name)
    if module == "torch" and (name.endswith("Storage") or isinstance(getattr(torch, name, 0), torch.dtype)):
        return getattr(torch, name, None)
    if module == "torch.storage" and name in ("TypedStorage", "UntypedStorage"):
        return getattr(torch.storage, name)
    if module == "builtins" and name in _SAFE_BUILTINS:
        return getattr(builtins, name)
    if (module, name) == ("collections", "OrderedDict"):
        return collections.OrderedDict
    if (module, name) == ("collections", "defaultdict"):
        return collections.defaultdict
    if (module, name) == ("_codecs", "encode"):
        return _latin1  # how numpy's old pickles spell bytes
    if root == "numpy":
        return _allowed_numpy(module, name)
    if module.startswith("scipy.sparse") and name.endswith(("_matrix", "_array")):
        return getattr(scipy.sparse, name, None)
    return None


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1")


def _allowed_numpy(module: str, name: str) -> Any:
    if name in ("ndarray", "dtype"):
        return getattr(np, name)
    if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name in ("_reconstruct", "scalar"):
        home = "numpy._core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "numpy.core"
        return getattr(importlib.import_module(f"{home}.multiarray"), name)
    if module in ("numpy.core.numeric", "numpy._core.numeric") and name == "_frombuffer":
        return lambda data, dtype, shape, order: np.frombuffer(data, dtype).reshape(shape, order=order)
    candidate = getattr(np, name, None)
    if module == "numpy" and isinstance(candidate, type) and issubclass(candidate, np.generic):
        return candidate
    return None


def _load(stream: Any, **kwargs: Any) -> Any:
    return _Unpickler(stream, **kwargs).load()


_PICKLE = types.SimpleNamespace(__name__=__name__, Unpickler=_Unpickler, load=_load)


def load_torch(path: Path) -> Any:
    """What `torch.load` would return for ``path``, with stand-ins for RecBole's objects."""

    def load() -> Any:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                    raise _RefusedError("TorchScript code")
        return torch.load(path, map_location="cpu", pickle_module=_PICKLE, weights_only=False)

    return _guarded(path, load)


def load_pickle(path: Path) -> Any:
    """What `pickle.load` would return for ``path``, with stand-ins for RecBole's objects."""

    def load() -> Any:
        with open(path, "rb") as stream:
            return _load(stream)

    return _guarded(path, load)


def _guarded(path: Path, load: Callable[[], Any]) -> Any:
    """Run ``load``, turning every way it can fail into one line."""
    if not Path(path).is_file():
        raise UnlearnError(f"There is no file {path}. Check the path.")
    try:
        return load()
    except _RefusedError as error:
        raise UnlearnError(
            f"Refused to read {path}: it asks for {error}, which a file of RecBole does not contain. "
            "Nothing in it was run. Use a file from a source you trust, written by RecBole."
        ) from error
    except OSError as error:
        raise UnlearnError(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:  # whatever a damaged file makes torch, pickle or pandas raise
        raise UnlearnError(
            f"Cannot read {path}: it is damaged, cut off, or not a file of RecBole "
            f"({type(error).__name__}). Copy or save it again."
        ) from error
