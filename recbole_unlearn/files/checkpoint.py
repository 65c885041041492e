"""Reading RecBole's checkpoints: which model, of which data, with which settings and weights.

A checkpoint may come from anybody, so all of it is checked here, once. It may say how a model was trained; it may not
set anything of this plugin, name a path, or bring code. What it says and nobody knows is left out when the config is
made.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import ensemble_head, saved_dataset, unpickle
from recbole_unlearn.files.export import DATASET_DIGEST, file_digest
from recbole_unlearn.files.trained import Trained
from recbole_unlearn.inputs import shown
from recbole_unlearn.settings import Role, about, get, is_plain, names, own_settings, plain_settings

LARGEST_NUMBER = 2**53  # of a setting
LARGEST_SIZE = 10_000  # of a layer, unless the weights have a larger one
LONGEST_TEXT = 10_000
_SIZE = re.compile(r"size|dim|hidden|layers|factor|num")

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as data: which model and dataset, with which settings, and the trained weights."""

    path: Path
    model: str
    dataset: str
    settings: dict[str, Any]
    trained: Trained | None  # None for an ensemble, which its method reads itself
    dataset_file: Path | None  # the retained data this plugin wrote beside it
    method: str | None = None  # of an ensemble: the method that trained it
    recorded_data_path: str | None = None  # where its data was, by its own account; never followed


def find_unlearned(place: Path) -> Path:
    """The one unlearned model in a directory; a file, and the directory of an ensemble, are that already."""
    if place.is_file() or (place / ensemble_head.HEAD).is_file():
        return place
    if not place.is_dir():
        raise UnlearnError(f"There is no file or directory {shown(place)}. Check the path.")
    found = [
        *place.glob("*-unlearned.pth"),
        *(head.parent for head in place.glob(f"*-unlearned/{ensemble_head.HEAD}")),
    ]
    if len(found) != 1:
        many = (
            f"{len(found)} unlearned models; give the path of one of them"
            if found
            else ("no unlearned model (MODEL-unlearned.pth); give the output directory of a run")
        )
        raise UnlearnError(f"{shown(place)} holds {many}.")
    return found[0]


def read_checkpoint(path: str | Path, model: type | None = None) -> Checkpoint:
    """Read a checkpoint that RecBole's trainer (or this plugin) wrote, or the directory of an ensemble.

    Args:
        path: the file, or the directory.
        model: your own model class, when the checkpoint is of one. The file may then name it; nothing that a file
            names is imported, so the class that is used is always the one you give.

    """
    path = Path(path)
    if path.is_dir():
        stored = ensemble_head.read_head(path)
        settings = safe_settings(stored.settings, path, names(get(stored.method).settings))
        return Checkpoint(
            path, stored.model, stored.dataset, settings, None, stored.dataset_file, stored.method
        )
    content = unpickle.load_torch(path, unpickle.only(model))
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise UnlearnError(f"{shown(path)} is not a checkpoint of RecBole: it has no state_dict.")
    values = _config_of(path, content.get("config"))
    trained = _trained(path, content)
    settings = safe_settings(values, path)
    _check_sizes(path, settings, trained)
    recorded = values.get("data_path")
    dataset_file = dataset_beside(path, values, content.get(DATASET_DIGEST))
    return Checkpoint(
        path,
        values["model"],
        values["dataset"],
        settings,
        trained,
        dataset_file,
        recorded_data_path=recorded if isinstance(recorded, str) else None,
    )


def _config_of(path: Path, config: Any) -> dict[str, Any]:
    """The settings of the config that the checkpoint holds."""
    state = config.state if isinstance(config, unpickle.StandIn) else config
    values = state.get("final_config_dict") if isinstance(state, dict) else None
    if not isinstance(values, dict) or not all(
        isinstance(values.get(key), str) for key in ("model", "dataset")
    ):
        raise UnlearnError(
            f"{shown(path)} does not say which model and dataset it is of; a checkpoint written by RecBole's "
            "trainer does. Save it again with its config."
        )
    return {key: value for key, value in values.items() if isinstance(key, str) and is_plain(value)}


def safe_settings(values: Mapping[str, Any], path: Path, own: list[str] | None = None) -> dict[str, Any]:
    """Of the settings in a file, those that say how a model was trained.

    Left out is what belongs to this plugin (but for ``own``, the settings of the method that wrote the file), and
    every path and address.
    """
    ours = own_settings().keys() - set(own or [])
    kept = {
        key: value
        for key, value in plain_settings(values).items()
        if key not in ours and about(key).role is not Role.PLACE
    }
    for key, value in kept.items():
        if len(key) > 100 or not _is_sensible(value):
            raise UnlearnError(f"{shown(path)}: its setting {key[:100]!r} has a value that no training has.")
    return kept


def _is_sensible(value: Any, depth: int = 0) -> bool:
    """Whether a plain value is of a size that people set."""
    if isinstance(value, dict):
        return depth < 8 and len(value) < 1000 and all(_is_sensible(v, depth + 1) for v in value.values())
    if isinstance(value, (list, tuple)):
        return depth < 8 and len(value) < 100_000 and all(_is_sensible(v, depth + 1) for v in value)
    if isinstance(value, (int, float)):
        return (value == value and abs(value) <= LARGEST_NUMBER) or value in (float("inf"), float("-inf"))
    return not isinstance(value, str) or len(value) <= LONGEST_TEXT


def _check_sizes(path: Path, settings: Mapping[str, Any], trained: Trained) -> None:
    """Refuse a layer that is larger than any of the weights: building it could take all memory."""
    largest = max([LARGEST_SIZE, *(size for w in trained.state_dict.values() for size in w.shape)])
    for key, value in settings.items():
        sizes = value if isinstance(value, (list, tuple)) else [value]
        numbers = [size for size in sizes if isinstance(size, int) and not isinstance(size, bool)]
        if _SIZE.search(key) and "batch" not in key and any(abs(size) > largest for size in numbers):
            raise UnlearnError(f"{shown(path)}: {key}={value!r} is larger than anything in its weights.")


def _trained(path: Path, content: Mapping[str, Any]) -> Trained:
    """The weights, and what else training left: each checked, and left aside where it is odd but not needed."""
    weights = {}
    for name, value in content["state_dict"].items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            raise UnlearnError(f"{shown(path)}: {str(name)[:100]!r} in its state_dict is not a tensor.")
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise UnlearnError(
                f"{shown(path)}: the weights {name} are not finite; this model cannot be used."
            )
        weights[name] = value
    epoch = content.get("epoch", -1)
    if type(epoch) is not int or not -1 <= epoch <= LARGEST_NUMBER:
        raise UnlearnError(f"{shown(path)}: its epoch is not a number of epochs.")
    return Trained(weights, _optimizer(path, content.get("optimizer")), _other(path, content), epoch)


def _optimizer(path: Path, state: Any) -> dict[str, Any] | None:
    """The optimizer's state, or None where it is none: methods that read it then say so."""
    if state is None:
        return None
    groups = state.get("param_groups") if isinstance(state, dict) else None
    moments = state.get("state") if isinstance(state, dict) else None
    whole = (
        isinstance(groups, list)
        and isinstance(moments, dict)
        and all(isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups)
        and all(type(index) is int for group in groups for index in group["params"])
        and all(type(index) is int and isinstance(entry, dict) for index, entry in moments.items())
    )
    if not whole:
        logger.warning("The optimizer's state in %s is damaged and is not used.", shown(path))
        return None
    return state


def _is_layer(value: Any) -> bool:
    return isinstance(value, unpickle.StandIn) and value.maker.module == "recbole.model.layers"


def _other(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """What a model keeps beside its weights: arrays, tensors, sparse matrices and numbers.

    Some keep a layer (SASRecF). Its weights are in the state_dict as well, and what it has of the data is not read.
    """
    other = content.get("other_parameter")
    if other is None:
        return {}
    if isinstance(other, dict):
        other = {name: value for name, value in other.items() if not _is_layer(value)}
    kinds = (torch.Tensor, np.ndarray, np.generic, sp.spmatrix, bool, int, float, str, type(None))
    fits = isinstance(other, dict) and all(
        isinstance(name, str) and isinstance(value, kinds) for name, value in other.items()
    )
    if not fits:
        raise UnlearnError(f"{shown(path)}: its other_parameter is not what a model of RecBole keeps.")
    return other


def dataset_beside(path: Path, values: Mapping[str, Any], digest: Any) -> Path | None:
    """The saved dataset that an unlearned checkpoint with the settings ``values`` belongs to; None for any other.

    Refused is a checkpoint beside the dataset of another run; checkpoints of older versions have no ``digest``.
    """
    dataset_file = _dataset_file(path, values)
    if dataset_file is None:
        return None
    if not dataset_file.is_file():
        raise UnlearnError(
            f"{shown(path)} belongs to the dataset {dataset_file.name}, which is not beside it. Copy both together."
        )
    if digest is not None and digest != file_digest(dataset_file):
        raise UnlearnError(
            f"{shown(dataset_file)} is not the dataset that {path.name} was written with: one of them is of another "
            "run, or damaged. Use both files of one run."
        )
    return dataset_file


def _dataset_file(path: Path, values: Mapping[str, Any]) -> Path | None:
    """The saved dataset an unlearned checkpoint belongs to: beside it, whatever path the checkpoint names."""
    recorded = values.get("dataset_save_path")
    if values.get("benchmark_filename") != saved_dataset.PARTS or not isinstance(recorded, str):
        return None
    name = recorded.replace("\\", "/").rsplit("/", 1)[-1]
    if not name or name.startswith(".") or len(name) > 255:
        raise UnlearnError(f"{shown(path)} does not say which dataset file beside it is its own.")
    return path.parent / name
