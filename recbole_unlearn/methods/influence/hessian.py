"""Rows of a model's tables as one vector, and products of a loss's Hessian with such vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.rows import Table, TrainIndex, as_rows


class Part(NamedTuple):
    """Rows of one table."""

    name: str
    axis: int
    rows: torch.Tensor  # (n,), in the parameter
    weight: torch.Tensor  # (n,), the number of training interactions that touch each
    width: int


class Selection:
    """Some users' and items' rows of a model's tables, as a vector (P,); everything else is never written."""

    def __init__(
        self,
        model: AbstractRecommender,
        tables: Sequence[Table],
        ids: Mapping[str, torch.Tensor],
        index: TrainIndex,
    ) -> None:
        """``ids`` are the chosen users and items by side; a side without any may be left out."""
        self.named = dict(model.named_parameters())
        self.parts: list[Part] = []
        for table in tables:
            chosen = ids.get(table.side)
            if chosen is None or len(chosen) == 0:
                continue
            parameter = self.named[table.parameter]
            width = as_rows(parameter, table.axis).shape[1]
            weight = _weight(index, table.side, chosen).to(parameter.device, parameter.dtype)
            rows = (chosen + table.offset).to(parameter.device)
            self.parts.append(Part(table.parameter, table.axis, rows, weight, width))
        self.names = list(dict.fromkeys(part.name for part in self.parts))
        self.parameters = [self.named[name] for name in self.names]

    def __len__(self) -> int:
        return sum(len(part.rows) * part.width for part in self.parts)

    def gather(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The chosen rows of tensors shaped like the parameters, as (P,); what is missing counts as zero."""
        blocks = []
        for part in self.parts:
            if part.name in tensors:
                blocks.append(as_rows(tensors[part.name], part.axis)[part.rows].reshape(-1))
            else:
                blocks.append(torch.zeros(len(part.rows) * part.width).to(self.named[part.name]))
        return torch.cat(blocks)

    def scatter(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """A vector (P,) as tensors shaped like the parameters, zero outside the chosen rows."""
        full = {name: torch.zeros_like(self.named[name], requires_grad=False) for name in self.names}
        for part, block in zip(self.parts, self.split(vector), strict=True):
            as_rows(full[part.name], part.axis)[part.rows] = block
        return full

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """A vector (P,) as one block (n, d) for each table."""
        sizes = [len(part.rows) * part.width for part in self.parts]
        return [
            block.view(-1, part.width) for block, part in zip(vector.split(sizes), self.parts, strict=True)
        ]

    def read(self) -> torch.Tensor:
        """The rows as they are now, (P,)."""
        return self.gather(self.named)

    @torch.no_grad()
    def write(self, vector: torch.Tensor) -> None:
        """Give the chosen rows these values, (P,)."""
        for part, block in zip(self.parts, self.split(vector), strict=True):
            as_rows(self.named[part.name], part.axis)[part.rows] = block

    def weights(self) -> torch.Tensor:
        """How many training interactions touch each coordinate, (P,)."""
        return torch.cat([part.weight.repeat_interleave(part.width) for part in self.parts])


def _weight(index: TrainIndex, side: str, ids: torch.Tensor) -> torch.Tensor:
    """Training interactions of each id, (n,): its own, and for an item also those that draw it as a negative."""
    own = index.counts(side, ids).clamp(min=1).float()
    return own + len(index) / index.sizes["item"] if side == "item" else own


class HessianProduct:
    """v -> c · ∇²L v on a selection (P,), with L's graph built once.

        ∇²L v = ∇(∇Lᵀ v)

    The first gradient is kept with its graph, so every product is of the same batch and the same function.
    """

    def __init__(self, loss: torch.Tensor, selection: Selection, scale: float = 1.0) -> None:
        self.selection, self.scale = selection, scale
        found = torch.autograd.grad(loss, selection.parameters, create_graph=True, allow_unused=True)
        self._gradients = {
            name: gradient
            for name, gradient in zip(selection.names, found, strict=True)
            if gradient is not None and gradient.requires_grad
        }

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        """The product with ``vector`` (P,)."""
        if not self._gradients:
            return torch.zeros_like(vector)  # the loss is linear in these rows
        full = self.selection.scatter(vector)
        inner = torch.stack([(g * full[name]).sum() for name, g in self._gradients.items()]).sum()
        found = torch.autograd.grad(inner, self.selection.parameters, retain_graph=True, allow_unused=True)
        named = {name: g for name, g in zip(self.selection.names, found, strict=True) if g is not None}
        return self.scale * self.selection.gather(named)


def gradient_sum(losses: Iterable[tuple[torch.Tensor, float]], selection: Selection) -> torch.Tensor:
    """Σ c ∇L over pairs (L, c) on a selection (P,). RecBole's losses are means; c is the number of interactions."""
    total = torch.zeros_like(selection.read())
    for loss, number in losses:
        found = torch.autograd.grad(loss, selection.parameters, allow_unused=True)
        named = {name: g for name, g in zip(selection.names, found, strict=True) if g is not None}
        total += number * selection.gather(named)
    return total
