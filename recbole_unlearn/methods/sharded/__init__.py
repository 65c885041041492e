"""Sharded training: SISA, RecEraser and UltraRE.

`partition.py` divides the interactions; each part trains a model of its own, and they answer together (`base.py`).
"""

from recbole_unlearn.methods.sharded.base import Ensemble, Shards, read_ensemble
from recbole_unlearn.methods.sharded.partition import Partition
from recbole_unlearn.methods.sharded.receraser import AttentiveEnsemble, ItemEnsemble, fit_attention
from recbole_unlearn.methods.sharded.ultrare import WeightedEnsemble, ranking_weights
