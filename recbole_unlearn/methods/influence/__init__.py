"""Methods that take one influence step: SCIF (`scif.py`) and IFRU (`ifru.py`), with their solver (`solver.py`)."""

from recbole_unlearn.methods.influence.solver import Selection, gradient_sum, hessian_product, losing
