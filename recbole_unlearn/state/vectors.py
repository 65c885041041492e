"""The vectors of a model: one for each user and each item, whose dot product is its score, if there are such.

BPR scores by rows of its tables, LightGCN and NGCF by what their propagation makes of them. Others (NeuMF, MultiVAE,
EASE) have no vectors. No list of models says which is which: vectors are looked for where models keep them, and taken
if

    |U[u] · V[i] − score(u, i)| ≤ 1e-4 · max |score|    for some users u, and all items i.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Iterator

import numpy as np
import torch
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.recbole_compat import clear_caches
from recbole_unlearn.rows import as_rows, find_tables
from recbole_unlearn.state.live import LiveModel

SIDES = ("users", "items")
COMPARED = 64  # users whose scores are compared
CLOSE = 1e-4
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Vectors:
    """Vectors of one side, and the rows that are somebody's: all others are zeros, and nobody's."""

    values: torch.Tensor  # (n, d)
    rows: np.ndarray  # rising; those with a training interaction


@dataclasses.dataclass(frozen=True)
class Moved:
    """What an index of one side has to do to follow from one export to the next."""

    rows: np.ndarray  # that are new or have another vector
    values: torch.Tensor  # (len(rows), d)
    removed: np.ndarray  # rows that are nobody's any more

    @classmethod
    def between(cls, before: Vectors, after: Vectors) -> Moved:
        """Exact: what is not in it has the same vector to the bit."""
        differs = (before.values != after.values).any(dim=1).numpy()
        rows = after.rows[differs[after.rows] | ~np.isin(after.rows, before.rows)]
        return cls(rows, after.values[torch.from_numpy(rows)], np.setdiff1d(before.rows, after.rows))


def rows_in_use(live: LiveModel, side: str) -> np.ndarray:
    """The users or items that have a training interaction left."""
    number = live.index.sizes[side]
    return np.flatnonzero(live.index.counts(side, torch.arange(number)).numpy() > 0)


@torch.no_grad()
def find_vectors(live: LiveModel) -> tuple[Vectors, Vectors] | None:
    """The vectors of users and items; None for a model that has none."""
    users, items = (torch.from_numpy(rows_in_use(live, side)) for side in ("user", "item"))
    some = users[:: max(1, len(users) // COMPARED)][:COMPARED]
    scores = live.trainer.scores(some, live.base.splits.train)[:, items]
    try:
        for u, v in _candidates(live):
            if _close(u[some] @ v[items].T, scores):
                return _only(u, users), _only(v, items)
    finally:
        clear_caches(live.model)
    return None


def _close(products: torch.Tensor, scores: torch.Tensor) -> bool:
    return bool((products - scores).abs().max() <= CLOSE * scores.abs().max())


def _only(values: torch.Tensor, rows: torch.Tensor) -> Vectors:
    kept = torch.zeros_like(values)
    kept[rows] = values[rows]
    return Vectors(kept, rows.numpy())


def _candidates(live: LiveModel) -> Iterator[Pair]:
    """Pairs of matrices (users, d), (items, d) of a model that has just scored."""
    sizes = live.index.sizes["user"], live.index.sizes["item"]
    for found in _places(live):
        u, v = (part.detach().cpu().float() for part in found)
        if u.dim() == v.dim() == 2 and (len(u), len(v)) == sizes and u.shape[1] == v.shape[1]:
            yield u, v


def _places(live: LiveModel) -> Iterator[Pair]:
    """Where models keep them: what they remember from scoring, what `forward()` returns, and their tables."""
    model = live.model
    remembered = getattr(model, "restore_user_e", None), getattr(model, "restore_item_e", None)
    if isinstance(remembered[0], torch.Tensor) and isinstance(remembered[1], torch.Tensor):
        yield remembered[0], remembered[1]
    if _needs_nothing(model):
        made = model.forward()
        if (
            isinstance(made, tuple)
            and len(made) > 1
            and all(isinstance(part, torch.Tensor) for part in made[:2])
        ):
            yield made[0], made[1]
    named = dict(model.named_parameters())
    tables: dict[str, list[torch.Tensor]] = {"user": [], "item": []}
    for table in find_tables(model, live.base.splits.train):
        rows = as_rows(named[table.parameter], table.axis)
        tables[table.side].append(rows[table.offset : table.offset + live.index.sizes[table.side]])
    yield from itertools.product(tables["user"], tables["item"])


def _needs_nothing(model: AbstractRecommender) -> bool:
    """Whether `forward` can be called without arguments."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    given = inspect.signature(model.forward).parameters.values()
    return all(one.default is not inspect.Parameter.empty or one.kind in kinds for one in given)
