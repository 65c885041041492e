r"""Adapters: W' = W + R + A Bᵀ on some rows of a parameter, with W and R frozen.

R is the new start of the rows, of full rank (none in the paper); A Bᵀ is the downdate projected to rank r
(:func:`project`), and LAC trains A. So the rank means cost and capacity of the calibration, as in the paper.

Rows outside the adapters are never written, and detaching restores the original rows bit for bit from a copy. A
merged model is a plain RecBole model. Adapters are never written to disk: they could restore the original, and their
row numbers show who asked.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import torch
from recbole.model.abstract_recommender import AbstractRecommender

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.recbole_compat import clear_caches
from recbole_unlearn.rows import Earlier, Region, Side, Table, as_rows


@dataclasses.dataclass
class Adapter:
    """A change R + A Bᵀ of ``rows`` of one parameter (of its columns when ``axis`` is 1)."""

    name: str  # of the parameter
    rows: torch.Tensor  # (n,)
    a: torch.Tensor  # (n, r), trained
    b: torch.Tensor  # (d, r), orthonormal; fixed, except in the paper's algorithm
    base: torch.Tensor  # (n, d), the original rows
    axis: int = 0
    side: Side | None = None
    shift: torch.Tensor | None = None  # R (n, d); None for none
    trained: bool = True  # False for rows that only follow their neighbours; A then has no columns

    @classmethod
    def on_rows(cls, model: AbstractRecommender, table: Table, ids: torch.Tensor, trained: bool = True) -> Self:
        """An adapter of the rows of ``ids`` that changes nothing yet: A = 0, B the identity, empty if untrained."""
        weights = as_rows(model.get_parameter(table.parameter), table.axis)
        rows = (ids + table.offset).to(weights.device)
        base = weights[rows].clone()
        b = torch.eye(base.shape[1], dtype=base.dtype, device=base.device)[:, : None if trained else 0]
        a = base.new_zeros(len(rows), b.shape[1])
        return cls(table.parameter, rows, a, b, base, table.axis, table.side, trained=trained)

    @property
    def label(self) -> str:
        """The parameter's name, with the side where one parameter serves both."""
        name = self.name if self.side is None or self.side in self.name else f"{self.name} ({self.side})"
        return name if self.trained else f"{name}, following"

    @property
    def low(self) -> torch.Tensor:
        """A Bᵀ (n, d)."""
        return self.a @ self.b.T

    @property
    def start(self) -> torch.Tensor:
        """W + R (n, d), to which A Bᵀ is added."""
        return self.base if self.shift is None else self.base + self.shift

    @property
    def delta(self) -> torch.Tensor:
        """R + A Bᵀ (n, d), the whole change."""
        return self.low if self.shift is None else self.shift + self.low


class AdapterSet:
    """The adapters of one model."""

    def __init__(self, model: AbstractRecommender, adapters: Sequence[Adapter]) -> None:
        self.model, self.adapters = model, list(adapters)
        self._parameters = dict(model.named_parameters())

    @classmethod
    def on_region(cls, model: AbstractRecommender, tables: Sequence[Table], region: Region) -> Self:
        """Adapters of the rows of ``region`` in ``tables`` that change nothing yet."""
        return cls(model, [Adapter.on_rows(model, t, region[t.side].ids) for t in tables if len(region[t.side])])

    @property
    def trained(self) -> list[Adapter]:
        """The adapters whose A is calibrated."""
        return [adapter for adapter in self.adapters if adapter.trained]

    def rows(self, adapter: Adapter) -> torch.Tensor:
        """A view (n, d) of the parameter an adapter changes; writing to it writes to the model."""
        return as_rows(self._parameters[adapter.name], adapter.axis)

    def attach(self) -> None:
        """Write W + R + A Bᵀ into the adapters' rows."""
        for adapter in self.adapters:
            self.rows(adapter)[adapter.rows] = adapter.start + adapter.low

    def detach(self) -> None:
        """Restore the original rows."""
        for adapter in self.adapters:
            self.rows(adapter)[adapter.rows] = adapter.base

    @contextlib.contextmanager
    def detached(self) -> Iterator[None]:
        """The original rows for a while, then those of before: orphans' rows are reset after the calibration."""
        now = [self.rows(adapter)[adapter.rows].clone() for adapter in self.adapters]
        self.detach()
        try:
            yield
        finally:
            for adapter, values in zip(self.adapters, now, strict=True):
                self.rows(adapter)[adapter.rows] = values
            clear_caches(self.model)

    def earlier(self) -> list[Earlier]:
        """The original rows of all adapters."""
        return [Earlier(adapter.name, adapter.rows, adapter.base, adapter.axis) for adapter in self.adapters]

    def drift(self) -> float:
        """‖Δθ‖²_F = Σ ‖R + A Bᵀ‖²."""
        return float(sum(adapter.delta.square().sum() for adapter in self.adapters))


class LowRank(NamedTuple):
    """ΔW ≈ A Bᵀ, and the share of ‖ΔW‖² that it keeps (its energy)."""

    a: torch.Tensor  # (n, r)
    b: torch.Tensor  # (d, r)
    energy: float


def spectrum(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The squared singular values (d,) of ``rows`` (n, d), rising, and their directions (d, d)."""
    gram = rows.double().T @ rows.double()
    if not torch.isfinite(gram).all():
        raise UnlearnError(
            "The downdate is not a finite number, so the model is not usable; nothing was written. "
            "Check the weights of the original."
        )
    values, vectors = torch.linalg.eigh(gram)
    return values.clamp(min=0.0), vectors


def project(delta: torch.Tensor, rank: int | str) -> LowRank:
    """The best approximation of ``delta`` (n, d) of rank r; itself for "full".

    From the eigenvectors V of the Gram matrix ΔᵀΔ (d, d), which are the right singular vectors: A = ΔV_r, B = V_r.
    B is orthonormal (the paper splits Σ; the product is the same), so that steps on A are steps on the rows.
    """
    if rank == "full":
        return LowRank(delta, torch.eye(delta.shape[1], dtype=delta.dtype, device=delta.device), 1.0)
    values, vectors = spectrum(delta)
    values, vectors = values.flip(0), vectors.flip(1)
    total = values.sum()
    rank = max(1, min(int(rank), delta.shape[1]))
    basis = vectors[:, :rank].to(delta.dtype)
    return LowRank(delta @ basis, basis, float(values[:rank].sum() / total) if total > 0 else 1.0)


def project_shared(deltas: Sequence[torch.Tensor], rank: int | str) -> list[LowRank]:
    """As :func:`project`, with one B for all ``deltas`` of one width: a graph model propagates r columns, not d."""
    widths = {delta.shape[1] for delta in deltas}
    basis = {w: project(torch.cat([x for x in deltas if x.shape[1] == w]), rank).b for w in widths}
    found = []
    for delta in deltas:
        b = basis[delta.shape[1]]
        a, total = delta @ b, delta.square().sum()
        found.append(LowRank(a, b, float(a.square().sum() / total) if total > 0 else 1.0))
    return found
