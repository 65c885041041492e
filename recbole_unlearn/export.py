"""Writing the unlearned model for plain RecBole, with nothing of what was deleted.

Two files: a checkpoint, and the retained data as the saved dataset RecBole's `create_dataset` looks for.
The dataset is written because the checkpoint needs its ids: RecBole numbers users and items by their first
appearance, so a source file without the deleted rows would number them anew. `load_data_and_model` of plain
RecBole takes both, and gets the split they were evaluated with.

Left out are the optimizer's moments, cached embeddings, and the tokens and features of users and items that
have no row left.
"""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from recbole.config import Config
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction, cat_interactions
from recbole.utils import FeatureType

from recbole_unlearn.config import UnlearnConfig
from recbole_unlearn.data import Splits, UnlearnData
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import atomic, write_torch
from recbole_unlearn.trainer import UnlearnTrainer

PARTS = ["train", "valid", "test"]


def checkpoint_path(directory: Path, config: UnlearnConfig) -> Path:
    """Where the unlearned checkpoint goes."""
    return directory / f"{config['model']}-unlearned.pth"


def refuse_overwriting(directory: Path, config: UnlearnConfig, original: Path | None) -> None:
    """Stop before any work if the result would replace the checkpoint it starts from."""
    target = checkpoint_path(directory, config)
    if original is not None and target.exists() and target.samefile(original):
        raise UnlearnError(
            f"The result would overwrite the checkpoint you passed, {target}. Choose another --output_dir."
        )


def write_unlearned(
    directory: Path, config: UnlearnConfig, trainer: UnlearnTrainer, data: UnlearnData
) -> Path:
    """Write the retained dataset and the unlearned checkpoint; returns the checkpoint's path."""
    name = type(data.kept.train).__name__
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
        benchmark_filename=PARTS,
    )
    with atomic(dataset_file) as stream:
        pickle.dump(retained_dataset(plain, data.kept), stream, protocol=4)
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


def retained_dataset(config: Config, kept: Splits) -> Dataset:
    """One RecBole dataset of the retained rows, which `build()` divides as ``kept`` is divided."""
    dataset = kept.train.copy(cat_interactions([part.inter_feat for part in kept]))
    gone = {}
    for field in (dataset.uid_field, dataset.iid_field):
        present = torch.unique(dataset.inter_feat[field]).numpy()
        gone[field] = np.setdiff1d(np.arange(1, dataset.num(field)), present)
    dataset.config = config
    dataset.logger = logging.getLogger()
    dataset.benchmark_filename_list = PARTS
    dataset.file_size_list = [len(part) for part in kept]
    dataset.field2id_token = {**dataset.field2id_token}
    dataset.field2token_id = {**dataset.field2token_id}
    for field, ids in gone.items():
        _erase_tokens(dataset, field, ids)
    for feat, field in (("user_feat", dataset.uid_field), ("item_feat", dataset.iid_field)):
        if getattr(dataset, feat) is not None:
            setattr(dataset, feat, _without(getattr(dataset, feat), field, gone[field]))
    for feat in dataset.feat_name_list:
        setattr(dataset, feat, _frame(dataset, getattr(dataset, feat)))
    return dataset


def _erase_tokens(dataset: Dataset, field: str, ids: np.ndarray) -> None:
    """Replace the tokens of ``ids`` by placeholders, which keeps the numbering and tells nothing."""
    tokens = np.array(dataset.field2id_token[field], dtype=object)
    tokens[ids] = [f"[removed-{number}]" for number in ids]
    dataset.field2id_token[field] = tokens.astype(str)
    dataset.field2token_id[field] = {token: number for number, token in enumerate(tokens)}


def _without(feat: Interaction, key: str, ids: np.ndarray) -> Interaction:
    """Features with the rows of ``ids`` blank."""
    columns = {name: value.clone() for name, value in feat.interaction.items()}
    for name, value in columns.items():
        if name != key:
            value[torch.from_numpy(ids)] = 0
    return Interaction(columns)


def _frame(dataset: Dataset, feat: Interaction | pd.DataFrame) -> pd.DataFrame:
    """Features in the form RecBole's datasets have before `build()`."""
    if isinstance(feat, pd.DataFrame):
        return feat
    columns: dict[str, Any] = {}
    for name in sorted(feat.columns):
        value = feat[name].numpy()
        if dataset.field2type[name] in (FeatureType.TOKEN_SEQ, FeatureType.FLOAT_SEQ):
            columns[name] = list(value)
        else:
            columns[name] = value
    return pd.DataFrame(columns)
