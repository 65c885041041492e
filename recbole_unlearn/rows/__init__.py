"""Rows of a model's tables, and the interactions of their users and items: what all methods work with.

`tables.py` says which rows of which parameter belong to whom, `index.py` finds interactions by user, item and
pair, `region.py` whom a request touches, `batches.py` draws the witness set, `facts.py` what a knowledge graph adds
to it, `own_loss.py`, `losses.py` and `scoring.py` compute losses and scores, `rarest.py` finds items that are hardly
anybody's, and `expected.py` estimates where a pair ranks in a model that never saw it.
"""

from recbole_unlearn.rows.batches import (
    Triples,
    Witness,
    as_batch,
    first_of_each,
    learns_by_user,
    pairs_batch,
)
from recbole_unlearn.rows.closed_form import PAIRS, ClosedFormRanker, ExpectedStanding
from recbole_unlearn.rows.facts import Facts, facts_of
from recbole_unlearn.rows.index import RetainedIndex, TrainIndex
from recbole_unlearn.rows.own_loss import Moments, fisher, lent, looked_up, loss_gradients, training_loss
from recbole_unlearn.rows.rarest import rarest, reset_to_rarest
from recbole_unlearn.rows.region import Members, Region, find_region, with_neighbours
from recbole_unlearn.rows.scoring import pair_scores, predicted
from recbole_unlearn.rows.tables import OTHER, Side, Table, as_rows, find_features, find_tables, reset_rows
