"""Measures of forgetting and of utility.

`scores.py` asks every model the same questions in one pass over its scores; `base.py` registers measures, and
`forgetting.py` has ours, each a function with its formula. `evaluation.py` measures a phase, and `verdict.py` sums up
the result in one sentence.
"""

from recbole_unlearn.measures.base import DECIMALS, View, measures
from recbole_unlearn.measures.evaluation import Measured, Measurement, compare, paired_errors, report_config, utility
from recbole_unlearn.measures.forgetting import difficulty
from recbole_unlearn.measures.probe import probed_users
from recbole_unlearn.measures.scores import (
    Pairs,
    Questions,
    Windows,
    compared,
    deleted_pairs,
    deleted_targets,
    deleted_windows,
    observe,
    standing,
)
from recbole_unlearn.measures.verdict import EXACT, SHORT, provisional, restated
