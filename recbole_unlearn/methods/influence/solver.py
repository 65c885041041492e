"""Solvers of (H + Λ) x = b where H is known by its products only; Λ is a diagonal damping.

The product must be that of the same matrix at every call: with a new mini-batch in each iteration, conjugate
gradients diverge, because directions are then conjugate for no matrix at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from recbole_unlearn.errors import UnlearnError

GROWTH, LEAST, TRIES = 4.0, 1e-4, 30  # of a damping that turned out to be too small

Product = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Solution:
    """x (P,), the relative residuals |b - (H + Λ)x| / |b| after each step, and whether negative curvature was met."""

    x: torch.Tensor
    residuals: list[float]
    negative_curvature: bool = False
    damping: float | None = None  # that was needed, where it was searched for

    def certificate(self) -> dict[str, float | int | bool]:
        """The solution's quality, for result.json."""
        found = {
            "steps": len(self.residuals),
            "residual": round(self.residuals[-1], 9) if self.residuals else 0.0,
            "negative_curvature": self.negative_curvature,
        }
        return found if self.damping is None else found | {"damping": self.damping}


def conjugate_gradient(
    product: Product,
    b: torch.Tensor,
    damping: torch.Tensor | float,
    steps: int,
    tolerance: float,
    done: Callable[[], object] = lambda: None,
) -> Solution:
    """Solve (H + Λ) x = b from x = 0, all (P,).

    Stops at a relative residual of ``tolerance`` or after ``steps``. Where H + Λ is not positive definite, it
    stops at the first direction d with dᵀ(H + Λ)d ≤ 0, with what it has (as truncated Newton methods do): the
    way along d has no lowest point. If already the first direction is such, x stays 0. ``done`` is called after each
    step.
    """
    x, residual = torch.zeros_like(b), b.clone()
    direction, size, start = residual.clone(), float(residual @ residual), float(b.norm())
    _check(start)
    residuals: list[float] = []
    if start == 0.0:
        return Solution(x, residuals)
    for _ in range(steps):
        image = product(direction) + damping * direction
        curvature = float(direction @ image)
        _check(curvature)
        if curvature <= 0.0:
            return Solution(x, residuals or [1.0], negative_curvature=True)
        length = size / curvature
        x = x + length * direction
        residual = residual - length * image
        before, size = size, float(residual @ residual)
        residuals.append(size**0.5 / start)
        done()
        if residuals[-1] <= tolerance:
            break
        direction = residual + (size / before) * direction
    return Solution(x, residuals)


def damped(
    product: Product,
    b: torch.Tensor,
    weights: torch.Tensor,
    damping: float,
    steps: int,
    tolerance: float,
    done: Callable[[], object] = lambda: None,
) -> Solution:
    """Solve (H + λW) x = b with W = diag(``weights``) (P,) and λ = ``damping``, or more where that is not enough.

    A recommender's loss is not convex in users and items together. Where negative curvature is met, λ is raised by
    ``GROWTH`` until conjugate gradients meet none, as Levenberg and Marquardt do.
    """
    for _ in range(TRIES):
        solution = conjugate_gradient(product, b, damping * weights, steps, tolerance, done)
        if not solution.negative_curvature:
            return dataclasses.replace(solution, damping=damping)
        damping = max(GROWTH * damping, LEAST)
    raise UnlearnError(
        f"The Hessian is not positive definite even with a damping of {damping:g}. Check the model's weights."
    )


def adam(
    product: Product,
    b: torch.Tensor,
    damping: torch.Tensor | float,
    steps: int,
    tolerance: float,
    learning_rate: float,
    stop: Callable[[torch.Tensor], bool],
    done: Callable[[], object] = lambda: None,
) -> Solution:
    """Minimise ½ xᵀ(H + Λ)x - bᵀx from x = 0 by Adam, whose gradient is (H + Λ)x - b.

    Ends after ``steps``, at a relative residual of ``tolerance``, or when ``stop(x)`` says so.
    """
    x = torch.zeros_like(b)
    start = float(b.norm())
    _check(start)
    residuals: list[float] = []
    optimizer = torch.optim.Adam([x], lr=learning_rate)
    while start > 0.0 and len(residuals) < steps:
        x.grad = product(x) + damping * x - b
        optimizer.step()
        residuals.append(float(x.grad.norm()) / start)  # of the point the step left
        _check(residuals[-1])
        done()
        if residuals[-1] <= tolerance or stop(x):
            break
    return Solution(x, residuals)


def _check(value: float) -> None:
    if value != value or value in (float("inf"), float("-inf")):
        raise UnlearnError(
            "The influence could not be solved for: a Hessian-vector product or gradient is not finite. "
            "Use a larger damping, or check the model's weights."
        )
