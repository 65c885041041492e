"""Peak memory of unlearning over that of evaluation, in one process, on the paper's synthetic request.

    python benchmarks/memory.py --model=LightGCN --dataset=ml-1m --data_path=DIR

The kernel's high-water mark is set back before each phase (Linux), so each peak is that phase's own. Both hold the
same data and weights; what differs is what they make on top.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from recbole_unlearn import compat
from recbole_unlearn import quick_start as pipeline
from recbole_unlearn.config import UnlearnConfig
from recbole_unlearn.evaluation import utility
from recbole_unlearn.trainer import UnlearnTrainer

PEAKS: dict[str, float] = {}


def recorded(name: str, work):  # noqa: ANN001, ANN201
    """``work`` with its peak memory noted in MiB."""

    def call(*args, **kwargs):  # noqa: ANN002, ANN003, ANN202
        Path("/proc/self/clear_refs").write_text("5")
        result = work(*args, **kwargs)
        status = Path("/proc/self/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        PEAKS.setdefault(name, peak / 1024)
        return result

    return call


def main() -> None:
    """Run once and print both peaks and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="LightGCN")
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--data_path")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--cache_dir", default="saved/cache")
    args = parser.parse_args()
    sys.argv[1:] = []
    torch.set_num_threads(1)
    compat.restore_numpy_names()
    values = {
        "embedding_size": 64, "epochs": args.epochs, "show_progress": False, "tensorboard": False,
        "save_unlearned": False, "inject_mode": "random", "cache_dir": args.cache_dir,
    }  # fmt: skip
    if args.data_path:
        values["data_path"] = args.data_path
    UnlearnConfig(args.model, args.dataset, config_dict=values)
    from recbole_unlearn import evaluation

    evaluation.utility = recorded("evaluation", utility)
    UnlearnTrainer.run = recorded("unlearning", UnlearnTrainer.run)
    pipeline.run_unlearn(args.model, args.dataset, unlearn="obliviate", config_dict=values)
    ratio = PEAKS["unlearning"] / PEAKS["evaluation"]
    print(
        f"{args.model} on {args.dataset}: evaluation {PEAKS['evaluation']:.0f} MiB, "
        f"unlearning {PEAKS['unlearning']:.0f} MiB, ratio {ratio:.2f}"
    )


if __name__ == "__main__":
    main()
