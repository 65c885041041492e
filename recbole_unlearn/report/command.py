"""The command that repeats a run, from what its result.json says.

A result says what was run and with which settings, but no places: a request file, a checkpoint and the folder of the
data are somebody's own. FILE stands for them. Of the settings, those are in the command that decide a figure and
differ from what a run has by itself.
"""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Iterator
from typing import Any

from recbole_unlearn.data import INJECTED
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.report.values import flat, names_a_path
from recbole_unlearn.results import ORIGINAL, RETRAINED, UNLEARNED, PhaseResult, RunResult, in_order
from recbole_unlearn.settings import (
    Known,
    Role,
    UnlearnConfig,
    about,
    model_names,
    own_settings,
    parse_value,
)

PROGRAM = ("python", "-m", "recbole_unlearn")
_ANY = "BPR"  # whose defaults serve for a model that RecBole does not ship
_MEASURED = ("topk", "metrics")  # settings of RecBole that a run from a checkpoint may have of its own


class _Defaults(UnlearnConfig):
    """A config that is only looked at: it takes no device, and leaves the environment as it is."""

    def _init_device(self) -> None:
        pass


def command(result: RunResult) -> str | None:
    """The command line for bash; None where the result does not say enough."""
    if not (result.model and result.dataset and result.method):
        return None
    loaded = _is_loaded(result)
    parts = [] if loaded else [_option("model", _model(result.model)), _option("dataset", result.dataset)]
    parts += ["--checkpoint=FILE"] if loaded else []
    parts += [_option("unlearn", result.method)]
    source = result.forget.source or ""
    parts += [] if source.startswith(INJECTED) else ["--forget=FILE"]
    if compared := _compared(result):
        parts.append(_option("compare", ",".join(compared)))
    if result.seed is not None and not loaded:  # a checkpoint has its own
        parts.append(_option("seed", str(result.seed)))
    return " ".join([*PROGRAM, *parts, *(_option(*pair) for pair in _own(result, loaded))])


def _is_loaded(result: RunResult) -> bool:
    """Whether the original came from a checkpoint, and was not trained."""
    original = result.phases.get(ORIGINAL)
    return original is not None and original.seconds is None


def _model(name: str) -> str:
    return name if name in model_names() else f"PACKAGE.MODULE:{name}"


def _compared(result: RunResult) -> list[str]:
    """The methods beside the first one, under the names they were asked for."""
    names = [name for name in in_order(result.phases) if name not in (ORIGINAL, UNLEARNED)]
    retrained = result.phases.get(RETRAINED, PhaseResult())
    if retrained.metrics == result.unlearned.metrics and retrained.seconds == result.unlearned.seconds:
        names = [name for name in names if name != RETRAINED]  # the method is retraining itself
    return ["retrain" if name.startswith(RETRAINED) else _method(name) for name in names]


def _method(phase: str) -> str:
    """The method of a phase: finetune of finetune_2, which is its second time."""
    name, _, number = phase.rpartition("_")
    return name if name and number.isdecimal() else phase


def _own(result: RunResult, loaded: bool) -> Iterator[tuple[str, str]]:
    """The settings that decide a figure and are not what they would be anyway."""
    usual = _usual(str(result.model), str(result.dataset), str(result.method))
    own = own_settings()
    for key, value in result.settings.items():
        known = about(key)
        if known.role is not Role.RESULT or (isinstance(known, Known) and known.derived):
            continue
        if any(names_a_path(part) for _, part in flat({key: value})):
            continue
        if loaded and key not in own and key not in _MEASURED:
            continue
        if key not in usual or usual[key] != value:
            yield key, _written(value, key in own and own[key].is_name)


@functools.lru_cache(maxsize=64)
def _usual(model: str, dataset: str, method: str) -> dict[str, Any]:
    """The settings of a run of which only model, dataset and method are given."""
    known = model if model in model_names() else _ANY
    try:
        config = _Defaults(known, dataset)
        values = {**config.final_config_dict, **config.usual_values(method)}
    except UnlearnError:  # a dataset or a method that is not known here
        return {}
    # As they are in a result, which is JSON.
    return {key: json.loads(json.dumps(value, default=str)) for key, value in values.items()}


def _written(value: Any, as_typed: bool) -> str:
    """A value as the command line reads it."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if as_typed or _is_read_as(text, value) else json.dumps(value, ensure_ascii=False)


def _is_read_as(text: str, value: Any) -> bool:
    try:
        return type(read := parse_value(text)) is type(value) and read == value
    except (ValueError, RecursionError):  # text that looks like a date, for example, and is none
        return False


def _option(key: str, text: str) -> str:
    return shlex.quote(f"--{key}={text}")
