"""Values of RecBole's own settings that no run could take, refused before anything is loaded or trained.

RecBole checks few of them: a word where it needs a number ends in the middle of a training, a batch of 0 rows never
ends at all, and a validation metric that is not measured is missed after the first epoch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from typing import Any

from recbole.config import Config

from recbole_unlearn.errors import UnlearnError

# The least value of whole numbers, and of others.
_WHOLE = {
    "epochs": 1, "train_batch_size": 1, "eval_batch_size": 1, "embedding_size": 1, "stopping_step": 0, "seed": 0,
    "n_layers": 0,
}  # fmt: skip
_NUMBERS = {"weight_decay": 0.0, "learning_rate": 0.0, "dropout_prob": 0.0, "reg_weight": 0.0}


def refuse_impossible(
    given: Mapping[str, Any], defaults: Mapping[str, Any], others: Collection[str] = ()
) -> None:
    """Refuse a value in ``given`` that is not of the kind of its default, or below its least; not of ``others``."""
    for key, value in given.items():
        if key not in others and (expected := _expected(key, value, defaults.get(key))):
            raise UnlearnError(f"{key}={value!r} is not valid: expected {expected}.")


def _expected(key: str, value: Any, default: Any) -> str | None:
    """What should stand in the place of ``value``; None when it may stay."""
    if isinstance(default, bool):
        return (
            None if value is None or value in (True, False) else "True or False"
        )  # also 1 and 0, as in RecBole
    if key in _WHOLE:
        fits = isinstance(value, Integral) and not isinstance(value, bool) and value >= _WHOLE[key]
        return None if fits else f"a whole number, {_WHOLE[key]} or more"
    if not isinstance(default, Real):
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        return "a number"
    if value < _NUMBERS.get(key, -math.inf):
        return f"a number, {_NUMBERS[key]:g} or more"
    return None


def refuse_unmeasured(config: Config) -> None:
    """Refuse a validation metric that is not among those that are measured."""
    metrics, topk = config["metrics"], config["topk"]
    name, at, cut = str(config["valid_metric"]).lower().partition("@")
    if name not in [metric.lower() for metric in metrics] or (at and cut not in map(str, topk)):
        raise UnlearnError(
            f"valid_metric={config['valid_metric']} is not measured, with metrics={metrics} and topk={topk}. "
            f"Use for example --valid_metric={metrics[0]}@{topk[-1]}, or add to --metrics and --topk."
        )
