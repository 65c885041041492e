"""Where deleted items rank for their users: below items never touched, or back among the first."""

from __future__ import annotations

import torch

from recbole_unlearn.measures.base import View, measure, rounded
from recbole_unlearn.results.schema import Figure

TOPK = (10, 20, 50)


@measure(
    "demotion_rate",
    title="Demotion rate",
    meaning="share of comparisons in which a deleted item scores below one its user never met; a tie does not count",
    good="the retrained model's; more is over-forgetting, which can be seen",
    place=1,
)
def demotion_rate(view: View) -> dict[str, Figure]:
    """The mean over deleted pairs of the share of never-touched items that score higher."""
    if len(view.questions.deleted) == 0:
        return {"demotion_rate": None}
    return {"demotion_rate": rounded(view.seen.deleted.demoted.double().mean())}


@measure(
    "resurfacing",
    title="Resurfacing@{k}",
    meaning="share of deleted items that are in their user's first K",
    good="the retrained model's (for genuine interactions it is not 0)",
    place=2,
)
def resurfacing(view: View) -> dict[str, Figure]:
    """Share of deleted items among the first K of their user; only the retained history is masked."""
    pairs = view.questions.deleted
    if len(pairs) == 0:
        return {}
    lists = view.seen.top[torch.searchsorted(view.questions.users, pairs.users)]
    hits = lists == pairs.items[:, None]
    return {
        f"resurfacing@{k}": rounded(hits[:, :k].any(dim=1).double().mean())
        for k in TOPK
        if k <= lists.shape[1]
    }
