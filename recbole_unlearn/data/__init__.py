"""The data of a run: loaded, split and divided by a request."""

from recbole_unlearn.data.download import ensure_dataset
from recbole_unlearn.data.injection import Scorer, inject
from recbole_unlearn.data.item_counts import coarse, fitted_after, lost_at_least, lost_since
from recbole_unlearn.data.knowledge_graph import Facts, facts_of
from recbole_unlearn.data.matching import Candidates, carry_out, ids_of, locate, match, time_precision
from recbole_unlearn.data.protocols import Protocol
from recbole_unlearn.data.requests import EMPTY, Fields, ForgetRequest, read_request, read_requests, tokens
from recbole_unlearn.data.sequences import SCORES, TRAIN, Sequences, SequenceSplits
from recbole_unlearn.data.source import Loaders, Source, fetch, load, loaders
from recbole_unlearn.data.splits import DRAWN, INJECTED, Located, Splits, UnlearnData, append, divide
