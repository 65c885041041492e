"""Tuning: a sweep over a method's settings on Ray Tune, judged on validation interactions.

`space.py` reads the search space, `objective.py` has the objective, `trial.py` one trial, `journal.py` the record of
finished trials, `backend.py` all that uses Ray Tune, and `sweep.py` puts them together.
"""

from recbole_unlearn.tuning.objective import Bench, Figures, Goal, validation_only
from recbole_unlearn.tuning.space import Space, identity
from recbole_unlearn.tuning.sweep import TuneResult, tune_unlearn
