"""HTML reports: `write_report` shows one run, `write_comparison` compares several.

A page is one file that needs no network: a template of `templates/` (Jinja2, autoescaped), filled by `run_report.py`
or `comparison.py` (many results, with the tables of the paper). `page.py` renders and writes values for people,
`figures.py` draws.
"""

import importlib
from typing import TYPE_CHECKING, Any

# isort: off
if TYPE_CHECKING:
    from recbole_unlearn.report.audit_page import COLUMNS, audit_rows, write_audit
    from recbole_unlearn.report.comparison import (
        FAILED_FILE, NO_PLAN, PLAN_FILE, Entry, read_mapping, read_plan, read_result, recovered, results_in,
        write_comparison,
    )  # fmt: skip
    from recbole_unlearn.report.page import day, write_page
    from recbole_unlearn.report.run_report import write_report
else:

    def __getattr__(name: str) -> Any:
        """Import a name on first use, from the first of these that has it: a receipt is written without torch."""
        for home in ("page", "figures", "comparison", "run_report", "audit_page"):
            module = importlib.import_module(f"{__name__}.{home}")
            if name in (home, *vars(module)):
                return getattr(module, name, module)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
