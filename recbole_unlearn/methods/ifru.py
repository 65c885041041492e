r"""IFRU: the leave-out optimum by an influence function, with the graph's spillover and importance pruning.

From the paper (*Recommendation unlearning via influence function*), as sums over interactions, so that n cancels:

    Δ = (H + Λ)⁻¹ b,    b = Σ over S of ∇ℓ(z; G)  +  Σ over R' of [∇ℓ(z; G) - ∇ℓ(z; G')]

G is the graph of D and G' that of D\S. The second sum is the *spillover*: the change of the retained loss when S
leaves the graph, over the interactions R' whose user or item lost more than 1 % of its degree. θ = θ₀ **+** Δ goes up
the deleted loss, on the rows of touched users and items only.

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

Left out: the paper's importance pruning, which chooses among neighbors some hops away whose rows may change too. One
more hop changed three times as many rows and brought nothing; it also drops touched nodes.

Avoided: a new mini-batch in each iteration of the solver, for which conjugate gradients diverge, as directions are
then conjugate for no matrix; a step size tuned to one dataset; and choosing on test data.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.log import progress_bar
from recbole_unlearn.methods import Outcome, RequestLosses, UnlearnTask, UnlearnTrainer, method
from recbole_unlearn.rows import Region, Table, TrainIndex, as_rows, find_tables, training_loss
from recbole_unlearn.settings import setting

STEPS, TOLERANCE = 50, 0.01  # of the solver at most, and the relative residual at which it stops
GROWTH, LEAST, TRIES = 4.0, 1e-4, 30  # of a damping that turned out to be too small
BATCH = 65536  # retained interactions in the fixed batch of the Hessian
DRAWS = 4  # draws of negatives over which the deleted gradient is averaged
SPILLOVER = 0.01  # share of its interactions that a user or item loses at least to be in R'

Product = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class IFRUSettings:
    """Settings of IFRU."""

    ifru_damping: float = setting("Damping for each training interaction of a user or item.", low=0.0)


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
        tables = find_tables(self.model, task.data.full.train)
        request = RequestLosses(task, self.model)
        region = losing(request.region, less_than=1.0)
        if not any(len(members) for members in region.values()):
            return Outcome()  # all are orphans, and get their initial rows
        selection = Selection(self.model, tables, region, task.index)
        if not selection.parts:
            raise UnlearnError(
                f"{task.config['model']} has no weights that belong to users or items, which ifru works on. "
                "Use --unlearn=retrain."
            )
        b = gradient_sum(self._deleted(request), selection)
        spilt = gradient_sum(self._spillover(request), selection)
        batch, number = request.fixed_batch(region, BATCH)
        product = hessian_product(training_loss(self.model, batch), selection, number)
        damping, shown = task.settings.ifru_damping, bool(task.config["show_progress"])
        with progress_bar(f"IFRU {self.label}", STEPS, shown) as bar:
            solution = damped(product, b + spilt, selection.weights, damping, STEPS, TOLERANCE, bar.update)
        if not torch.isfinite(solution.x).all():
            raise UnlearnError("ifru failed: its step is not finite. Raise ifru_damping.")
        selection.put(selection.gather(selection.named) + solution.x, selection.named)
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


@torch.no_grad()
def knows_its_data(request: RequestLosses) -> bool:
    """Whether the model's loss depends on the interactions it was built on, apart from weights and batch."""
    batch = request.deleted_batch(request.deleted_rows()[:1024])
    return not torch.equal(training_loss(request.before, batch), training_loss(request.model, batch))


def losing(region: Region, more_than: float = -1.0, less_than: float = 2.0) -> Region:
    """The members of a region that lose a share of their interactions between two bounds."""
    return Region({side: m.part((m.share > more_than) & (m.share < less_than)) for side, m in region.items()})


class Selection:
    """The rows of some users and items in a model's tables, as a vector (P,); no other row is ever written."""

    def __init__(self, model: AbstractRecommender, tables: list[Table], region: Region, index: TrainIndex) -> None:
        self.named = dict(model.named_parameters())
        self.parts: list[tuple[Table, torch.Tensor]] = []  # with the rows (n,) in the table's parameter
        weights = []
        for table in tables:
            if len(chosen := region[table.side].ids):
                parameter = self.named[table.parameter]
                self.parts.append((table, (chosen + table.offset).to(parameter.device)))
                # Training interactions of each: its own, and for an item also the ones that draw it as a negative.
                weight = index.counts(table.side, chosen).clamp(min=1).float()
                weight = weight + len(index) / index.sizes["item"] if table.side == "item" else weight
                width = as_rows(parameter, table.axis).shape[1]
                weights.append(weight.to(parameter.device, parameter.dtype).repeat_interleave(width))
        self.sizes = [len(weight) for weight in weights]
        self.weights = torch.cat(weights) if weights else torch.empty(0)  # (P,), interactions of each coordinate
        self.names = list(dict.fromkeys(table.parameter for table, _ in self.parts))
        self.parameters = [self.named[name] for name in self.names]

    def gather(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The chosen rows of tensors shaped like the parameters, as (P,)."""
        found = (as_rows(tensors[table.parameter], table.axis)[rows] for table, rows in self.parts)
        return torch.cat([block.reshape(-1) for block in found])

    @torch.no_grad()
    def put(self, vector: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> None:
        """Set the chosen rows of tensors shaped like the parameters to a vector (P,)."""
        for (table, rows), block in zip(self.parts, vector.split(self.sizes), strict=True):
            as_rows(tensors[table.parameter], table.axis)[rows] = block.view(len(rows), -1)

    def scatter(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """A vector (P,) as tensors shaped like the parameters, zero outside the chosen rows."""
        full = {name: torch.zeros_like(self.named[name], requires_grad=False) for name in self.names}
        self.put(vector, full)
        return full

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
    total = torch.zeros_like(selection.weights)
    for loss, number in losses:
        total += number * selection.gather(selection.gradient(loss))
    return total


class Solution(NamedTuple):
    """x (P,), the relative residuals |b - (H + Λ)x| / |b| after each step, and whether negative curvature was met."""

    x: torch.Tensor
    residuals: list[float]
    negative_curvature: bool = False
    damping: float = 0.0  # the λ that was needed

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
