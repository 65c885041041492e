"""Grids of runs, `--grid=FILE.yaml`: models × datasets × methods × seeds × deletion ratios.

`plan.py` reads the file and lists the runs; `run.py` does the runs without a result.
"""

from recbole_unlearn.grid.run import run_cell, run_grid
