"""Checkpoints of RecBole: read from any source without running code from them, and written for plain RecBole.

A checkpoint is checked once, here. It may say how a model was trained; it may not set anything of this plugin, name
a path or bring code, and settings that are not known are left out when the config is made. An unlearned model is
two files: the checkpoint, and the retained data it needs for its ids (`retained_data.py`). `load_data_and_model` of
plain RecBole takes both and gets the split they were evaluated with. Moments and cached embeddings are not written.
"""

import contextlib
import dataclasses
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import yaml
from recbole.config import Config
from recbole.data.dataset import Dataset
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.model.knowledge_aware_recommender.kgcn import KGCN
from recbole.utils import get_model

from recbole_unlearn import recbole_compat, settings
from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.files.atomic import write_torch
from recbole_unlearn.files.hash_keys import Done
from recbole_unlearn.files.retained_data import PARTS, Clock, write_dataset
from recbole_unlearn.files.safe_load import load_torch, only
from recbole_unlearn.files.safe_pickle import Global, RefusedError, StandIn
from recbole_unlearn.registry import METHODS
from recbole_unlearn.settings import UnlearnConfig, is_plain, plain_settings, read_json

LARGEST_NUMBER = 2**53  # of a setting
LARGEST_SIZE, MOST_LAYERS = 10_000, 100  # of a layer, unless the weights have a larger one; and how many
LONGEST_TEXT = 10_000
MOST_PARTS = 1_000_000  # shards of an ensemble
DATASET_DIGEST = "unlearn_dataset_sha256"  # in a checkpoint: the dataset file it belongs to
SCHEMA, HEAD = 1, "ensemble.json"
_SIZE = re.compile(r"size|dim|hidden|layers|factor|num|length", re.IGNORECASE)
_NEIGHBORS = ("adj_entity", "adj_relation")  # of KGCN, by entity: its sample of the knowledge graph
_FIT = "Give the dataset, data_path and settings that the checkpoint was trained with."


@dataclasses.dataclass
class Trained:
    """A trained model as data: what a checkpoint holds of it, apart from its settings."""

    state_dict: dict[str, torch.Tensor]
    optimizer: dict[str, Any] | None
    other_parameter: dict[str, Any]
    epoch: int
    seconds: float | None = None
    from_cache: bool = False

    def load_weights(self, model: AbstractRecommender) -> None:
        """Put these weights into ``model``, with the neighbors that KGCN sampled for them; its interactions stay."""
        try:
            model.load_state_dict(self.state_dict)
        except RuntimeError as error:
            first = str(error).splitlines()[1:2] or [str(error)]  # of torch's list
            raise UnlearnError(
                f"The weights do not fit the model and dataset: {first[0].strip():.300} {_FIT}"
            ) from error
        if isinstance(model, KGCN):
            model.load_other_parameter(_fitting({key: self.other_parameter.get(key) for key in _NEIGHBORS}, model))
        recbole_compat.clear_caches(model)

    def load_into(self, model: AbstractRecommender) -> None:
        """Make ``model``, built on the same interactions, this trained model."""
        self.load_weights(model)
        model.load_other_parameter(_fitting(self.other_parameter, model))
        recbole_compat.clear_caches(model)


def _fitting(other: dict[str, Any], model: AbstractRecommender) -> dict[str, Any]:
    """The attributes that ``model`` declares, of its own kinds and shapes: others would replace methods or layers."""
    limits = {}
    if isinstance(model, KGCN):
        limits = {"adj_entity": model.n_entities, "adj_relation": model.n_relations + 1}
    found = {}
    for name, own in recbole_compat.other_parameters(model).items():
        if name in other:
            value = other[name]
            fits = _is_like(value, own)
            if not fits or (name in limits and not 0 <= int(value.min()) <= int(value.max()) < limits[name]):
                raise UnlearnError(f"{name}, which the model keeps, does not fit the model and dataset. {_FIT}")
            found[name] = value.to(model.device) if isinstance(value, torch.Tensor) else value
    return found


def _is_like(value: Any, own: Any) -> bool:
    """Whether a value is of the kind and shape of ``own``; None is the largest count of a model that counts (Pop)."""
    if isinstance(own, torch.Tensor):
        same = isinstance(value, torch.Tensor) and (value.dtype, value.layout) == (own.dtype, own.layout)
    elif isinstance(own, np.ndarray):
        same = isinstance(value, np.ndarray) and value.dtype.kind == own.dtype.kind
    elif own is None:
        return value is None or (isinstance(value, torch.Tensor) and value.numel() == 1)
    else:
        same = sp.issparse(value) if sp.issparse(own) else isinstance(value, type(own))
    return same and np.shape(value) == np.shape(own)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as data: which model and dataset, with which settings, and the trained weights."""

    path: Path
    model: str
    dataset: str
    settings: dict[str, Any]
    trained: Trained | None  # None for an ensemble, which its method reads itself
    dataset_file: Path | None  # the retained data this plugin wrote next to it
    method: str | None = None  # of an ensemble: the method that trained it
    recorded_data_path: str | None = None  # where its data was, by its own account; never followed


def _require(fits: Any, path: Path, otherwise: str) -> None:
    if not fits:
        raise UnlearnError(f"{shown(path)} {otherwise}")


def find_unlearned(place: Path) -> Path:
    """The one unlearned model in a directory; a file, and the directory of an ensemble, are that already."""
    if place.is_file() or (place / HEAD).is_file():
        return place
    if not place.is_dir():
        raise UnlearnError(f"There is no file or directory {shown(place)}. Check the path.")
    found = [*place.glob("*-unlearned.pth"), *(head.parent for head in place.glob(f"*-unlearned/{HEAD}"))]
    _require(found, place, "holds no unlearned model (MODEL-unlearned.pth); give a run's output directory.")
    _require(len(found) == 1, place, f"holds {len(found)} unlearned models; give the path of one of them.")
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
        head = read_head(path)
        kept = _safe_settings(head["settings"], path, settings.names(METHODS.get(head["method"]).Settings))
        data = path / f"{head['dataset']}-Dataset.pth"
        return Checkpoint(path, head["model"], head["dataset"], kept, None, data, head["method"])
    content = load_torch(path, only(model))
    whole = isinstance(content, dict) and isinstance(content.get("state_dict"), dict)
    _require(whole, path, "is not a checkpoint of RecBole: it has no state_dict.")
    values = {k: v for k, v in _config_values(path, content).items() if isinstance(k, str) and is_plain(v)}
    trained = _trained(path, content)
    shapes = [weights.shape for weights in trained.state_dict.values() if weights.numel()]
    kept = _safe_settings(values, path, largest=max([LARGEST_SIZE, *(size for shape in shapes for size in shape)]))
    recorded = values.get("data_path")
    return Checkpoint(
        path, values["model"], values["dataset"], kept, trained,
        _dataset_of(path, values, content.get(DATASET_DIGEST)),
        recorded_data_path=recorded if isinstance(recorded, str) else None,
    )  # fmt: skip


def _config_values(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    config = content.get("config")
    state = config.state if isinstance(config, StandIn) else config
    values: Any = state.get("final_config_dict") if isinstance(state, dict) else None
    named = isinstance(values, dict) and all(isinstance(values.get(key), str) for key in ("model", "dataset"))
    _require(named, path, "does not say which model and dataset it is of; save it with RecBole's trainer.")
    return values


def _safe_settings(
    values: Mapping[str, Any], path: Path, own: Sequence[str] = (), largest: int = LARGEST_SIZE
) -> dict[str, Any]:
    """The settings in a file that say how a model was trained: no path, and of the plugin's settings only ``own``.

    A layer that is larger than any of the weights (``largest``) is refused: building it could take all memory.
    """
    ours = settings.own_settings().keys() - set(own) | {"worker"}  # processes of a loader: not as many as a file says
    kept = {}
    for key, value in plain_settings(values).items():
        if key not in ours and settings.about(key).role is not settings.Role.PLACE:
            _require(len(key) <= 100, path, f"has a setting {key[:100]!r}, which no training has.")
            most = MOST_LAYERS if key == "n_layers" else largest
            is_size = _SIZE.search(key) and "batch" not in key
            fits = _is_sensible(value, most if is_size else LARGEST_NUMBER, most)
            _require(
                fits, path, f"has {key}={str(value)[:100]}, larger than anything in its weights, or than people set."
            )
            kept[key] = value
    return kept


def _is_sensible(value: Any, most: int, most_inside: int, depth: int = 0) -> bool:
    """Whether a plain value is of a size that people set: a number up to ``most``, or in lists ``most_inside``."""
    if isinstance(value, (dict, list, tuple)):
        parts = value.values() if isinstance(value, dict) else value
        few = depth < 8 and len(value) < (1000 if isinstance(value, dict) else 100_000)
        return few and all(_is_sensible(part, most_inside, most_inside, depth + 1) for part in parts)
    if isinstance(value, str):
        drawn = re.fullmatch(r"(?:uni|pop)(\d{1,18})", value)  # items to rank a test item among
        return len(value) <= LONGEST_TEXT and (drawn is None or int(drawn[1]) <= most_inside)
    if isinstance(value, float):
        return abs(value) <= LARGEST_NUMBER or math.isinf(value)
    return not isinstance(value, int) or abs(value) <= most


def _trained(path: Path, content: Mapping[str, Any]) -> Trained:
    """The weights and the rest of a training; whether its optimizer can be used, methods that need it find out.

    SASRecF keeps a layer with its arrays and numbers; its weights are in the state_dict as well, and it is not read.
    """
    for name, value in content["state_dict"].items():
        tensor = isinstance(value, torch.Tensor) and value.layout == torch.strided
        _require(isinstance(name, str) and tensor, path, "has a state_dict of other than named tensors.")
        finite = not value.is_floating_point() or torch.isfinite(value).all()
        _require(finite, path, f"has weights {shown(name)} that are not finite; this model cannot be used.")
    epoch, optimizer = content.get("epoch", -1), content.get("optimizer")
    counted = type(epoch) is int and -1 <= epoch <= LARGEST_NUMBER
    _require(counted, path, "has an epoch that is not a number of epochs.")
    other, kept = content.get("other_parameter"), {}
    kinds = (torch.Tensor, np.ndarray, np.generic, sp.spmatrix, bool, int, float, str, type(None))
    known = other is None or isinstance(other, dict)
    for name, value in other.items() if isinstance(other, dict) else ():
        if not isinstance(value, StandIn) or value.maker.module != "recbole.model.layers":
            known = known and isinstance(name, str) and isinstance(value, kinds)
            kept[name] = value
    _require(known, path, "has other parameters that no model of RecBole keeps.")
    return Trained({**content["state_dict"]}, optimizer, kept, epoch)


def _dataset_of(path: Path, values: Mapping[str, Any], digest: Any) -> Path | None:
    """The saved dataset that an unlearned checkpoint with the settings ``values`` belongs to; None for any other.

    It is next to the checkpoint, whatever path that names, and has its ``digest``, which old versions lack.
    """
    recorded = values.get("dataset_save_path")
    if values.get("benchmark_filename") != PARTS or not isinstance(recorded, str):
        return None
    name = recorded.replace("\\", "/").rsplit("/", 1)[-1]
    fits = name and not name.startswith(".") and len(name) <= 255
    _require(fits, path, "does not say which dataset file in its directory it belongs to.")
    file = path.parent / name
    there = f"belongs to the dataset {shown(name)}, which is not in its directory. Copy both together."
    _require(file.is_file(), path, there)
    same = f"is not the dataset that {path.name} was written with, or damaged. Use both files of one run."
    _require(digest is None or digest == file_digest(file), file, same)
    return file


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_head(path: Path) -> dict[str, Any]:
    """The content of `ensemble.json` in ``path``; `methods/sharded/` writes and reads the rest of the directory."""
    file = path / HEAD
    _require(file.is_file(), path, f"is not the directory of an ensemble: it has no {HEAD}.")
    try:
        content = read_json(file)
    except ValueError as error:
        raise UnlearnError(f"{shown(file)} is damaged: it is not JSON. Use another copy.") from error
    known = isinstance(content, dict) and content.get("schema") == SCHEMA
    _require(known, file, f"is not of schema {SCHEMA}; it was written by another version.")
    kinds: dict[str, type] = dict.fromkeys(("method", "model", "dataset", "rows"), str)
    kinds |= {"settings": dict, "shards": int}
    for key, kind in kinds.items():
        _require(isinstance(content.get(key), kind), file, f"is damaged: {key} is missing or odd.")
    _require(Path(content["dataset"]).name == content["dataset"], file, "is damaged: dataset is a path.")
    _require(0 < content["shards"] <= MOST_PARTS, file, "is damaged: the number of shards is odd.")
    return {key: content[key] for key in kinds}


def load_for_recbole(path: Path, map_location: Any = None) -> Any:
    """The content that `torch.load` would give RecBole, with a live config, read without running code from ``path``.

    The config is a new one, with the settings of the file, on the device that this machine has. The class of the
    model is RecBole's, by its name; a class of your own comes from your script.
    """
    content = load_torch(path, lambda name: True)  # any class may be named; none is imported
    try:
        if isinstance(content, dict) and isinstance(content.get("config"), StandIn):
            values: dict[str, Any] = {}
            for key, value in _config_values(path, content).items():
                with contextlib.suppress(RefusedError):  # settings that only code could make are left out
                    values[key] = _live(value, None)
            content["config"] = _live_config(path, values, content.get(DATASET_DIGEST))
            map_location = content["config"]["device"] if map_location is None else map_location
        return _live(content, torch.device(map_location or "cpu"))
    except RefusedError as error:
        raise UnlearnError(
            f"{shown(path)} holds a {error}, which cannot be read without running code from the file. "
            "Keep arrays, tensors and plain data in a model's other_parameter."
        ) from error


def _live_config(path: Path, values: dict[str, Any], digest: Any) -> Config:
    dataset_file = _dataset_of(path, values, digest)
    if dataset_file is not None:  # an unlearned model: its data is in the same directory, wherever that is now
        values["dataset_save_path"], values["checkpoint_dir"] = str(dataset_file), str(dataset_file.parent)
    model_class = None  # a class of the user's own, which only their script has
    if values["model"] in settings.model_names():
        with recbole_compat.anomaly_mode_kept():
            model_class = get_model(values["model"])
    config = Config.__new__(Config)
    config.__dict__.update(
        final_config_dict=values, internal_config_dict={}, external_config_dict={}, model=values["model"],
        model_class=model_class, dataset=values["dataset"], yaml_loader=yaml.FullLoader,
    )  # fmt: skip
    config._init_parameters_category()
    recbole_compat.restore_numpy_names()
    config.compatibility_settings()
    is_gpu = str(values.get("gpu_id", "0")) and torch.cuda.is_available()  # as RecBole decides
    config["device"] = torch.device("cuda" if is_gpu else "cpu")
    return config


def _live(value: Any, device: torch.device | None) -> Any:
    """The same content with its tensors on ``device``; a description that only code could fulfil is refused."""
    if isinstance(value, StandIn) and value.maker == ("torch", "device") and isinstance(value.args[0], str):
        return torch.device("cuda" if value.args[0] == "cuda" and torch.cuda.is_available() else "cpu")
    if isinstance(value, (StandIn, Global)):
        raise RefusedError(str(value.maker if isinstance(value, StandIn) else value))
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _live(one, device) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_live(one, device) for one in value)
    return value


def write_model(
    directory: Path, home: Path, config: UnlearnConfig, trained: Trained, optimizer: dict[str, Any],
    parts: Sequence[Dataset], clock: Clock | None, fitted: np.ndarray | None = None, done: Sequence[Done] = (),
    windows: Sequence[Dataset] | None = None,
) -> str:  # fmt: skip
    """Write a checkpoint and the dataset it belongs to (train, valid, test); returns the checkpoint's name.

    ``home`` is the directory both are in at the end. ``optimizer`` is the state of one without memory: that of
    ``trained`` is not written. ``fitted``, ``done`` and ``windows`` are as in
    :func:`~recbole_unlearn.files.retained_data.write_dataset`.
    """
    name = f"{config['dataset']}-{type(parts[0]).__name__}.pth"
    plain = dataset_config(config, home, home / name)
    plain["device"] = torch.device("cpu")  # which every machine has, wherever it is opened
    write_dataset(directory / name, plain, parts, clock, fitted, done, windows)
    path = directory / f"{config['model']}-unlearned.pth"
    content = {
        "config": plain, "epoch": 0, "cur_step": 0,
        "best_valid_score": -np.inf if plain["valid_metric_bigger"] else np.inf,
        "state_dict": trained.state_dict, "other_parameter": trained.other_parameter, "optimizer": optimizer,
        DATASET_DIGEST: file_digest(directory / name),
    }  # fmt: skip
    write_torch(path, content)
    return path.name


def dataset_config(config: UnlearnConfig, directory: Path, dataset_file: Path) -> Config:
    """The settings with which plain RecBole finds ``dataset_file``, and nothing else."""
    # Should the saved dataset be missing, RecBole must fail rather than read or download the source again, which may
    # still hold the deleted interactions: the folder "." always exists, and has no atomic file of these names.
    return config.to_recbole(
        checkpoint_dir=str(directory), dataset_save_path=str(dataset_file), data_path=".", save_dataset=False,
        save_dataloaders=False, dataloaders_save_path=None, benchmark_filename=PARTS,
    )  # fmt: skip
