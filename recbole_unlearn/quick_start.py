"""The functions that users call: from a deletion request to a result.

The command line calls :func:`run_unlearn` too. :func:`opened` goes from arguments to a pipeline: settings, output
directory, log and threads; `pipeline.py` does the run. :func:`unlearn_model` is for callers with a model in memory.
"""

import contextlib
import copy
import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import torch
from recbole.config import Config
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import ModelType, get_local_time

from recbole_unlearn import data as datasets
from recbole_unlearn import files, settings
from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.files import Checkpoint, Trained
from recbole_unlearn.log import logging_to
from recbole_unlearn.pipeline import Pipeline, UnlearnResult, begin, checked_settings, planned_methods
from recbole_unlearn.recbole_compat import on_cpu, other_parameters, own_environment
from recbole_unlearn.registry import AUTO, METHODS
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training import Trainings, use_threads

Request: TypeAlias = str | Path | pd.DataFrame | dict | tuple


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
    config_file_list: Sequence[str] | None = None,
) -> UnlearnResult:
    """Train or load a model, make it forget, and measure it.

    Args:
        model: name of a RecBole model, or a class; read from the checkpoint if there is one. A checkpoint of
            your own class needs the class here.
        dataset: name of the dataset; read from the checkpoint if there is one.
        forget: a file of requests, a DataFrame, a dict of columns, a pair of arrays, or "injected".
        unlearn: the unlearning method; by default `auto`, the quickest exact one for the model. `--unlearn=?`
            lists all.
        compare: further methods to run on the same request, for example ["retrain"].
        checkpoint: a checkpoint of RecBole to start from.
        config_files: YAML files as RecBole reads them.
        output_dir: directory of the result; a new one in `saved/` by default.
        config_dict: any further setting of RecBole or of the plugin.
        config_file_list: RecBole's name for ``config_files``.

    """
    with opened(
        model, dataset, forget=forget, config_files=config_files, config_dict=config_dict,
        config_file_list=config_file_list, unlearn=unlearn, compare=compare, checkpoint=checkpoint,
        output_dir=output_dir,
    ) as (pipeline, wanted):  # fmt: skip
        for key, option, function in (("tune", "--tune", "tune_unlearn"), ("grid", "--grid=FILE", "run_grid")):
            if pipeline.config[key]:
                raise UnlearnError(f"{key} makes many runs: give {option} on the command line, or use {function}().")
        return pipeline.run(wanted)


@contextlib.contextmanager
def opened(
    model: str | type | None = None, dataset: str | None = None, *, forget: Request | None = None,
    config_files: Sequence[str] | None = None, config_dict: dict[str, Any] | None = None, as_one: bool = True,
    config_file_list: Sequence[str] | None = None, **named: Any,
) -> Iterator[tuple[Pipeline, Any]]:  # fmt: skip
    """A pipeline with its directory and log, and the request; ``named`` settings win over ``config_dict``.

    With ``as_one`` the files of a run appear together when it has ended; a sweep writes its files one by one.
    Everything that can be refused without reading the data is refused here, before a file is written.
    """
    values = dict(config_dict or {})
    if not isinstance(values.get("forget", ""), str):  # the message must not print its values
        raise UnlearnError(
            "forget in config_dict has to be the name of a file. Give Python data as run_unlearn(forget=...)."
        )
    is_name = forget is None or isinstance(forget, (str, Path))
    named["forget"] = forget if is_name else None
    for key, value in named.items():
        if value is not None:
            values[key] = settings.as_list(value) if key == "compare" else str(value)
    with contextlib.ExitStack() as stack:
        stack.enter_context(own_environment())
        model = model or values.get("model")
        own = model if isinstance(model, type) else None
        original = files.read_checkpoint(values["checkpoint"], own) if values.get("checkpoint") else None
        config = configured(model, dataset, list(config_files or config_file_list or []), values, original)
        run = settings.read(settings.RunSettings, config)
        cache = settings.read(settings.CacheSettings, config)
        name = f"{config['model']}-{config['dataset']}-{config['unlearn']}-{get_local_time()}"
        directory = Path(run.output_dir or Path("saved") / name)
        if original is not None:
            written = directory / f"{config['model']}-unlearned{'' if original.path.is_dir() else '.pth'}"
            if written.exists() and written.samefile(original.path):
                raise UnlearnError(
                    f"The result would overwrite the checkpoint you passed, {written}. Choose another --output_dir."
                )
        if as_one:
            files.refuse_result(directory, run.replace)
            place, home = stack.enter_context(files.staged(directory))
        else:
            place = home = stack.enter_context(files.made(directory))
            stack.enter_context(files.claimed(home))
        if cache.cache:
            stack.enter_context(files.made(cache.cache_dir))
        log = stack.enter_context(logging_to(place, config["state"] or "INFO"))
        # RecBole's trainers create this folder, and some write pre-trained weights to it.
        work = stack.enter_context(tempfile.TemporaryDirectory(prefix="recbole-unlearn-"))
        config = config.replace(
            output_dir=str(place), checkpoint_dir=work, dataset_save_path=None,
            dataloaders_save_path=None, save_dataset=False, save_dataloaders=False,
        )  # fmt: skip
        pipeline: Pipeline | None = None
        try:
            pipeline = Pipeline(config, place, home, original)
            yield pipeline, config["forget"] if is_name else forget
        except UnlearnError:
            # Until a model was trained, taken from the cache or measured, an error is a refusal: it leaves no file.
            if pipeline is None or not (pipeline.trainings.asked or pipeline.phases):
                log.take_back()
            raise


def configured(
    model: str | type | None, dataset: str | None, config_files: list[str], values: dict[str, Any],
    checkpoint: Checkpoint | None,
) -> UnlearnConfig:  # fmt: skip
    """The config of a run, with settings that it and its methods can run with; a checkpoint has model and dataset."""
    if checkpoint is None:
        config = UnlearnConfig(model, dataset, config_files, values)
    else:
        for key, given, own in (("model", model, checkpoint.model), ("dataset", dataset, checkpoint.dataset)):
            given = given or values.get(key)
            name = given.__name__ if isinstance(given, type) else given
            if name is not None and name != own:
                raise UnlearnError(
                    f"{shown(checkpoint.path)} is of the {key} {own}, not {name}: leave --{key} out, or give the "
                    "right checkpoint."
                )
        model = model or checkpoint.model
        config = UnlearnConfig(model, checkpoint.dataset, config_files, values, inherited=checkpoint.settings)
        _refuse_other_start(config, checkpoint)
    for group in settings.GROUPS.values():
        settings.read(group, config)
    planned_methods(config)
    return config


def _refuse_other_start(config: UnlearnConfig, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose data would have to be guessed, or that the method cannot start from."""
    path, method, recorded = shown(checkpoint.path), config["unlearn"], checkpoint.recorded_data_path
    # A path inside a checkpoint is not followed, so the user has to give it.
    if checkpoint.dataset_file is None and recorded is not None and "data_path" not in config.external_config_dict:
        ours, theirs = Path(config["data_path"]), Path(recorded)
        if ours.parts[-2:] != theirs.parts[-2:] and ours.resolve() != theirs.resolve():
            folder = theirs.parent if theirs.name == checkpoint.dataset else theirs
            raise UnlearnError(
                f"The data of {path} was in {shown(theirs)}, and paths are not taken from files. "
                f"Add --data_path={shown(folder)} if that is where it is."
            )
    if checkpoint.method is not None and method != checkpoint.method:
        raise UnlearnError(
            f"{path} is an ensemble of {checkpoint.method}, and --unlearn={method} cannot start from it. "
            f"Use --unlearn={checkpoint.method}."
        )
    if checkpoint.method is None and METHODS.get(method).own_original:
        raise UnlearnError(
            f"{method} starts from an ensemble of its own, and {path} is one model. Leave --checkpoint "
            f"out, or give the directory that an earlier --unlearn={method} wrote."
        )


@dataclasses.dataclass(frozen=True)
class Unlearned:
    """The result of :func:`unlearn_model`: a plain RecBole model, and loaders over the retained data."""

    model: AbstractRecommender
    data: datasets.UnlearnData
    loaders: datasets.Loaders
    seconds: float

    def __repr__(self) -> str:
        name, gone = type(self.model).__name__, len(self.data.forget)
        return f"Unlearned({name}, {gone} training interactions forgotten in {self.seconds:.3g} s)"


def unlearn_model(
    config: Config,
    model: AbstractRecommender,
    data: Sequence[Any],
    forget: Any,
    method: str = AUTO,
    optimizer: torch.optim.Optimizer | None = None,
    **overrides: Any,
) -> Unlearned:
    """Make a model in memory forget; nothing is read from or written to disk.

    Args:
        config: your RecBole config.
        model: your trained model; it is left as it is.
        data: (train, valid, test), as loaders from `data_preparation` or as datasets.
        forget: the request, as in :func:`run_unlearn`; timestamps as your dataset has them.
        method: the unlearning method; by default the quickest exact one for the model.
        optimizer: the optimizer that trained the model, for methods that read its state.
        **overrides: settings of the method or of the plugin.

    """
    ours = UnlearnConfig.from_recbole(config, unlearn=method, tensorboard=False, **overrides)
    cls = METHODS.get(ours["unlearn"])
    if cls.own_original:
        raise UnlearnError(
            f"{cls.name} trains several models from the start and cannot start from one in memory. "
            "Use run_unlearn, or another method."
        )
    options = checked_settings(cls, ours)
    forget_settings = settings.read(settings.ForgetSettings, ours)
    run = settings.read(settings.RunSettings, ours)
    nothing_kept = dataclasses.replace(settings.read(settings.CacheSettings, ours), cache=False)
    full = datasets.Splits(*(getattr(part, "_dataset", part) for part in data))
    if ours["MODEL_TYPE"] == ModelType.SEQUENTIAL:  # of windows
        full = datasets.SequenceSplits.of(datasets.Sequences.recovered(full))
    request = datasets.read_request(forget, datasets.Fields.of(ours))
    divided = datasets.divide(full, datasets.locate(request, full, forget_settings.on_missing), "python")
    moments = None if optimizer is None else optimizer.state_dict()
    original = Trained(on_cpu(model.state_dict()), moments, copy.deepcopy(other_parameters(model)), -1)
    with own_environment(), tempfile.TemporaryDirectory() as work:
        use_threads(ours, full.train)
        ours = ours.replace(checkpoint_dir=work, output_dir=None)
        trainings = Trainings(nothing_kept, run.threads)
        trainer, task = begin(cls, options, ours, divided, original, trainings, "unlearned")
        finished = trainer.run(task) if len(divided.forget) else trainer.keep(task)
        return Unlearned(trainer.model, divided, datasets.loaders(ours, divided.retain), finished.seconds or 0.0)
