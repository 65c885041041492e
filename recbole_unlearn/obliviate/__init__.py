"""Obliviate: a low-rank downdate of the rows a request touches (LUA), then their calibration (LAC).

Read in this order: `region.py` (which rows), `lua.py` and `curvature.py` (stage 1), `witness.py` and `lac.py`
(stage 2), `adapters.py` (what they change and how it is undone). `methods/obliviate.py` puts them together.
"""
