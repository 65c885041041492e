"""The data of a run: loaded, split and divided by a request.

`splits.py` loads, splits and divides, `requests.py` reads deletion requests and finds the interactions they mean,
`fitted.py` is what one request tells the next, `injection.py` is the synthetic protocol, `download.py` fetches
datasets that RecBole knows, and `archive.py` unpacks them.
"""

from recbole_unlearn.data.injection import Scorer, inject
from recbole_unlearn.data.requests import Fields, ForgetRequest, Located, locate, read_request
from recbole_unlearn.data.splits import (
    INJECTED,
    Loaders,
    Source,
    Splits,
    UnlearnData,
    append,
    divide,
    fetch,
    load,
    loaders,
)

__all__ = [
    "INJECTED",
    "Fields",
    "ForgetRequest",
    "Loaders",
    "Located",
    "Scorer",
    "Source",
    "Splits",
    "UnlearnData",
    "append",
    "divide",
    "fetch",
    "inject",
    "load",
    "loaders",
    "locate",
    "read_request",
]
