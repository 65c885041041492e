"""A state: a directory with a model to which deletion requests are submitted, carried out, undone and published.

`state.py` is the Python interface and `commands.py` the command line. `submit.py` queues requests, `worker.py`
carries them out and undoes them, `publish.py` makes them final, `learn.py` and `adopt.py` bring new data, `verify.py`
checks the state, `export.py` writes it for serving, `status.py` and `receipt.py` show it. They share `context.py`:
the database (`database.py`, with the ledger), the files (`deltas.py`) and the model in memory (`live.py`).
"""

import importlib
from typing import Any

_HOMES = {
    "Receipt": "context", "Change": "deltas", "Store": "deltas", "LiveModel": "live", "read_moments": "live",
    "squared_norm": "live", "find_vectors": "export", "load_suppression": "export", "State": "state",
    "init_state": "state", "open_state": "state", "write_receipt": "receipt",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name on first use: `requests status` reads the database without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
