"""Writing the unlearned model for plain RecBole, with nothing of what was deleted.

Two files: a checkpoint, and the retained data as the saved dataset RecBole's `create_dataset` looks for.
The dataset is written because the checkpoint needs its ids: RecBole numbers users and items by their first
appearance, so a source file without the deleted rows would number them anew. `load_data_and_model` of plain
RecBole takes both, and gets the split they were evaluated with.

Left out are the optimizer's moments, cached embeddings, and the tokens and features of users and items that
have no row left.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from recbole.config import Config

from recbole_unlearn import retained
from recbole_unlearn.config import UnlearnConfig
from recbole_unlearn.data import UnlearnData
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import write_torch
from recbole_unlearn.trainer import UnlearnTrainer


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


def write_unlearned(
    directory: Path, config: UnlearnConfig, trainer: UnlearnTrainer, data: UnlearnData
) -> Path:
    """Write the retained dataset and the unlearned checkpoint (or what the method saves); returns its path."""
    if (own := trainer.save(directory, data)) is not None:
        return own
    name = type(data.retain.train).__name__
    dataset_file = directory / f"{config['dataset']}-{name}.pth"
    plain = config.to_recbole(
        checkpoint_dir=str(directory),
        dataset_save_path=str(dataset_file),
        # Should the saved dataset be missing, RecBole must fail rather than read the source again, which
        # may still hold the deleted rows: there is no atomic file in this folder.
        data_path=str(directory),
        save_dataset=False,
        save_dataloaders=False,
        dataloaders_save_path=None,
        benchmark_filename=retained.PARTS,
    )
    retained.write_dataset(dataset_file, plain, data.retain, data.clock)
    path = checkpoint_path(directory, config)
    write_torch(path, checkpoint_content(plain, trainer))
    return path


def checkpoint_content(config: Config, trainer: UnlearnTrainer) -> dict[str, Any]:
    """What RecBole's trainer saves, with an optimizer that has no memory."""
    model = trainer.snapshot()
    return {
        "config": config,
        "epoch": 0,
        "cur_step": 0,
        "best_valid_score": -np.inf if config["valid_metric_bigger"] else np.inf,
        "state_dict": model.state_dict,
        "other_parameter": model.other_parameter,
        "optimizer": trainer._build_optimizer().state_dict(),
    }
