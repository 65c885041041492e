"""recbole-unlearn: make a trained RecBole model forget, and measure how well it did."""

from typing import Any

__version__ = "0.1.0"

__all__ = [
    "UnlearnConfig",
    "UnlearnError",
    "__version__",
    "read_checkpoint",
    "run_grid",
    "run_unlearn",
    "tune_unlearn",
    "unlearn_model",
]

_HOMES = {
    "UnlearnConfig": "recbole_unlearn.config",
    "UnlearnError": "recbole_unlearn.errors",
    "read_checkpoint": "recbole_unlearn.checkpoint",
    "run_grid": "recbole_unlearn.grid.run",
    "run_unlearn": "recbole_unlearn.quick_start",
    "tune_unlearn": "recbole_unlearn.tuning.sweep",
    "unlearn_model": "recbole_unlearn.quick_start",
}


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that `--version` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
