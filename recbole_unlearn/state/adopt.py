"""A model that was trained elsewhere as the base of a state: the first, or the next with the data of a new week.

The next is taken only if no deleted pair is in its data, and none that is asked for. Then it answers every request
that is not published yet, pending ones too: it was trained without what they ask for, and all are published. Users
and items have the numbers of the new data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recbole.utils import ModelType

from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.files import Checkpoint, read_checkpoint
from recbole_unlearn.quick_start import configured
from recbole_unlearn.settings import Role, UnlearnConfig, about
from recbole_unlearn.state.context import Core
from recbole_unlearn.state.database import ADOPTED, NOT_FINAL
from recbole_unlearn.state.deltas import NewBase
from recbole_unlearn.state.live import load_trained
from recbole_unlearn.state.publish import final, replace_base
from recbole_unlearn.state.verify import deleted_in


def opened(path: str | Path, model: type | None, settings: Mapping[str, Any]) -> tuple[UnlearnConfig, Checkpoint]:
    """A checkpoint that a state can take, and its config."""
    original = read_checkpoint(path, model)
    if original.trained is None:
        raise UnlearnError(
            f"{shown(path)} is an ensemble of {original.method}, which starts shards again for every request. "
            "A state takes one model; use run_unlearn.py."
        )
    config = configured(model, None, [], {**settings, "unlearn": "obliviate"}, original)
    if config["MODEL_TYPE"] in (ModelType.KNOWLEDGE, ModelType.SEQUENTIAL):
        raise UnlearnError(
            f"{original.model} is a {config['MODEL_TYPE'].name.lower()} model, and a state keeps neither histories "
            "nor a graph. Use run_unlearn.py with --checkpoint, one request after the other."
        )
    return config, original


def described(original: Checkpoint, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a state says about its model; no path is kept, except for the GPU that the state is worked on with."""
    own = {key: v for key, v in settings.items() if key == "gpu_id" or about(key).role is not Role.PLACE}
    return {"model": original.model, "dataset": original.dataset, "settings": original.settings, "own": own}


def taken(core: Core, config: UnlearnConfig, original: Checkpoint, said: Mapping[str, Any]) -> tuple[NewBase, bool]:
    """The base of a checkpoint, refused if the weights do not fit the data; and whether it is exact."""
    trained = original.trained
    assert trained is not None
    source, moments = load_trained(config, trained, original.dataset_file)
    # A model that was trained on the data it has has no counts of earlier interactions.
    exact = source.fitted is None or config["MODEL_TYPE"] == ModelType.TRADITIONAL
    own = core.configured(said)
    return NewBase(own, trained.state_dict, moments, source), exact


def adopt(core: Core, path: str | Path, data_path: str | Path | None) -> int:
    """Make a checkpoint the base of a state that is in use; returns how many requests it answers."""
    own = core.about("own")
    config, original = opened(path, core.model, own if data_path is None else {**own, "data_path": str(data_path)})
    if original.model != core.about("model"):
        raise UnlearnError(
            f"{shown(path)} is a {original.model}, and the state has a {core.about('model')}. Make a new state of it."
        )
    said = described(original, own)
    new, exact = taken(core, config, original, said)
    last = core.database.newest()
    if found := sum(deleted_in(core.suppression(), new.data.splits).values()):
        raise UnlearnError(
            f"The data of {shown(path)} has {found} pairs that were deleted or are asked for. Delete them at the "
            "source, and train again; `requests check` counts them in a file. The state is unchanged."
        )
    change = final(core, None).change
    return replace_base(
        core, ADOPTED, core.at(change), change, new, NOT_FINAL, about=said,
        outdated=lambda: core.database.newest() != last, exact=exact,
    )  # fmt: skip
