"""HTML reports: `write_report` shows one run, `write_comparison` sets several runs beside each other.

A page is one file that needs no network. `single.py` and `comparison.py` say what stands on the two pages,
`figures.py` draws, `page.py` is the frame, and `values.py` reads a result in which any key may be missing.
"""

from recbole_unlearn.report.comparison import write_comparison
from recbole_unlearn.report.single import write_report

__all__ = ["write_comparison", "write_report"]
