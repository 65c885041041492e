"""Sharded training: SISA, RecEraser and UltraRE.

The interactions are divided (`partition.py`), each part trains a model of its own and the models answer together
(`base.py`, `attention.py`).
"""

from recbole_unlearn.methods.sharded.attention import AttentiveEnsemble, fit_attention, vectors
from recbole_unlearn.methods.sharded.base import Ensemble, Shards, read_ensemble
from recbole_unlearn.methods.sharded.partition import Partition
from recbole_unlearn.methods.sharded.receraser import ItemEnsemble
from recbole_unlearn.methods.sharded.ultrare import WeightedEnsemble, ranking_weights
