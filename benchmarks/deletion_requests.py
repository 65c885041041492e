"""Deletion requests that the benchmarks ask for, drawn from a dataset's training rows."""

from __future__ import annotations

import numpy as np
import pandas as pd

from recbole_unlearn.data import Source, load
from recbole_unlearn.settings import UnlearnConfig

KINDS = {
    "injected": "noise of 20 % of the users, as the paper simulates it",
    "genuine": "20 % of the rows of 20 % of the users",
    "users": "50 whole users",
    "item": "the most popular item",
    "random": "0.1 % of all rows",
}


def draw(
    kind: str, model: str, dataset: str, values: dict, seed: int, source: Source | None = None
) -> str | pd.DataFrame:  # fmt: skip
    """The request, as `run_unlearn` takes it; ``source`` is the data, where it is loaded already."""
    if kind == "injected":
        return kind
    train = (source or load(UnlearnConfig(model, dataset, config_dict=values))).splits.train
    rng = np.random.default_rng(seed)
    users, items = (train.inter_feat[field].numpy() for field in (train.uid_field, train.iid_field))
    if kind == "users":
        chosen = rng.choice(np.unique(users), 50, replace=False)
        return pd.DataFrame({train.uid_field: train.id2token(train.uid_field, chosen)})
    if kind == "item":
        return pd.DataFrame({train.iid_field: [train.id2token(train.iid_field, np.bincount(items).argmax())]})
    if kind == "random":
        rows = rng.choice(len(users), max(1, len(users) // 1000), replace=False)
    else:
        chosen = rng.choice(np.unique(users), len(np.unique(users)) // 5, replace=False)
        order = rng.permutation(np.flatnonzero(np.isin(users, chosen)))
        frame = pd.DataFrame({"row": order, "user": users[order]})
        rank, size = frame.groupby("user").cumcount(), frame.groupby("user")["row"].transform("size")
        rows = order[(rank < np.maximum(1, (0.2 * size).round())).to_numpy()]
    return pd.DataFrame(
        {
            train.uid_field: train.id2token(train.uid_field, users[rows]),
            train.iid_field: train.id2token(train.iid_field, items[rows]),
        }
    )
