"""Repairs that let RecBole 1.2.x run on current numpy, scipy and torch.

Each one is active for as short a time as possible, changes nothing where the installed versions do not need it, and
names the line of RecBole it is for. Nothing here imports `recbole.quick_start`, which would import Ray.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from recbole.evaluator import Collector
from recbole.utils import init_seed
from torch import nn

if TYPE_CHECKING:
    from recbole.model.abstract_recommender import AbstractRecommender

_NUMPY_1_NAMES = {"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_}


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a module or class in the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def anomaly_mode_kept() -> Iterator[None]:
    """Keep autograd's anomaly mode: importing RecBole's sequential models turns it on (sine.py).

    In that mode all training is slower, and a NaN raises a RuntimeError of autograd.
    """
    before = torch.is_anomaly_enabled()
    try:
        yield
    finally:
        torch.autograd.set_detect_anomaly(before)


def _add_missing(owner: Any, values: dict[str, Any]) -> list[str]:
    missing = [name for name in values if not hasattr(owner, name)]
    for name in missing:
        setattr(owner, name, values[name])
    return missing


@contextlib.contextmanager
def _with_missing(owner: Any, values: dict[str, Any]) -> Iterator[None]:
    added = _add_missing(owner, values)
    try:
        yield
    finally:
        for name in added:
            delattr(owner, name)


def restore_numpy_names() -> None:
    """Give numpy 2 the aliases that `Config.compatibility_settings` and the metrics read."""
    _add_missing(np, _NUMPY_1_NAMES)


def numpy_names() -> contextlib.AbstractContextManager[None]:
    """As :func:`restore_numpy_names`, for the block."""
    return _with_missing(np, _NUMPY_1_NAMES)


def dok_update() -> contextlib.AbstractContextManager[None]:
    """Give scipy >= 1.13 the `dok_matrix._update` that constructors of RecBole's graph models call."""
    return _with_missing(sp.dok_matrix, {"_update": lambda self, entries: self._dict.update(entries)})


@contextlib.contextmanager
def own_environment() -> Iterator[None]:
    """Restore CUDA_VISIBLE_DEVICES: every `Config` of RecBole writes its `gpu_id` to it."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


@contextlib.contextmanager
def own_randomness() -> Iterator[None]:
    """Restore the caller's random generators.

    RecBole draws initial weights, batches and negatives from the global generators of Python, numpy and torch, and
    `init_seed` reseeds them (and sets flags of cuDNN). A run does all that inside this block.
    """
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_rng_state(tensors)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = cudnn


def seed_again(seed: int, reproducibility: bool) -> None:
    """RecBole's `init_seed`, for frequent calls.

    Without a GPU in use, torch stores a seed for a later one and formats the stack at every call: some milliseconds,
    which is much of a small request.
    """
    if torch.cuda.is_available():
        init_seed(seed, reproducibility)
        return
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


def clear_caches(model: nn.Module) -> None:
    """Drop embeddings that a model (or a part of it) caches for evaluation; RecBole does so in `calculate_loss` only.

    RepeatNet's copy of the last batch is dropped too.
    """
    for part in model.modules():
        for name in _cache_names(part):
            setattr(part, name, None)
        vars(part).pop("repeat_explore", None)


def _cache_names(model: nn.Module) -> list[str]:
    """The names in `other_parameter_name` that only cache functions of the weights."""
    names = getattr(model, "other_parameter_name", [])
    return [name for name in names if name.startswith("restore_") or name == "i_embedding"]


def other_parameters(model: AbstractRecommender) -> dict[str, Any]:
    """RecBole's `other_parameter` of a model, without caches and without layers.

    RecBole's models with features name a layer there, whose weights are among the model's, and which holds all of the
    training data.
    """
    caches = _cache_names(model)
    kept = model.other_parameter().items()
    return {name: value for name, value in kept if name not in caches and not isinstance(value, nn.Module)}


def arrays_without_objects() -> contextlib.AbstractContextManager[None]:
    """Make `np.load` refuse pickles: LDiffRec opens `item_emb.npy` of the dataset's folder with them allowed."""
    original = np.load
    return replaced(np, "load", lambda *args, **kwargs: original(*args, **kwargs | {"allow_pickle": False}))


class _NoWriter:
    """A SummaryWriter that writes nothing."""

    def add_scalar(self, *args: Any, **kwargs: Any) -> None:
        """Drop the values."""

    add_hparams = add_scalar


def tensorboard_in(folder: Path | None) -> contextlib.AbstractContextManager[None]:
    """Send RecBole's TensorBoard files to ``folder`` (None: nowhere) instead of the working directory."""
    from recbole.trainer import trainer as module
    from torch.utils.tensorboard import SummaryWriter

    make = _NoWriter if folder is None else functools.partial(SummaryWriter, str(folder))
    return replaced(module, "get_tensorboard", lambda logger: make())


class TensorCollector(Collector):
    """RecBole's collector; 1.2.1 calls `.cpu()` on plain numbers (collector.py:226)."""

    def get_data_struct(self) -> Any:
        """The collected values, tensors on the CPU and plain values as they are."""
        return _collected(self, super().get_data_struct)


def _collected(collector: Collector, get_data_struct: Callable[[], Any]) -> Any:
    """The struct that RecBole's function makes of the tensors, with the plain values added."""
    held = collector.data_struct._data_dict
    plain = {key: held.pop(key) for key in list(held) if not isinstance(held[key], torch.Tensor)}
    for key in held:
        held[key] = held[key].cpu()
    struct = get_data_struct()
    struct._data_dict.update(plain)
    held.update(plain)
    return struct


def tolerant_collector() -> contextlib.AbstractContextManager[None]:
    """Make RecBole's own collector work like :class:`TensorCollector`."""
    original = Collector.get_data_struct
    if "cpu" not in original.__code__.co_names:  # before 1.2.1
        return contextlib.nullcontext()
    return replaced(Collector, "get_data_struct", lambda self: _collected(self, functools.partial(original, self)))
