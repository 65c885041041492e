"""HTML reports: `write_report` shows one run, `write_comparison` several beside each other, `write_sweep` a sweep.

A page is one file that needs no network. `single.py`, `comparison.py` and `sweep.py` say what is on the pages; the
parts of `single.py` are `opening.py` (with `account.py`, `advice.py`), `cards.py`, `tables.py`, `forgetting.py`,
`damage.py` and `closing.py` (with `certificates.py`, `command.py`). `figures.py` draws, `page.py` is the frame, and
`values.py` writes numbers for people. `paper.py` makes the tables of the paper from many results (`entries.py`);
`writers.py` writes them as HTML, Markdown and LaTeX.
"""

from recbole_unlearn.report.account import noise
from recbole_unlearn.report.command import PROGRAM
from recbole_unlearn.report.comparison import write_comparison
from recbole_unlearn.report.entries import (
    FAILED_FILE,
    NO_PLAN,
    PLAN_FILE,
    Entry,
    affected_ndcg,
    grouped,
    ratio_of_sums,
    read_json,
    read_plan,
    read_result,
    recovered,
    results_in,
)
from recbole_unlearn.report.page import Html, drawing, element, join, pairs, section, table, write
from recbole_unlearn.report.single import write_report
from recbole_unlearn.report.sweep import write_sweep
from recbole_unlearn.report.values import decimal, difference, duration, flat, percent, plain, times
