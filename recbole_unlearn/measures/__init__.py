"""How well it was forgotten: small measures, each a function with its formula.

`observe.py` scores a model once and keeps what the measures need; the others turn that into figures: `scores.py`
(distributions), `overlap.py` (ranked lists), `attack.py` (membership inference), `groups.py` (who bears the damage),
`difficulty.py` (how entangled a request is), `verdict.py` (one sentence). `evaluation.py` calls them.
"""
