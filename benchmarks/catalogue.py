"""How unlearning grows with the catalogue: 100 interactions of a BPR model with 10⁴, 10⁵, 10⁶ users and items.

    python benchmarks/catalogue.py

The data is random (five rows a user), the model is not trained: times do not depend on what the numbers are. Reported
is the median of five requests, after one to warm up; `prepare` is the index of the training rows and what the model
has learned about rows, made once.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from tabulate import tabulate

from recbole_unlearn import recbole_compat
from recbole_unlearn.data import Located, divide, load
from recbole_unlearn.files import Trained
from recbole_unlearn.methods import UnlearnTask
from recbole_unlearn.registry import METHODS
from recbole_unlearn.rows import TrainIndex
from recbole_unlearn.settings import UnlearnConfig, read
from recbole_unlearn.training import build_model, compose


def write(folder: Path, size: int) -> None:
    """A dataset of ``size`` users and items in RecBole's format."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(size), 5)
    items = rng.integers(0, size, len(users))
    (folder / "random").mkdir()
    with open(folder / "random" / "random.inter", "w") as stream:
        stream.write("user_id:token\titem_id:token\n")
        stream.writelines(f"{u}\t{i}\n" for u, i in zip(users, items, strict=True))


def measure(size: int, rows: int, repeats: int) -> tuple[float, float]:
    """Median seconds of unlearning ``rows`` rows, and of preparing for it."""
    with tempfile.TemporaryDirectory() as work:
        write(Path(work), size)
        config = UnlearnConfig(
            "BPR", "random",
            config_dict={
                "data_path": work, "checkpoint_dir": work, "embedding_size": 64, "show_progress": False,
                "tensorboard": False, "load_col": {"inter": ["user_id", "item_id"]}, "val_interval": None,
                "output_dir": None,
            },
        )  # fmt: skip
        splits = load(config).splits
        method = METHODS.get("obliviate")
        options = read(method.Settings, config.method_values("obliviate"))
        taken, prepared = [], []
        for repeat in range(repeats + 1):
            rng = np.random.default_rng(repeat)
            mask = np.zeros(len(splits.train), bool)
            mask[rng.choice(len(mask), rows, replace=False)] = True
            nothing = [np.zeros(len(part), bool) for part in splits[1:]]
            data = divide(splits, Located(mask, *nothing), "x")
            model = build_model(config, data.retain)
            initial = dict(model.named_parameters())
            trainer = compose(method, config, model, "unlearned")
            original = Trained({}, adam_state(model), {}, 0)
            task = UnlearnTask(config, data, original, initial, options, None)
            start = time.perf_counter()
            task = dataclasses.replace(task, prepared_index=TrainIndex(data.full.train).complete())
            task = dataclasses.replace(task, prepared=trainer.prepare(task))
            prepared.append(time.perf_counter() - start)
            start = time.perf_counter()
            trainer.unlearn(task)
            taken.append(time.perf_counter() - start)
        return statistics.median(taken[1:]), statistics.median(prepared[1:])


def adam_state(model: torch.nn.Module) -> dict:
    """A state as Adam leaves it, with all second moments alike."""
    values = list(model.parameters())
    state = {k: {"step": 10.0, "exp_avg_sq": torch.full_like(v, 1e-6)} for k, v in enumerate(values)}
    return {"state": state, "param_groups": [{"params": list(state), "betas": (0.9, 0.999)}]}


def main() -> None:
    """Measure all sizes and print how time grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    sys.argv[1:] = []
    torch.set_num_threads(1)
    recbole_compat.restore_numpy_names()
    table = []
    for size in map(int, args.sizes.split(",")):
        seconds, prepared = measure(size, args.rows, args.repeats)
        first = table[0][1] if table else seconds
        table.append([size, seconds, seconds / first, prepared])
        print(tabulate(table, ["users and items", "unlearn s", "growth", "prepare s"], tablefmt="github"), flush=True)


if __name__ == "__main__":
    main()
