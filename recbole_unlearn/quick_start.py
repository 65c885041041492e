"""The functions that users call: from a deletion request to a result.

The command line calls :func:`run_unlearn` too; `session.py` opens the run and `pipeline.py` does it.
:func:`unlearn_model` does the middle part for callers who already have a RecBole config, model and loaders.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from recbole.config import Config
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import ModelType

from recbole_unlearn import settings
from recbole_unlearn.data import (
    Fields,
    Loaders,
    Sequences,
    SequenceSplits,
    Splits,
    UnlearnData,
    divide,
    loaders,
    locate,
    read_request,
)
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Trained
from recbole_unlearn.pipeline import UnlearnResult, begin, checked_settings
from recbole_unlearn.recbole_compat import other_parameters, own_randomness
from recbole_unlearn.registry import METHODS
from recbole_unlearn.session import Request, opened, own_threads
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import Trainings


def run_unlearn(
    model: str | type | None = None,
    dataset: str | None = None,
    *,
    forget: Request | None = None,
    unlearn: str | None = None,
    compare: str | Sequence[str] | None = None,
    checkpoint: str | Path | None = None,
    config_files: Sequence[str] | None = None,
    output_dir: str | Path | None = None,
    config_dict: dict[str, Any] | None = None,
) -> UnlearnResult:
    """Train or load a model, make it forget, and measure it.

    Args:
        model: name of a RecBole model, or a class; read from the checkpoint if there is one. A checkpoint of
            your own class needs the class here.
        dataset: name of the dataset; read from the checkpoint if there is one.
        forget: a file of requests, a DataFrame, a dict of columns, a pair of arrays, or "injected".
        unlearn: the unlearning method; `retrain` by default, because it is exact. `obliviate` is recommended
            when retraining takes too long; `--unlearn=?` lists all.
        compare: further methods to run on the same request, for example ["retrain"].
        checkpoint: a checkpoint of RecBole to start from.
        config_files: YAML files as RecBole reads them.
        output_dir: directory of the result; a new one in `saved/` by default.
        config_dict: any further setting of RecBole or of the plugin.

    """
    with opened(
        model, dataset, forget=forget, unlearn=unlearn, compare=compare, checkpoint=checkpoint,
        config_files=config_files, output_dir=output_dir, config_dict=config_dict,
    ) as (pipeline, wanted):  # fmt: skip
        for key, option, function in (("tune", "--tune", "tune_unlearn"), ("grid", "--grid=FILE", "run_grid")):
            if pipeline.config[key]:
                raise UnlearnError(f"{key} makes many runs: give {option} on the command line, or use {function}().")
        return pipeline.run(wanted)


@dataclasses.dataclass(frozen=True)
class Unlearned:
    """The result of :func:`unlearn_model`: a plain RecBole model, and loaders over the retained data."""

    model: AbstractRecommender
    data: UnlearnData
    loaders: Loaders
    seconds: float


def unlearn_model(
    config: Config,
    model: AbstractRecommender,
    data: Sequence[Any],
    forget: Any,
    method: str = "retrain",
    optimizer: torch.optim.Optimizer | None = None,
    **overrides: Any,
) -> Unlearned:
    """Make a model in memory forget; nothing is read from or written to disk.

    Args:
        config: your RecBole config.
        model: your trained model; it is left as it is.
        data: (train, valid, test), as loaders from `data_preparation` or as datasets.
        forget: the request, as in :func:`run_unlearn`; timestamps as your dataset has them.
        method: the unlearning method; `retrain` is exact, `obliviate` is recommended when that takes too long.
        optimizer: the optimizer that trained the model, for methods that read its state.
        **overrides: settings of the method or of the plugin.

    """
    ours = UnlearnConfig.from_recbole(config, unlearn=method, tensorboard=False, **overrides)
    cls = METHODS.get(method)
    if cls.own_original:
        raise UnlearnError(
            f"{method} trains several models from the start and cannot start from one in memory. "
            "Use run_unlearn, or another method."
        )
    options = checked_settings(cls, ours)
    forget_settings = settings.read(settings.ForgetSettings, ours)
    run = settings.read(settings.RunSettings, ours)
    nothing_kept = dataclasses.replace(settings.read(settings.CacheSettings, ours), cache=False)
    full = Splits(*(getattr(part, "_dataset", part) for part in data))
    if ours["MODEL_TYPE"] == ModelType.SEQUENTIAL:  # of windows
        full = SequenceSplits.of(Sequences.recovered(full))
    located = locate(read_request(forget, Fields.of(ours)), full, forget_settings.on_missing)
    divided = divide(full, located, "python")
    state = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    moments = None if optimizer is None else optimizer.state_dict()
    original = Trained(state, moments, copy.deepcopy(other_parameters(model)), -1)
    with own_randomness(), own_threads(run.threads), tempfile.TemporaryDirectory() as work:
        ours = ours.replace(checkpoint_dir=work, output_dir=None)
        trainings = Trainings(nothing_kept, run.threads)
        trainer, task = begin(cls, options, ours, divided, original, trainings, "unlearned")
        finished = trainer.run(task) if len(divided.forget) else trainer.keep(task)
        return Unlearned(trainer.model, divided, loaders(ours, divided.retain), finished.seconds or 0.0)
