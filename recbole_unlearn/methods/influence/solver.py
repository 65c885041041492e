"""Influence steps: rows of a model as one vector, Hessian-vector products on it, and the solver of (H + Λ) x = b.

:class:`Selection` maps rows of tables to a vector and back, :func:`hessian_product` is v -> H v for a loss, and
:func:`damped` solves with such products only; Λ is a diagonal damping. The product must be that of the same matrix
at every call: with new mini-batches conjugate gradients diverge, as directions are then conjugate for no matrix.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.methods import Outcome
from recbole_unlearn.rows import Region, Table, TrainIndex, as_rows

GROWTH, LEAST, TRIES = 4.0, 1e-4, 30  # of a damping that turned out to be too small

Product = Callable[[torch.Tensor], torch.Tensor]


def losing(region: Region, more_than: float = -1.0, less_than: float = 2.0) -> Region:
    """The members of a region that lose a share of their interactions between two bounds."""
    return Region({side: m.part((m.share > more_than) & (m.share < less_than)) for side, m in region.items()})


class Part(NamedTuple):
    """Rows of one table."""

    name: str
    axis: int
    rows: torch.Tensor  # (n,), in the parameter
    weight: torch.Tensor  # (n,), the number of training interactions that touch each
    width: int


class Selection:
    """The rows of some users and items in a model's tables, as a vector (P,); no other row is ever written."""

    def __init__(self, model: AbstractRecommender, tables: list[Table], region: Region, index: TrainIndex) -> None:
        self.named = dict(model.named_parameters())
        self.parts: list[Part] = []
        for table in tables:
            chosen = region[table.side].ids
            if len(chosen) == 0:
                continue
            parameter = self.named[table.parameter]
            width = as_rows(parameter, table.axis).shape[1]
            # Training interactions of each: its own, and for an item also the ones that draw it as a negative.
            weight = index.counts(table.side, chosen).clamp(min=1).float()
            weight = weight + len(index) / index.sizes["item"] if table.side == "item" else weight
            weight = weight.to(parameter.device, parameter.dtype)
            rows = (chosen + table.offset).to(parameter.device)
            self.parts.append(Part(table.parameter, table.axis, rows, weight, width))
        self.names = list(dict.fromkeys(part.name for part in self.parts))
        self.parameters = [self.named[name] for name in self.names]

    def __len__(self) -> int:
        return sum(len(part.rows) * part.width for part in self.parts)

    def gather(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The chosen rows of tensors shaped like the parameters, as (P,)."""
        return torch.cat([as_rows(tensors[part.name], part.axis)[part.rows].reshape(-1) for part in self.parts])

    def scatter(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """A vector (P,) as tensors shaped like the parameters, zero outside the chosen rows."""
        full = {name: torch.zeros_like(self.named[name], requires_grad=False) for name in self.names}
        for part, block in zip(self.parts, self.split(vector), strict=True):
            as_rows(full[part.name], part.axis)[part.rows] = block
        return full

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """A vector (P,) as one block (n, d) for each table."""
        sizes = [len(part.rows) * part.width for part in self.parts]
        return [block.view(-1, part.width) for block, part in zip(vector.split(sizes), self.parts, strict=True)]

    def read(self) -> torch.Tensor:
        """The current values of the rows, (P,)."""
        return self.gather(self.named)

    @torch.no_grad()
    def write(self, vector: torch.Tensor) -> None:
        """Set the chosen rows to these values, (P,)."""
        for part, block in zip(self.parts, self.split(vector), strict=True):
            as_rows(self.named[part.name], part.axis)[part.rows] = block

    def weights(self) -> torch.Tensor:
        """The number of training interactions that touch each coordinate, (P,)."""
        return torch.cat([part.weight.repeat_interleave(part.width) for part in self.parts])

    def gradient(self, loss: torch.Tensor, **graph: Any) -> dict[str, torch.Tensor]:
        """∇L by parameter, zero where the loss does not depend on one."""
        found = torch.autograd.grad(loss, self.parameters, materialize_grads=True, **graph)
        return dict(zip(self.names, found, strict=True))


def hessian_product(loss: torch.Tensor, selection: Selection, scale: float = 1.0) -> Product:
    """The product v -> c · ∇²L v on a selection (P,), with L's graph built once.

        ∇²L v = ∇(∇Lᵀ v)

    The first gradient is kept with its graph, so every product is of the same batch and the same function.
    """
    gradients = selection.gradient(loss, create_graph=True)
    gradients = {name: gradient for name, gradient in gradients.items() if gradient.requires_grad}

    def product(vector: torch.Tensor) -> torch.Tensor:
        if not gradients:
            return torch.zeros_like(vector)  # the loss is linear in these rows
        full = selection.scatter(vector)
        inner = torch.stack([(g * full[name]).sum() for name, g in gradients.items()]).sum()
        return scale * selection.gather(selection.gradient(inner, retain_graph=True))

    return product


def gradient_sum(losses: Iterable[tuple[torch.Tensor, float]], selection: Selection) -> torch.Tensor:
    """Σ c ∇L over pairs (L, c) on a selection (P,); RecBole's losses are means, and c counts their interactions."""
    total = torch.zeros_like(selection.read())
    for loss, number in losses:
        total += number * selection.gather(selection.gradient(loss))
    return total


class Solution(NamedTuple):
    """x (P,), the relative residuals |b - (H + Λ)x| / |b| after each step, and whether negative curvature was met."""

    x: torch.Tensor
    residuals: list[float]
    negative_curvature: bool = False
    damping: float = 0.0  # the λ that was needed, where it was searched for

    def outcome(self, **certificates: Any) -> Outcome:
        """The outcome of a method, with the solution's quality among its ``certificates``."""
        residual = round(self.residuals[-1], 9) if self.residuals else 0.0
        about = {"steps": len(self.residuals), "residual": residual, "negative_curvature": self.negative_curvature}
        curve = [(step, round(value, 9)) for step, value in enumerate(self.residuals, 1)]
        return Outcome({"solver": about | {"damping": self.damping}, **certificates}, {"residual": curve})


def conjugate_gradient(
    product: Product, b: torch.Tensor, damping: torch.Tensor | float, steps: int, tolerance: float,
    done: Callable[[], object] = lambda: None,
) -> Solution:  # fmt: skip
    """Solve (H + Λ) x = b from x = 0, all (P,).

    Stops at a relative residual of ``tolerance`` or after ``steps``. Where H + Λ is not positive definite, it stops
    at the first direction d with dᵀ(H + Λ)d ≤ 0 and returns the x so far, as truncated Newton methods do: there is no
    minimum along d. ``done`` is called after each step.
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
    product: Product, b: torch.Tensor, weights: torch.Tensor, damping: float, steps: int, tolerance: float,
    done: Callable[[], object] = lambda: None,
) -> Solution:  # fmt: skip
    """Solve (H + λW) x = b with W = diag(``weights``) (P,) and λ = ``damping``, or more where that is not enough.

    The loss is not convex: at negative curvature λ is raised by ``GROWTH``, as Levenberg and Marquardt do.
    """
    for _ in range(TRIES):
        solution = conjugate_gradient(product, b, damping * weights, steps, tolerance, done)
        if not solution.negative_curvature:
            return solution._replace(damping=damping)
        damping = max(GROWTH * damping, LEAST)
    raise UnlearnError(
        f"The Hessian is not positive definite even with a damping of {damping:g}. Check the model's weights."
    )


def _check(value: float) -> None:
    if not math.isfinite(value):
        raise UnlearnError(
            "The influence could not be solved for: a Hessian-vector product or gradient is not finite. "
            "Use a larger damping, or check the model's weights."
        )
