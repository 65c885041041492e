"""What the gradient-based baselines share: linear solvers, Hessian-vector products, and a request's losses.

`solver.py` knows nothing of models: it solves (H + Λ) x = b for a product v -> H v. `hessian.py` makes such a
product of a loss, on some rows of a model's tables. `../request_losses.py` has the interactions of S and of the
retain set, as batches.
"""

from recbole_unlearn.methods.influence.hessian import HessianProduct, Selection, gradient_sum
