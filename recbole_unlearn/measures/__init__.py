"""Measures of forgetting and of utility.

`scores.py` asks every model the same questions in one pass over its scores; `base.py` registers measures, and
`forgetting.py` has ours, each a function with its formula. `evaluation.py` measures a phase, and `verdict.py` sums up
the result in one sentence.
"""

from recbole_unlearn.measures.base import DECIMALS, View, measures
from recbole_unlearn.measures.evaluation import Measured, Measurement, compare, paired_errors, report_config, utility
from recbole_unlearn.measures.forgetting import clustered, difficulty
from recbole_unlearn.measures.scores import (
    HistoryQuestions,
    Pairs,
    Questions,
    Uncleaned,
    Windows,
    deleted_pairs,
    deleted_targets,
    deleted_windows,
    never_touched,
    observe,
    standing,
)
from recbole_unlearn.measures.verdict import (
    DONE,
    EMPTIED,
    EXACT,
    NOTHING,
    NOTHING_LEFT,
    SHORT,
    UNCHANGED,
    UNSURE,
    looks,
    provisional,
    sentence,
)
