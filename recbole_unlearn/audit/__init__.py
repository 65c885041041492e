"""`recbole-unlearn audit`: attacks on single examples that need many models, and how near their outputs are.

`likelihood.py` has the attacks as formulas of margins, `shadows.py` trains the models and asks them for margins.
"""

from recbole_unlearn.audit.shadows import AuditResult, audit_unlearn
