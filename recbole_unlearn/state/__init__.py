"""A model under care: a directory that deletion requests are submitted to, carried out, proved, undone and published.

`state.py` has what people call: `begin.py` takes a model under care, `queue.py` takes requests, `work.py` carries
them out and undoes them, `publication.py` makes them final, `proof.py` checks all of it, `serving.py` and `export.py`
are for recommending. Below them `core.py` has what all share: `database.py` the SQLite file, `store.py` files by
their content, `ledger.py` the chain of what was done, `live.py` the model in memory, `changes.py` what a request did
to it, `finding.py` which interactions a request means, `suppression.py` what is never to be recommended again.
`commands.py` is the command line, `status.py` and `page.py` are what `requests status` shows.
"""

from recbole_unlearn.state.base import read_moments, squared_norm
from recbole_unlearn.state.commands import main
from recbole_unlearn.state.context import Receipt
from recbole_unlearn.state.deltas import Change
from recbole_unlearn.state.live import LiveModel
from recbole_unlearn.state.locate import Finder
from recbole_unlearn.state.overview import MOST_DRIFT, history
from recbole_unlearn.state.page import write_status
from recbole_unlearn.state.state import State, init_state, open_state
from recbole_unlearn.state.store import Store
from recbole_unlearn.state.suppression import load_suppression
from recbole_unlearn.state.vectors import Moved, Vectors, find_vectors
