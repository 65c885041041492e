r"""SCIF: an influence step of the affected users' rows, with deleted labels replaced by the user's mean.

From the paper (*Selective and collaborative influence function for efficient recommendation unlearning*):

* *selective*: only the embeddings of users with deleted interactions change;
* *collaborative*: a deleted interaction's label y does not vanish, it becomes the user's mean ȳ, so that users
  keep their place among others;
* the step is an influence function with a damped Hessian, solved by conjugate gradients:

    Δ = (H + 0.01 · N)⁻¹ Σ over S of [∇ℓ(z, y) - ∇ℓ(z, ȳ)],     H = Σ over R of ∇²ℓ

R are the retained interactions and N holds the numbers of interactions.

Filled in, for rankings of implicit data: the loss of an interaction with a label y between 0 and 1 is cross-entropy,
y ℓ(z) + (1 - y) ℓ(z'), with z' the pair turned round (item and negative change places; or label 0), so the bracket is
(1 - ȳ)(∇ℓ(z) - ∇ℓ(z')). ȳ is the mean of a user's labels in training: with k negatives to each positive, 1/(1 + k),
the same for all users. The damping is 0.01 for each interaction of the user: H is a sum over the user's interactions,
and a plain 0.01 would drown the Hessian of a mean over all data and vanish in that of a sum. Negatives are averaged
over some draws.

Avoided: a new mini-batch in each iteration (the solver then diverges; here one batch serves all), and steps without
bound (one public implementation steps by 3e15): ‖Δ_u‖ is capped, relative to the user's own row.
"""

import dataclasses
from collections.abc import Iterator

import torch
from recbole.data.interaction import Interaction
from recbole.utils import InputType

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.log import progress_bar
from recbole_unlearn.methods import Outcome, RequestLosses, UnlearnTask, UnlearnTrainer, method
from recbole_unlearn.methods.influence.solver import Selection, damped, gradient_sum, hessian_product, losing
from recbole_unlearn.rows import Members, Region, find_tables, training_loss
from recbole_unlearn.settings import UnlearnConfig, setting

TOLERANCE = 0.001  # relative residual at which the solver stops
BATCH = 65536  # retained interactions in the fixed batch of the Hessian
DRAWS = 4  # draws of negatives over which the deleted gradient is averaged


@dataclasses.dataclass(frozen=True)
class SCIFSettings:
    """Settings of SCIF."""

    scif_damping: float = setting("Damping for each interaction of a user.", low=0.0)
    scif_steps: int = setting("Iterations of conjugate gradients at most.", low=1)
    scif_cap: float = setting("Longest step of a user's row, relative to the row's norm.", low=0.0)


@method(
    "scif",
    "An influence step of the users' rows, towards the user's mean label.",
    SCIFSettings,
    models="differentiable, with rows of users that are learned row by row (not MultiVAE, CDAE)",
)
class SCIF(UnlearnTrainer):
    """p_u ← p_u + Δ_u for users with deleted interactions; every other weight stays bit for bit."""

    needs_index = True
    needs_gradients = True
    forgets_more = ("raise scif_cap",)
    forgets_less = ("lower scif_cap",)

    def unlearn(self, task: UnlearnTask) -> Outcome:
        """One Newton step of the users' rows."""
        options: SCIFSettings = task.settings
        request = RequestLosses(task, self.model)
        tables = [t for t in find_tables(self.model, task.data.full.train) if t.side == "user"]
        if not tables or request.by_user:
            raise UnlearnError(
                f"scif changes rows of users that are learned from single interactions, and {task.config['model']} "
                "has none. Use --unlearn=ifru or --unlearn=obliviate."
            )
        none = torch.empty(0, dtype=torch.long)
        region = Region(user=losing(request.region, less_than=1.0)["user"], item=Members(none, none.float()))
        if len(region["user"]) == 0:
            return Outcome()  # all users of the request are orphans, and get their initial rows
        selection = Selection(self.model, tables, region, task.index)
        batch, number = request.fixed_batch(region, BATCH)
        product = hessian_product(training_loss(self.model, batch), selection, number)
        b = gradient_sum(self._changes(request), selection)
        with progress_bar(f"SCIF {self.label}", options.scif_steps, bool(task.config["show_progress"])) as bar:
            solution = damped(
                product, b, selection.weights(), options.scif_damping, options.scif_steps, TOLERANCE, bar.update
            )
        step, capped = cap_rows(selection, solution.x, options.scif_cap)
        selection.write(selection.read() + step)
        return solution.outcome(rows=len(region["user"]), capped=capped, norm=round(float(step.norm()), 6))

    def _changes(self, request: RequestLosses) -> Iterator[tuple[torch.Tensor, float]]:
        """(1 - ȳ)(ℓ(z) - ℓ(z')) on batches of S: the difference of the losses, and its weight in the sum."""
        negatives = float((request.config["train_neg_sample_args"] or {}).get("sample_num", 1) or 1)
        weight = 1.0 - 1.0 / (1.0 + negatives)
        for _ in range(DRAWS):
            for chosen in request.deleted_rows().split(BATCH):
                batch = request.deleted_batch(chosen)
                change = training_loss(self.model, batch)
                change = change - training_loss(self.model, turned(request.config, batch))
                yield change, weight * len(chosen) / DRAWS


def turned(config: UnlearnConfig, batch: Interaction) -> Interaction:
    """The same batch with its positives reversed: items change places with their negatives, or are labelled 0."""
    values = dict(batch.interaction)
    if config["MODEL_INPUT_TYPE"] == InputType.PAIRWISE:
        prefix = config["NEG_PREFIX"]
        for key in [key for key in values if prefix + key in values]:
            values[key], values[prefix + key] = values[prefix + key], values[key]
    else:
        values[config["LABEL_FIELD"]] = torch.zeros_like(values[config["LABEL_FIELD"]])
    return Interaction(values)


def cap_rows(selection: Selection, step: torch.Tensor, cap: float) -> tuple[torch.Tensor, int]:
    """A step (P,) with ‖Δ_row‖ ≤ cap · ‖row‖ for every row, and how many rows were shortened."""
    blocks, capped = [], 0
    for block, row in zip(selection.split(step), selection.split(selection.read()), strict=True):
        length, most = block.norm(dim=1), cap * row.norm(dim=1)
        over = length > most
        factor = torch.where(over, most / length.clamp(min=torch.finfo(length.dtype).tiny), 1.0)
        blocks.append((block * factor[:, None]).reshape(-1))
        capped += int(over.sum())
    return torch.cat(blocks), capped
