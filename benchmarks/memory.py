"""Peak memory of unlearning over that of evaluation, a process for each method, on the paper's synthetic request.

    python benchmarks/memory.py --model=LightGCN --dataset=ml-1m --data_path=DIR --methods=obliviate,ifru

The kernel's high-water mark is set back before each phase (Linux), so each peak is that phase's own. Both hold the
same data and weights; what differs is what they make on top.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch
from trainings import settings_of

from recbole_unlearn import run_unlearn
from recbole_unlearn.measures import evaluation
from recbole_unlearn.methods import UnlearnTrainer

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


def measure(args: argparse.Namespace) -> None:
    """Run one method and print both peaks and their ratio."""
    values = {
        **settings_of(args.model, args.dataset), "epochs": args.epochs, "eval_step": 1, "show_progress": False,
        "tensorboard": False, "save_unlearned": False, "report": "none", "inject_mode": "random",
        "cache_dir": args.cache_dir, "workers": 1, "output_dir": f"{args.cache_dir}/memory", "replace": True,
    }  # fmt: skip
    if args.data_path:
        values["data_path"] = args.data_path
    torch.set_num_threads(1)
    evaluation.utility = recorded("evaluation", evaluation.utility)
    UnlearnTrainer.run = recorded("unlearning", UnlearnTrainer.run)
    run_unlearn(args.model, args.dataset, unlearn=args.methods, config_dict=values)
    ratio = PEAKS["unlearning"] / PEAKS["evaluation"]
    print(
        f"{args.methods} with {args.model} on {args.dataset}: evaluation {PEAKS['evaluation']:.0f} MiB, "
        f"unlearning {PEAKS['unlearning']:.0f} MiB, ratio {ratio:.2f}"
    )


def main() -> None:
    """One method here, several in a process each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="LightGCN")
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--data_path")
    parser.add_argument("--methods", default="obliviate")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--cache_dir", default="saved/cache")
    args = parser.parse_args()
    names = args.methods.split(",")
    if len(names) == 1:
        measure(args)
        return
    others = [argument for argument in sys.argv[1:] if not argument.startswith("--methods")]
    for name in names:
        command = [sys.executable, "-W", "ignore", __file__, *others, f"--methods={name}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print((done.stdout or done.stderr).strip().splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
