"""What a request did to a model, and the files that hold it: named by their content, written whole.

A file is safetensors: `weights.NAME.rows` and `weights.NAME.values` for every parameter with rows that moved, the
same for second moments, and `fitted`. New values are kept, not differences, so that following them gives the same
bits.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import safetensors
import torch
from safetensors.torch import load, save

from recbole_unlearn.errors import UnlearnError

Tensors = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Rows:
    """New values of some rows of a parameter."""

    ids: torch.Tensor  # (n,)
    values: torch.Tensor  # (n, ...)

    @classmethod
    def between(cls, before: torch.Tensor, after: torch.Tensor) -> Rows | None:
        """The rows in which two versions of a parameter differ; None when there are none."""
        before, after = _as_rows(before), _as_rows(after)
        differs = (
            before.cpu().numpy() != after.cpu().numpy()
        )  # numpy's `any` is several times as fast as torch's
        ids = torch.from_numpy(differs.reshape(len(before), -1).any(axis=1).nonzero()[0])
        return cls(ids, after[ids].clone()) if len(ids) else None

    def distance(self, before: torch.Tensor) -> float:
        """‖after − before‖²; 0 for what only counts."""
        if not before.is_floating_point():
            return 0.0
        return float((self.values - _as_rows(before)[self.ids]).square().sum())

    def write(self, target: torch.Tensor) -> None:
        """Put the values in their place."""
        _as_rows(target)[self.ids.to(target.device)] = self.values.to(target)


def _as_rows(value: torch.Tensor) -> torch.Tensor:
    """A single number as one row; all others as they are."""
    return value.reshape(1) if value.dim() == 0 else value


@dataclasses.dataclass(frozen=True)
class Change:
    """What a request did to a model: new rows of its weights and of its second moments, and what its items lost."""

    weights: dict[str, Rows]
    moments: dict[str, Rows]
    fitted: torch.Tensor | None  # (items,), see data/item_counts.py
    drift: float  # ‖θ' − θ‖²
    certificates: dict[str, Any] = dataclasses.field(default_factory=dict)

    def pack(self) -> bytes:
        """As safetensors."""
        tensors: Tensors = {}
        for kind, parts in (("weights", self.weights), ("moments", self.moments)):
            for name, rows in parts.items():
                tensors[f"{kind}.{name}.rows"] = rows.ids
                tensors[f"{kind}.{name}.values"] = rows.values
        if self.fitted is not None:
            tensors["fitted"] = self.fitted
        return pack(tensors)

    @classmethod
    def unpack(cls, content: bytes, drift: float) -> Change:
        """Read it back; ``drift`` is kept elsewhere."""
        tensors = unpack(content)
        parts: dict[str, dict[str, Rows]] = {"weights": {}, "moments": {}}
        for name, ids in tensors.items():
            if name.endswith(".rows"):
                kind, _, parameter = name.removesuffix(".rows").partition(".")
                parts[kind][parameter] = Rows(ids, tensors[f"{kind}.{parameter}.values"])
        return cls(parts["weights"], parts["moments"], tensors.get("fitted"), drift)


def pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file."""
    content: bytes = save(
        {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    )
    return content


def unpack(content: bytes) -> Tensors:
    """The tensors in the bytes of a safetensors file."""
    try:
        found: Tensors = load(content)
    except safetensors.SafetensorError as error:
        raise UnlearnError(f"A file of tensors cannot be read: {error}. Run `requests verify`.") from error
    return found


def digest(content: bytes) -> str:
    """SHA-256 in hex: the name of a file."""
    return hashlib.sha256(content).hexdigest()
