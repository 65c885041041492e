"""A model under care: a directory that deletion requests are submitted to, carried out, proved, undone and published.

`state.py` has what people call: `begin.py` takes a model under care, `queue.py` takes requests, `work.py` carries
them out and undoes them, `publication.py` makes them final, `proof.py` checks all of it, `serving.py` and `export.py`
are for recommending. Below them `core.py` has what all share: `database.py` the SQLite file, `store.py` files by
their content, `ledger.py` the chain of what was done, `live.py` the model in memory, `changes.py` what a request did
to it, `finding.py` which interactions a request means, `suppression.py` what is never to be recommended again.
`commands.py` is the command line, `status.py` and `page.py` are what `requests status` shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recbole_unlearn.state.core import Receipt as Receipt
    from recbole_unlearn.state.state import State, init_state, open_state

__all__ = ["Receipt", "State", "init_state", "open_state"]


def __getattr__(name: str) -> Any:
    """Import the names on first use, so that `requests status` does not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from recbole_unlearn.state import state

    return getattr(state, name)
