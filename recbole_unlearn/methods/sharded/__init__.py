"""Sharded training: interactions are divided, each part trains a model of its own, and the models answer together.

`partition.py` divides, `shards.py` trains and restarts, `ensemble.py` and `attention.py` combine, `storage.py` saves
and loads, and `base.py` is the base that the methods SISA, RecEraser and UltraRE fill in.
"""
