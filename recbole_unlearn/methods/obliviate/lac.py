"""Stage 2, LAC: calibrate the adapters on the witness set, a few steps, everything else frozen.

The objective is a weighted sum of the losses in `rows/losses.py`:

    λ_ranking · own training loss on R + λ_forget · (reverse ranking or stand-ins) on S
    + λ_distill · distillation to θ₀ on R + λ_drift · ‖Δθ‖²

The first alone is the default; the other three are the paper's. A step takes the gradient of the adapters' A; B is
fixed, so the rows are linear in what is trained. The learning rate falls to zero, which matters more than the loss;
it starts at a multiple of the rate the model was trained with, which says how large a step the model bears.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from tqdm import tqdm

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.methods.obliviate import losses
from recbole_unlearn.methods.obliviate.adapters import Adapter, AdapterSet
from recbole_unlearn.methods.obliviate.gradients import RowGradients, row_gradients
from recbole_unlearn.rows import ExpectedStanding, Triples, Witness

SCHEDULES: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1.0 - done,
    "constant": lambda done: 1.0,
}
RATE, HIGHEST_RATE = 12.0, 0.06  # times the training's learning rate, and at most
PASSES = 16  # over the region's interactions, at most
CHECK_EVERY = 10  # steps between looks at how far deleted items have come down


class Trace(NamedTuple):
    """How a calibration went: the objective of every step, and the demotion of deleted pairs every few steps."""

    values: list[float]
    demotion: list[tuple[int, float]]

    def summary(self) -> dict[str, float]:
        """The objective at the first and over the last steps."""
        if not self.values:
            return {}
        last = self.values[-10:]
        first, mean = round(self.values[0], 6), round(sum(last) / len(last), 6)
        return {"first": first, "last": mean, "steps": len(self.values)}


def rate_of(learning_rate: float) -> float:
    """LAC's rate at the first step for a model that was trained with ``learning_rate``."""
    return min(RATE * learning_rate, HIGHEST_RATE)


class Schedule(NamedTuple):
    """How long and how fast."""

    steps: int
    learning_rate: float
    batch_size: int
    schedule: str = "linear"
    train_b: bool = False  # B too, as the paper prints it
    horizon: int | None = (
        None  # steps that the schedule and the batches are laid out for; ``steps`` when None
    )

    @property
    def laid_out(self) -> int:
        """T: a calibration of t steps that is laid out for T does the first t steps of one of T, bit for bit."""
        return self.steps if self.horizon is None else self.horizon

    def within(self, interactions: int) -> Schedule:
        """No more than a few passes over so many interactions: a small request takes few steps."""
        most = max(1, -(-PASSES * interactions // self.batch_size))
        return self._replace(steps=min(self.steps, most), horizon=min(self.laid_out, most))


@dataclasses.dataclass(frozen=True)
class WitnessObjective:
    """The weights of the losses, and what the losses on S need."""

    ranking: float = 1.0
    forget: float = 0.0
    distill: float = 0.0
    drift: float = 0.0
    hard_negatives: int = 1  # candidates of which the hardest is taken; 1 is uniform
    standing: ExpectedStanding | None = None  # of deleted pairs, for stand-ins and for the stop
    stand_ins: bool = False
    stop: bool = False  # the term on S ends when its pairs rank where never-seen ones would
    teacher: Callable[[torch.Tensor], torch.Tensor] | None = (
        None  # numbers of interactions of D to scores at θ₀
    )

    def value(self, gradients: RowGradients, witness: Witness, batch: Triples) -> float:
        """The objective on a batch of R and as many interactions of S; gradients are added to ``gradients``."""
        value = gradients.own(batch, self.ranking) if self.ranking else 0.0
        parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        if self.forget:
            users, items, others = self._deleted(gradients, witness, len(batch.users))
            parts += [(users, items), (users, others)]
        if self.distill:
            parts.append((batch.users, batch.items))
        if not parts:
            return value
        scores = gradients.scores(*(torch.cat(column) for column in zip(*parts, strict=True)))
        scores = scores.clone().requires_grad_()
        pieces = list(scores.split([len(part[0]) for part in parts]))
        loss = torch.zeros((), device=scores.device)
        if self.forget:
            deleted, others = pieces[:2]
            of = losses.stand_in if self.stand_ins else losses.reverse_ranking
            loss = loss + self.forget * of(deleted, others)
        if self.distill:
            assert self.teacher is not None
            loss = loss + self.distill * losses.distillation(
                pieces[-1], self.teacher(batch.numbers).to(scores)
            )
        loss.backward()
        assert scores.grad is not None
        gradients.back(scores.grad)
        return value + loss.item()

    def _deleted(
        self, gradients: RowGradients, witness: Witness, size: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Deleted pairs and what each is compared with: its stand-in, or a negative."""
        if self.stand_ins:
            assert self.standing is not None
            known = self.standing.deleted
            pick = torch.randint(
                0, len(known.users), (min(size, len(known.users)),), generator=witness.generator
            )
            return known.users[pick], known.items[pick], self.standing.stand_ins[pick]
        drawn = witness.deleted(size)
        if self.hard_negatives <= 1:
            return drawn.users, drawn.items, drawn.negatives
        users = drawn.users[:, None].expand(-1, self.hard_negatives).contiguous()
        candidates = witness.retained.negatives(users, witness.generator)
        scores = gradients.scores(users.view(-1), candidates.view(-1)).cpu().view(candidates.shape)
        return drawn.users, drawn.items, losses.hardest(scores, candidates)

    def reached(self, gradients: RowGradients) -> bool:
        """Whether deleted items rank as low as never-seen ones would."""
        if not self.stop or not self.forget or self.standing is None:
            return False
        return gradients.demotion(self.standing.deleted) >= self.standing.level


def calibrate(
    adapters: AdapterSet,
    witness: Witness,
    objective: WitnessObjective,
    schedule: Schedule,
    interactions: torch.Tensor | None,
    bar: tqdm,
    after_step: Callable[[int], None] | None = None,
) -> Trace:
    """Fit the adapters to ``interactions`` of D (those that touch the region when None).

    ``after_step`` is called with the number of steps done, after each but the last; the adapters' A and B are then
    those of that step, the model's rows need not be.
    """
    interactions = witness.interactions() if interactions is None else interactions
    trace = Trace([], [])
    chosen = adapters.trained
    if not chosen or len(interactions) == 0 or schedule.steps == 0:
        return trace
    gradients = row_gradients(adapters, chosen, witness, schedule.train_b)
    trained = [x.a for x in chosen]
    if schedule.train_b:
        trained += {id(x.b): x.b for x in chosen}.values()  # adapters may share one
    optimizer = torch.optim.Adam(trained, lr=schedule.learning_rate)
    watched = witness.deleted(witness.watched)
    drawn = witness.batches(interactions, schedule.batch_size, schedule.laid_out)
    batches = itertools.islice(drawn, schedule.steps)
    for step, batch in enumerate(batches):
        if step % CHECK_EVERY == 0:
            trace.demotion.append((step, gradients.demotion(watched)))
            if objective.reached(gradients):
                objective = dataclasses.replace(
                    objective, forget=0.0
                )  # what is retained is fitted to the end
        value = objective.value(gradients, witness, batch)
        optimizer.zero_grad()
        for adapter, gradient in zip(chosen, gradients.take(), strict=True):
            adapter.a.grad = gradient @ adapter.b if schedule.train_b else gradient
            if schedule.train_b:
                own = gradient.T @ adapter.a
                adapter.b.grad = own if adapter.b.grad is None else adapter.b.grad + own
            if objective.drift:
                value += objective.drift * _add_drift(adapter, objective.drift)
        if value != value:
            raise UnlearnError("LAC failed: its loss is not a number. Lower lac_learning_rate.")
        trace.values.append(value)
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate * SCHEDULES[schedule.schedule](step / schedule.laid_out)
        optimizer.step()
        gradients.changed()
        bar.update()
        if after_step is not None and step + 1 < schedule.steps:
            after_step(step + 1)
    trace.demotion.append((len(trace.values), gradients.demotion(watched)))
    for adapter in chosen:
        adapter.a.grad = adapter.b.grad = None
    adapters.attach()
    return trace


def _add_drift(adapter: Adapter, weight: float) -> float:
    """Add the gradient of λ‖ABᵀ‖²: 2λ A BᵀB for A, 2λ B AᵀA for B. Returns ‖ABᵀ‖²."""
    a, b = adapter.a, adapter.b
    assert a.grad is not None
    a.grad = a.grad + 2.0 * weight * a @ (b.T @ b)
    if b.grad is not None:
        b.grad = b.grad + 2.0 * weight * b @ (a.T @ a)
    return float(losses.drift([adapter.low]))
