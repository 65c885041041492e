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


@measure(
    "demotion_gap",
    title="Demotion gap",
    meaning="demotion rate minus the retrained model's, on the same comparisons, and its standard error over users",
    good="0, within twice its error",
    parts={"mean": "", "error": ": standard error"},
    is_distance=True,
    place=5,
)
def demotion_gap(view: View) -> dict[str, Figure]:
    """The mean of the paired differences, with an error that takes a user's pairs as one observation."""
    if view.retrained is None:
        return {}
    difference = view.seen.deleted.demoted.double() - view.retrained.deleted.demoted.double()
    mean, error = clustered(difference, view.questions.deleted.users)
    return {"demotion_gap": {"mean": rounded(mean), "error": rounded(error)}}


def clustered(values: torch.Tensor, users: torch.Tensor) -> tuple[float, float]:
    """The mean of ``values`` (m,) and its standard error when values of one user may all be alike.

        error² = Σ over users of (Σ over the user's values of (x − mean))² / m²

    With a single user nothing is known of others: the error is then 1.
    """
    mean = values.mean()
    names, place = torch.unique(users, return_inverse=True)
    if len(names) < 2:
        return float(mean), 1.0
    sums = torch.zeros(len(names), dtype=values.dtype).index_add_(0, place, values - mean)
    return float(mean), float(sums.square().sum().sqrt() / len(values))
