"""Adapters: W' = W + R + A Bᵀ on some rows of a parameter, with W frozen, and R too.

R is the new start of the rows, full and fixed (none in the paper); A Bᵀ is the downdate of low rank,
and A is trained.

Rows outside the adapter are never written, and detaching gives the original rows back bit for bit: they are kept,
not computed. A merged model is a plain RecBole model. On disk an adapter is a safetensors file with a JSON file
beside it; it fits the base it was made for and no other.

An adapter can be undone: whoever holds it and the unlearned model can restore the original, and its row numbers show
who asked. It is for experiments and audits, not for what remains after a request.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch
from recbole.model.abstract_recommender import AbstractRecommender
from safetensors.torch import load_file, save

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.files import make_directory, write_bytes, write_json
from recbole_unlearn.rows import Side, as_rows

WEIGHTS, CONFIG, FORMAT = "adapters.safetensors", "adapters.json", 2


@dataclasses.dataclass
class Adapter:
    """A change R + A Bᵀ of ``rows`` of one parameter (of its columns when ``axis`` is 1)."""

    name: str  # of the parameter
    rows: torch.Tensor  # (n,)
    a: torch.Tensor  # (n, r), what is trained
    b: torch.Tensor  # (d, r), orthonormal and fixed
    base: torch.Tensor  # (n, d), the rows as they were
    axis: int = 0
    side: Side | None = None
    shift: torch.Tensor | None = None  # R (n, d); None for none
    trained: bool = True  # False for rows that only follow their neighbours; A then has no columns

    @property
    def label(self) -> str:
        """A name: its parameter, and the side where one parameter serves both."""
        name = self.name if self.side is None or self.side in self.name else f"{self.name} ({self.side})"
        return name if self.trained else f"{name}, following"

    @property
    def low(self) -> torch.Tensor:
        """A Bᵀ (n, d), the same bits whatever the memory layout: a loaded adapter equals the saved one."""
        return self.a.contiguous() @ self.b.contiguous().T

    @property
    def start(self) -> torch.Tensor:
        """W + R (n, d): what A Bᵀ is added to."""
        return self.base if self.shift is None else self.base + self.shift

    @property
    def delta(self) -> torch.Tensor:
        """R + A Bᵀ (n, d): the whole change."""
        return self.low if self.shift is None else self.shift + self.low


class AdapterSet:
    """The adapters of one model."""

    def __init__(self, model: AbstractRecommender, adapters: Sequence[Adapter]) -> None:
        self.model = model
        self.adapters = list(adapters)
        self._parameters = dict(model.named_parameters())

    def rows(self, adapter: Adapter) -> torch.Tensor:
        """A view (n, d) of the parameter an adapter changes; writing to it writes to the model."""
        return as_rows(self._parameters[adapter.name], adapter.axis)

    def attach(self) -> None:
        """Write W + R + A Bᵀ into the adapters' rows."""
        for adapter in self.adapters:
            self.rows(adapter)[adapter.rows] = adapter.start + adapter.low

    @property
    def trained(self) -> list[Adapter]:
        """Those whose A is calibrated."""
        return [adapter for adapter in self.adapters if adapter.trained]

    def detach(self) -> None:
        """Give the original rows back."""
        for adapter in self.adapters:
            self.rows(adapter)[adapter.rows] = adapter.base

    def merge(self) -> AbstractRecommender:
        """The model with the change made for good; the adapters are dropped."""
        self.attach()
        self.adapters = []
        return self.model

    def drift(self) -> float:
        """‖Δθ‖²_F = Σ ‖R + A Bᵀ‖²."""
        return float(sum(adapter.delta.square().sum() for adapter in self.adapters))

    def save(self, directory: str | Path, **about: Any) -> Path:
        """Write the adapters to ``directory``, with ``about`` in their JSON file; returns the directory.

        The base is not written, only its digest. Attached or not, the model is left as it is.
        """
        directory = make_directory(directory)
        tensors = {}
        for number, adapter in enumerate(self.adapters):
            for part in ("rows", "a", "b", "shift"):
                value = getattr(adapter, part)
                if value is not None:
                    tensors[f"{number}.{part}"] = value.detach().cpu().contiguous()
        config = {
            "format": FORMAT,
            **about,
            "model": type(self.model).__name__,
            "base": self._base_digest(),
            "adapters": [
                {
                    "parameter": x.name,
                    "axis": x.axis,
                    "side": x.side,
                    "rows": len(x.rows),
                    "rank": x.a.shape[1],
                    "trained": x.trained,
                }
                for x in self.adapters
            ],
        }
        write_bytes(directory / WEIGHTS, save(tensors))
        write_json(directory / CONFIG, config)
        return directory

    @classmethod
    def load(cls, model: AbstractRecommender, directory: str | Path) -> AdapterSet:
        """The adapters in ``directory`` for ``model``, which must be the base they were made for; not attached."""
        directory = Path(directory)
        try:
            config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
            tensors = load_file(directory / WEIGHTS)
            if config["format"] != FORMAT:
                raise ValueError(f"format {config['format']}, this version reads {FORMAT}")
            wanted = config["base"]
            described = [
                (x["parameter"], int(x["axis"]), x["side"], bool(x["trained"])) for x in config["adapters"]
            ]
            parts = [[tensors[f"{n}.{part}"] for part in ("rows", "a", "b")] for n in range(len(described))]
            shifts = [tensors.get(f"{n}.shift") for n in range(len(described))]
        except (OSError, ValueError, LookupError, TypeError, safetensors.SafetensorError) as error:
            raise UnlearnError(f"Cannot read adapters from {directory}: {error}.") from error
        if weights_digest(model) != wanted:
            raise UnlearnError(
                f"The adapters in {directory} were made for another model: its weights differ from the base. "
                "Load the checkpoint that was unlearned, as it was before."
            )
        named = dict(model.named_parameters())
        adapters = []
        for (name, axis, side, trained), (rows, a, b), shift in zip(described, parts, shifts, strict=True):
            weights = as_rows(named[name], axis) if name in named else torch.empty(0, 0)
            fits = rows.dim() == 1 and a.shape == (len(rows), b.shape[1]) and b.shape[0] == weights.shape[1]
            fits = fits and (shift is None or shift.shape == (len(rows), b.shape[0]))
            if not fits or (len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(weights)):
                raise UnlearnError(f"Cannot read adapters from {directory}: {name} does not fit the model.")
            a, b, rows = (x.to(weights.device) for x in (a, b, rows))
            shift = None if shift is None else shift.to(weights.device)
            base = weights[rows].clone()
            adapters.append(Adapter(name, rows, a, b, base, axis, side, shift, trained))
        return cls(model, adapters)

    def _base_digest(self) -> str:
        """The digest of the model without the adapters."""
        attached = [self.rows(adapter)[adapter.rows].clone() for adapter in self.adapters]
        self.detach()
        try:
            return weights_digest(self.model)
        finally:
            for adapter, rows in zip(self.adapters, attached, strict=True):
                self.rows(adapter)[adapter.rows] = rows


def weights_digest(model: AbstractRecommender) -> str:
    """A digest of a model's parameters: names, shapes and bits."""
    digest = hashlib.sha256()
    for name, value in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
