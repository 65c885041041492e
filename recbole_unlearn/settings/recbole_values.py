"""RecBole's own settings: what each accepts, and what it decides; one line a key.

RecBole checks few of its settings: a word where it needs a number ends in the middle of a training, a batch of
0 never ends at all, and a validation metric that is not measured is missed after the first epoch. So values
that no run could take are refused here, before anything is loaded or trained. A key that is not listed is an
ordinary setting: it decides what comes out, and its kind is that of its default.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

from recbole.config import Config

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.settings.declare import Role


class Known(NamedTuple):
    """What there is to know of a key."""

    low: float | None = None  # its least value
    whole: bool = False  # a whole number
    role: Role = Role.RESULT
    trains: bool = True  # False when it changes nothing in a trained model
    derived: bool = (
        False  # RecBole works it out for one process on one machine; never carried to another config
    )
    per_run: bool = True  # as in `declare.setting`


RECBOLE: dict[str, Known] = {
    # Numbers with limits.
    "epochs": Known(1, whole=True),
    "train_batch_size": Known(1, whole=True),
    "eval_batch_size": Known(1, whole=True, trains=False, derived=True),
    "embedding_size": Known(1, whole=True),
    "stopping_step": Known(0, whole=True),
    "seed": Known(0, whole=True, role=Role.SUBJECT),
    "n_layers": Known(0, whole=True),
    "train_rec_step": Known(1, whole=True),
    "train_kg_step": Known(0, whole=True),
    "weight_decay": Known(0.0),
    "learning_rate": Known(0.0),
    "dropout_prob": Known(0.0),
    "reg_weight": Known(0.0),
    # Where things are.
    "data_path": Known(role=Role.PLACE, trains=False),
    "checkpoint_dir": Known(role=Role.PLACE, trains=False, derived=True),
    "config_files": Known(role=Role.PLACE, trains=False, derived=True, per_run=False),
    "dataset_save_path": Known(trains=False, derived=True),  # a run always has it empty
    "dataloaders_save_path": Known(trains=False, derived=True),  # a run always has it empty
    "config_file": Known(role=Role.PLACE, derived=True),
    "gpu_id": Known(role=Role.PLACE, trains=False, derived=True),
    # Files that models open. Their weights depend on them, so they are part of a cache's key.
    **{
        key: Known(role=Role.PLACE)
        for key in (
            "pre_model_path", "pretrain_path", "mf_pretrain_path", "mlp_pretrain_path", "warm_up", "xgb_model",
            "lgb_model",
        )
    },
    # What is kept and shown, and on what it runs.
    "save_dataset": Known(trains=False, derived=True),
    "save_dataloaders": Known(trains=False, derived=True),
    "show_progress": Known(role=Role.SPEED, trains=False, derived=True, per_run=False),
    "state": Known(role=Role.SPEED, trains=False, derived=True),
    "use_gpu": Known(role=Role.SPEED, trains=False),
    "log_wandb": Known(trains=False, derived=True),
    "wandb_project": Known(trains=False),
    "loss_decimal_place": Known(trains=False),
    "worker": Known(trains=False),
    # What RecBole works out.
    "model": Known(role=Role.SUBJECT, derived=True),
    "dataset": Known(role=Role.SUBJECT, derived=True),
    "device": Known(role=Role.PLACE, derived=True),
    "single_spec": Known(role=Role.PLACE, derived=True),
    "local_rank": Known(role=Role.PLACE, derived=True),
    "test_neg_sample_args": Known(trains=False, derived=True),
    **{  # fields that transforms of histories add
        key: Known(role=Role.PLACE, trains=False, derived=True)
        for key in ("MASK_INDEX", "MASK_ITEM_SEQ", "POS_ITEMS", "NEG_ITEMS", "INVERSE_ITEM_SEQ")
    },
    **{
        key: Known(derived=True)
        for key in (
            "MODEL_TYPE", "MODEL_INPUT_TYPE", "eval_type", "valid_metric_bigger", "valid_neg_sample_args",
            "nproc", "world_size", "offset", "ip", "port",
        )
    },
}  # fmt: skip

# RecBole reads these keys although none of its property files names them.
_TEACHERS = ("CrossNet", "CIN", "CINComp", "DAGFM")  # of KD_DAGFM
UNLISTED = {"model", "dataset", "encoding", "config_files", "eval_type"}


def refuse_impossible(
    given: Mapping[str, Any], defaults: Mapping[str, Any], others: Collection[str] = ()
) -> None:
    """Refuse a value in ``given`` of another kind than its default or below its least; ``others`` are not checked."""
    for key, value in given.items():
        if key not in others and (expected := _expected(key, value, defaults.get(key))):
            raise UnlearnError(f"{key}={value!r} is not valid: expected {expected}.")


def _expected(key: str, value: Any, default: Any) -> str | None:
    """What would be accepted instead of ``value``; None when it may stay."""
    known = RECBOLE.get(key, Known())
    if isinstance(default, bool):
        fits = value is None or value in (True, False)  # also 1 and 0, as in RecBole
        return None if fits else "True or False"
    if isinstance(default, str) and key != "gpu_id":  # people write 0 for it, and RecBole takes that
        return None if value is None or isinstance(value, str) else "a word"
    if isinstance(default, dict):
        return None if value is None or isinstance(value, dict) else "a mapping"
    if isinstance(default, list):
        fits = isinstance(value, (list, tuple, str, type(None), Integral)) and not isinstance(value, bool)
        return None if fits else "a list"
    if known.whole:
        fits = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= (known.low or 0)
        return None if fits else f"a whole number, {known.low:g} or more"
    if not isinstance(default, Real):
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        return "a number"
    if known.low is not None and value < known.low:
        return f"a number, {known.low:g} or more"
    return None


def refuse_paths(config: Config) -> None:
    """Refuse parts of file names that are none: RecBole puts them into the names of the files that it opens."""
    for key in ("benchmark_filename", "additional_feat_suffix"):
        names = config[key] or []
        names = [names] if isinstance(names, str) else names
        fits = isinstance(names, (list, tuple)) and all(
            isinstance(name, str) and re.fullmatch(r"\w[\w.+-]{0,99}", name) for name in names
        )
        if not fits:
            raise UnlearnError(
                f"{key}={config[key]!r} is not valid: expected a list of names, without paths."
            )


def refuse_code(config: Config) -> None:
    """Refuse a value that RecBole would evaluate as code: KD_DAGFM calls `eval` on the name of its teacher."""
    if config["model"] == "KD_DAGFM" and config["teacher"] not in _TEACHERS:
        raise UnlearnError(f"teacher={config['teacher']!r} is not valid: choose from {', '.join(_TEACHERS)}.")


def refuse_unmeasured(config: Config) -> None:
    """Refuse a validation metric that is not among those that are measured."""
    metrics, topk = config["metrics"], config["topk"]
    if not metrics or not topk:
        raise UnlearnError(
            "metrics and topk are empty, so nothing is measured. Use for example --metrics=NDCG."
        )
    name, at, cut = str(config["valid_metric"]).lower().partition("@")
    if name not in [metric.lower() for metric in metrics] or (at and cut not in map(str, topk)):
        raise UnlearnError(
            f"valid_metric={config['valid_metric']} is not measured, with metrics={metrics} and topk={topk}. "
            f"Use for example --valid_metric={metrics[0]}@{topk[-1]}, or add to --metrics and --topk."
        )
