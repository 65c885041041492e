"""Grids of runs, `--grid=FILE.yaml`: models × datasets × methods × seeds × deletion ratios."""

from recbole_unlearn.grid.run import run_cell, run_grid
