"""A model under care: a directory that deletion requests are submitted to, carried out, proved, undone and published.

`state.py` has what people call, `database.py` the SQLite file, `store.py` files by their content, `ledger.py` the
chain of what was done, `live.py` the model in memory, `changes.py` what a request did to it, `finding.py` which
interactions a request means, `suppression.py` what is never to be recommended again, `commands.py` the command line,
and `page.py` the page of `requests status`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recbole_unlearn.state.state import State, init_state, open_state

__all__ = ["State", "init_state", "open_state"]


def __getattr__(name: str) -> Any:
    """Import the names on first use, so that `requests status` does not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from recbole_unlearn.state import state

    return getattr(state, name)
