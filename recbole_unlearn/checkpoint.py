"""Reading RecBole's checkpoints without running code from them.

A RecBole checkpoint is a pickle that holds a live `Config` object. :func:`safe_load` reads it with an
unpickler that knows a short list of tensor, numpy and scipy constructors, puts an inert stand-in wherever
the file names a class of RecBole or yaml, and refuses everything else. Nothing of RecBole is instantiated;
the settings are taken from the stand-in's state.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import importlib
import pickle
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch

from recbole_unlearn.config import plain_settings
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.trainer import Trained

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
_STAND_INS = ("recbole", "recbole_unlearn", "yaml")


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


class _Refused(pickle.UnpicklingError):
    """The file asks for something a checkpoint has no need of."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Called for every global the file names."""
        found = _allowed(module, name)
        if found is None:
            raise _Refused(f"{module}.{name}")
        return found


def _allowed(module: str, name: str) -> Any:
    """The object the file may use under this name, a stand-in class, or None."""
    root = module.split(".")[0]
    if root in _STAND_INS:
        return type(name.split(".")[-1], (StandIn,), {"__module__": f"stand_in.{module}"})
    if (module, name) in _SAFE_TORCH:
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


_PICKLE = types.SimpleNamespace(__name__="recbole_unlearn.checkpoint", Unpickler=_Unpickler, load=_load)


def safe_load(path: Path) -> Any:
    """What `torch.load` would return for ``path``, with stand-ins for RecBole's objects."""
    path = Path(path)
    if not path.is_file():
        raise UnlearnError(f"No checkpoint at {path}: there is no such file. Check --checkpoint.")
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                    raise _Refused("TorchScript code")
        return torch.load(path, map_location="cpu", pickle_module=_PICKLE, weights_only=False)
    except _Refused as error:
        raise UnlearnError(
            f"Refused to read {path}: it asks for {error}, which a checkpoint of RecBole does not contain. "
            "Nothing in it was run. Use a file from a source you trust, written by RecBole's trainer."
        ) from error
    except OSError as error:
        raise UnlearnError(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:  # whatever a damaged file makes torch or pickle raise
        raise UnlearnError(
            f"Cannot read {path}: it is damaged, cut off, or not a checkpoint of RecBole "
            f"({type(error).__name__}). Copy or save it again."
        ) from error


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as data: which model and dataset, with which settings, and the trained weights."""

    path: Path
    model: str
    dataset: str
    settings: dict[str, Any]
    trained: Trained


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint that RecBole's trainer (or this plugin) wrote."""
    path = Path(path)
    content = safe_load(path)
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise UnlearnError(f"{path} is not a checkpoint of RecBole: it has no state_dict.")
    config = content.get("config")
    state = config.state if isinstance(config, StandIn) else config
    values = state.get("final_config_dict") if isinstance(state, dict) else None
    if not isinstance(values, dict) or not all(
        isinstance(values.get(key), str) for key in ("model", "dataset")
    ):
        raise UnlearnError(
            f"{path} does not say which model and dataset it is of; a checkpoint written by RecBole's "
            "trainer does. Save it again with its config."
        )
    weights = content["state_dict"]
    for name, value in weights.items():
        if not isinstance(value, torch.Tensor):
            raise UnlearnError(f"{path}: {name} in its state_dict is not a tensor.")
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise UnlearnError(f"{path}: the weights {name} are not finite; this model cannot be used.")
    return Checkpoint(
        path,
        values["model"],
        values["dataset"],
        plain_settings(values),
        Trained(
            dict(weights),
            content.get("optimizer"),
            content.get("other_parameter") or {},
            int(content.get("epoch", -1)),
        ),
    )
