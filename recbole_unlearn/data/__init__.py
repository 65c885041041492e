"""The data of a run: loaded, split and divided by a request.

`parts.py` has the three parts of a split, `sequences.py` the windows that sequential models read of them, `graph.py`
the knowledge graph that others read beside them,
`splits.py` loads, splits and divides, `request_forms.py` reads deletion requests, `requests.py` understands them and
finds the interactions they mean, `repeats.py` carries them out, also those that come again,
`fitted.py` is what one request tells the next, `injection.py` is the synthetic protocol, `download.py` fetches
datasets that RecBole knows, and `archive.py` unpacks them.
"""

from recbole_unlearn.data.download import ensure_dataset
from recbole_unlearn.data.injection import Scorer, inject
from recbole_unlearn.data.item_counts import coarse, fitted_after, lost_at_least, lost_since
from recbole_unlearn.data.knowledge_graph import Facts, facts_of
from recbole_unlearn.data.parts import Splits
from recbole_unlearn.data.repeats import carry_out
from recbole_unlearn.data.requests import (
    EMPTY,
    Candidates,
    Fields,
    ForgetRequest,
    Located,
    ids_of,
    locate,
    match,
    read_request,
    time_precision,
)
from recbole_unlearn.data.sequences import SCORES, TRAIN, Sequences, SequenceSplits
from recbole_unlearn.data.splits import (
    INJECTED,
    Loaders,
    Source,
    UnlearnData,
    append,
    divide,
    fetch,
    load,
    loaders,
)
