"""How models are trained in the benchmarks, where `properties/` would take too long on this machine."""

from __future__ import annotations

from typing import Any

# d = 64, and enough epochs for the validation metric to settle on ml-1m.
BY_MODEL: dict[str, dict[str, Any]] = {
    "BPR": {"embedding_size": 64, "epochs": 50, "eval_step": 10},
    "LightGCN": {"embedding_size": 64, "epochs": 30, "learning_rate": 0.005, "eval_step": 10},
}
# A sample of 1,500 users of ml-1m, which is what two cores train in minutes (`sample_users.py`).
SEQUENCES: dict[str, Any] = {
    "load_col": {"inter": ["user_id", "item_id", "timestamp"]}, "MAX_ITEM_LIST_LENGTH": 15, "learning_rate": 0.003,
    "train_batch_size": 1024, "epochs": 10, "eval_step": 1, "stopping_step": 3,
}  # fmt: skip
BY_MODEL["SASRec"] = SEQUENCES | {"hidden_size": 32, "inner_size": 64, "n_layers": 1}
BY_MODEL["GRU4Rec"] = SEQUENCES | {"embedding_size": 32, "hidden_size": 64, "num_layers": 1}
BY_MODEL["HGN"] = SEQUENCES | {"embedding_size": 32}


def settings_of(model: str, dataset: str) -> dict[str, Any]:
    """Settings of a training; ml-100k has its own in `properties/model_dataset/`."""
    return {} if dataset == "ml-100k" else BY_MODEL.get(model, {})
