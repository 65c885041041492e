"""Taking a model under care: its weights, second moments and data become the base of a new state."""

from __future__ import annotations

import glob
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recbole.utils import ModelType

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import new_directory, read_checkpoint, remove_stale
from recbole_unlearn.inputs import shown
from recbole_unlearn.session import check_methods, configured
from recbole_unlearn.settings import GROUPS, Role, about, declared
from recbole_unlearn.state.base import read_original, squared_norm, versions, write_base
from recbole_unlearn.state.context import FILES, Core
from recbole_unlearn.state.store import sync

logger = logging.getLogger(__name__)

_NOT_KEPT = {
    ModelType.KNOWLEDGE: "knowledge-aware model, and a state does not keep a graph",
    ModelType.SEQUENTIAL: "sequential model, and a state does not keep histories",
}


def begin(
    folder: Path,
    checkpoint: str | Path,
    values: Mapping[str, Any],
    hash_key: str | Path | None,
    model: type | None = None,
) -> None:
    """Make a state of a checkpoint of RecBole, or of this plugin's output; ``values`` are further settings."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UnlearnError(f"{shown(folder)} exists already. Choose another directory for the state.")
    _refuse_settings_of_a_run(values)
    original = read_checkpoint(checkpoint, model)
    if original.trained is None:
        raise UnlearnError(
            f"{shown(checkpoint)} is an ensemble of {original.method}, which starts shards again for every request. "
            "A state takes one model; use run_unlearn.py."
        )
    config = configured(model, None, [], {**values, "unlearn": "obliviate"}, original)
    check_methods(config)
    if config["MODEL_TYPE"] in _NOT_KEPT:
        raise UnlearnError(
            f"{original.model} is a {_NOT_KEPT[config['MODEL_TYPE']]}. Use run_unlearn.py with --checkpoint, one "
            "request after the other."
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or error
        raise UnlearnError(f"Cannot make {shown(folder.parent)}: {why}. Choose another directory.") from error
    remove_stale(folder.parent, f".{glob.escape(folder.name)}.*.tmp")  # of an `init` that was killed
    with new_directory(folder) as place:
        source, moments = read_original(config, original)
        (place / FILES).mkdir()
        core = Core(place, hash_key, model, new=True)
        try:
            about_it = {
                "model": original.model,
                "dataset": original.dataset,
                "settings": original.settings,
                "own": {key: value for key, value in values.items() if _is_kept(key)},
            }
            with core.database.transaction() as connection:
                connection.executemany(
                    "INSERT INTO about VALUES (?, ?)",
                    ((key, json.dumps(value)) for key, value in about_it.items()),
                )
            weights = original.trained.state_dict
            base = write_base(core, weights, moments, source.splits, source.clock, source.fitted)
            with core.database.transaction() as connection:
                connection.execute(
                    "INSERT INTO base VALUES (1, ?, ?, ?, ?, ?, ?, 0)",
                    (*base, base.fingerprint, len(source.splits.train), squared_norm(weights)),
                )  # fmt: skip
                core.enter(
                    connection, "taken under care", model=original.model, dataset=original.dataset,
                    interactions=sum(len(part) for part in source.splits), after=base.fingerprint,
                    versions=versions(),
                )  # fmt: skip
            core.database.wipe()
        finally:
            core.database.close()
        sync(place)
    sync(folder.parent)


def _is_kept(key: str) -> bool:
    """Whether a setting goes into the state: no path does, but the state is worked on by the GPU it was made with."""
    return key == "gpu_id" or about(key).role is not Role.PLACE


def _refuse_settings_of_a_run(values: Mapping[str, Any]) -> None:
    """A state reads settings of obliviate and of RecBole; what a run of its own would do has no meaning for it."""
    for key in values:
        if any(key in declared(group) for group in GROUPS.values()):
            raise UnlearnError(
                f"{key} is a setting of run_unlearn.py and has no meaning for a state. Leave it out; settings of "
                "obliviate and of RecBole are taken."
            )
