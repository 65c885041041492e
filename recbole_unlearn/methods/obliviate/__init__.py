"""Obliviate: a low-rank downdate of the rows a request touches (LUA), then their calibration (LAC).

Read in this order: `../index.py` and `region.py` (which rows); `reembed.py` (where they start again), `lua.py`,
`curvature.py` and `newton.py` (the downdate); `witness.py`, `losses.py`, `gradients.py`, `level.py` and `lac.py`
(calibration); `adapters.py` (what they change and how it is undone); `certificates.py` (what can be proved).
`methods/obliviate.py` puts them together.
"""
