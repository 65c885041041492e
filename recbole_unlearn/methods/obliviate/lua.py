"""Stage 1, LUA: the rows' new start (`restart.py`), and on it the downdate (`downdate.py`) at rank r.

The new start is full and frozen. The downdate is projected to rank r by a truncated SVD, exact from the region's
rows only: W' = W + R + A Bᵀ, where B spans the downdate and A starts at its coefficients. LAC then trains A, so the
rank is what it is in the paper, cost and capacity of the calibration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from recbole_unlearn.errors import UnlearnError


def spectrum(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The squared singular values (d,) of ``rows`` (n, d), rising, and their directions (d, d)."""
    gram = rows.double().T @ rows.double()
    if not torch.isfinite(gram).all():
        raise UnlearnError(
            "The downdate is not a finite number, so the model is not usable; nothing was written. "
            "Check the weights of the original."
        )
    values, vectors = torch.linalg.eigh(gram)
    return values.clamp(min=0.0), vectors


class LowRank(NamedTuple):
    """ΔW ≈ A Bᵀ, and the part of ‖ΔW‖² that it keeps."""

    a: torch.Tensor  # (n, r)
    b: torch.Tensor  # (d, r)
    energy: float


def project_all(deltas: Sequence[torch.Tensor], rank: int | str, shared: bool) -> list[LowRank]:
    """Each of ``deltas`` (n_k, d_k) at ``rank``: a number, or "full" rows.

    With ``shared`` those of one width have one B, that of their stack.
    """
    if rank == "full":
        return [
            LowRank(delta, torch.eye(delta.shape[1], dtype=delta.dtype, device=delta.device), 1.0)
            for delta in deltas
        ]
    number = int(rank)
    if not shared:
        return [project(delta, number) for delta in deltas]
    found: dict[int, LowRank] = {}
    for width in {delta.shape[1] for delta in deltas}:
        mine = [k for k, delta in enumerate(deltas) if delta.shape[1] == width]
        b = project(torch.cat([deltas[k] for k in mine]), number).b
        for k in mine:
            a, total = deltas[k] @ b, deltas[k].square().sum()
            found[k] = LowRank(a, b, float(a.square().sum() / total) if total > 0 else 1.0)
    return [found[k] for k in range(len(deltas))]


def project(delta: torch.Tensor, rank: int) -> LowRank:
    """The best approximation of ``delta`` (n, d) of rank r.

    From the eigenvectors V of the Gram matrix ΔᵀΔ (d, d), which are the right singular vectors: A = ΔV_r, B = V_r.
    B is orthonormal (the paper splits Σ between A and B; the product is the same), so that steps on A are steps on
    the rows.
    """
    values, vectors = spectrum(delta)
    values, vectors = values.flip(0), vectors.flip(1)
    total = values.sum()
    rank = max(1, min(rank, delta.shape[1]))
    basis = vectors[:, :rank].to(delta.dtype)
    share = float(values[:rank].sum() / total) if total > 0 else 1.0
    return LowRank(delta @ basis, basis, share)
