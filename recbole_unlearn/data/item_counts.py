"""How many interactions items had when their rows were fitted: kept from request to request, rounded for privacy.

An item that has lost too much since its row was fitted needs a new start (`rows/region.py`), so each request has to
pass on how many training interactions there were at that time. The exact number would disclose too much: minus the
retained interactions it is the number of deleted ones, and after a request of one user 95 % of that user's items
could be read from it (ml-100k). So it is rounded up, in steps of three or of a tenth. An item then shows a deletion
only where its retained interactions fell below a step and its row got no new start: after that request these are 9 %
of the user's items, and none after the requests that follow it. All others follow from retained interactions.

With n interactions when it was fitted and r that are left,

    fitted = coarse(n),    lost = fitted − r ≥ n − r

so the decision whether a row is fitted again never counts less than the item has lost, and at most a step more.
`fitted` stays the same until then: requests one after the other decide as one request for all of them. How far a row
starts again, and which users follow, depends on the certain loss (:func:`lost_at_least`): half a step too much for
every item of a small request adds up over many requests, until the model is useless (twenty requests of 0.1 % on
ml-100k took NDCG@20 from .23 to .03).
"""

import torch

_LEAST, _SHARE = 3, 10  # a step has at least this many interactions, and at least one in this many


def coarse(numbers: torch.Tensor) -> torch.Tensor:
    """Numbers rounded up to the next of the steps 0, 3, 6, …, 30, 34, 38, 43 and so on."""
    steps = _steps(int(numbers.max()))
    return steps[torch.searchsorted(steps, numbers)]


def _steps(largest: int) -> torch.Tensor:
    edges = [0]
    while edges[-1] < largest:
        last = edges[-1]
        tenth = -(-_SHARE * last // (_SHARE - 1))  # the least f with (f − last) / f ≥ 1/10
        edges.append(max(last + _LEAST, tenth))
    return torch.tensor(edges)


def lost_since(fitted: torch.Tensor, retained: torch.Tensor) -> torch.Tensor:
    """How many interactions items have lost since their rows were fitted (items,), rounded up as above."""
    return (fitted - retained).clamp(min=0)


def lost_at_least(fitted: torch.Tensor, retained: torch.Tensor) -> torch.Tensor:
    """As :func:`lost_since`, but no more than items have certainly lost: n is above the step before ``fitted``."""
    steps = _steps(int(fitted.max()))
    least = steps[(torch.searchsorted(steps, fitted) - 1).clamp(min=0)] + 1
    return (torch.minimum(least, fitted) - retained).clamp(min=0)


def fitted_after(
    fitted: torch.Tensor | None, before: torch.Tensor, after: torch.Tensor, refitted: torch.Tensor | None
) -> torch.Tensor | None:
    """``fitted`` (items,) after a request, ``refitted`` items counted again; None: trained on the data it has."""
    if refitted is not None and len(refitted) == len(after):
        return None
    kept = (coarse(before) if fitted is None else fitted).clone()
    renewed = after == 0  # orphans have their initial rows
    if refitted is not None:
        renewed[refitted] = True
    kept[renewed] = coarse(after)[renewed]
    return kept
