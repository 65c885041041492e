"""The rarest items: what a loss over all items makes of those that nobody has is what it makes of them."""

from __future__ import annotations

import torch
from recbole.data.dataset import Dataset
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.rows.tables import as_rows, find_tables

LEAST = 10  # items, at least
SHARE = 50  # one of so many items otherwise


def rarest(train: Dataset) -> torch.Tensor:
    """The items (n,) with the fewest training interactions, of those that have some."""
    number = torch.bincount(train.inter_feat[train.iid_field], minlength=train.item_num)
    items = (number > 0).nonzero().flatten()
    return items[number[items].argsort(stable=True)[: max(LEAST, len(items) // SHARE)]]


@torch.no_grad()
def reset_to_rarest(model: AbstractRecommender, train: Dataset, items: torch.Tensor) -> None:
    """Give the rows of ``items`` (m,) in ``model`` the mean of the rows of the rarest items."""
    if len(items) == 0:
        return
    named = dict(model.named_parameters())
    others = rarest(train)
    for table in find_tables(model, train):
        if table.side == "item":
            rows = as_rows(named[table.parameter], table.axis)
            rows[(items + table.offset).to(rows.device)] = rows[(others + table.offset).to(rows.device)].mean(
                dim=0
            )
