"""What people call: from a deletion request to a result.

:func:`run_unlearn` is also what the command line calls; its work is done in `pipeline.py`. :func:`unlearn_model` does
the middle part for people who hold a RecBole config, model and loaders already.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from recbole.config import Config
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import get_local_time

from recbole_unlearn import settings
from recbole_unlearn.cache import ModelCache
from recbole_unlearn.checkpoint import Checkpoint, read_checkpoint
from recbole_unlearn.config import UnlearnConfig
from recbole_unlearn.data import Loaders, Splits, UnlearnData, divide, loaders
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.export import refuse_overwriting
from recbole_unlearn.files import make_directory
from recbole_unlearn.forget import Fields, locate, read_request
from recbole_unlearn.log import logging_to
from recbole_unlearn.methods import registry
from recbole_unlearn.pipeline import Pipeline, UnlearnResult, begin
from recbole_unlearn.trainer import Trained


def run_unlearn(
    model: str | type | None = None,
    dataset: str | None = None,
    *,
    forget: str | Path | pd.DataFrame | dict | tuple | None = None,
    unlearn: str | None = None,
    compare: str | Sequence[str] | None = None,
    checkpoint: str | Path | None = None,
    config_files: Sequence[str] | None = None,
    output_dir: str | Path | None = None,
    config_dict: dict[str, Any] | None = None,
) -> UnlearnResult:
    """Train or load a model, make it forget, and measure it.

    Args:
        model: name of a RecBole model, or a class; read from the checkpoint when there is one.
        dataset: name of the dataset; read from the checkpoint when there is one.
        forget: a file of requests, a DataFrame, a dict of columns, a pair of arrays, or "injected".
        unlearn: the unlearning method.
        compare: further methods to run on the same request, for example ["retrain"].
        checkpoint: a checkpoint of RecBole to start from.
        config_files: YAML files in RecBole's manner.
        output_dir: where the result goes; a new folder in `saved/` by default.
        config_dict: any further setting of RecBole or of the plugin.

    """
    given = {
        "forget": forget, "unlearn": unlearn, "compare": compare, "checkpoint": checkpoint,
        "config_files": config_files, "output_dir": output_dir, "config_dict": config_dict,
    }  # fmt: skip
    with opened(model, dataset, **given) as (pipeline, wanted):
        if pipeline.config["tune"]:
            raise UnlearnError(
                "tune makes a sweep of runs: give --tune on the command line, or use tune_unlearn()."
            )
        if pipeline.config["grid"]:
            raise UnlearnError(
                "grid makes many runs: give --grid=FILE on the command line, or use run_grid()."
            )
        return pipeline.run(wanted)


@contextlib.contextmanager
def opened(
    model: str | type | None = None,
    dataset: str | None = None,
    *,
    forget: str | Path | pd.DataFrame | dict | tuple | None = None,
    unlearn: str | None = None,
    compare: str | Sequence[str] | None = None,
    checkpoint: str | Path | None = None,
    config_files: Sequence[str] | None = None,
    output_dir: str | Path | None = None,
    config_dict: dict[str, Any] | None = None,
) -> Iterator[tuple[Pipeline, Any]]:
    """A pipeline with its directory, log and threads, and the request; arguments as :func:`run_unlearn` has them."""
    named = {
        "unlearn": unlearn,
        "compare": None if compare is None else settings.as_list(compare),
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "output_dir": None if output_dir is None else str(output_dir),
        "forget": str(forget) if isinstance(forget, (str, Path)) else None,
    }
    values = {**(config_dict or {}), **{k: v for k, v in named.items() if v is not None}}
    original = read_checkpoint(values["checkpoint"]) if values.get("checkpoint") else None
    config = _config(model, dataset, list(config_files or []), values, original)
    run = settings.read(settings.RunSettings, config)
    directory = make_directory(run.output_dir or _default_directory(config))
    refuse_overwriting(directory, config, original.path if original else None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_threads(run.threads))
        stack.enter_context(logging_to(directory, config["state"] or "INFO"))
        # RecBole's trainers create this folder, and some write pre-trained weights to it.
        work = stack.enter_context(tempfile.TemporaryDirectory(dir=directory, prefix=".work-"))
        config = config.replace(
            output_dir=str(directory), checkpoint_dir=work, dataset_save_path=None,
            dataloaders_save_path=None, save_dataset=False, save_dataloaders=False,
        )  # fmt: skip
        wanted = config["forget"] if forget is None or named["forget"] else forget
        yield Pipeline(config, directory, original), wanted


def _config(
    model: str | type | None,
    dataset: str | None,
    files: list[str],
    values: dict[str, Any],
    checkpoint: Checkpoint | None,
) -> UnlearnConfig:
    if checkpoint is None:
        return UnlearnConfig(model, dataset, files, values)
    for given, own, key in (
        (model or values.get("model"), checkpoint.model, "model"),
        (dataset or values.get("dataset"), checkpoint.dataset, "dataset"),
    ):
        if isinstance(given, str) and given != own:
            raise UnlearnError(
                f"{checkpoint.path} is of the {key} {own}, not {given}: leave --{key} out, or give the "
                "right checkpoint."
            )
    config = UnlearnConfig(
        model or checkpoint.model, checkpoint.dataset, files, values, inherited=checkpoint.settings
    )
    method = config["unlearn"]
    if checkpoint.method is not None and method != checkpoint.method:
        raise UnlearnError(
            f"{checkpoint.path} is an ensemble of {checkpoint.method}, and --unlearn={method} cannot start from it. "
            f"Use --unlearn={checkpoint.method}."
        )
    if checkpoint.method is None and registry.get(method).own_original:
        raise UnlearnError(
            f"{method} starts from an ensemble of its own, and {checkpoint.path} is one model. Leave --checkpoint "
            f"out, or give the directory that an earlier --unlearn={method} wrote."
        )
    return config


def _default_directory(config: UnlearnConfig) -> Path:
    name = f"{config['model']}-{config['dataset']}-{config['unlearn']}-{get_local_time()}"
    return Path("saved") / name


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
    """Make a model you hold forget; nothing is read from or written to disk.

    Args:
        config: your RecBole config.
        model: your trained model; it is left as it is.
        data: (train, valid, test), as loaders from `data_preparation` or as datasets.
        forget: the request, as in :func:`run_unlearn`; timestamps as your dataset has them.
        method: the unlearning method.
        optimizer: the optimizer that trained the model, for methods that read its state.
        **overrides: settings of the method or of the plugin.

    """
    ours = UnlearnConfig.from_recbole(config, unlearn=method, tensorboard=False, **overrides)
    cls = registry.get(method)
    if cls.own_original:
        raise UnlearnError(
            f"{method} trains several models from the start and cannot begin with one that you hold. "
            "Use run_unlearn, or another method."
        )
    options = settings.read(cls.Settings, ours.method_values(method))
    forget_settings = settings.read(settings.ForgetSettings, ours)
    full = Splits(*(getattr(part, "_dataset", part) for part in data))
    located = locate(read_request(forget, Fields.of(ours)), full, forget_settings.on_missing)
    divided = divide(full, located, "python")
    state = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    moments = None if optimizer is None else optimizer.state_dict()
    original = Trained(state, moments, {}, -1)
    with (
        _threads(settings.read(settings.RunSettings, ours).threads),
        tempfile.TemporaryDirectory() as work,
    ):
        ours = ours.replace(checkpoint_dir=work, output_dir=None)
        run = settings.read(settings.RunSettings, ours)
        nothing_kept = dataclasses.replace(settings.read(settings.CacheSettings, ours), cache=False)
        models = ModelCache(nothing_kept, run.threads)
        trainer, task = begin(cls, options, ours, divided, original, models, "unlearned")
        trainer.run(task)
        return Unlearned(trainer.model, divided, loaders(ours, divided.retain), trainer.seconds)
