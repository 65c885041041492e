"""Obliviate: a low-rank downdate of the rows a request touches (LUA), then their calibration (LAC).

Read in this order: `contamination.py` and `restart.py` (the new start), `curvature.py`, `downdate.py` and `lua.py`
(the downdate); `gradients.py` and `lac.py` (calibration); `adapters.py` (what they change and how it is undone);
`certificates.py` (what can be proved); `row_moments.py` (curvature that one request leaves to the next); `pace.py` (a
warning when it is slow). `request.py` puts them together for one request; for a sequential model `window_request.py`
says what differs, with `window_restart.py` (its new start) and `window_witness.py` (its batches). `method.py` chooses
between the two, and has what serves any number of requests; the settings are in `settings.py`, the paper's values in
`presets.py`. What other methods use too is in `rows/`: the region, the witness set, losses, and the level of
never-seen items.
"""

from recbole_unlearn.methods.obliviate.curvature import Curvature, from_retained, read_state
from recbole_unlearn.methods.obliviate.method import Obliviate
from recbole_unlearn.methods.obliviate.row_moments import refresh
from recbole_unlearn.methods.obliviate.settings import ObliviateSettings

__all__ = ["Curvature", "Obliviate", "ObliviateSettings", "from_retained", "read_state", "refresh"]
from recbole_unlearn.methods.obliviate.adapters import CONFIG, WEIGHTS, Adapter, AdapterSet, weights_digest
from recbole_unlearn.methods.obliviate.contamination import spread
from recbole_unlearn.methods.obliviate.gradients import (
    BPRGradients,
    LightGCNGradients,
    RowGradients,
    WindowGradients,
    row_gradients,
    written_out,
)
from recbole_unlearn.methods.obliviate.lac import SCHEDULES, Schedule, WitnessObjective, calibrate, rate_of
from recbole_unlearn.methods.obliviate.window_request import WindowRequest
from recbole_unlearn.methods.obliviate.window_restart import Links, Maps, learn
