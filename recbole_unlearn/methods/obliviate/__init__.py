"""Obliviate: a new start and a low-rank downdate of the rows a request touches (LUA), then their calibration (LAC).

`obliviate.py` is the method, read from top to bottom; `new_start.py`, `adapters.py` and `curvature.py` have the parts
that it names. `paper.py` is the paper's algorithm with its ablations, `windows.py` the difference for sequential
models, `fast_gradients.py` the gradients of rows.
"""

from recbole_unlearn.methods.obliviate.adapters import Adapter, AdapterSet
from recbole_unlearn.methods.obliviate.curvature import Curvature, from_retained, read_state, refresh
from recbole_unlearn.methods.obliviate.new_start import drawn_by
from recbole_unlearn.methods.obliviate.obliviate import Obliviate, ObliviateSettings
