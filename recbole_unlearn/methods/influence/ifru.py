r"""IFRU: the leave-out optimum by an influence function, with the graph's spillover and importance pruning.

From the paper (*Recommendation unlearning via influence function*), written as sums over interactions so that n
cancels:

    Δ = (H + Λ)⁻¹ b,    b = Σ over S of ∇ℓ(z; G)  +  Σ over R' of [∇ℓ(z; G) - ∇ℓ(z; G')]

G is the graph of D and G' that of D\S. The second sum is the *spillover*: what happens to retained interactions when
S leaves the graph, over the interactions R' whose user or item lost more than 1 % of its degree. θ = θ₀ **+** Δ goes
up the deleted loss. *Pruning*: only the rows of touched users and items change, and of their neighbours up to some
hops away those with the largest weights, where a touched node weighs (deleted interactions / degree) and passes on
w_j += w_i / deg_j. The authors solve by Adam on Δ from 0 and stop on validation (patience 10), keeping the best:
`ifru_solver: adam`.

Filled in:

* Conjugate gradients on one fixed batch, the default. H is that of retained interactions on G': then Δ is the exact
  leave-out optimum where the loss is quadratic (`test_ifru_finds_the_leave_out_optimum`).
* H counts the retained interactions that touch what changes; the changed items are negatives in it as often as
  training draws them. Interactions that reach what changes only through a graph's propagation are left out of H.
* Λ is `ifru_damping` for each training interaction of a user or item. Where H + Λ is still not positive definite,
  conjugate gradients start again with four times as much; `certificates.solver` reports how much was needed.
* Adam's step is one of θ itself, so that it does not depend on n: the authors' defaults are for n Δ and do not
  transfer between datasets.
* Spillover for every model that knows its data, which shows in a loss that changes with the data: graphs, but also
  autoencoders, where the user's loss with S minus that without is all there is.
* Dropout is off, so that all products are of one function.

Avoided: a new mini-batch in each iteration of the solver, pruning that drops touched nodes, a step size tuned to one
dataset, and choosing on test data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch

from recbole_unlearn.data import loaders
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.log import progress_bar
from recbole_unlearn.methods import (
    Outcome,
    RequestLosses,
    UnlearnTask,
    UnlearnTrainer,
    losers,
    method,
    with_rows_left,
)
from recbole_unlearn.methods.influence.hessian import HessianProduct, Selection, gradient_sum
from recbole_unlearn.methods.influence.solver import Solution, adam, damped
from recbole_unlearn.rows import (
    Members,
    Region,
    RetainedIndex,
    Table,
    TrainIndex,
    find_tables,
    training_loss,
    with_neighbours,
)
from recbole_unlearn.settings import setting
from recbole_unlearn.training import build_model

CHECK_EVERY = 5  # steps of Adam between looks at validation data


@dataclasses.dataclass(frozen=True)
class IFRUSettings:
    """Settings of IFRU."""

    ifru_solver: str = setting(
        "Conjugate gradients, or the authors' Adam with a stop on validation.", choices=("cg", "adam")
    )
    ifru_damping: float = setting("Damping for each training interaction of a user or item.", low=0.0)
    ifru_steps: int = setting("Iterations of the solver at most.", low=1)
    ifru_tolerance: float = setting("Relative residual at which the solver stops.", low=0.0)
    ifru_learning_rate: float = setting("adam: its learning rate.", low=0.0)
    ifru_patience: int = setting("adam: looks at validation without a gain before it stops.", low=1)
    ifru_batch_size: int = setting("Retained interactions in the fixed batch of the Hessian.", low=1)
    ifru_draws: int = setting("Draws of negatives over which the deleted gradient is averaged.", low=1)
    ifru_hops: int = setting("Neighbours up to this many hops away may change too.", low=0)
    ifru_keep: float = setting("Share of the neighbours that are kept, by weight.", low=0.0, high=1.0)
    ifru_spillover: float = setting(
        "Graphs: interactions count whose user or item lost more than this share; 1 for no spillover.",
        low=0.0,
        high=1.0,
    )


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
        region = importance_region(request.region, request.retained, options.ifru_hops, options.ifru_keep)
        region = with_rows_left(region)
        if not any(len(members) for members in region.values()):
            return Outcome()  # all in the request are orphans, who get their initial rows
        selection = _selection(self.model, tables, region, task.index)
        best = None
        if options.ifru_solver == "adam":
            best = Best(self._watch(task, tables, region), options.ifru_patience)
        b = gradient_sum(self._deleted(request, options), selection)
        spilt = gradient_sum(self._spillover(request, options), selection)
        batch, number = request.fixed_batch(region, options.ifru_batch_size)
        product = HessianProduct(training_loss(self.model, batch), selection, number)
        with progress_bar(
            f"IFRU {self.label}", options.ifru_steps, bool(task.config["show_progress"])
        ) as bar:
            solution = _solve(product, b + spilt, selection.weights(), options, best, bar.update)
        if not torch.isfinite(solution.x).all():
            raise UnlearnError("ifru failed: its step is not finite. Raise ifru_damping.")
        selection.write(selection.read() + solution.x)
        curves = {} if best is None else {"validation": best.scores}
        return Outcome(
            {
                "solver": solution.certificate(),
                "rows": {side: len(members) for side, members in region.items()},
                "norm": round(float(solution.x.norm()), 6),
                "spillover": round(float(spilt.norm() / b.norm().clamp(min=1e-12)), 6),
            },
            curves | {"residual": [(k + 1, round(r, 9)) for k, r in enumerate(solution.residuals)]},
        )

    def _deleted(self, request: RequestLosses, options: IFRUSettings) -> Iterator[tuple[torch.Tensor, float]]:
        """Mean losses on parts of S over the graph of D, each with its number of interactions."""
        for _ in range(options.ifru_draws):
            for chosen in request.deleted_rows().split(options.ifru_batch_size):
                loss = request.deleted_loss(chosen, request.before())
                yield loss, len(chosen) / options.ifru_draws

    def _spillover(
        self, request: RequestLosses, options: IFRUSettings
    ) -> Iterator[tuple[torch.Tensor, float]]:
        """Losses of retained interactions on the graph of D minus those on that of D without S."""
        if request.by_user or options.ifru_spillover >= 1.0 or not knows_its_data(request):
            return  # the loss on S of a model that learns by user is that difference already
        witness = request.witness(losers(request.region, options.ifru_spillover))
        for chosen in witness.interactions().split(options.ifru_batch_size):
            batch = witness.batch(witness.triples(chosen))
            yield training_loss(request.before(), batch) - training_loss(self.model, batch), len(chosen)

    def _watch(
        self, task: UnlearnTask, tables: list[Table], region: Region
    ) -> Callable[[torch.Tensor], float]:
        """Validation by step: θ₀ + Δ is put into a copy of the model; the Hessian's graph needs the original."""
        data = loaders(task.config, task.data.retain)
        self.eval_collector.data_collect(data.train)
        twin = build_model(task.config, task.data.retain)
        twin.load_state_dict(self.model.state_dict())
        selection = _selection(twin, tables, region, task.index)
        start = selection.read()

        def score(step: torch.Tensor) -> float:
            selection.write(start + step)
            return self.validation_score(twin, data.valid)

        return score


def _selection(model: torch.nn.Module, tables: list[Table], region: Region, index: TrainIndex) -> Selection:
    selection = Selection(model, tables, {side: members.ids for side, members in region.items()}, index)
    if len(selection) == 0:
        raise UnlearnError(
            f"{type(model).__name__} has no weights that belong to users or items, which ifru works on. "
            "Use --unlearn=retrain."
        )
    return selection


def _solve(
    product: HessianProduct,
    b: torch.Tensor,
    weights: torch.Tensor,
    options: IFRUSettings,
    best: Best | None,
    done: Callable[[], object],
) -> Solution:
    steps, tolerance = options.ifru_steps, options.ifru_tolerance
    if best is None:
        return damped(product, b, weights, options.ifru_damping, steps, tolerance, done)
    damping = options.ifru_damping * weights
    solution = adam(product, b, damping, steps, tolerance, options.ifru_learning_rate, best, done)
    return dataclasses.replace(solution, x=best.x if best.x is not None else solution.x)


class Best:
    """Called with x after every step: keeps the x of the best score, and says when to stop."""

    def __init__(self, score: Callable[[torch.Tensor], float], patience: int) -> None:
        self.score, self.patience = score, patience
        self.x: torch.Tensor | None = None
        self.scores: list[tuple[int, float]] = []
        self._steps, self._since = 0, 0

    def __call__(self, x: torch.Tensor) -> bool:
        """Whether the last ``patience`` looks brought nothing better; looks are a few steps apart."""
        self._steps += 1
        if self._steps % CHECK_EVERY:
            return False
        value = self.score(x)
        if self.x is None or value > max(value for _, value in self.scores):
            self.x, self._since = x.clone(), 0
        else:
            self._since += 1
        self.scores.append((self._steps, value))
        return self._since >= self.patience


def importance_region(touched: Region, retained: RetainedIndex, hops: int, keep: float) -> Region:
    """The touched users and items, and the share ``keep`` of their neighbours with the largest weights.

    A touched node weighs (deleted interactions / degree); a neighbour Σ w_i / deg_j over the interactions that lead
    to it. Touched nodes are never dropped.
    """
    if hops == 0 or keep == 0.0:
        return touched
    most = max(retained.index.sizes.values())
    grown = with_neighbours(touched, retained, hops, decay=1.0, least=0.0, cap=most)
    own = {side: touched[side].contains(grown[side].ids) for side in grown}
    weights = torch.cat([grown[side].share[~own[side]] for side in grown])
    number = round(keep * len(weights))
    least = weights.sort(descending=True).values[number - 1] if number else torch.inf
    chosen = Region()
    for side, members in grown.items():
        inside = own[side] | (members.share >= least)
        chosen[side] = Members(members.ids[inside], members.share[inside])
    return chosen


@torch.no_grad()
def knows_its_data(request: RequestLosses) -> bool:
    """Whether the model's loss depends on the interactions it was built on, beside the weights and the batch."""
    batch = request.deleted_batch(request.deleted_rows()[:1024])
    return not torch.equal(training_loss(request.before(), batch), training_loss(request.model, batch))
