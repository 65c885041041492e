"""Sharded training: SISA and RecEraser.

`partition.py` divides the interactions; each part trains a model of its own, and they answer together (`base.py`).
"""

from recbole_unlearn.methods.sharded.base import Ensemble, Shards, read_ensemble
from recbole_unlearn.methods.sharded.receraser import AttentiveEnsemble, fit_attention
