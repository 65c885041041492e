"""recbole-unlearn: make a trained RecBole model forget, and measure how well it did."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # for editors and type checkers; at run time names are imported on first use
    from recbole_unlearn.audit import audit_unlearn
    from recbole_unlearn.errors import UnlearnError
    from recbole_unlearn.files import read_checkpoint
    from recbole_unlearn.grid import run_grid
    from recbole_unlearn.judge import evaluate_models
    from recbole_unlearn.patch import patch_recbole
    from recbole_unlearn.quick_start import run_unlearn, unlearn_model
    from recbole_unlearn.serving import load_unlearned
    from recbole_unlearn.settings import UnlearnConfig
    from recbole_unlearn.state.state import init_state, open_state
    from recbole_unlearn.stream import run_stream
    from recbole_unlearn.tuning import tune_unlearn

__all__ = [
    "UnlearnConfig", "UnlearnError", "__version__", "audit_unlearn", "evaluate_models", "init_state",
    "load_unlearned", "open_state", "patch_recbole", "read_checkpoint", "run_grid", "run_stream", "run_unlearn",
    "tune_unlearn", "unlearn_model",
]  # fmt: skip

_HOMES = {
    "UnlearnConfig": "settings", "UnlearnError": "errors", "audit_unlearn": "audit", "evaluate_models": "judge",
    "init_state": "state", "load_unlearned": "serving", "open_state": "state", "patch_recbole": "patch",
    "read_checkpoint": "files", "run_grid": "grid", "run_stream": "stream", "run_unlearn": "quick_start",
    "tune_unlearn": "tuning", "unlearn_model": "quick_start",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that `import recbole_unlearn` takes no time."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
