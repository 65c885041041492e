"""Tuning: a sweep over a method's settings on Ray Tune, judged on validation interactions."""

from recbole_unlearn.tuning.space import Space, identity
from recbole_unlearn.tuning.sweep import TuneResult, tune_unlearn
from recbole_unlearn.tuning.trial import Bench, Figures, Goal, validation_only
