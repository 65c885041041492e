r"""A start for training that already ranks: rows of users and items from an SVD of the training interactions.

With X the training interactions (users × items, 1 where there is one) and Du, Di its row and column sums,

    N = Du^-½ X Di^-½ ≈ U Σ Vᵀ          (rank d, the width of the tables)
    P = c · Du^a U Σ^½,    Q = c · Di^a V Σ^½

With a = ½ the score P Qᵀ is a smoothed count; models that bring degrees in themselves (LightGCN) may do better with
¼. The validation interactions choose. c makes interactions score 2 above random items on average, a BPR loss of about
.15, where the score is bilinear in the rows; elsewhere (cosines, networks) all rows have one spread.

A sequential model gets rows of items from what is met shortly before them: with

    C_ij = Σ 1 / distance    over targets i and the items j up to five places before,    made symmetric

the positive pointwise mutual information of C is symmetric, and its U Σ^½ are the rows.

Users and items without interactions, columns beyond the rank of X, and all other parameters keep RecBole's initial
values. A model without rows of users (an autoencoder) has no spectral start: what it reads of a user passes through
layers that start at random.

Then the model's own training goes on for a few epochs, at a high learning rate that falls to zero:
:meth:`SpectralStart.training` has how many. Nothing but the training interactions goes into the rows, and nothing but
validation interactions into the choices, so the result is a model of its data alone.
"""

from __future__ import annotations

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

from recbole_unlearn.data import SequenceSplits, Splits
from recbole_unlearn.recbole_compat import clear_caches
from recbole_unlearn.rows import SIDES, Side, Table, find_tables, pair_scores
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training.fast_models import csr_tensor

OVERSAMPLED, POWERS = 10, 5  # of the randomised SVD: columns beyond the rank, and power iterations
SPECTRAL = "spectral"  # the value of `start`
EXPONENTS = (0.5, 0.25)  # a
GAP, PAIRS = 2.0, 2048  # how far interactions score above random items, and the pairs it is measured on
REACH = 5  # places before a target
STEPS = 64  # in an epoch of a bilinear model, at least
VALIDATED = 2000  # users who decide, at most
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


BILINEAR, OTHER, SEQUENTIAL = Recipe(36, 1, 8, 3.0), Recipe(12, 2, 10, 10.0, 0.3), Recipe(5, 2, 10, 6.0, 0.1)


class Factors(NamedTuple):
    """U Σ^½ or V Σ^½ (n, rank) of one side, and its degrees (n,)."""

    rows: torch.Tensor
    degree: torch.Tensor

    def scaled(self, exponent: float, scale: float = 1.0) -> torch.Tensor:
        """The rows times scale · D^exponent."""
        return scale * self.degree.clamp(min=1)[:, None] ** exponent * self.rows

    def spread(self, exponent: float) -> float:
        """The standard deviation of the rows with a scale of 1."""
        return float(self.scaled(exponent)[self.degree > 0].std().clamp(min=1e-12))


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

    def __init__(self, model: AbstractRecommender, splits: Splits, seed: int) -> None:
        """Give the rows of ``model`` their start, with the first exponent."""
        self._model, self._train = model, splits.train
        self._in_sequence = isinstance(splits, SequenceSplits)
        self._recipe = SEQUENTIAL if self._in_sequence else OTHER
        self._sides: list[tuple[list[Table], Factors]] = []
        generator = torch.Generator().manual_seed(seed)
        sides: Sequence[Side] = ("item",) if self._in_sequence else SIDES
        with threadpool_limits(1):  # more are many times slower on a busy machine, and sum in another order
            for width, tables in tables_by_width(model, splits.train, sides).items():
                found: dict[Side, Factors]
                if self._in_sequence:
                    found = {"item": items_by_windows(splits.for_model().train, width, generator)}
                else:
                    found = by_interactions(splits.train, width, generator)
                self._sides += [(tables[side], factors) for side, factors in found.items()]
        picked = torch.randint(0, len(self._train), (PAIRS,), generator=generator)
        users, items = (self._train.inter_feat[f][picked] for f in (self._train.uid_field, self._train.iid_field))
        self._pairs = users, items, torch.randint(1, self._train.item_num, (PAIRS,), generator=generator)
        if self._sides and not self._in_sequence:
            gap, larger = (self._gap(EXPONENTS[0], scale) for scale in (1.0, 2.0))
            if gap > 0 and 3.9 < larger / gap < 4.1:
                self._recipe = BILINEAR
        self._fill(0.0 if self._in_sequence else EXPONENTS[0], None)

    def __bool__(self) -> bool:
        """Whether the model has rows for a spectral start."""
        return bool(self._sides)

    @property
    def is_bilinear(self) -> bool:
        """Whether a score is the product of a row of a user and one of an item, which a graph may have spread."""
        return self._recipe is BILINEAR

    def training(self, config: UnlearnConfig) -> UnlearnConfig:
        """The config of the training that follows.

        A bilinear score ranks from the start, and training ends with the first epoch that does not improve it; a
        batch is as large as leaves :data:`STEPS` steps in an epoch. Others train all epochs, and are not validated.
        """
        own, batch = config["learning_rate"], config["train_batch_size"]
        rate = max(own, min(self._recipe.rate * own, MOST_RATE))
        shorter = config.replace(epochs=self._recipe.epochs(config), learning_rate=rate)
        if not self.is_bilinear:
            return shorter
        return shorter.replace(eval_step=1, stopping_step=0, train_batch_size=max(batch, len(self._train) // STEPS))

    def choose(self, validate: Callable[[], float]) -> float:
        """Fill the rows of a bilinear model with the exponent that ``validate`` likes best; returns its score."""
        scores = {}
        for exponent in EXPONENTS:
            scale = (GAP / self._gap(exponent, 1.0)) ** 0.5
            self._fill(exponent, scale)
            scores[exponent, scale] = validate()
        best = max(scores, key=scores.__getitem__)
        self._fill(*best)
        return scores[best]

    def _fill(self, exponent: float, scale: float | None) -> None:
        """Fill the rows; without a scale, those of each side get the recipe's spread."""
        for tables, factors in self._sides:
            own = self._recipe.spread / factors.spread(exponent) if scale is None else scale
            fill(self._model, tables, factors.scaled(exponent, own), factors.degree)
        clear_caches(self._model)

    def _gap(self, exponent: float, scale: float) -> float:
        """Fill the rows; returns how far interactions score above random items then."""
        self._fill(exponent, scale)
        users, items, others = self._pairs
        scores = [pair_scores(self._model, self._train, users, other) for other in (items, others)]
        return float((scores[0] - scores[1]).mean())


def most_epochs(config: UnlearnConfig) -> int:
    """The largest number of epochs of a training with ``config``."""
    if config["start"] != SPECTRAL:
        return int(config["epochs"])
    return (SEQUENTIAL if config["MODEL_TYPE"] == ModelType.SEQUENTIAL else OTHER).epochs(config)


@torch.no_grad()
def fill(model: AbstractRecommender, tables: list[Table], rows: torch.Tensor, degree: torch.Tensor) -> None:
    """Write ``rows`` (n, rank) into the first columns of ``tables``, where there are interactions."""
    known = (degree > 0).nonzero().flatten()
    for table in tables:
        weight = model.get_parameter(table.parameter)
        weight[(known + table.offset).to(weight.device), : rows.shape[1]] = rows[known].to(weight)


def by_interactions(train: Dataset, width: int, generator: torch.Generator) -> dict[Side, Factors]:
    """The factors of N; repeated interactions count once."""
    users, items = (train.inter_feat[field].numpy() for field in (train.uid_field, train.iid_field))
    ones = np.ones(len(users), dtype=np.float32)
    matrix = sparse.csr_matrix((ones, (users, items)), shape=(train.user_num, train.item_num))
    degree = {"user": matrix.getnnz(axis=1), "item": matrix.getnnz(axis=0)}
    root = {side: np.maximum(number, 1).astype(np.float32) ** -0.5 for side, number in degree.items()}
    matrix.data[:] = np.repeat(root["user"], degree["user"])
    matrix.data *= root["item"][matrix.indices]
    left, values, right = truncated_svd(matrix, width, generator)
    return {
        "user": Factors(left * values.sqrt(), torch.from_numpy(degree["user"])),
        "item": Factors(right * values.sqrt(), torch.from_numpy(degree["item"])),
    }


def items_by_windows(windows: Dataset, width: int, generator: torch.Generator) -> Factors:
    """The factors of the positive pointwise mutual information of items that follow each other."""
    feat, size = windows.inter_feat, windows.item_num
    targets, length = feat[windows.iid_field].numpy(), feat[windows.item_list_length_field].numpy()
    history = feat[windows.item_id_list_field].numpy()
    total = sparse.csr_matrix((size, size))
    for distance in range(1, min(REACH, history.shape[1]) + 1):
        has = length >= distance
        before = history[has, length[has] - distance]
        total += sparse.csr_matrix((np.full(has.sum(), 1.0 / distance), (targets[has], before)), shape=(size, size))
    total = (total + total.T).tocoo()
    mass = np.asarray(total.sum(axis=1)).ravel()
    pmi = np.log(total.data * mass.sum() / (mass[total.row] * mass[total.col]))
    kept = pmi > 0
    matrix = sparse.csr_matrix((pmi[kept].astype(np.float32), (total.row[kept], total.col[kept])), shape=(size, size))
    left, values, _ = truncated_svd(matrix, width, generator)
    return Factors(left * values.sqrt(), torch.from_numpy(mass))


def truncated_svd(
    matrix: sparse.csr_matrix, rank: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """U (m, r), Σ (r,) and V (n, r) of a sparse (m, n) by randomised subspace iteration.

    r is less than ``rank`` only where the matrix has no more. Orthonormal bases come from Gram matrices, twice: a few
    passes over tall matrices instead of a Householder QR.
    """
    forward, back = _torch_csr(matrix), _torch_csr(matrix.T.tocsr())
    columns = min(rank + OVERSAMPLED, *matrix.shape)
    basis = orthonormal(forward @ torch.randn(matrix.shape[1], columns, generator=generator))
    for _ in range(POWERS):
        basis = orthonormal(forward @ orthonormal(back @ basis))
    right = back @ basis  # Nᵀ Y = V Σ Rᵀ
    squares, turn = torch.linalg.eigh((right.T @ right).double())
    squares, turn = squares.flip(0)[:rank], turn.flip(1)[:, :rank]
    real = squares > 1e-8 * squares[0]
    values, turn = squares[real].sqrt().float(), turn[:, real].float()
    return basis @ turn, values, right @ turn / values


def orthonormal(columns: torch.Tensor) -> torch.Tensor:
    """An orthonormal basis of what ``columns`` (n, k) span, without directions that are rounding errors."""
    for _ in range(2):
        squares, turn = torch.linalg.eigh((columns.T @ columns).double())
        real = squares > 1e-10 * squares[-1]
        columns = columns @ (turn[:, real] / squares[real].sqrt()).to(columns)
    return columns


def _torch_csr(matrix: sparse.csr_matrix) -> torch.Tensor:
    starts, columns, values = map(torch.from_numpy, (matrix.indptr, matrix.indices, matrix.data))
    return csr_tensor(starts, columns, values, matrix.shape)
