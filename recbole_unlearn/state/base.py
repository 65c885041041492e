"""The base of a state: a model as it was trained or last published, in three files."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import recbole
import torch
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import ModelType

from recbole_unlearn import __version__
from recbole_unlearn.data import Source, Splits, load
from recbole_unlearn.files import Checkpoint, Trained, dataset_config, write_dataset
from recbole_unlearn.methods.obliviate import from_retained, read_state
from recbole_unlearn.recbole_compat import own_randomness
from recbole_unlearn.rows import Region, RetainedIndex, TrainIndex, Witness
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.state.context import Core
from recbole_unlearn.state.deltas import Tensors, digest, pack
from recbole_unlearn.training import build_model


class Base(NamedTuple):
    """The names of its files."""

    weights: str
    moments: str
    dataset: str

    @property
    def fingerprint(self) -> str:
        """Which model it is."""
        return fingerprint_of(self.weights)


def write_base(
    core: Core,
    weights: Tensors,
    moments: Tensors,
    parts: Sequence[Any],
    clock: Any,
    fitted: torch.Tensor | None,
) -> Base:
    """Write a base; it is one when the database names it."""
    files = core.store.write(pack(weights)), core.store.write(pack(moments))
    return Base(*files, write_base_dataset(core, parts, clock, fitted))


def write_base_dataset(core: Core, parts: Sequence[Any], clock: Any, fitted: torch.Tensor | None) -> str:
    """Write the interactions of a base; returns the file's name."""
    with core.store.workplace() as work:
        path = work / "dataset"
        plain = dataset_config(core.config, core.folder, core.folder / "dataset")
        write_dataset(path, plain, parts, clock, None if fitted is None else fitted.numpy())
        return core.store.write(path.read_bytes(), ".pth")


def fingerprint_of(weights: str) -> str:
    """The fingerprint of a base with this file of weights."""
    return digest(weights.encode())


def squared_norm(weights: Mapping[str, torch.Tensor]) -> float:
    """‖θ‖² of all weights."""
    return float(
        sum(value.double().square().sum() for value in weights.values() if value.is_floating_point())
    )


def read_original(config: UnlearnConfig, original: Checkpoint) -> tuple[Source, Tensors]:
    """The data of a checkpoint and its second moments; refused if its weights do not fit the data."""
    assert original.trained is not None
    with own_randomness():
        source = load(config, original.dataset_file)
        net = build_model(config, source.splits)
        original.trained.load_into(net)
        return source, read_moments(config, net, original.trained, source.splits)


def read_moments(
    config: UnlearnConfig, model: AbstractRecommender, trained: Trained, splits: Splits
) -> Tensors:
    """Second moments of a model: its optimizer's, or Fisher information of its data where that left none."""
    if config["MODEL_TYPE"] == ModelType.TRADITIONAL:
        return {}
    found = read_state(model, trained.optimizer, trained.epoch)
    if found is None:
        index = TrainIndex(splits.train)
        nobody = torch.empty(0, dtype=torch.long)
        retained = RetainedIndex(index, nobody, nobody, index.removed)
        witness = Witness(config, retained, Region(), torch.Generator().manual_seed(config["seed"]))
        parts = torch.arange(len(index)).split(config["train_batch_size"])
        found = from_retained(model, [witness.batch(witness.triples(part)) for part in parts])
    return dict(found.moments)


def versions() -> dict[str, str]:
    """What an entry of the ledger was made with."""
    return {
        "recbole_unlearn": __version__, "recbole": recbole.__version__, "torch": torch.__version__,
        "python": platform.python_version(),
    }  # fmt: skip
