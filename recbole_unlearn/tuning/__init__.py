"""Tuning: a sweep over a method's settings on Ray Tune, judged on validation interactions.

`space.py` reads what to sweep over, `goal.py` says what is better, `trial.py` is what one trial does,
`journal.py` keeps what is finished, `backend.py` is all that knows Ray Tune, and `sweep.py` puts them together.
"""
