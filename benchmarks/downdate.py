"""A request on EASE with many items: the downdate's time against a fit's, in one run with the same threads.

usage: python benchmarks/downdate.py [--items=10000] [--users=20000] [--each=60] [--requests=1,10,100] [--penalty=250]

Synthetic users have about `each` items, popular ones more often. The fit is RecBole's constructor on what is left
after one user; requests are so many whole users. "checkpoint" starts from B and X, "resident" knows diag(P) too.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from recbole.model.general_recommender.ease import EASE

from recbole_unlearn.cli import parse
from recbole_unlearn.training import downdate


class Interactions:
    """As much of a dataset as RecBole's EASE reads."""

    def __init__(self, x: sp.csr_matrix) -> None:
        self.x = x

    def num(self, field: str) -> int:
        """The number of users or items."""
        return self.x.shape[field == "item_id"]

    def inter_matrix(self, form: str) -> sp.csr_matrix:
        """X."""
        return self.x


class Settings(dict):
    """As much of a config."""

    device = "cpu"


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result of some work, and its seconds."""
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def main(arguments: list[str]) -> None:
    """Measure, and print a line for each size of request."""
    values = {
        "items": 10_000,
        "users": 20_000,
        "each": 60,
        "requests": "1,10,100",
        "penalty": 250.0,
        **parse(arguments),
    }
    users, items, penalty = int(values["users"]), int(values["items"]), float(values["penalty"])
    generator = np.random.default_rng(0)
    chance = 1 / (np.arange(items) + 50.0)
    drawn = generator.choice(items, users * int(values["each"]), p=chance / chance.sum())
    x = sp.csr_matrix((np.ones(len(drawn)), (np.repeat(np.arange(users), values["each"]), drawn)), (users, items))
    x.data[:] = 1.0
    config = Settings(
        USER_ID_FIELD="user_id", ITEM_ID_FIELD="item_id", NEG_PREFIX="neg_", device="cpu", reg_weight=penalty
    )
    model = EASE(config, Interactions(x))
    b = np.asarray(model.item_similarity)
    diagonal = downdate.inverse_diagonal(b, x, penalty)
    print(f"EASE, {users} users, {items} items, {x.nnz} interactions")
    for number in map(int, str(values["requests"]).strip("[]").split(",")):
        after = (sp.diags((np.arange(users) >= number).astype(float)) @ x).tocsr()
        after.eliminate_zeros()
        if number == 1:
            fit, seconds = timed(functools.partial(EASE, config, Interactions(after)))
            print(f"  a fit {seconds:.1f} s")
        found, whole = timed(functools.partial(downdate.downdate_ease, b, x, after, penalty))
        _, resident = timed(functools.partial(downdate.downdate_ease, b, x, after, penalty, diagonal))
        shown = [f"{took:.2f} s, 1/{seconds / took:.0f} of the fit" for took in (whole, resident)]
        print(f"  {number} users: checkpoint {shown[0]}; resident {shown[1]}")
        if number == 1:
            print(f"  largest difference to the fit {np.abs(found[0] - np.asarray(fit.item_similarity)).max():.1e}")


if __name__ == "__main__":
    main(sys.argv[1:])
