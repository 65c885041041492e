"""Sharded training: interactions are divided, each part trains a model of its own, and the models answer together.

`partition.py` divides, `shards.py` trains and restarts, `ensemble.py` and `attention.py` combine, `storage.py` saves
and loads, and `base.py` is the base that the methods SISA, RecEraser and UltraRE fill in.
"""

from recbole_unlearn.methods.sharded.attention import AttentiveEnsemble, Fit, fit_attention, vectors
from recbole_unlearn.methods.sharded.ensemble import Ensemble, ItemEnsemble, WeightedEnsemble
from recbole_unlearn.methods.sharded.partition import (
    Partition,
    by_interactions,
    by_transport,
    by_users,
    item_blocks,
    random_users,
)
from recbole_unlearn.methods.sharded.shards import Shards
from recbole_unlearn.methods.sharded.ultrare import ranking_weights
