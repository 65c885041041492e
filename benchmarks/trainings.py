"""How models are trained in the benchmarks, where `properties/` would take too long on this machine."""

from __future__ import annotations

from typing import Any

# d = 64, and enough epochs for the validation metric to settle on ml-1m.
BY_MODEL: dict[str, dict[str, Any]] = {
    "BPR": {"embedding_size": 64, "epochs": 50, "eval_step": 10},
    "LightGCN": {"embedding_size": 64, "epochs": 30, "learning_rate": 0.005, "eval_step": 10},
}


def settings_of(model: str, dataset: str) -> dict[str, Any]:
    """Settings of a training; ml-100k has its own in `properties/model_dataset/`."""
    return {} if dataset == "ml-100k" else BY_MODEL.get(model, {})
