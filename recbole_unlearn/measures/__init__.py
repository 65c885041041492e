"""How well it was forgotten: small measures, each a function with its formula.

`base.py` says what a measure is and registers it. `observe.py` scores a model once and keeps what the measures need;
the others turn that into figures: `demotion.py` (where deleted items are), `distribution.py` (their scores),
`overlap.py` (ranked lists), `attack.py` (membership inference), `groups.py` (who bears the damage), `difficulty.py`
(how entangled a request is). `verdict.py` sums all of it up in one sentence, and `evaluation.py` takes the measures.
"""
