"""A state: a directory with a model to which deletion requests are submitted, carried out, undone and published.

`state.py` is the Python interface and `commands.py` the command line. `worker.py` has the queue, carries requests
out and undoes them, `publish.py` makes them final, `verify.py` checks the state, `export.py` writes it for serving,
`status.py` shows it. They share `context.py`: the database (`database.py`, with the ledger), the files (`deltas.py`)
and the model in memory (`live.py`).
"""

from recbole_unlearn.state.commands import main
from recbole_unlearn.state.context import Receipt
from recbole_unlearn.state.deltas import Change, Store
from recbole_unlearn.state.export import Vectors, find_vectors, load_suppression, moved
from recbole_unlearn.state.live import LiveModel, read_moments, squared_norm
from recbole_unlearn.state.state import State, init_state, open_state
from recbole_unlearn.state.status import MOST_DRIFT, history, write_status
