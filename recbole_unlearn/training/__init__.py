"""Training by RecBole's trainers.

`phase.py` trains and evaluates one model, `trainings.py` does all trainings of a run and keeps them in a cache,
`curves.py` sends epochs to W&B, and `models/` has faster versions of RecBole's models.
"""

from recbole_unlearn.training.models import fast_class, pair_remover
from recbole_unlearn.training.models.graph import (
    EdgeRemoval,
    SymmetricProduct,
    normalised_adjacency,
    some_rows,
)
from recbole_unlearn.training.models.kgcn import forget_neighbours
from recbole_unlearn.training.models.lightgcn import LightGCN
from recbole_unlearn.training.phase import (
    Job,
    PhaseTrainer,
    Watcher,
    build_model,
    check_finite,
    compose,
    train,
    train_all,
    train_here,
)
from recbole_unlearn.training.trainings import Trainings
