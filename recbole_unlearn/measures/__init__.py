"""How well it was forgotten: small measures, each a function with its formula.

`base.py` says what a measure is and registers it. `observe.py` scores a model once and keeps what the measures need;
the others turn that into figures: `demotion.py` (where deleted items are), `distribution.py` (their scores),
`overlap.py` (ranked lists), `attack.py` (membership inference), `groups.py` (who bears the damage), `difficulty.py`
(how entangled a request is). `verdict.py` sums all of it up in one sentence, and `evaluation.py` takes the measures.
"""

from recbole_unlearn.measures.base import View, measures
from recbole_unlearn.measures.demotion import clustered
from recbole_unlearn.measures.difficulty import entanglement
from recbole_unlearn.measures.evaluation import Measured, Measurement, paired_errors, report_config, utility
from recbole_unlearn.measures.histories import HistoryQuestions, Uncleaned, deleted_windows, observe_histories
from recbole_unlearn.measures.placebo import compare
from recbole_unlearn.measures.provisional import EXACT, NOTHING_LEFT, UNSURE, looks
from recbole_unlearn.measures.scores import Pairs, Questions, deleted_pairs, never_touched
from recbole_unlearn.measures.verdict import DONE, EMPTIED, NOTHING, SHORT, UNCHANGED, sentence
from recbole_unlearn.measures.windows import Windows, deleted_targets, standing
