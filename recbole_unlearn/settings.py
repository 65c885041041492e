"""Settings as typed dataclasses: what a key means and what it accepts.

A dataclass here (or in a method's file) declares each key once, with its type, its help text and its
limits. The *value* of a key stands in one place only, `properties/*.yaml`, so that `--help`, the
documentation and a run can never disagree. :func:`read` takes the values from a config and checks them.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from recbole_unlearn.errors import UnlearnError

T = TypeVar("T")


def setting(
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """Declare one key: its help text and, where it has them, its choices or inclusive limits."""
    return dataclasses.field(metadata={"help": help, "choices": choices, "low": low, "high": high})


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """How one run is done and where its results go."""

    unlearn: str = setting("Unlearning method; --unlearn=? lists them.")
    compare: list[str] = setting(
        "Methods to run beside it, for example retrain (the reference every figure is measured from)."
    )
    checkpoint: str | None = setting(
        "A checkpoint of RecBole to start from; model, dataset and settings are read from it."
    )
    output_dir: str | None = setting(
        "Where result.json, the log and the unlearned model go; by default a new folder in saved/."
    )
    save_unlearned: bool = setting(
        "Write the unlearned checkpoint and the retained data in RecBole's format."
    )
    threads: int = setting("CPU threads of torch; part of what makes a run repeatable.", low=1)
    workers: int | None = setting(
        "Models trained at a time; 1 never starts Ray, empty starts it on this machine when that pays.", low=1
    )
    ray_address: str | None = setting(
        "A Ray cluster to work on (for example auto, or ray://HOST:10001); docs/ray.md."
    )
    tensorboard: bool = setting("Write training curves to OUTPUT_DIR/tensorboard.")
    report: str = setting(
        "html writes OUTPUT_DIR/report.html, none does not; DIR1,DIR2,... compares the results in those directories."
    )
    download_url: str | None = setting(
        "Zip file to fetch a missing dataset from, instead of RecBole's own list."
    )


@dataclasses.dataclass(frozen=True)
class ForgetSettings:
    """Which interactions are to be forgotten."""

    forget: Any = setting(
        "A file of deletion requests (.csv, .tsv, .jsonl, .parquet), or 'injected' for the paper's "
        "synthetic protocol."
    )
    on_missing: str = setting(
        "A request for something that is not in the training data: stop, or skip it.",
        choices=("error", "skip"),
    )
    inject_mode: str = setting(
        "injected: items the clean model scores low, or any unseen items.",
        choices=("informed", "random"),
    )
    inject_users: float = setting("injected: share of users.", low=0.0, high=1.0)
    inject_amount: float = setting("injected: rows per user, as a share of their training rows.", low=0.0)
    inject_pool: float = setting(
        "injected, informed: share of a user's unseen items, lowest scores first, to draw from.",
        low=0.0,
        high=1.0,
    )
    inject_seed: int | None = setting("injected: seed of the draw; the run's seed when empty.")


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """How forgetting is measured."""

    demotion_negatives: int = setting(
        "Demotion rate: never-touched items each deleted item is compared with.", low=1
    )


@dataclasses.dataclass(frozen=True)
class TuneSettings:
    """How a sweep over a method's settings is done; docs/tuning.md."""

    tune: bool = setting("Sweep over the method's settings instead of running it once.")
    space: str | None = setting(
        "A YAML file that says what to sweep over; the method's own in properties/tune/ when empty."
    )
    trials: int = setting("Trials of a sweep; grid search does all combinations instead.", low=1)
    searcher: str = setting(
        "How settings are chosen; optuna and hyperopt have to be installed.",
        choices=("random", "grid", "optuna", "hyperopt"),
    )
    scheduler: str = setting(
        "asha stops trials early that do badly; none does not.", choices=("none", "asha")
    )
    tune_looks: int = setting(
        "How often a trial of a method with steps is measured, the end included; each time is a candidate.",
        low=1,
    )
    tune_metric: str = setting("The metric that stands for utility, on validation rows.")
    tune_affected: float = setting(
        "Weight of affected users in utility; that of all users is the rest to 1.", low=0.0, high=1.0
    )
    tune_weight: float = setting("Weight of forgetting against utility.", low=0.0)
    tune_pareto: bool = setting(
        "Also write the settings of every candidate on the front, to OUTPUT_DIR/front."
    )
    resume: bool = setting("Go on with the sweep in OUTPUT_DIR; what it has finished is not done again.")


@dataclasses.dataclass(frozen=True)
class GridSettings:
    """Many runs instead of one; docs/grid.md."""

    grid: str | None = setting(
        "A YAML file of models, datasets, methods, seeds and deletion ratios to run in all combinations."
    )


@dataclasses.dataclass(frozen=True)
class CacheSettings:
    """Trained models are kept, so that a second run does not train again."""

    cache: bool = setting("Keep and reuse trained models (--no_cache turns it off).")
    cache_dir: str = setting("Where they are kept.")
    cache_size: float = setting("GiB to keep at most; the least recently used go first.", low=0.0)


GROUPS: dict[str, type] = {
    "Run": RunSettings,
    "Forget set": ForgetSettings,
    "Evaluation": EvaluationSettings,
    "Tuning": TuneSettings,
    "Grid": GridSettings,
    "Cache": CacheSettings,
}


def names(cls: type) -> list[str]:
    """The keys a settings class declares."""
    return [f.name for f in dataclasses.fields(cls)]


def read(cls: type[T], values: Mapping[str, Any] | Any) -> T:
    """Build ``cls`` from ``values[key]`` (a dict or a RecBole config), checking type and limits."""
    hints = typing.get_type_hints(cls)
    checked = {}
    for f in dataclasses.fields(cls):
        value = _as_type(f.name, values[f.name], hints[f.name])
        _check_limits(f.name, value, f.metadata)
        checked[f.name] = value
    return cls(**checked)


def as_list(value: Any) -> list[str]:
    """`a,b`, a list, one number or nothing, as a list of names."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [str(value)]
    items = value.split(",") if isinstance(value, str) else list(value or [])
    return [str(item).strip() for item in items if str(item).strip()]


def _as_type(key: str, value: Any, hint: Any) -> Any:
    if hint is Any:
        return value
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    kind = next(o for o in options if o is not type(None))
    if typing.get_origin(kind) is list:
        return as_list(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UnlearnError(f"{key}={value!r} is not valid: expected {kind.__name__}.")
    return value


def _check_limits(key: str, value: Any, limits: Mapping[str, Any]) -> None:
    choices, low, high = limits["choices"], limits["low"], limits["high"]
    if choices and value not in choices:
        raise UnlearnError(f"{key}={value!r} is not valid: choose from {', '.join(choices)}.")
    if value is None or not isinstance(value, (int, float)):
        return
    if value != value or (low is not None and value < low) or (high is not None and value > high):
        bounds = f"at least {low:g}" + (f" and at most {high:g}" if high is not None else "")
        raise UnlearnError(f"{key}={value!r} is not valid: expected {bounds}.")
