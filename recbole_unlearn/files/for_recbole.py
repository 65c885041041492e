"""A checkpoint in the form in which RecBole's own code reads it, made from data alone.

RecBole expects a live `Config` in its checkpoints. The safe reader has a description in its place; here a new one is
made from the settings in it, on the device that this machine has. Nothing that the file names is imported: the class
of the model is RecBole's, by its name, and a class of your own comes from your script.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from recbole.config import Config
from recbole.utils import EvaluatorType, InputType, ModelType, get_model
from recbole.utils import argument_list as arguments

from recbole_unlearn import recbole_compat
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import unpickle
from recbole_unlearn.files.checkpoint import dataset_beside
from recbole_unlearn.files.export import DATASET_DIGEST
from recbole_unlearn.files.pickles import Made, Name
from recbole_unlearn.inputs import shown
from recbole_unlearn.settings import model_names

_ENUMS = {"ModelType": ModelType, "InputType": InputType, "EvaluatorType": EvaluatorType}


def load_for_recbole(path: Path, map_location: Any = None) -> Any:
    """What `torch.load` would give RecBole for ``path``, read without running code from it."""
    content = unpickle.load_torch(path, lambda name: True)  # any class may be named; none is imported
    config = content.get("config") if isinstance(content, dict) else None
    if isinstance(config, Made):
        content["config"] = _config(path, config, content.get(DATASET_DIGEST))
        if map_location is None:
            map_location = content["config"]["device"]
    return _moved(path, content, torch.device(map_location or "cpu"))


def _config(path: Path, described: Made, digest: Any) -> Config:
    """A config with the settings of the one that is described."""
    state = described.state if isinstance(described.state, dict) else {}
    values = state.get("final_config_dict")
    if not isinstance(values, dict) or not isinstance(values.get("model"), str):
        raise UnlearnError(
            f"{shown(path)}: its config has no settings. Save the checkpoint again with RecBole."
        )
    built = {
        key: value for key, value in ((k, _value(v)) for k, v in values.items()) if value is not _NOTHING
    }
    beside = dataset_beside(path, built, digest)
    if beside is not None:  # an unlearned model: its data is beside it, wherever both are now
        built["dataset_save_path"], built["checkpoint_dir"] = str(beside), str(beside.parent)
    config = Config.__new__(Config)
    config.__dict__.update(
        final_config_dict=built, internal_config_dict={}, external_config_dict={}, model=built["model"],
        model_class=_class_of(built["model"]), dataset=built.get("dataset"), yaml_loader=yaml.FullLoader,
        parameters={
            "General": arguments.general_arguments, "Training": arguments.training_arguments,
            "Evaluation": arguments.evaluation_arguments, "Dataset": arguments.dataset_arguments,
        },
    )  # fmt: skip
    recbole_compat.restore_numpy_names()
    config.compatibility_settings()
    return config


def _class_of(model: str) -> type | None:
    """RecBole's class of a model; None for somebody's own, which only their script has."""
    if model not in model_names():
        return None
    with recbole_compat.anomaly_mode_kept():
        return get_model(model)


_NOTHING = object()


def _value(value: Any) -> Any:
    """A setting: plain data, one of RecBole's words, or a device; `_NOTHING` for what only code could make."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Made):
        return _made(value)
    if isinstance(value, dict):
        pairs = {key: _value(one) for key, one in value.items()}
        return _NOTHING if any(one is _NOTHING for one in pairs.values()) else pairs
    if isinstance(value, (list, tuple)):
        several = [_value(one) for one in value]
        return _NOTHING if any(one is _NOTHING for one in several) else type(value)(several)
    return value if value is None or type(value) in (bool, int, float, str) else _NOTHING


def _made(made: Made) -> Any:
    module, name = made.maker
    if module == "recbole.utils.enum_type" and name in _ENUMS and len(made.args) == 1:
        return _ENUMS[name](made.args[0])
    if (module, name) == ("torch", "device") and made.args and isinstance(made.args[0], str):
        cuda = made.args[0] == "cuda" and torch.cuda.is_available()
        return torch.device("cuda" if cuda else "cpu")
    return _NOTHING


def _moved(path: Path, content: Any, device: torch.device) -> Any:
    """The same content with its tensors on ``device``; a description has no place in it."""
    if isinstance(content, (Made, Name)):
        what = content.maker if isinstance(content, Made) else content
        raise UnlearnError(
            f"{shown(path)} holds a {what!s:.200}, which cannot be read without running code from the file. "
            "Keep arrays, tensors and plain data in a model's other_parameter."
        )
    if isinstance(content, torch.Tensor):
        return content.to(device)
    if isinstance(content, dict):
        return {key: _moved(path, value, device) for key, value in content.items()}
    if type(content) in (list, tuple):
        return type(content)(_moved(path, value, device) for value in content)
    return content
