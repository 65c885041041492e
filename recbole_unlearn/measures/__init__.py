"""Measures of forgetting and of utility.

`scores.py` asks every model the same questions in one pass over its scores; `base.py` registers measures, and
`forgetting.py` has ours, each a function with its formula. `evaluation.py` measures a phase, `verdict.py` sums it up.
"""

from recbole_unlearn.measures.base import DECIMALS, View, measures
from recbole_unlearn.measures.evaluation import Measured, Measurement, compare, paired_errors, report_config, utility
from recbole_unlearn.measures.probe import probed_users
from recbole_unlearn.measures.relearning import relearning_epochs
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
from recbole_unlearn.measures.verdict import SHORT, restated
