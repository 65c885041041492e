"""Tuning: a sweep over a method's settings on Ray Tune, judged on validation interactions.

`space.py` reads what to sweep over, `goal.py` says what is better, `trial.py` is what one trial does,
`journal.py` keeps what is finished, `backend.py` is all that knows Ray Tune, and `sweep.py` puts them together.
"""

from recbole_unlearn.tuning.objective import Bench, Figures, Goal, validation_only
from recbole_unlearn.tuning.outputs import TuneResult
from recbole_unlearn.tuning.space import Range, Space, Values, Whole, identity
from recbole_unlearn.tuning.sweep import tune_unlearn
