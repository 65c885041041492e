"""The interactions that a request means, found in the training, validation and test split, and divided off."""

import dataclasses
import logging
from typing import NamedTuple

import numpy as np
import pandas as pd
from recbole.data.dataset import Dataset

from recbole_unlearn.data.requests import EMPTY, ForgetRequest
from recbole_unlearn.data.source import Source
from recbole_unlearn.data.splits import Located, UnlearnData, divide
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import Clock

logger = logging.getLogger(__name__)


def carry_out(request: ForgetRequest, source: Source, kind: str, on_missing: str, digest: str | None) -> UnlearnData:
    """The data divided by ``request``; ``digest`` is its keyed hash, None without a key.

    The data that a request leaves has no tokens of the users who are gone, so the same request would look like one
    for unknown users when it comes again. It is recognised by its keyed hash (`files/hash_keys.py`), which the
    retained data keeps, and is done with nothing to do.
    """
    splits, done = source.splits, source.done
    earlier = next((one for one in done if one.digest == digest), None)
    hint = ""
    if done:
        number = f"{len(done)} request{'s were' if len(done) > 1 else ' was'}"
        hint = (
            f" ({number} carried out on this model before; one that comes again is recognised if it is given as "
            "a whole and with the same key, --hash_key.)"
        )
    located = locate(request, splits, on_missing, source.clock, hint, may_be_done=earlier is not None)
    data = divide(splits, located, kind, source.clock, source.fitted)
    # However certain the hash is: interactions that are still there are deleted.
    return dataclasses.replace(data, done=done, done_earlier=earlier.date if earlier and located.is_empty else None)


def locate(
    request: ForgetRequest, splits: tuple[Dataset, Dataset, Dataset], on_missing: str = "error",
    clock: Clock | None = None, hint: str = "", may_be_done: bool = False,
) -> Located:  # fmt: skip
    """Find the interactions of ``splits`` (train, valid, test) that ``request`` means.

    ``on_missing`` "error" stops at a token or a pair that is nowhere in the data, with ``hint`` in the message, and
    "skip" leaves it out; ``clock`` maps the request's timestamps to the dataset's, which RecBole may have normalised.
    A request of which nothing is left is refused, unless it ``may_be_done``.
    """
    users, items = ids_of(request, splits[0])
    matched = [match(request, users, items, Candidates(split), clock) for split in splits]
    train, valid, test = (mask for mask, _ in matched)
    located = Located(train, valid, test)
    if may_be_done and located.is_empty:
        return located
    unknown = (users == 0) | (items == 0)
    _report_missing(request, unknown, on_missing, "name a user or an item that is not in the dataset", hint)
    absent = ~np.any([found for _, found in matched], axis=0) & ~unknown
    _report_missing(request, absent, on_missing, "are not in the training data", hint)
    if located.is_empty:
        raise UnlearnError(
            f"{request.name}: nothing to forget. None of its rows is in the data; check the file, or the dataset and "
            f"its filters.{hint}"
        )
    if located.train.all():
        raise UnlearnError(
            f"{request.name} asks to forget all {len(located.train)} training interactions: there is no "
            "model without data. Delete the model instead, or ask for less."
        )
    trained = matched[0][1]
    states = {"training": trained, "held_out": ~(trained | unknown | absent), "unknown": unknown | absent}
    return located._replace(lines={state: int(rows.sum()) for state, rows in states.items()})


def ids_of(request: ForgetRequest, train: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The ids (n,) of users and of items in a request: 0 for an unknown token, ``EMPTY`` for none."""
    found = []
    for column, field in (("user", train.uid_field), ("item", train.iid_field)):
        known = train.field2token_id[field]
        tokens = request.frame[column]
        found.append(np.array([EMPTY if t is None else known.get(t, 0) for t in tokens], dtype=np.int64))
    return found[0], found[1]


def _report_missing(request: ForgetRequest, bad: np.ndarray, on_missing: str, what: str, hint: str) -> None:
    if not bad.any():
        return
    if on_missing == "error":
        raise UnlearnError(
            f"{request.name}: {int(bad.sum())} of {len(bad)} requests {what} "
            f"({request.where(bad)}). Correct them, or leave them out with --on_missing=skip.{hint}"
        )
    # Without their number: there may be a line for each interaction of one user.
    logger.warning("%s: requests that %s were skipped; --on_missing=error gives their numbers.", request.name, what)


class Candidates(NamedTuple):
    """Interactions of a split among which a request is looked for: all of them, or the finds of an index."""

    split: Dataset
    numbers: np.ndarray | slice = slice(None)
    precision: float | None = None  # that timestamps have; None: of the largest timestamp of the split


def time_precision(split: Dataset) -> float:
    """How far a timestamp may be from the request's: RecBole keeps float32."""
    times = split.inter_feat[split.time_field].numpy() if split.time_field in split.inter_feat else np.zeros(0)
    return 2 * float(np.spacing(np.float32(np.abs(times).max(initial=1.0))))


def match(
    request: ForgetRequest, users: np.ndarray, items: np.ndarray, near: Candidates, clock: Clock | None
) -> tuple[np.ndarray, np.ndarray]:
    """Which interactions ``near`` a request of ids ``users``, ``items`` means, and which of its rows have one."""
    split, timed = near.split, request.frame["time"].notna().to_numpy()
    own_users, own_items = (split.inter_feat[f].numpy()[near.numbers] for f in (split.uid_field, split.iid_field))
    keys, wanted = own_users * split.item_num + own_items, users * split.item_num + items
    both = (users > 0) & (items > 0)
    mask, found = np.zeros(len(keys), dtype=bool), np.zeros(len(users), dtype=bool)
    for own, asked, rows in (  # ``rows``: those of each kind whose tokens are known
        (own_users, users, (users > 0) & (items == EMPTY)),
        (own_items, items, (users == EMPTY) & (items > 0)),
        (keys, wanted, both & ~timed),
    ):
        mask |= np.isin(own, asked[rows])
        found[rows] |= np.isin(asked[rows], own)
    if timed.any():
        if split.time_field not in split.inter_feat:
            raise UnlearnError(
                f"{request.name} gives {split.time_field}, but the dataset was loaded without it. "
                f"Drop that column, or load it with --load_col='{{inter: [..., {split.time_field}]}}'."
            )
        moments = request.frame["time"].to_numpy()
        moments = clock(moments) if clock else moments
        times = split.inter_feat[split.time_field].numpy()[near.numbers].astype(np.float64)
        precision = time_precision(split) if near.precision is None else near.precision
        present = pd.DataFrame({"key": keys, "time": times, "number": np.arange(len(keys))})
        requests = pd.DataFrame({"key": wanted, "asked": moments, "request": np.arange(len(wanted))})
        pairs = present.merge(requests[both & timed], on="key")
        pairs = pairs[(pairs["time"] - pairs["asked"]).abs() <= precision]
        mask[pairs["number"].to_numpy()] = True
        found[pairs["request"].to_numpy()] = True
    return mask, found
