"""Repairs that let RecBole 1.2.x run on current numpy, scipy and torch.

Each one is active for as short a time as possible, changes nothing where the installed versions do not need it, and
names the line of RecBole it is for. Nothing here imports `recbole.quick_start`, which would import Ray.
"""

import contextlib
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from recbole.evaluator import Collector
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import init_seed
from torch import nn

NUMPY_1_NAMES = {"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_}


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a module, class or model in the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def anomaly_mode_kept() -> Iterator[None]:
    """Keep autograd's anomaly mode: importing RecBole's sequential models (sine.py) turns this slow mode on."""
    before = torch.is_anomaly_enabled()
    try:
        yield
    finally:
        torch.autograd.set_detect_anomaly(before)


@contextlib.contextmanager
def added(owner: Any, values: dict[str, Any]) -> Iterator[None]:
    """Give a module or class the attributes that it does not have, in the block."""
    missing = [name for name in values if not hasattr(owner, name)]
    for name in missing:
        setattr(owner, name, values[name])
    try:
        yield
    finally:
        for name in missing:
            delattr(owner, name)


def restore_numpy_names() -> None:
    """Give numpy 2 the aliases that `Config.compatibility_settings` and the metrics read."""
    for name, value in NUMPY_1_NAMES.items():
        if not hasattr(np, name):
            setattr(np, name, value)


def dok_update() -> contextlib.AbstractContextManager[None]:
    """Give scipy >= 1.13 the `dok_matrix._update` that constructors of RecBole's graph models call."""
    return added(sp.dok_matrix, {"_update": lambda self, entries: self._dict.update(entries)})


@contextlib.contextmanager
def own_randomness() -> Iterator[None]:
    """Restore the caller's random generators.

    RecBole draws from those of Python, numpy and torch; `init_seed` reseeds them, and sets flags of cuDNN.
    """
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()
    # Asking CUDA for its state starts it, and from then on CUDA_VISIBLE_DEVICES, and so gpu_id, has no effect.
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_rng_state(tensors)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        elif torch.cuda.is_initialized():  # started in the block: with the caller's seed, as if started after it
            torch.cuda.manual_seed_all(torch.initial_seed())
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = cudnn


@contextlib.contextmanager
def own_environment() -> Iterator[None]:
    """Restore random generators, torch's threads, and CUDA_VISIBLE_DEVICES, which RecBole's `Config` writes."""
    devices, threads = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.get_num_threads()
    try:
        with own_randomness():
            yield
    finally:
        torch.set_num_threads(threads)
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = devices


def seed_again(seed: int, reproducibility: bool) -> None:
    """RecBole's `init_seed` without a GPU's part, which takes milliseconds at every call: much of a small request."""
    if torch.cuda.is_available():
        init_seed(seed, reproducibility)
        return
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


def clear_caches(model: nn.Module) -> None:
    """Drop embeddings cached for evaluation, as RecBole does in `calculate_loss` only, and RepeatNet's last batch."""
    for part in model.modules():
        for name in _cache_names(part):
            setattr(part, name, None)
        vars(part).pop("repeat_explore", None)


def _cache_names(model: nn.Module) -> list[str]:
    """The names in `other_parameter_name` that only cache functions of the weights."""
    names = getattr(model, "other_parameter_name", [])
    return [name for name in names if name.startswith("restore_") or name == "i_embedding"]


def other_parameters(model: AbstractRecommender) -> dict[str, Any]:
    """RecBole's `other_parameter` of a model, without caches and without layers, which hold all training data."""
    caches = _cache_names(model)
    kept = model.other_parameter().items()
    return {name: value for name, value in kept if name not in caches and not isinstance(value, nn.Module)}


def on_cpu(value: Any) -> Any:
    """A copy of tensors in mappings and lists on the CPU, which any machine can read; other values as they are."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: on_cpu(one) for key, one in value.items()}
    return [on_cpu(one) for one in value] if isinstance(value, list) else value


def arrays_without_objects() -> contextlib.AbstractContextManager[None]:
    """Make `np.load` refuse pickles: LDiffRec opens `item_emb.npy` of the dataset's folder with them allowed."""
    original = np.load
    return replaced(np, "load", lambda *args, **kwargs: original(*args, **kwargs | {"allow_pickle": False}))


_get_data_struct = Collector.get_data_struct  # RecBole's own, also while it is replaced by patch_recbole


class TensorCollector(Collector):
    """RecBole's collector; 1.2.1 calls `.cpu()` on plain numbers (collector.py:226)."""

    def get_data_struct(self) -> Any:
        """The struct that RecBole's function makes of the tensors, with the plain values added."""
        held = self.data_struct._data_dict
        plain = {key: held.pop(key) for key in list(held) if not isinstance(held[key], torch.Tensor)}
        for key in held:
            held[key] = held[key].cpu()
        struct = _get_data_struct(self)
        struct._data_dict.update(plain)
        held.update(plain)
        return struct
