"""Which knowledge-aware models can be unlearned, and with which settings; refused before any data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recbole_unlearn.errors import UnlearnError

MODELS = ("CKE", "CFKG", "KGCN", "KTUP")
_REASONS = {
    "KGAT": "it needs dgl, and keeps attention over everybody's interactions beside its weights",
    "KGIN": "it needs torch_scatter, and mixes everybody's interactions into its graph",
    "MCCLK": "it needs torch_scatter, and mixes everybody's interactions into its graph",
    "KGNNLS": "its loss reads a table of who had what, which it keeps beside its weights",
    "MKR": "it has two losses of which neither is calculate_loss, and methods work on that one",
    "RippleNet": "it keeps users' histories beside its weights, and saves them in its checkpoint",
}


def refuse_model(name: str, model: type) -> None:
    """Refuse a knowledge-aware model that is none of those above, nor derived from one."""
    if not any(base.__name__ in MODELS and base.__module__.startswith("recbole.") for base in model.__mro__):
        raise refusal(name)


def refusal(name: str) -> UnlearnError:
    """What is said of a knowledge-aware model that is refused."""
    reason = f": {_REASONS[name]}" if name in _REASONS else ""
    return UnlearnError(
        f"{name} is a knowledge-aware model that cannot be unlearned{reason}. Use {', '.join(MODELS[:-1])} or "
        f"{MODELS[-1]}, or train {name} again with RecBole on data without the deleted interactions."
    )


def refuse_columns(name: str, columns: Mapping[str, Any] | None) -> None:
    """Refuse a choice of columns (`load_col`) without those of the graph and of its links to items."""
    missing = [suffix for suffix in ("kg", "link") if columns is not None and not columns.get(suffix)]
    if missing:
        raise UnlearnError(
            f"load_col leaves out {' and '.join(missing)}, and {name} reads a knowledge graph. Add for example "
            "kg: [head_id, relation_id, tail_id] and link: [item_id, entity_id]."
        )
