"""From the arguments of a caller to a pipeline that is ready to run: settings, output directory, log and threads."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import torch
from recbole.utils import get_local_time

from recbole_unlearn import files, settings
from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.files import Checkpoint
from recbole_unlearn.log import logging_to
from recbole_unlearn.pipeline import Pipeline, planned_methods
from recbole_unlearn.recbole_compat import own_environment, own_randomness
from recbole_unlearn.registry import METHODS
from recbole_unlearn.results.trackers import refuse_missing
from recbole_unlearn.settings import UnlearnConfig

Request: TypeAlias = str | Path | pd.DataFrame | dict | tuple


@contextlib.contextmanager
def opened(
    model: str | type | None = None, dataset: str | None = None, *, forget: Request | None = None,
    unlearn: str | None = None, compare: str | Sequence[str] | None = None, checkpoint: str | Path | None = None,
    config_files: Sequence[str] | None = None, output_dir: str | Path | None = None,
    config_dict: dict[str, Any] | None = None, as_one: bool = True,
) -> Iterator[tuple[Pipeline, Any]]:  # fmt: skip
    """A pipeline with its directory, log and threads, and the request; arguments have priority over ``config_dict``.

    With ``as_one`` the files of a run appear together when it has ended; a sweep writes its files one by one.
    Everything that can be refused without reading the data is refused here, before a file is written.
    """
    values = dict(config_dict or {})
    if not isinstance(values.get("forget", ""), str):  # the message must not print its values
        raise UnlearnError(
            "forget in config_dict has to be the name of a file. Give Python data as run_unlearn(forget=...)."
        )
    is_name = forget is None or isinstance(forget, (str, Path))
    named: dict[str, Any] = {"unlearn": unlearn, "checkpoint": checkpoint, "output_dir": output_dir}
    named |= {"forget": forget if is_name else None}
    values |= {key: str(value) for key, value in named.items() if value is not None}
    values |= {} if compare is None else {"compare": settings.as_list(compare)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(own_environment())
        model = model or values.get("model")
        own = model if isinstance(model, type) else None
        original = files.read_checkpoint(values["checkpoint"], own) if values.get("checkpoint") else None
        config = configured(model, dataset, list(config_files or []), values, original)
        check_methods(config)
        refuse_missing(config)
        run = settings.read(settings.RunSettings, config)
        cache = settings.read(settings.CacheSettings, config)
        name = f"{config['model']}-{config['dataset']}-{config['unlearn']}-{get_local_time()}"
        directory = Path(run.output_dir or Path("saved") / name)
        files.refuse_overwriting(directory, config, original.path if original else None)
        if as_one:
            files.refuse_result(directory, run.replace)
            place, home = stack.enter_context(files.staged(directory))
        else:
            place = home = stack.enter_context(files.made(directory))
            stack.enter_context(files.claimed(home))
        if cache.cache:
            stack.enter_context(files.made(cache.cache_dir))
        stack.enter_context(own_randomness())
        stack.enter_context(own_threads(run.threads))
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
            if pipeline is None or not pipeline.has_worked:  # a refusal leaves no file
                log.take_back()
            raise


def check_methods(config: UnlearnConfig) -> None:
    """Refuse settings that the run or one of its methods cannot run with."""
    for group in settings.GROUPS.values():
        settings.read(group, config)
    planned_methods(config)


def configured(
    model: str | type | None, dataset: str | None, config_files: list[str], values: dict[str, Any],
    checkpoint: Checkpoint | None,
) -> UnlearnConfig:  # fmt: skip
    """The config of a run; a checkpoint determines model and dataset."""
    if checkpoint is None:
        return UnlearnConfig(model, dataset, config_files, values)
    path = shown(checkpoint.path)
    for key, given, own in (("model", model, checkpoint.model), ("dataset", dataset, checkpoint.dataset)):
        given = given or values.get(key)
        name = given.__name__ if isinstance(given, type) else given
        if name is not None and name != own:
            raise UnlearnError(
                f"{path} is of the {key} {own}, not {name}: leave --{key} out, or give the right checkpoint."
            )
    model = model or checkpoint.model
    config = UnlearnConfig(model, checkpoint.dataset, config_files, values, inherited=checkpoint.settings)
    _refuse_unnamed_data(config, checkpoint)
    method = config["unlearn"]
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
    return config


def _refuse_unnamed_data(config: UnlearnConfig, checkpoint: Checkpoint) -> None:
    """Refuse to guess the data path: a path inside a checkpoint is not followed, so the user has to give it."""
    recorded = checkpoint.recorded_data_path
    if checkpoint.dataset_file is not None or recorded is None or "data_path" in config.external_config_dict:
        return
    ours, theirs = Path(config["data_path"]), Path(recorded)
    if ours.parts[-2:] != theirs.parts[-2:] and ours.resolve() != theirs.resolve():
        folder = theirs.parent if theirs.name == checkpoint.dataset else theirs
        raise UnlearnError(
            f"The data of {shown(checkpoint.path)} was in {shown(theirs)}, and paths are not taken from files. "
            f"Add --data_path={shown(folder)} if that is where it is."
        )


@contextlib.contextmanager
def own_threads(number: int) -> Iterator[None]:
    """Use ``number`` threads of torch in the block, and restore the caller's number."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
