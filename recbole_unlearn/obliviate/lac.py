"""Stage 2, LAC: calibrate the adapters on the witness set, a few steps, everything else frozen.

The loss is the model's own training loss on retained rows. A step takes its gradient with respect to the region's
rows, G (n, d), and gives the adapter G B (since ΔW = A Bᵀ), with Adam and a learning rate that falls to zero: the
fall matters more than the loss. B is fixed, so the rows are linear in what is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.model.general_recommender.bpr import BPR
from tqdm import tqdm

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.obliviate.adapters import Adapter, AdapterSet
from recbole_unlearn.obliviate.curvature import loss_gradients
from recbole_unlearn.obliviate.witness import Witness
from recbole_unlearn.tables import Table

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Pass(NamedTuple):
    """One calibration: of which sides, and how."""

    sides: tuple[str, ...]
    steps: int
    learning_rate: float
    batch_size: int


class RowGradients:
    """Loss and gradients of the adapters' rows on one batch, for any model."""

    def __init__(self, model: AbstractRecommender, witness: Witness, adapters: Sequence[Adapter]) -> None:
        self.model, self.witness, self.adapters = model, witness, adapters

    def __call__(self, chosen: torch.Tensor, drawn: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
        """The training loss of rows ``chosen`` with negatives ``drawn``, and its gradients (n, d) by adapter."""
        self.model.train()
        loss, gradients = loss_gradients(self.model, self.witness.batch(chosen, drawn))
        return loss, [
            gradients[adapter.name][adapter.rows]
            if adapter.name in gradients
            else torch.zeros_like(adapter.base)
            for adapter in self.adapters
        ]


class BPRGradients(RowGradients):
    """The same for BPR, written out: only rows of the batch are touched, no (users, d) tensor is made.

    With x = q_i − q_j and c = σ(p_u·x) − 1: ∂/∂p_u = c x, ∂/∂q_i = c p_u, ∂/∂q_j = −c p_u, averaged over the batch.
    """

    def __init__(self, model: AbstractRecommender, witness: Witness, adapters: Sequence[Adapter]) -> None:
        super().__init__(model, witness, adapters)
        self.places = {}
        for adapter in adapters:
            size = len(dict(model.named_parameters())[adapter.name])
            place = torch.full((size,), -1)
            place[adapter.rows] = torch.arange(len(adapter.rows))
            self.places[adapter.name] = place.to(adapter.base.device)

    @torch.no_grad()
    def __call__(self, chosen: torch.Tensor, drawn: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
        """As :meth:`RowGradients.__call__`."""
        p, q = self.model.user_embedding.weight, self.model.item_embedding.weight
        triple = (self.witness.users[chosen], self.witness.items[chosen], drawn)
        users, items, drawn = (ids.to(p.device) for ids in triple)
        p_u, x = p[users], q[items] - q[drawn]
        margin = (p_u * x).sum(dim=1)
        c = ((torch.sigmoid(margin) - 1.0) / len(users))[:, None]
        gradients = []
        for adapter in self.adapters:
            gradient = torch.zeros_like(adapter.base)
            if adapter.name == "user_embedding.weight":
                self._add(gradient, adapter.name, users, c * x)
            else:
                self._add(gradient, adapter.name, items, c * p_u)
                self._add(gradient, adapter.name, drawn, -c * p_u)
            gradients.append(gradient)
        return float(torch.nn.functional.softplus(-margin).mean()), gradients

    def _add(self, gradient: torch.Tensor, name: str, ids: torch.Tensor, values: torch.Tensor) -> None:
        place = self.places[name][ids]
        inside = place >= 0
        gradient.index_add_(0, place[inside], values[inside])


_FAST: dict[type, type[RowGradients]] = {BPR: BPRGradients}


def row_gradients(model: AbstractRecommender, witness: Witness, adapters: Sequence[Adapter]) -> RowGradients:
    """The fastest way to this model's row gradients."""
    return _FAST.get(type(model), RowGradients)(model, witness, adapters)


def calibrate(
    adapters: AdapterSet,
    tables: Sequence[Table],
    witness: Witness,
    passes: Sequence[Pass],
    show: Callable[[int, str], tqdm],
) -> list[float]:
    """Run ``passes`` one after the other; returns the loss of every step."""
    side_of = {table.parameter: table.side for table in tables}
    losses: list[float] = []
    for plan in passes:
        chosen = [adapter for adapter in adapters.adapters if side_of[adapter.name] in plan.sides]
        rows = witness.rows(plan.sides)
        if not chosen or len(rows) == 0 or plan.steps == 0:
            continue
        losses += _one_pass(adapters, chosen, rows, witness, plan, show)
    return losses


def _one_pass(
    adapters: AdapterSet,
    chosen: Sequence[Adapter],
    rows: torch.Tensor,
    witness: Witness,
    plan: Pass,
    show: Callable[[int, str], tqdm],
) -> list[float]:
    gradients_of = row_gradients(adapters.model, witness, chosen)
    first = [torch.zeros_like(adapter.a) for adapter in chosen]
    second = [torch.zeros_like(adapter.a) for adapter in chosen]
    losses = []
    with show(plan.steps, " and ".join(plan.sides) + " rows") as bar:
        for step in range(plan.steps):
            loss, gradients = gradients_of(*witness.triples(rows, plan.batch_size, "item" in plan.sides))
            if loss != loss:
                raise UnlearnError("LAC failed: its loss is not a number. Lower lac_learning_rate.")
            losses.append(loss)
            rate = plan.learning_rate * (1.0 - step / plan.steps)
            with torch.no_grad():
                for adapter, m, v, gradient in zip(chosen, first, second, gradients, strict=True):
                    _adam(adapter.a, m, v, gradient @ adapter.b, step + 1, rate)
                    adapters.parameter(adapter)[adapter.rows] = adapter.base + adapter.delta
            bar.update()
    return losses


def _adam(
    a: torch.Tensor, m: torch.Tensor, v: torch.Tensor, gradient: torch.Tensor, step: int, rate: float
) -> None:
    """One step of Adam on ``a``, in place."""
    m.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
    v.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    scale = (v / (1 - BETAS[1] ** step)).sqrt_().add_(EPSILON)
    a.addcdiv_(m, scale, value=-rate / (1 - BETAS[0] ** step))
