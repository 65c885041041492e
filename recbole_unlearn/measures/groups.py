"""Who bears the damage: utility by how active users are and by how popular items are.

Users are split into thirds by their number of retained interactions, test interactions by their item's popularity.
"""

from __future__ import annotations

from typing import Any

import torch

from recbole_unlearn.data import UnlearnData
from recbole_unlearn.measures.scores import Questions

USERS = ("low", "middle", "high")
ITEMS = ("tail", "middle", "head")


def thirds(values: torch.Tensor) -> torch.Tensor:
    """0, 1 or 2 for the lowest, middle and highest third of ``values`` (n,); equal values are together."""
    ordered = values.sort().values
    cuts = ordered[torch.tensor([len(ordered) // 3, 2 * len(ordered) // 3]).clamp(max=len(ordered) - 1)]
    return torch.searchsorted(cuts, values, right=True)


def by_group(
    questions: Questions, data: UnlearnData, top: torch.Tensor, k: int = 20
) -> dict[str, dict[str, Any]]:
    """Recall@K of users by activity (mean over users), and of test interactions by popularity (share found)."""
    test = data.retain.test
    users, items = test.inter_feat[test.uid_field], test.inter_feat[test.iid_field]
    looked_at = torch.isin(users, questions.users)
    users, items = users[looked_at], items[looked_at]
    row = torch.searchsorted(questions.users, users)
    found = (top[row, :k] == items[:, None]).any(dim=1).float()
    total = torch.bincount(row, minlength=len(questions.users))
    recall = torch.zeros(len(questions.users)).index_add_(0, row, found) / total.clamp(min=1)
    tested = (total > 0).nonzero().flatten()
    train = data.retain.train
    activity = thirds(
        torch.bincount(train.inter_feat[train.uid_field], minlength=train.user_num)[questions.users[tested]]
    )
    popularity = thirds(torch.bincount(train.inter_feat[train.iid_field], minlength=train.item_num)[items])
    key = f"recall@{k}"
    return {
        "user_activity": {
            name: {key: _mean(recall[tested[activity == n]]), "users": int((activity == n).sum())}
            for n, name in enumerate(USERS)
            if (activity == n).any()
        },
        "item_popularity": {
            name: {key: _mean(found[popularity == n]), "rows": int((popularity == n).sum())}
            for n, name in enumerate(ITEMS)
            if (popularity == n).any()
        },
    }


def _mean(values: torch.Tensor) -> float:
    return round(float(values.mean()), 6)
