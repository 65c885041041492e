"""Unlearning methods, one per file or folder.

`base.py` has a method's input, base class and result, and `request_losses.py` the losses that gradient-based methods
share. A folder is a family: `obliviate/`, and `sharded/` (SISA, RecEraser).
"""

from recbole_unlearn.methods.base import Curve, Outcome, UnlearnTask, UnlearnTrainer
from recbole_unlearn.methods.request_losses import BATCH, RequestLosses, WindowLosses, tie
from recbole_unlearn.registry import method
