"""A model under care: a directory that deletion requests are submitted to, carried out, proved, undone and published.

`state.py` has what people call, `database.py` the SQLite file, `store.py` files by their content, `ledger.py` the chain
of what was done, `live.py` the model in memory, `changes.py` what a request did to it, `finding.py` which interactions
a request means, `suppression.py` what is never to be recommended again, and `commands.py` the command line.
"""

from recbole_unlearn.state.state import State, init_state, open_state

__all__ = ["State", "init_state", "open_state"]
