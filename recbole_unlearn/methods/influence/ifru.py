r"""IFRU: the leave-out optimum by an influence function, with the graph's spillover and importance pruning.

From the paper (*Recommendation unlearning via influence function*), as sums over interactions, so that n cancels:

    Δ = (H + Λ)⁻¹ b,    b = Σ over S of ∇ℓ(z; G)  +  Σ over R' of [∇ℓ(z; G) - ∇ℓ(z; G')]

G is the graph of D and G' that of D\S. The second sum is the *spillover*: the change of the retained loss when S
leaves the graph, over the interactions R' whose user or item lost more than 1 % of its degree. θ = θ₀ **+** Δ goes up
the deleted loss. *Pruning*: only the rows of touched users and items change, and of their neighbors up to some hops
away those with the largest weights, where a touched node weighs (deleted interactions / degree) and passes on
w_j += w_i / deg_j.

Filled in:

* Conjugate gradients on one fixed batch. The authors run Adam on Δ from 0 and stop on validation; their step size
  does not transfer between datasets, and with a step of θ itself Adam was slower and no better. H is that of retained
  interactions on G': then Δ is the exact leave-out optimum where the loss is quadratic
  (`test_ifru_finds_the_leave_out_optimum`).
* H counts the retained interactions that touch a changed row; changed items are negatives in it as often as training
  draws them. Interactions that reach a changed row only through a graph's propagation are left out of H.
* Λ is `ifru_damping` for each training interaction of a user or item. Where H + Λ is still not positive definite,
  conjugate gradients start again with four times as much; `certificates.solver` reports how much was needed.
* Spillover for every model whose loss changes with the data it was built on: graphs, but also autoencoders, where the
  user's loss with S minus that without is the whole b.
* Dropout is off, so that all products are of one function.

Avoided: a new mini-batch in each iteration of the solver, pruning that drops touched nodes, a step size tuned to one
dataset, and choosing on test data.
"""

import dataclasses
from collections.abc import Iterator

import torch

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.log import progress_bar
from recbole_unlearn.methods import Outcome, RequestLosses, UnlearnTask, UnlearnTrainer, method
from recbole_unlearn.methods.influence.solver import Selection, damped, gradient_sum, hessian_product, losing
from recbole_unlearn.rows import Region, RetainedIndex, find_tables, training_loss, with_neighbours
from recbole_unlearn.settings import setting

TOLERANCE = 0.01  # relative residual at which the solver stops
BATCH = 65536  # retained interactions in the fixed batch of the Hessian
DRAWS = 4  # draws of negatives over which the deleted gradient is averaged
SPILLOVER = 0.01  # share of its interactions that a user or item loses at least to be in R'
KEEP = 0.7  # share of the neighbors that are kept, by weight


@dataclasses.dataclass(frozen=True)
class IFRUSettings:
    """Settings of IFRU."""

    ifru_damping: float = setting("Damping for each training interaction of a user or item.", low=0.0)
    ifru_steps: int = setting("Iterations of the solver at most.", low=1)
    ifru_hops: int = setting("Neighbors up to this many hops away may change too.", low=0)


@method(
    "ifru",
    "An influence step of touched users and items, with spillover of graphs.",
    IFRUSettings,
    models="differentiable, with rows of users or items",
)
class IFRU(UnlearnTrainer):
    """θ = θ₀ + (H + Λ)⁻¹ b on the rows of touched users and items; every other weight stays bit for bit."""

    needs_index = True
    needs_gradients = True
    forgets_more = ("lower ifru_damping",)
    forgets_less = ("raise ifru_damping",)

    def unlearn(self, task: UnlearnTask) -> Outcome:
        """One Newton step of the chosen rows."""
        options: IFRUSettings = task.settings
        tables = find_tables(self.model, task.data.full.train)
        request = RequestLosses(task, self.model)
        region = losing(importance_region(request.region, request.retained, options.ifru_hops), less_than=1.0)
        if not any(len(members) for members in region.values()):
            return Outcome()  # all are orphans, and get their initial rows
        selection = Selection(self.model, tables, region, task.index)
        if len(selection) == 0:
            raise UnlearnError(
                f"{task.config['model']} has no weights that belong to users or items, which ifru works on. "
                "Use --unlearn=retrain."
            )
        b = gradient_sum(self._deleted(request), selection)
        spilt = gradient_sum(self._spillover(request), selection)
        batch, number = request.fixed_batch(region, BATCH)
        product = hessian_product(training_loss(self.model, batch), selection, number)
        with progress_bar(f"IFRU {self.label}", options.ifru_steps, bool(task.config["show_progress"])) as bar:
            solution = damped(
                product, b + spilt, selection.weights(), options.ifru_damping, options.ifru_steps, TOLERANCE,
                bar.update,
            )  # fmt: skip
        if not torch.isfinite(solution.x).all():
            raise UnlearnError("ifru failed: its step is not finite. Raise ifru_damping.")
        selection.write(selection.read() + solution.x)
        return solution.outcome(
            rows={side: len(members) for side, members in region.items()},
            norm=round(float(solution.x.norm()), 6),
            spillover=round(float(spilt.norm() / b.norm().clamp(min=1e-12)), 6),
        )

    def _deleted(self, request: RequestLosses) -> Iterator[tuple[torch.Tensor, float]]:
        """Mean losses on parts of S over the graph of D, each with its number of interactions."""
        for _ in range(DRAWS):
            for chosen in request.deleted_rows().split(BATCH):
                yield request.deleted_loss(chosen, request.before), len(chosen) / DRAWS

    def _spillover(self, request: RequestLosses) -> Iterator[tuple[torch.Tensor, float]]:
        """Losses of retained interactions on the graph of D minus those on that of D without S."""
        if request.by_user or not knows_its_data(request):
            return  # the loss on S of a model that learns by user is that difference already
        witness = request.witness(losing(request.region, more_than=SPILLOVER))
        for chosen in witness.interactions().split(BATCH):
            batch = witness.batch(witness.triples(chosen))
            yield training_loss(request.before, batch) - training_loss(self.model, batch), len(chosen)


def importance_region(touched: Region, retained: RetainedIndex, hops: int) -> Region:
    """The touched users and items, and the share ``KEEP`` of their neighbors with the largest weights, as above."""
    if hops == 0:
        return touched
    grown = with_neighbours(touched, retained, hops, decay=1.0, cap=max(retained.index.sizes.values()))
    own = {side: touched[side].contains(grown[side].ids) for side in grown}
    weights = torch.cat([grown[side].share[~own[side]] for side in grown])
    number = round(KEEP * len(weights))
    least = weights.sort(descending=True).values[number - 1] if number else torch.inf
    return Region({side: members.part(own[side] | (members.share >= least)) for side, members in grown.items()})


@torch.no_grad()
def knows_its_data(request: RequestLosses) -> bool:
    """Whether the model's loss depends on the interactions it was built on, apart from weights and batch."""
    batch = request.deleted_batch(request.deleted_rows()[:1024])
    return not torch.equal(training_loss(request.before, batch), training_loss(request.model, batch))
