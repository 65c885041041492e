"""Stage 1, LUA: undo what the deleted interactions did to the weights.

Two downdates, each in the regime where it is right:

* **Newton.** With J the training objective and g_S the gradient of the loss on S at θ₀, stationarity of
  J − J_S gives −g_S + HΔ = 0, so Δ = **+**H⁻¹g_S: up the deleted loss. (The paper prints a minus in its theorem and
  in LUA; that learns S a second time.) The curvature is √v̂ + ε, and the scale η is found by a line search, since g_S
  is a sum over S while √v̂ is the size of a mini-batch mean.
* **A new start** (`reembed.py`). Where a row loses much of its data, θ₀ is no place to linearise at: the row is
  replaced by what its retained neighbours predict, or by its initial value, and the downdate is the difference.

The result is projected to rank r by a truncated SVD, exact from the region's rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.rows import Moments, loss_gradients

EPSILON = 1e-8


def deletion_gradient(
    model: AbstractRecommender, batches: Iterable[tuple[Interaction, float]]
) -> dict[str, torch.Tensor]:
    """g_S: the gradient of the loss on S, summed over interactions.

    RecBole's losses are means over a batch; each batch comes with the number of interactions in that mean.
    """
    total: dict[str, torch.Tensor] = {}
    for batch, rows in batches:
        for name, gradient in loss_gradients(model, batch)[1].items():
            total[name] = total[name] + rows * gradient if name in total else rows * gradient
    return total


def newton_direction(gradient: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
    """+g_S / (√v̂ + ε): the downdate per coordinate, up to its scale. Shapes as the parameter's."""
    return gradient / (moment.sqrt() + EPSILON)


def newton_directions(gradients: dict[str, torch.Tensor], moments: Moments) -> dict[str, torch.Tensor]:
    """The downdate of every parameter that has both a gradient and a moment."""
    return {
        name: newton_direction(gradient, moments[name])
        for name, gradient in gradients.items()
        if name in moments
    }


def line_search(
    objective: Callable[[float], float], start: float, factor: float = 3.0, most: int = 12
) -> float:
    """The scale η ≥ 0 with the lowest ``objective``, among powers of ``factor`` from ``start`` on, and 0.

    The objective is lowest in between: at η = 0 nothing is forgotten, at a large η everything is lost.
    """
    best, lowest = 0.0, objective(0.0)
    scale, worse = start, 0
    for _ in range(most):
        value = objective(scale)
        if value < lowest:
            best, lowest, worse = scale, value, 0
        else:
            worse += 1
            if worse > 2:
                break
        scale *= factor
    return best


class LowRank(NamedTuple):
    """ΔW ≈ A Bᵀ, and the part of ‖ΔW‖² that it keeps."""

    a: torch.Tensor  # (n, r)
    b: torch.Tensor  # (d, r)
    energy: float


def project_all(
    deltas: Sequence[torch.Tensor], rank: int | str, energy: float, shared: bool
) -> list[LowRank]:
    """Each of ``deltas`` (n_k, d_k) at ``rank``: a number, "auto" (least that keeps ``energy``), or "full" rows.

    With ``shared`` those of one width have one B, that of their stack.
    """
    if rank == "full":
        return [
            LowRank(delta, torch.eye(delta.shape[1], dtype=delta.dtype, device=delta.device), 1.0)
            for delta in deltas
        ]
    number = None if rank == "auto" else int(rank)
    if not shared:
        return [project(delta, number, energy) for delta in deltas]
    found: dict[int, LowRank] = {}
    for width in {delta.shape[1] for delta in deltas}:
        mine = [k for k, delta in enumerate(deltas) if delta.shape[1] == width]
        b = project(torch.cat([deltas[k] for k in mine]), number, energy).b
        for k in mine:
            a, total = deltas[k] @ b, deltas[k].square().sum()
            found[k] = LowRank(a, b, float(a.square().sum() / total) if total > 0 else 1.0)
    return [found[k] for k in range(len(deltas))]


def project(delta: torch.Tensor, rank: int | None = None, energy: float = 1.0) -> LowRank:
    """The best approximation of ``delta`` (n, d) of rank r, or of the least rank that keeps ``energy``.

    From the eigenvectors V of the Gram matrix ΔᵀΔ (d, d), which are the right singular vectors: A = ΔV_r, B = V_r.
    B is orthonormal (the paper splits Σ between A and B; the product is the same), so that steps on A are steps on
    the rows.
    """
    values, vectors = torch.linalg.eigh(delta.double().T @ delta.double())
    values, vectors = values.flip(0).clamp(min=0.0), vectors.flip(1)
    total = values.sum()
    if rank is None:
        kept = values.cumsum(0) / total.clamp(min=torch.finfo(values.dtype).tiny)
        rank = int((kept < energy - 1e-12).sum()) + 1
    rank = max(1, min(rank, delta.shape[1]))
    basis = vectors[:, :rank].to(delta.dtype)
    share = float(values[:rank].sum() / total) if total > 0 else 1.0
    return LowRank(delta @ basis, basis, share)
