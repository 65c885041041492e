"""Training by RecBole's trainers.

`trainer.py` trains and evaluates one model, `trainings.py` does all trainings of a run and keeps them in a cache,
`fast_models.py` has faster versions of RecBole's models, `lean.py` a faster loop for two of them, `spectral.py` a
start from the interactions, `downdate.py` closed forms without a refit, `threads.py` the number of threads.
"""

from recbole_unlearn.training.downdate import DOWNDATED, downdate_model
from recbole_unlearn.training.fast_models import fast_class, forget_neighbours, pair_remover, some_rows
from recbole_unlearn.training.lean import is_lean
from recbole_unlearn.training.spectral import SPECTRAL, SpectralStart, most_epochs
from recbole_unlearn.training.threads import use_threads
from recbole_unlearn.training.trainer import (
    Job,
    PhaseTrainer,
    build_model,
    check_finite,
    compose,
    loaded,
    train,
    train_all,
    train_here,
)
from recbole_unlearn.training.trainings import Trainings, state_digest
