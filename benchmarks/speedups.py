"""How many times faster than retraining rebuild and obliviate are, against our own training loop and RecBole's.

    python benchmarks/speedups.py [--datasets=ml-100k,ml-1m,amazon-music] [--data_path=DIR] [--models=BPR,LightGCN]

One genuine request (20 % of the interactions of 20 % of the users), seed 2020, all in one process: a run of obliviate
that also retrains and rebuilds, nothing from the cache; then epochs of RecBole's own model in its own loop, of which
the quicker one times the epochs that were retrained is the time of retraining by RecBole. Seconds without loading and
evaluation; a rebuild's have its validation in them. They mean something on an idle machine only.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from deletion_requests import draw
from recbole.trainer import Trainer
from tabulate import tabulate
from trainings import settings_of

from recbole_unlearn import UnlearnConfig, recbole_compat, run_unlearn
from recbole_unlearn.data import load, loaders

EPOCHS = 2  # of RecBole's loop; the first one also builds what the others use


def recbole_epoch(config: UnlearnConfig) -> float:
    """Seconds of an epoch of RecBole's model in RecBole's loop."""
    splits, seconds = load(config).splits, []
    with recbole_compat.dok_update():
        model = config.model_class(config, splits.train).to(config["device"])
    trainer, data = Trainer(config.to_recbole(), model), loaders(config, splits).train
    for epoch in range(EPOCHS):
        start = time.perf_counter()
        trainer._train_epoch(data, epoch)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def row(model: str, dataset: str, data_path: str | None) -> list[str]:
    """The line of the table of one model and dataset."""
    values = {
        "seed": 2020,
        "show_progress": False,
        "tensorboard": False,
        "cache": False,
        **settings_of(model, dataset),
    }
    values |= {"stopping_step": 0} | ({"data_path": data_path} if data_path else {})  # all epochs are trained
    with tempfile.TemporaryDirectory() as work:
        values["checkpoint_dir"] = work
        config = UnlearnConfig(model, dataset, config_dict=values)
        outcome = run_unlearn(
            model, dataset, forget=draw("genuine", model, dataset, values, 2020), unlearn="obliviate",
            compare=["retrain", "rebuild"], output_dir=Path(work) / "run", config_dict=values,
        )  # fmt: skip
        ours, rebuilt, unlearned = (
            outcome.result["phases"][name]["seconds"] for name in ("retrained", "rebuild", "unlearned")
        )
        theirs = recbole_epoch(config) * config["epochs"]
    ratios = [f"{theirs / fast:.1f} · {ours / fast:.1f}" for fast in (rebuilt, unlearned)]
    return [f"{model}, {dataset}", f"{theirs:.1f}", f"{ours:.1f}", f"{rebuilt:.2f}", ratios[0], f"{unlearned:.2f}",
            ratios[1]]  # fmt: skip


def main() -> None:
    """Print the table; a line for each cell as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="ml-100k")
    parser.add_argument("--data_path")
    parser.add_argument("--models", default="BPR,LightGCN")
    args = parser.parse_args()
    rows = []
    for dataset in args.datasets.split(","):
        for model in args.models.split(","):
            rows.append(row(model, dataset, None if dataset == "ml-100k" else args.data_path))
            print(*rows[-1], sep=" | ", flush=True)
    heads = ["", "retrain, RecBole's loop (s)", "ours (s)", "rebuild (s)", "times faster: RecBole's · ours",
             "obliviate (s)", "times faster: RecBole's · ours"]  # fmt: skip
    print(tabulate(rows, heads, tablefmt="github", disable_numparse=True), f"{torch.get_num_threads()} thread(s)")


if __name__ == "__main__":
    main()
