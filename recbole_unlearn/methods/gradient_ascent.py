r"""Gradient ascent: a few steps up the loss of the deleted interactions, until the retained ones suffer.

A folk baseline of machine unlearning. The loss of S has no upper bound, so ascent without a stop destroys the model.

Filled in: Adam for the steps (gradients of embedding rows are small and of very different size), new uniform
negatives at every step, and the stop: the loss of a fixed sample of retained interactions is watched, and the step
that raises it by more than a given share is undone. Autoencoders learn by user, so their loss of S is the user's loss
with S minus that without; the loss of S of a sequential model is that of the windows whose targets are deleted, with
the histories that they were trained with (both in `request_losses.py`).

Avoided: a fixed number of epochs whatever happens to retained interactions; and, for an autoencoder, a batch of the
request's users, whose loss is that of their retained history: that history would be unlearned instead of S.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from recbole.data.interaction import Interaction

from recbole_unlearn.data import SequenceSplits
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.log import progress_bar
from recbole_unlearn.methods import Outcome, RequestLosses, UnlearnTask, UnlearnTrainer, WindowLosses, method
from recbole_unlearn.rows import training_loss
from recbole_unlearn.settings import setting

BATCH, WATCHED = 8192, 8192  # deleted interactions in a step, and retained ones whose loss is watched


@dataclasses.dataclass(frozen=True)
class GradientAscentSettings:
    """Settings of gradient ascent."""

    gradient_ascent_steps: int = setting("Steps at most.", low=1)
    gradient_ascent_learning_rate: float = setting("Adam's learning rate.", low=0.0)
    gradient_ascent_tolerance: float = setting("Largest rise of the retained loss, as a share of it.", low=0.0)


@method("gradient_ascent", "Climb the loss of deleted interactions.", GradientAscentSettings)
class GradientAscent(UnlearnTrainer):
    """θ ← θ + η Adam(∇L_S(θ)) while L_R(θ) ≤ (1 + tolerance) L_R(θ₀). May change every weight that the loss reads."""

    needs_index = True
    needs_gradients = True
    on_sequences = True
    on_knowledge = True
    forgets_more = (
        "raise gradient_ascent_steps",
        "raise gradient_ascent_tolerance",
        "raise gradient_ascent_learning_rate",
    )
    forgets_less = ("lower gradient_ascent_steps", "lower gradient_ascent_learning_rate")

    def unlearn(self, task: UnlearnTask) -> Outcome:
        """Ascent steps, each checked before it is kept."""
        options: GradientAscentSettings = task.settings
        losses_of = WindowLosses if isinstance(task.data.retain, SequenceSplits) else RequestLosses
        request: RequestLosses | WindowLosses = losses_of(task, self.model)
        watched = [batch.to(self.device) for batch in request.kept_sample(WATCHED)]
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(parameters, lr=options.gradient_ascent_learning_rate, maximize=True)
        start = self._watch(watched)
        limit = start + options.gradient_ascent_tolerance * abs(start)
        losses, kept = [], [(0, round(start, 6))]
        steps, shown = options.gradient_ascent_steps, bool(task.config["show_progress"])
        with progress_bar(f"Ascent {self.label}", steps, shown) as bar:
            for step, chosen in zip(range(steps), _batches(request), strict=False):
                before = [parameter.detach().clone() for parameter in parameters]
                loss = request.deleted_loss(chosen)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                now = self._watch(watched)
                if now > limit:
                    with torch.no_grad():
                        for parameter, value in zip(parameters, before, strict=True):
                            parameter.copy_(value)
                    break
                losses.append((step + 1, round(loss.item(), 6)))
                kept.append((step + 1, round(now, 6)))
                bar.update()
        optimizer.zero_grad()
        watched_loss = {"first": kept[0][1], "last": kept[-1][1]}
        return Outcome({"steps": len(losses), "retained_loss": watched_loss}, {"loss": losses, "retained_loss": kept})

    @torch.no_grad()
    def _watch(self, batches: Sequence[Interaction]) -> float:
        number = sum(len(batch) for batch in batches)
        loss = sum(len(batch) / number * training_loss(self.model, batch).item() for batch in batches)
        if loss != loss:
            raise UnlearnError(
                "gradient_ascent failed: the loss is not a number. Lower gradient_ascent_learning_rate."
            )
        return loss


def _batches(request: RequestLosses | WindowLosses) -> Iterator[torch.Tensor]:
    """Numbers of deleted interactions, in epochs over S without end; none where none of S has a loss."""
    rows = request.deleted_rows()
    while len(rows):
        yield from rows[torch.randperm(len(rows), generator=request.generator)].split(BATCH)
