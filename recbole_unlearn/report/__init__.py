"""HTML reports: `write_report` shows one run, `write_comparison` several beside each other, `write_sweep` a sweep.

A page is one file that needs no network. `single.py`, `comparison.py` and `sweep.py` say what is on the pages; the
parts of `single.py` are `opening.py` (with `account.py`, `advice.py`), `cards.py`, `tables.py`, `forgetting.py`,
`damage.py` and `closing.py` (with `certificates.py`, `command.py`). `figures.py` draws, `page.py` is the frame, and
`values.py` writes numbers for people. `paper.py` makes the tables of the paper from many results (`entries.py`);
`writers.py` writes them as HTML, Markdown and LaTeX.
"""

from recbole_unlearn.report.comparison import write_comparison
from recbole_unlearn.report.entries import FAILED_FILE, PLAN_FILE, read_json, read_result, results_in
from recbole_unlearn.report.single import write_report
from recbole_unlearn.report.sweep import write_sweep

__all__ = [
    "FAILED_FILE",
    "PLAN_FILE",
    "read_json",
    "read_result",
    "results_in",
    "write_comparison",
    "write_report",
    "write_sweep",
]
