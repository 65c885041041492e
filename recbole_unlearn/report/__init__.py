"""HTML reports: `write_report` shows one run, `write_comparison` compares several.

A page is one file that needs no network: a template of `templates/` (Jinja2, autoescaped), filled by `run_report.py`
or `comparison.py` (many results, with the tables of the paper). `page.py` renders and writes values for people,
`figures.py` draws.
"""

from recbole_unlearn.report.audit_page import write_audit
from recbole_unlearn.report.comparison import (
    FAILED_FILE,
    NO_PLAN,
    PLAN_FILE,
    Entry,
    read_mapping,
    read_plan,
    read_result,
    recovered,
    results_in,
    write_comparison,
)
from recbole_unlearn.report.page import day, write_page
from recbole_unlearn.report.run_report import write_report
