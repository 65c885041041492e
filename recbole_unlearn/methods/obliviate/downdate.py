r"""LUA's downdate by the optimizer's state: undo what the deleted interactions did to their rows.

With J the training objective and g_S the gradient of the loss on S at θ₀, stationarity of J − J_S gives
−g_S + HΔ = 0, so Δ = **+**H⁻¹g_S: up the deleted loss. (The paper prints a minus in its theorem and in LUA; that
learns S a second time.) The curvature is √v̂ + ε, by the second moments of the optimizer that trained the model:

    Δ = η · g_S / (√v̂ + ε),    η = c / batch size

g_S is a sum over S and √v̂ the size of a batch *mean*, and one epoch of Adam moved a row by about
lr · (g_S / batch) / √v̂ because of S. So c = K · lr undoes K epochs of these interactions.

**The limit.** At a model that has learned S by heart the gradient is nearly zero, at one that never saw S it is
large: the step says least where there is most to undo. It gives the direction, and a row goes at most

    ‖Δ_row‖ ≤ min(κ (ρ / e)², 0.2) · ‖row‖

ρ is the share of the row's interactions that are deleted, and e how much of a score the pair's own rows θ make up:
s = ½ Σ θ·∂s/∂θ for a dot product of two rows, so e = 1 for BPR. A row of LightGCN is one layer of several that a
score is made of, so it has to go further for the same change.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from recbole_unlearn.methods.obliviate.adapters import Adapter, AdapterSet
from recbole_unlearn.methods.obliviate.gradients import RowGradients, row_gradients
from recbole_unlearn.rows import Moments, Region, Witness, as_rows

EPSILON = 1e-8
BATCH = 65536  # deleted interactions whose gradient is taken at once
DRAWS = 4  # of negatives, over which the gradient is averaged where S is small
LARGEST = 0.2  # of a row's length
LEAST_REACH = 0.1  # what e is taken to be at least
LOOKED_AT = 32  # deleted pairs that e is the mean of; with many, rows of one are neighbours of another


def direction(gradient: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
    """+g_S / (√v̂ + ε): the downdate per coordinate, up to its scale."""
    return gradient / (moment.sqrt() + EPSILON)


def limited(
    step: torch.Tensor, rows: torch.Tensor, share: torch.Tensor, limit: float, reach: float
) -> torch.Tensor:
    """``step`` (n, d) with ‖step‖ ≤ min(limit · (share / reach)², LARGEST) · ‖row‖ for each of ``rows``."""
    most = (limit * (share / reach).square()).clamp(max=LARGEST)[:, None] * rows.norm(dim=1, keepdim=True)
    length = step.norm(dim=1, keepdim=True).clamp(min=torch.finfo(step.dtype).tiny)
    return step * (most / length).clamp(max=1.0)


def directions(adapters: AdapterSet, witness: Witness, moments: Moments) -> tuple[list[torch.Tensor], float]:
    """g_S / (√v̂ + ε) for the rows of every trained adapter (n, d), and e. The model is at θ₀, B the identity."""
    chosen = adapters.trained
    gradients = row_gradients(adapters, chosen, witness)
    deleted = witness.retained.asked
    size = len(deleted)
    draws = max(1, min(DRAWS, BATCH // max(1, size)))
    for _ in range(draws):
        for part in deleted.split(BATCH):
            gradients.own(witness.triples(part), len(part) / draws)
    return over_curvature(chosen, gradients.take(), moments), _reach(gradients, adapters, witness)


def over_curvature(
    chosen: Sequence[Adapter], gradients: Sequence[torch.Tensor], moments: Moments
) -> list[torch.Tensor]:
    """The directions of the rows of ``chosen`` by their ``gradients`` (n, d)."""
    found = []
    for adapter, gradient in zip(chosen, gradients, strict=True):
        if adapter.name in moments:
            moment = as_rows(moments[adapter.name], adapter.axis)[adapter.rows]
            found.append(direction(gradient, moment))
        else:
            found.append(torch.zeros_like(gradient))  # a parameter that never had a gradient
    return found


def _reach(gradients: RowGradients, adapters: AdapterSet, witness: Witness) -> float:
    """The share e = Σ θ·∂|s|/∂θ / (2 Σ |s|) over the scores s of some deleted pairs, θ being the pairs' own rows."""
    pairs = witness.deleted(LOOKED_AT)
    if len(pairs.users) == 0:
        return 1.0
    scores = gradients.scores(pairs.users, pairs.items)
    gradients.back(scores.sign())
    ids = {"user": torch.unique(pairs.users), "item": torch.unique(pairs.items)}
    own = 0.0
    for adapter, gradient in zip(adapters.trained, gradients.take(), strict=True):
        assert adapter.side is not None
        mine = witness.region[adapter.side].place(ids[adapter.side]).to(gradient.device)
        own += float((adapter.start[mine] * gradient[mine]).sum())
    whole = 2.0 * float(scores.abs().sum())
    return max(LEAST_REACH, min(1.0, own / whole)) if whole > 0 else 1.0


def steps(
    adapters: AdapterSet,
    region: Region,
    found: Sequence[torch.Tensor],
    scale: float,
    limit: float,
    reach: float,
) -> list[torch.Tensor]:
    """The limited downdate of every trained adapter's rows (n, d): η = scale."""
    shares = _shares(adapters, region)
    return [
        limited(scale * step, adapter.base, share, limit, reach)
        for adapter, step, share in zip(adapters.trained, found, shares, strict=True)
    ]


def _shares(adapters: AdapterSet, region: Region) -> Sequence[torch.Tensor]:
    """ρ of every trained adapter's rows."""
    return [region[a.side].share.to(a.base) for a in adapters.trained if a.side is not None]
