"""Grids of runs, `--grid=FILE.yaml`: models × datasets × methods × seeds × deletion ratios.

`plan.py` reads the file and says which runs there are; `run.py` does those that have no result yet.
"""

from recbole_unlearn.grid.cells import run_cell
from recbole_unlearn.grid.run import run_grid
