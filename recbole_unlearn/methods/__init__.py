"""Unlearning methods, one per file or folder.

`base.py` has what a method gets, subclasses and returns, and `request_losses.py` what gradient-based methods share
(for sequential models, `window_losses.py`). A folder is a family: `obliviate/`, `influence/` (SCIF, IFRU) and
`sharded/` (SISA, RecEraser, UltraRE). No family imports another.
"""

from recbole_unlearn.methods.base import Curve, Outcome, UnlearnTask, UnlearnTrainer, Watch
from recbole_unlearn.methods.request_losses import RequestLosses, losers, tie, turned, with_rows_left
from recbole_unlearn.methods.window_losses import BATCH, WindowLosses
from recbole_unlearn.registry import method
