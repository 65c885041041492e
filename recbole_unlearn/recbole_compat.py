"""Small repairs that let RecBole 1.2.x run on today's numpy, scipy and torch.

Each one is applied for as short a time as possible, changes nothing when the installed versions do not need it, and
names the line of RecBole it is for. Nothing here imports `recbole.quick_start`, which would pull in Ray.
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

_NUMPY_1_NAMES = {
    "float_": np.float64,
    "complex_": np.complex128,
    "unicode_": np.str_,
}


@contextlib.contextmanager
def anomaly_mode_kept() -> Iterator[None]:
    """Keep autograd's anomaly mode as it is: importing RecBole's sequential models turns it on (sine.py).

    In that mode all training is slower, and a NaN raises a RuntimeError of autograd.
    """
    before = torch.is_anomaly_enabled()
    try:
        yield
    finally:
        torch.autograd.set_detect_anomaly(before)


def restore_numpy_names() -> None:
    """Give numpy 2 the aliases `Config.compatibility_settings` and the metrics read."""
    for name in _missing_numpy_names():
        setattr(np, name, _NUMPY_1_NAMES[name])


def _missing_numpy_names() -> list[str]:
    return [name for name in _NUMPY_1_NAMES if name not in np.__dict__]


@contextlib.contextmanager
def numpy_names() -> Iterator[None]:
    """As :func:`restore_numpy_names`, and they are gone again at the end."""
    added = _missing_numpy_names()
    restore_numpy_names()
    try:
        yield
    finally:
        for name in added:
            delattr(np, name)


@contextlib.contextmanager
def dok_update() -> Iterator[None]:
    """Give scipy >= 1.13 the `dok_matrix._update` that RecBole's graph models call when built."""
    if hasattr(sp.dok_matrix, "_update"):
        yield
        return

    def _update(self: sp.dok_matrix, entries: dict) -> None:
        self._dict.update(entries)

    sp.dok_matrix._update = _update
    try:
        yield
    finally:
        del sp.dok_matrix._update


@contextlib.contextmanager
def own_environment() -> Iterator[None]:
    """Give CUDA_VISIBLE_DEVICES back as it was: every `Config` of RecBole writes its `gpu_id` to it."""
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
    """Give the caller's random numbers back at the end.

    RecBole draws initial weights, batches and negatives from the global generators of Python, numpy and torch, and
    `init_seed` reseeds them (and sets flags of cuDNN). A run of ours does all that inside this block.
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
    """RecBole's `init_seed`, for those who call it often.

    While no GPU is in use torch keeps seeds for one that may come, and formats the stack of every such call: some
    milliseconds, which is much of a small request.
    """
    if torch.cuda.is_available():
        init_seed(seed, reproducibility)
        return
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


def clear_caches(model: nn.Module) -> None:
    """Drop embeddings a model (or a part of it) keeps for evaluation; RecBole does so only in `calculate_loss`.

    And what RepeatNet keeps of the last batch it read.
    """
    for part in model.modules():
        for name in cache_names(part):
            setattr(part, name, None)
        vars(part).pop("repeat_explore", None)


def cache_names(model: nn.Module) -> list[str]:
    """The names in the model's `other_parameter_name` that only cache what follows from the weights."""
    names = getattr(model, "other_parameter_name", [])
    return [name for name in names if name.startswith("restore_") or name == "i_embedding"]


def other_parameters(model: AbstractRecommender) -> dict[str, Any]:
    """What a model keeps beside its weights, without caches and without layers.

    RecBole's models with features name a layer, whose weights are among the model's, and which holds all of the
    training data.
    """
    caches = cache_names(model)
    kept = model.other_parameter().items()
    return {name: value for name, value in kept if name not in caches and not isinstance(value, nn.Module)}


@contextlib.contextmanager
def arrays_without_objects() -> Iterator[None]:
    """Make `np.load` refuse pickles: LDiffRec opens `item_emb.npy` of the dataset's folder with them allowed."""
    original = np.load

    def load(*args: Any, **kwargs: Any) -> Any:
        kwargs["allow_pickle"] = False
        return original(*args, **kwargs)

    np.load = load
    try:
        yield
    finally:
        np.load = original


class _NoWriter:
    """Takes the place of a SummaryWriter when TensorBoard is off."""

    def add_scalar(self, *args: Any, **kwargs: Any) -> None:
        """Drop a scalar."""

    def add_hparams(self, *args: Any, **kwargs: Any) -> None:
        """Drop hyper-parameters."""


@contextlib.contextmanager
def tensorboard_in(folder: Path | None) -> Iterator[None]:
    """Send RecBole's TensorBoard files to ``folder`` (None: nowhere) instead of the working directory."""
    from recbole.trainer import trainer as module
    from torch.utils.tensorboard import SummaryWriter

    original = module.get_tensorboard
    module.get_tensorboard = lambda logger: _NoWriter() if folder is None else SummaryWriter(str(folder))
    try:
        yield
    finally:
        module.get_tensorboard = original


class TensorCollector(Collector):
    """RecBole's collector; 1.2.1 calls `.cpu()` on plain numbers (collector.py:226)."""

    def get_data_struct(self) -> Any:
        """Hand out what was collected, tensors on the CPU and plain values as they are."""
        return _handed_out(self, super().get_data_struct)


def _handed_out(collector: Collector, hand_out: Callable[[], Any]) -> Any:
    """What RecBole's ``hand_out`` gives of the tensors, and the plain values beside them."""
    held = collector.data_struct._data_dict
    plain = {key: held.pop(key) for key in list(held) if not isinstance(held[key], torch.Tensor)}
    for key in held:
        held[key] = held[key].cpu()
    struct = hand_out()
    struct._data_dict.update(plain)
    held.update(plain)
    return struct


@contextlib.contextmanager
def tolerant_collector() -> Iterator[None]:
    """Make RecBole's own collector what :class:`TensorCollector` is."""
    original = Collector.get_data_struct
    if "cpu" not in original.__code__.co_names:  # before 1.2.1
        yield
        return

    def get_data_struct(self: Collector) -> Any:
        return _handed_out(self, functools.partial(original, self))

    Collector.get_data_struct = get_data_struct
    try:
        yield
    finally:
        Collector.get_data_struct = original
