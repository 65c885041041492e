r"""Obliviate as the paper prints it, with its ablations.

Stage 1, LUA: the downdate η g_S / (√v̂ + ε) on the rows of S and their neighbours one hop away, projected to rank r
for each table. Stage 2, LAC: T steps of Adam at a constant rate on A and B, minimising

    λ_u · mean over S of −log σ(s(u, i⁻) − s(u, i⁺))    i⁺ deleted, i⁻ the hardest of five negatives
  + λ_d · mean over R of (s(u, i; θ) − s(u, i; θ₀))²    R: 10 % of the retained interactions
  + λ_r · ‖A Bᵀ‖²_F

Two things are not as printed: the sign of the downdate, which would learn S a second time, and its scale, which the
paper leaves open (c / batch size, as in `obliviate.py`). The weights λ and the learning rate are not printed either.
With B trained the change A Bᵀ is bilinear, so the paper's convexity argument does not hold; the bound that holds is
‖Δθ‖² ≤ L(φ₀)/λ_r for every φ with L(φ) ≤ L(φ₀), since all other losses are at least 0.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from recbole_unlearn.methods import UnlearnTask, method
from recbole_unlearn.methods.obliviate import obliviate
from recbole_unlearn.methods.obliviate.adapters import Adapter, project
from recbole_unlearn.methods.obliviate.fast_gradients import RowGradients
from recbole_unlearn.rows import SIDES, Region, Triples, Witness, pair_scores, reverse_ranking_loss, with_neighbours
from recbole_unlearn.settings import setting

DECAY, MOST = 0.5, 1000  # of neighbours: the share that they have, and how many join a side
BUFFER = 0.1  # R, as a share of all retained interactions
CANDIDATES = 5  # negatives of which the hardest is taken


@dataclasses.dataclass(frozen=True)
class PaperSettings:
    """Settings of the paper's algorithm."""

    lua_target: ClassVar[str] = "none"
    lua_limit: ClassVar[float | None] = None

    lua_scale: float = setting("Scale c of the downdate, c / batch size. 0 for none.", low=0.0)
    rank: int | str = setting("Rank of the adapters. A number, or 'full'.", low=1, words=("full",))
    lac_steps: int = setting("Steps of the calibration.", low=0)
    lac_learning_rate: float = setting("Adam's learning rate.", low=0.0)
    lac_batch_size: int | None = setting("Interactions in a step; 8192 when empty.", low=1)
    lac_forget: float = setting("Weight of the reverse ranking loss on deleted interactions.", low=0.0)
    lac_distill: float = setting("Weight of distillation: retained pairs keep their scores.", low=0.0)
    lac_drift: float = setting("Weight of the squared change of the weights.", low=0.0)


@method("obliviate_paper", "The paper's objective, ranks and steps (and the right sign).", PaperSettings)
class ObliviatePaper(obliviate.Obliviate):
    """λ_u reverse ranking on S + λ_d distillation on R + λ_r ‖Δθ‖², from the rank-r downdate on."""

    on_sequences = False  # its losses are of pairs
    forgets_more: ClassVar[Sequence[str]] = ("raise lac_steps", "raise lac_forget", "lower lac_distill")
    forgets_less: ClassVar[Sequence[str]] = ("lower lac_steps", "lower lac_forget", "raise lac_distill")
    of_pairs = ()

    def request_class(self, task: UnlearnTask) -> type[obliviate.Request]:
        """The paper's request."""
        return PaperRequest


@method("no_lua", "obliviate_paper without stage 1: calibration of the original.", PaperSettings)
class NoLUA(ObliviatePaper):
    """LAC alone: lua_scale is 0, and the adapters of rank r start at zero."""


@method("no_lac", "obliviate_paper without stage 2: the rank-r downdate alone.", PaperSettings)
class NoLAC(ObliviatePaper):
    """LUA alone: lac_steps is 0."""

    forgets_more = forgets_less = ()


@method("no_distill", "obliviate_paper without distillation of retained pairs.", PaperSettings)
class NoDistill(ObliviatePaper):
    """LUA and LAC, with λ_d = 0."""

    forgets_more = ("raise lac_steps", "raise lac_forget")
    forgets_less = ("lower lac_steps", "lower lac_forget")


class PaperRequest(obliviate.Request):
    """A request to the paper's algorithm."""

    region_negatives = 0.0
    low_rank = staticmethod(lambda steps, rank: [project(step, rank) for step in steps])  # each its own B

    def calibrated(self, touched: Region) -> Region:
        """The rows of S and their neighbours."""
        return with_neighbours(touched, self.retained, DECAY, MOST)

    def plan(self) -> tuple[obliviate.Objective, torch.Tensor, obliviate.Schedule]:
        """The paper's objective, on a uniform sample R of all retained interactions."""
        options, witness = self.options, self.witness
        forget = options.lac_forget if len(witness.retained.gone) else 0.0
        interactions = witness.uniform(max(1, round(BUFFER * witness.retained.size)))
        teacher = None
        if options.lac_distill:
            chosen = torch.unique(interactions)
            users, items = (self.index.ids[side][chosen] for side in SIDES)
            scores = pair_scores(self.model, self.index.train, users, items)
            teacher = scores.new_zeros(self.index.total).index_copy(0, chosen, scores)
        objective = PaperObjective(forget, distill=options.lac_distill, drift=options.lac_drift, teacher=teacher)
        schedule = obliviate.Schedule.by(options, options.lac_learning_rate, obliviate.BATCH_SIZE)
        return objective, interactions, schedule

    def certificates(self, lac: dict[str, float]) -> dict[str, Any]:
        """As for Obliviate, with the bound L(φ₀)/λ_r of the drift where the objective fell."""
        found = super().certificates(lac)
        if self.options.lac_drift and lac and lac["last"] <= lac["first"]:
            found["drift_bound"] = round(lac["first"] / self.options.lac_drift, 6)
        return found


@dataclasses.dataclass(frozen=True)
class PaperObjective(obliviate.Objective):
    """λ_u reverse ranking on S + λ_d distillation on R + λ_r ‖A Bᵀ‖²; B is trained too."""

    distill: float = 0.0
    drift: float = 0.0
    teacher: torch.Tensor | None = None  # scores at θ₀, by number of interaction
    trains_b: ClassVar[bool] = True

    def value(self, gradients: RowGradients, witness: Witness, batch: Triples) -> float:
        """As :meth:`Objective.value`."""
        pairs = []
        if self.forget:
            drawn = witness.deleted(len(batch.users))
            users = drawn.users[:, None].expand(-1, CANDIDATES).contiguous()
            candidates = witness.retained.negatives(users, witness.generator)
            scores = gradients.scores(users.view(-1), candidates.view(-1)).cpu().view(candidates.shape)
            hardest = candidates.gather(1, scores.argmax(dim=1, keepdim=True)).squeeze(1)
            pairs += [(drawn.users, drawn.items), (drawn.users, hardest)]
        if self.distill:
            pairs.append((batch.users, batch.items))
        return obliviate.loss_of_scores(gradients, pairs, functools.partial(self._loss, batch)) if pairs else 0.0

    def _loss(self, batch: Triples, *scores: torch.Tensor) -> torch.Tensor:
        loss = torch.zeros((), device=scores[0].device)
        if self.forget:
            loss = loss + self.forget * reverse_ranking_loss(scores[0], scores[1])
        if self.distill:
            assert self.teacher is not None
            taught = self.teacher[batch.numbers].to(scores[-1])
            loss = loss + self.distill * (scores[-1] - taught).square().mean()
        return loss

    def set_gradient(self, adapter: Adapter, gradient: torch.Tensor) -> float:
        """G B for A and GᵀA for B; with λ‖A Bᵀ‖² also 2λ A BᵀB and 2λ B AᵀA. Returns λ‖A Bᵀ‖²."""
        a, b = adapter.a, adapter.b
        a.grad, b.grad = gradient @ b, gradient.T @ a
        if not self.drift:
            return 0.0
        a.grad = a.grad + 2.0 * self.drift * a @ (b.T @ b)
        b.grad = b.grad + 2.0 * self.drift * b @ (a.T @ a)
        return self.drift * float(adapter.low.square().sum())
