r"""A start for training that already ranks: rows of users and items from the training interactions alone.

With X the training interactions (users × items, 1 where there is one) and Du, Di its row and column sums,

    N = Du^-½ X Di^-½ ≈ U Σ Vᵀ              (rank d, the width of the tables)
    P = Du^½ U Σ^½,    Q = Di^½ V Σ^½

are rows whose products P Qᵀ are smoothed counts. d directions hold a third of the energy of a dense N, a thirtieth of
that of a sparse one, so a few sweeps of weighted least squares follow, for users and items in turn: P minimises

    Σ over interactions (1 − p_u q_i)² + w Σ over all pairs (p_u q_i)² + λ Σ_u (n_u + w m) |p_u|²

with n_u interactions of a user, m items, and w such that all pairs together weigh ten times the interactions. It is
solved by conjugate gradients from where the rows are. A scale makes interactions score 2 above random items on
average, a BPR loss of about .15, where the score is bilinear in the rows, up to normalised layers: where that
difference is a · scale² + b. Elsewhere (cosines, networks) the rows of each side have one spread.

A sequential model gets the rows of items, and those of users where it has some. Users and items without interactions,
columns beyond the rank of X, and all other parameters keep RecBole's initial values. An autoencoder has no rows of
users, and no spectral start: what it reads of a user passes through layers that start at random.

Then the model's own training goes on for a few epochs, at a high learning rate that falls to zero:
:meth:`SpectralStart.training` has how many. Nothing but the training interactions goes into the rows, and nothing but
validation interactions into the number of epochs, so the result is a model of its data alone.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from recbole.data.dataset import Dataset
from recbole.model.abstract_recommender import AbstractRecommender
from recbole.utils import ModelType
from scipy import sparse
from threadpoolctl import threadpool_limits

from recbole_unlearn.cluster import held
from recbole_unlearn.data import SequenceSplits, Splits
from recbole_unlearn.recbole_compat import clear_caches
from recbole_unlearn.rows import SIDES, Side, Table, find_tables, pair_scores
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training.fast_models import csr_tensor

SPECTRAL = "spectral"  # the value of `start`
OVERSAMPLED, POWERS = 10, 5  # of the randomised SVD: columns beyond the rank, and power iterations
SWEEPS, STEPS_OF_CG, UNSEEN, RIDGE = 3, 3, 10.0, 0.01  # of least squares: UNSEEN is w n m / interactions, RIDGE is λ
BLOCK = 2**16  # rows that are solved for at once: what conjugate gradients hold is that small
GAP, PAIRS = 2.0, 2048  # how far interactions score above random items, and the pairs it is measured on
STEPS = 64  # in an epoch, at least; batches are as large as that allows
VALIDATED = 1000  # users who decide, at most
MOST_RATE = 0.02  # of the first step: Adam's steps are as long as the rate, and longer ones leave the start behind


class Recipe(NamedTuple):
    """The training that follows a start; chosen on validation interactions of ml-100k."""

    share: int  # it has one in so many of the model's epochs,
    least: int  # but not fewer
    most: int  # and not more than these
    rate: float  # of the first step, times the model's learning rate
    spread: float = 0.0  # standard deviation of the rows at the start, where the score is not bilinear

    def epochs(self, config: UnlearnConfig) -> int:
        """The largest number of epochs."""
        own = int(config["epochs"])
        return min(own, self.most, max(self.least, own // self.share))


BILINEAR, OTHER, SEQUENTIAL = Recipe(36, 1, 8, 3.0), Recipe(16, 2, 10, 10.0, 0.2), Recipe(4, 2, 10, 6.0, 0.15)
Rows = dict[Side, torch.Tensor]  # (n, rank) by side; rows of zeros have no interactions


def tables_by_width(
    model: AbstractRecommender, train: Dataset, sides: Sequence[Side]
) -> dict[int, dict[Side, list[Table]]]:  # fmt: skip
    """The tables that can have a spectral start, by width, where there are tables of all ``sides``."""
    found: dict[int, dict[Side, list[Table]]] = defaultdict(lambda: {"user": [], "item": []})
    for table in find_tables(model, train):
        shape = model.get_parameter(table.parameter).shape
        if table.axis == 0 and len(shape) == 2 and shape[1] > 1:
            found[shape[1]][table.side].append(table)
    return {width: tables for width, tables in found.items() if all(tables[side] for side in sides)}


class SpectralStart:
    """The spectral start of one model, and the short training that follows it."""

    def __init__(
        self, model: AbstractRecommender, splits: Splits, seed: int, address: str | None = None
    ) -> None:  # fmt: skip
        """Give the rows of ``model`` their start; with the ``address`` of a cluster, computed there."""
        self._model, self._train = model, splits.train
        in_sequence = isinstance(splits, SequenceSplits)
        self._recipe = SEQUENTIAL if in_sequence else OTHER
        generator = torch.Generator().manual_seed(seed)
        self._tables = tables_by_width(model, splits.train, ("item",) if in_sequence else SIDES)
        self._rows: dict[int, Rows] = {}  # by width
        with threadpool_limits(1):  # more are many times slower on a busy machine, and sum in another order
            for width in self._tables:
                self._rows[width] = by_interactions(splits.train, width, generator, address)
        picked = torch.randint(0, len(self._train), (PAIRS,), generator=generator)
        users, items = (self._train.inter_feat[f][picked] for f in (self._train.uid_field, self._train.iid_field))
        self._pairs = users, items, torch.randint(1, self._train.item_num, (PAIRS,), generator=generator)
        if self._tables and not in_sequence:
            one, two, four = (self._gap(scale) for scale in (1.0, 2.0, 4.0))
            growth = (two - one) / 3
            rest = one - growth  # of normalised layers, whose part in a score does not grow
            if growth > 0 and 0 <= rest + 1e-2 * one < GAP / 2 and abs(16 * growth + rest - four) < 2e-2 * four:
                self._recipe = BILINEAR
                return self._fill(((GAP - rest) / growth) ** 0.5)
        self._fill(None)

    def __bool__(self) -> bool:
        """Whether the model has rows for a spectral start."""
        return bool(self._tables)

    @property
    def is_bilinear(self) -> bool:
        """Whether a score is the product of a row of a user and one of an item, which a graph may have spread."""
        return self._recipe is BILINEAR

    def training(self, config: UnlearnConfig) -> UnlearnConfig:
        """The config of the training that follows.

        A bilinear score ranks from the start, and training ends with the first epoch that does not improve it. Others
        train all epochs, and are not validated.
        """
        own, batch = config["learning_rate"], max(config["train_batch_size"], len(self._train) // STEPS)
        rate = max(own, min(self._recipe.rate * own, MOST_RATE))
        shorter = config.replace(epochs=self._recipe.epochs(config), learning_rate=rate, train_batch_size=batch)
        return shorter.replace(eval_step=1, stopping_step=0) if self.is_bilinear else shorter

    @torch.no_grad()
    def _fill(self, scale: float | None) -> None:
        """Write the rows into the first columns; without a scale, those of each side get the recipe's spread."""
        for width, sides in self._tables.items():
            for side, rows in self._rows[width].items():
                known = rows.abs().amax(dim=1).nonzero().flatten()
                values = rows[known]
                values = values * (self._recipe.spread / values.std().clamp(min=1e-12) if scale is None else scale)
                for table in sides[side]:
                    weight = self._model.get_parameter(table.parameter)
                    weight[(known + table.offset).to(weight.device), : rows.shape[1]] = values.to(weight)
        clear_caches(self._model)

    def _gap(self, scale: float) -> float:
        """Fill the rows; returns how far interactions score above random items then."""
        self._fill(scale)
        users, items, others = self._pairs
        scores = [pair_scores(self._model, self._train, users, other) for other in (items, others)]
        return float((scores[0] - scores[1]).mean())


def most_epochs(config: UnlearnConfig) -> int:
    """The largest number of epochs of a training with ``config``."""
    if config["start"] != SPECTRAL:
        return int(config["epochs"])
    return (SEQUENTIAL if config["MODEL_TYPE"] == ModelType.SEQUENTIAL else OTHER).epochs(config)


def by_interactions(train: Dataset, width: int, generator: torch.Generator, address: str | None = None) -> Rows:
    """The rows of users and items; repeated interactions count once.

    Products and solutions are computed by blocks of rows on the cluster at ``address``, to the same bits as here.
    """
    users, items = (train.inter_feat[field].numpy() for field in (train.uid_field, train.iid_field))
    shape = train.user_num, train.item_num
    matrix = sparse.csr_matrix((np.ones(len(users), dtype=np.int8), (users, items)), shape=shape)
    number, sides = matrix.nnz, [matrix, matrix.T.tocsr()]
    del matrix
    roots = [torch.from_numpy(np.diff(one.indptr)).clamp(min=1).float().sqrt()[:, None] for one in sides]
    bounds: list[np.ndarray] = []  # of the blocks, by side: as many interactions in each

    def pieces(blocks: int) -> list[tuple]:
        parts, ends = [], np.linspace(0, number, blocks + 1)[1:-1]
        while sides:  # the blocks have them from now on
            one = sides.pop(0)
            bounds.append(np.concatenate([[0], np.searchsorted(one.indptr, ends), [one.shape[0]]]))
            cuts = itertools.pairwise(bounds[-1])
            parts.append([one] if blocks == 1 else [one[low:high] for low, high in cuts])
        return [([(part.indptr, part.indices, part.shape) for part in both],) for both in zip(*parts, strict=True)]

    with held(RowBlocks, pieces, address) as call:

        def times(side: int, x: torch.Tensor) -> torch.Tensor:
            """N x = Du^-½ (X (Di^-½ x)) for side 0, Nᵀ x for side 1: X alone is kept, once in each direction."""
            found = call("times", [(x / roots[1 - side]).numpy()], [side] * (len(bounds[0]) - 1))
            return joined(found) / roots[side]

        left, values, right = truncated_svd(
            functools.partial(times, 0), functools.partial(times, 1), shape, width, generator
        )
        rows = [roots[0] * left * values.sqrt(), roots[1] * right * values.sqrt()]
        weight = UNSEEN * number / (shape[0] * shape[1])
        for side in (0, 1) * SWEEPS:
            own = [rows[side][low:high].numpy() for low, high in itertools.pairwise(bounds[side])]
            rows[side] = joined(call("solve", [side, rows[1 - side].numpy(), weight], own))
    return {"user": rows[0], "item": rows[1]}


def joined(parts: Sequence[np.ndarray]) -> torch.Tensor:
    """Blocks of rows, one after the other; one is not copied."""
    return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))


def tensor(values: np.ndarray) -> torch.Tensor:
    """The same numbers, copied only where they must not be written to, as what Ray brings."""
    return torch.from_numpy(np.require(values, requirements="W"))


class RowBlocks:
    """A block of rows of X and one of Xᵀ, in this process or on a worker; arguments and results are arrays."""

    def __init__(self, parts: Sequence[tuple[np.ndarray, np.ndarray, tuple[int, int]]]) -> None:
        """The ends of rows, the columns and the shape of both."""
        ones = torch.ones(max(len(columns) for _, columns, _ in parts))
        self._patterns = [
            csr_tensor(tensor(ends), tensor(columns), ones[: len(columns)], shape) for ends, columns, shape in parts
        ]

    def times(self, others: np.ndarray, side: int) -> np.ndarray:
        """The rows of X, or of Xᵀ, times ``others`` (m, d)."""
        with threadpool_limits(1):  # more are many times slower on a busy machine, and sum in another order
            return (self._patterns[side] @ tensor(others)).numpy()

    def solve(self, side: int, others: np.ndarray, weight: float, rows: np.ndarray) -> np.ndarray:
        """See :func:`least_squares`."""
        with threadpool_limits(1):
            return least_squares(self._patterns[side], tensor(rows), tensor(others), weight).numpy()


def least_squares(pattern: torch.Tensor, rows: torch.Tensor, others: torch.Tensor, weight: float) -> torch.Tensor:
    """The rows (n, d) of one side for fixed rows of ``others`` (m, d), by conjugate gradients, many rows at once.

    ``pattern`` (n, m) is X or its transpose. The objective is that of this file; its normal equations are

        (Σ_i q_i q_iᵀ + w QᵀQ + λ (n_u + w m)) p_u = Σ_i q_i          Σ over the interactions of u
    """
    square = weight * others.T @ others
    bounds, found = pattern.crow_indices(), torch.empty_like(rows)
    for first in range(0, len(rows), BLOCK):
        last = min(first + BLOCK, len(rows))
        start, end = int(bounds[first]), int(bounds[last])
        part = csr_tensor(
            bounds[first : last + 1] - start, pattern.col_indices()[start:end], pattern.values()[start:end],
            (last - first, len(others)),
        )  # fmt: skip
        ridge = RIDGE * (part.crow_indices().diff().to(rows)[:, None] + weight * len(others))
        found[first:last] = _conjugate_gradients(part, rows[first:last], others, square, ridge)
    return found


def _conjugate_gradients(
    pattern: torch.Tensor, rows: torch.Tensor, others: torch.Tensor, square: torch.Tensor, ridge: torch.Tensor
) -> torch.Tensor:
    """A few steps from ``rows`` towards the solution of the normal equations, each row with steps of its own."""

    def times(found: torch.Tensor) -> torch.Tensor:
        scores = torch.sparse.sampled_addmm(pattern, found, others.T, beta=0.0)  # p_u q_i of interactions alone
        return scores @ others + found @ square + ridge * found

    residual = pattern @ others - times(rows)
    direction, size = residual, residual.square().sum(dim=1, keepdim=True)
    for _ in range(STEPS_OF_CG):
        moved = times(direction)
        step = size / (direction * moved).sum(dim=1, keepdim=True).clamp(min=1e-20)
        rows, residual = rows + step * direction, residual - step * moved
        before, size = size, residual.square().sum(dim=1, keepdim=True)
        direction = residual + size / before.clamp(min=1e-20) * direction
    return rows


Product = Callable[[torch.Tensor], torch.Tensor]


def truncated_svd(
    forward: Product, back: Product, shape: tuple[int, int], rank: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """U (m, r), Σ (r,) and V (n, r) of a matrix (m, n), by randomised subspace iteration.

    ``forward`` and ``back`` multiply by it and by its transpose. r is less than ``rank`` only where the matrix has no
    more. Orthonormal bases come from Gram matrices, twice: a few passes over tall matrices instead of a Householder
    QR.
    """
    columns = min(rank + OVERSAMPLED, *shape)
    basis = orthonormal(forward(torch.randn(shape[1], columns, generator=generator)))
    for _ in range(POWERS):
        basis = orthonormal(forward(orthonormal(back(basis))))
    right = back(basis)  # Nᵀ Y = V Σ Rᵀ
    squares, turn = torch.linalg.eigh((right.T @ right).double())
    squares, turn = squares.flip(0)[:rank], turn.flip(1)[:, :rank]
    real = squares > 1e-6 * squares[0]  # below, float32 has no digits left of a direction
    values, turn = squares[real].sqrt().float(), turn[:, real].float()
    return basis @ turn, values, right @ turn / values


def orthonormal(columns: torch.Tensor) -> torch.Tensor:
    """An orthonormal basis of what ``columns`` (n, k) span, without directions that are rounding errors."""
    for _ in range(2):
        squares, turn = torch.linalg.eigh((columns.T @ columns).double())
        real = squares > 1e-10 * squares[-1]
        columns = columns @ (turn[:, real] / squares[real].sqrt()).to(columns)
    return columns
