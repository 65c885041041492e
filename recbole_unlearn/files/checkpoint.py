"""Reading RecBole's checkpoints: which model, of which data, with which settings and weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import ensemble_head, saved_dataset, unpickle
from recbole_unlearn.files.trained import Trained
from recbole_unlearn.settings.config import plain_settings


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


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint that RecBole's trainer (or this plugin) wrote, or the directory of an ensemble."""
    path = Path(path)
    if path.is_dir():
        stored = ensemble_head.read_head(path)
        return Checkpoint(
            path, stored.model, stored.dataset, stored.settings, None, stored.dataset_file, stored.method
        )
    content = unpickle.load_torch(path)
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise UnlearnError(f"{path} is not a checkpoint of RecBole: it has no state_dict.")
    config = content.get("config")
    state = config.state if isinstance(config, unpickle.StandIn) else config
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
        _dataset_file(path, values),
    )


def _dataset_file(path: Path, values: dict[str, Any]) -> Path | None:
    """The saved dataset an unlearned checkpoint belongs to; found beside it when both were moved."""
    if values.get("benchmark_filename") != saved_dataset.PARTS or not values.get("dataset_save_path"):
        return None
    recorded = Path(str(values["dataset_save_path"]))
    beside = path.parent / recorded.name
    return beside if beside.is_file() else recorded
