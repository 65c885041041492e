r"""An ensemble on disk: one directory, which the next request starts from.

    ensemble.json            method, model, dataset and settings, and how many shards and slices there are
    shard-K.safetensors      the initial weights of a shard, and those after each slice
    rule.safetensors         which shard and slice each retained interaction belongs to, and the weights of the rule
    DATASET-Dataset.pth      the retained interactions, in RecBole's format

Nothing in it is a pickle but the dataset, which is read without running code from it. It holds retained
interactions only, no optimizer moments, and no shard of orphans.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from recbole_unlearn.data import Splits, UnlearnData
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import (
    HEAD,
    SCHEMA,
    Stored,
    Trained,
    dataset_config,
    new_directory,
    read_head,
    write_bytes,
    write_dataset,
    write_json,
)
from recbole_unlearn.methods.sharded.ensemble import Ensemble
from recbole_unlearn.methods.sharded.partition import Partition
from recbole_unlearn.methods.sharded.shards import Shards, Weights
from recbole_unlearn.settings import UnlearnConfig, plain_settings

_RULE = "rule.safetensors"


def write(
    path: Path,
    home: Path,
    config: UnlearnConfig,
    method: str,
    shards: Shards,
    ensemble: Ensemble,
    data: UnlearnData,
) -> None:
    """Write an ensemble of the retain set; what was at ``path`` is replaced when all is written.

    ``home`` is where it is in the end.
    """
    partition = shards.partition
    with new_directory(path) as folder:
        for shard, steps in enumerate(shards.steps):
            named = {"initial": shards.initial[shard]}
            named |= {f"slice-{k}": trained.state_dict for k, trained in enumerate(steps)}
            _save(folder / f"shard-{shard}.safetensors", named)
        places = {"rows": partition.interactions, "slices": shards.slices}
        places |= {"users": partition.users} if partition.users is not None else {}
        places |= {"items": partition.items} if partition.items is not None else {}
        _save(folder / _RULE, {"partition": places, "rule": ensemble.own_state()})
        stored = Stored(
            home, method, config["model"], config["dataset"],
            plain_settings(config.to_recbole().final_config_dict) | config.method_values(method),
            partition.number, shards.depth, _digest(data.retain),
        )  # fmt: skip
        plain = dataset_config(config, home, stored.dataset_file)
        write_dataset(folder / stored.dataset_file.name, plain, data.retain, data.clock, done=data.done)
        head = {f.name: getattr(stored, f.name) for f in dataclasses.fields(stored) if f.name != "path"}
        write_json(folder / HEAD, {"schema": SCHEMA, **head, "settings": _without_paths(stored.settings)})


def read(path: Path, config: UnlearnConfig, splits: Splits) -> tuple[Shards, Weights]:
    """The shards of an ensemble of ``splits``, and the weights of its rule."""
    stored = read_head(path)
    if stored.rows != _digest(splits):
        raise UnlearnError(
            f"{path} is of other interactions than its dataset file holds. Use the directory as it was written."
        )
    groups = _load(path / _RULE)
    places = groups.get("partition", {})
    number = len(splits.train)
    for name in ("rows", "slices"):
        if name not in places or places[name].shape != (number,):
            raise UnlearnError(f"{path / _RULE} is damaged: {name} does not fit the {number} interactions.")
    partition = Partition(stored.shards, places["rows"], places.get("users"), places.get("items"))
    initial, steps = [], []
    for shard in range(stored.shards):
        named = _load(path / f"shard-{shard}.safetensors")
        wanted = ["initial", *(f"slice-{k}" for k in range(stored.slices))]
        if sorted(named) != sorted(wanted):
            raise UnlearnError(
                f"{path / f'shard-{shard}.safetensors'} is damaged: it does not hold all slices."
            )
        initial.append(named["initial"])
        steps.append([Trained(named[key], None, {}, -1) for key in wanted[1:]])
    return Shards(config, partition, places["slices"], stored.slices, initial, steps), groups.get("rule", {})


def _digest(splits: Splits) -> str:
    """A digest of the users and items of the training interactions, in their order."""
    digest = hashlib.sha256()
    for field in (splits.train.uid_field, splits.train.iid_field):
        digest.update(splits.train.inter_feat[field].to(torch.int64).contiguous().numpy().tobytes())
    return digest.hexdigest()


def _without_paths(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if not key.endswith(("_path", "_dir"))}


def _save(path: Path, groups: dict[str, Weights]) -> None:
    """Tensors by group and name; a name may hold dots, a group may not."""
    flat = {
        f"{group}.{name}": value.detach().cpu().contiguous().clone()
        for group, named in groups.items()
        for name, value in named.items()
    }
    write_bytes(path, save(flat))


def _load(path: Path) -> dict[str, Weights]:
    try:
        flat = load_file(path)
    except (SafetensorError, OSError) as error:
        raise UnlearnError(f"Cannot read {path}: {error}. Use another copy of the ensemble.") from error
    groups: dict[str, Weights] = {}
    for name, value in flat.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise UnlearnError(f"{path}: the weights {name} are not finite; this ensemble cannot be used.")
        group, _, own = name.partition(".")
        groups.setdefault(group, {})[own] = value
    return groups
