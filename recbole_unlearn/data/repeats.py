"""Carrying a request out on the data, also one that was carried out before: that is done, with nothing to do.

The data that a request leaves has no token of the users who are gone, so the same request would look like one for
strangers. It is recognised by its keyed hash (`files/hash_keys.py`), which the retained data keeps.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from recbole_unlearn.data.requests import ForgetRequest, Located, is_gone, locate
from recbole_unlearn.data.splits import Source, UnlearnData, divide
from recbole_unlearn.files import Done


def carry_out(
    request: ForgetRequest, source: Source, kind: str, on_missing: str, digest: str | None
) -> UnlearnData:
    """The data divided by ``request``; ``digest`` is its keyed hash, None without a key."""
    earlier = next((one for one in source.done if one.digest == digest), None)
    # However sure the hash is: what is still there is deleted.
    if earlier is not None and not is_gone(request, source.splits, source.clock):
        earlier = None
    if earlier is None:
        located = locate(request, source.splits, on_missing, source.clock, _hint(source.done))
    else:
        train, valid, test = (np.zeros(len(part), dtype=bool) for part in source.splits)
        located = Located(train, valid, test)
    data = divide(source.splits, located, kind, source.clock, source.fitted)
    return dataclasses.replace(data, done=source.done, done_earlier=earlier.date if earlier else None)


def _hint(done: tuple[Done, ...]) -> str:
    if not done:
        return ""
    number = f"{len(done)} request{'s were' if len(done) > 1 else ' was'} carried out on this model before"
    return f" ({number}; one that comes again is recognised, given as a whole and with the same key, --hash_key.)"
