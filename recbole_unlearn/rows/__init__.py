"""Rows of a model's tables and the interactions of their users and items, which all methods work with.

`tables.py` finds the rows of users, items and features in a model, `index.py` the interactions of a user, item or
pair, `region.py` the users and items of a request; `batches.py` draws the witness set, `model_loss.py` computes
losses and scores, and `vectors.py` finds vectors whose products are scores.
"""

from recbole_unlearn.rows.batches import Triples, Witness, as_batch, learns_by_user
from recbole_unlearn.rows.index import OTHER, SIDES, RetainedIndex, Side, TrainIndex
from recbole_unlearn.rows.model_loss import (
    Moments,
    fisher,
    loss_gradients,
    pair_scores,
    predicted,
    reverse_ranking_loss,
    training_loss,
)
from recbole_unlearn.rows.region import Members, Region, find_region, rarest, reset_to_rarest, with_neighbours
from recbole_unlearn.rows.tables import Earlier, Table, as_rows, find_features, find_tables, reset_rows, write_rows
from recbole_unlearn.rows.vectors import find_vectors, side_tables
