"""Obliviate: a low-rank downdate of the rows a request touches (LUA), then their calibration (LAC).

Read in this order: `reembed.py` (the new start), `lua.py`, `curvature.py` and `newton.py` (the downdate);
`gradients.py` and `lac.py` (calibration); `adapters.py` (what they change and how it is undone); `certificates.py`
(what can be proved); `pace.py` (a warning when it is slow). `method.py` puts them together, with the settings in
`settings.py`; `presets.py` has the paper's values. What other methods use too is in `rows/`: the region, the witness
set, losses, and the level of never-seen items.
"""
