"""A state: a directory with a model to which deletion requests are submitted, carried out, undone and published.

`state.py` is the Python interface and `commands.py` the command line. `worker.py` has the queue, carries requests
out and undoes them, `publish.py` makes them final, `verify.py` checks the state, `export.py` writes it for serving,
`status.py` shows it. They share `context.py`: the database (`database.py`, with the ledger), the files (`deltas.py`)
and the model in memory (`live.py`).
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recbole_unlearn.state.context import Receipt
    from recbole_unlearn.state.deltas import Change, Store
    from recbole_unlearn.state.export import Vectors, find_vectors, load_suppression, moved
    from recbole_unlearn.state.live import LiveModel, read_moments, squared_norm
    from recbole_unlearn.state.state import State, init_state, open_state
    from recbole_unlearn.state.status import MOST_DRIFT, history, write_status

_NAMES = {
    "context": ("Receipt",), "deltas": ("Change", "Store"), "state": ("State", "init_state", "open_state"),
    "export": ("Vectors", "find_vectors", "load_suppression", "moved"),
    "live": ("LiveModel", "read_moments", "squared_norm"), "status": ("MOST_DRIFT", "history", "write_status"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name on first use: `requests status` reads the database without torch."""
    for file, names in _NAMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{file}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
