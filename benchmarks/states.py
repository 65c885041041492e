"""What the benchmarks of requests share: a state of a model that was just trained, and files of measured lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from recbole_unlearn.data import Source
from recbole_unlearn.files import Trained, write_model
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.state import State, init_state


def new_state(work: Path, config: UnlearnConfig, source: Source, trained: Trained) -> State:
    """A state in the folder ``work``, of a trained model with its optimizer."""
    assert trained.optimizer is not None
    name = write_model(work, work, config, trained, trained.optimizer, source.splits, source.clock)
    key = work / "key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)
    return init_state(work / "state", work / name, hash_key=key)


def tokens(source: Source, numbers: np.ndarray) -> dict[str, list[str]]:
    """A request for training interactions, by their numbers."""
    train = source.splits.train
    return {
        field: train.id2token(field, train.inter_feat[field].numpy()[numbers]).tolist()
        for field in (train.uid_field, train.iid_field)
    }


class Lines:
    """A file of JSON lines, one for each thing that is measured: what is there is not measured again."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.lines = [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The line of ``key``."""
        return next((line for line in self.lines if line.items() >= key.items()), None)

    def add(self, key: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
        """Write a line at once, and return it."""
        line = {**key, **found}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        self.lines.append(line)
        return line
