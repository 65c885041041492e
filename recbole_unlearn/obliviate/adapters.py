"""Adapters: W' = W + A Bᵀ on some rows of a parameter, with W frozen.

Rows outside the adapter are never written, and detaching gives the original rows back bit for bit: they are kept,
not computed. A merged model is a plain RecBole model.
"""

from __future__ import annotations

import dataclasses

import torch
from recbole.model.abstract_recommender import AbstractRecommender


@dataclasses.dataclass
class Adapter:
    """A change A Bᵀ of ``rows`` of one parameter."""

    name: str  # of the parameter
    rows: torch.Tensor  # (n,)
    a: torch.Tensor  # (n, r), what is trained
    b: torch.Tensor  # (d, r), orthonormal and fixed
    base: torch.Tensor  # (n, d), the rows as they were

    @property
    def delta(self) -> torch.Tensor:
        """A Bᵀ (n, d)."""
        return self.a @ self.b.T


class AdapterSet:
    """The adapters of one model."""

    def __init__(self, model: AbstractRecommender, adapters: list[Adapter]) -> None:
        self.model = model
        self.adapters = adapters
        self._parameters = dict(model.named_parameters())

    def parameter(self, adapter: Adapter) -> torch.nn.Parameter:
        """The parameter an adapter changes."""
        return self._parameters[adapter.name]

    @torch.no_grad()
    def attach(self) -> None:
        """Write W + A Bᵀ into the adapters' rows."""
        for adapter in self.adapters:
            self.parameter(adapter)[adapter.rows] = adapter.base + adapter.delta

    @torch.no_grad()
    def detach(self) -> None:
        """Give the original rows back."""
        for adapter in self.adapters:
            self.parameter(adapter)[adapter.rows] = adapter.base

    def merge(self) -> AbstractRecommender:
        """The model with the change made for good; the adapters are dropped."""
        self.attach()
        self.adapters = []
        return self.model

    def drift(self) -> float:
        """‖Δθ‖²_F = Σ ‖A Bᵀ‖²."""
        return float(sum(adapter.delta.square().sum() for adapter in self.adapters))
