"""Writing the unlearned model for plain RecBole, with nothing of what was deleted.

Two files: a checkpoint, and the retained data as the saved dataset RecBole's `create_dataset` looks for.
The dataset is written because the checkpoint needs its ids: RecBole numbers users and items by their first
appearance, so a source file without the deleted rows would number them anew. `load_data_and_model` of plain
RecBole takes both, and gets the split they were evaluated with.

Left out are the optimizer's moments, cached embeddings, the tokens and features of users and items that have no
interaction left, and every other value that no retained interaction has (`vocabulary.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from recbole.config import Config
from recbole.data.dataset import Dataset

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import saved_dataset
from recbole_unlearn.files.atomic import write_torch
from recbole_unlearn.files.hash_keys import Done
from recbole_unlearn.files.saved_dataset import Clock
from recbole_unlearn.files.trained import Trained
from recbole_unlearn.settings import UnlearnConfig

DATASET_DIGEST = "unlearn_dataset_sha256"  # in a checkpoint: the dataset file it belongs to


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def checkpoint_path(directory: Path, config: UnlearnConfig) -> Path:
    """Where the unlearned checkpoint goes."""
    return directory / f"{config['model']}-unlearned.pth"


def refuse_overwriting(directory: Path, config: UnlearnConfig, original: Path | None) -> None:
    """Stop before any work if the result would replace the checkpoint it starts from."""
    target = checkpoint_path(directory, config)
    if original is not None and original.is_dir():
        target = target.with_suffix("")  # an ensemble
    if original is not None and target.exists() and target.samefile(original):
        raise UnlearnError(
            f"The result would overwrite the checkpoint you passed, {target}. Choose another --output_dir."
        )


def write_model(
    directory: Path,
    home: Path,
    config: UnlearnConfig,
    trained: Trained,
    optimizer: dict[str, Any],
    parts: Sequence[Dataset],
    clock: Clock | None,
    fitted: np.ndarray | None = None,
    done: Sequence[Done] = (),
    windows: Sequence[Dataset] | None = None,
) -> str:
    """Write a checkpoint and the dataset it belongs to (train, valid, test); returns the checkpoint's name.

    ``home`` is the directory both are in at the end. ``optimizer`` is the state of one without memory: that of
    ``trained`` is not written. ``fitted``, ``done`` and ``windows`` are as in
    :func:`~recbole_unlearn.files.saved_dataset.write_dataset`.
    """
    name = f"{config['dataset']}-{type(parts[0]).__name__}.pth"
    plain = dataset_config(config, home, home / name)
    saved_dataset.write_dataset(directory / name, plain, parts, clock, fitted, done, windows)
    path = checkpoint_path(directory, config)
    content = {
        "config": plain,
        "epoch": 0,
        "cur_step": 0,
        "best_valid_score": -np.inf if plain["valid_metric_bigger"] else np.inf,
        "state_dict": trained.state_dict,
        "other_parameter": trained.other_parameter,
        "optimizer": optimizer,
        DATASET_DIGEST: file_digest(directory / name),
    }
    write_torch(path, content)
    return path.name


def dataset_config(config: UnlearnConfig, directory: Path, dataset_file: Path) -> Config:
    """The settings with which plain RecBole finds ``dataset_file``, and nothing else."""
    return config.to_recbole(
        checkpoint_dir=str(directory),
        dataset_save_path=str(dataset_file),
        # Should the saved dataset be missing, RecBole must fail rather than read or download the source again, which
        # may still hold the deleted interactions: this folder always exists, and has no atomic file of these names.
        data_path=".",
        save_dataset=False,
        save_dataloaders=False,
        dataloaders_save_path=None,
        benchmark_filename=saved_dataset.PARTS,
    )
