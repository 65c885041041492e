"""All methods against retraining: models × seeds, one table of means.

    python benchmarks/baselines.py --dataset=ml-100k --models=BPR,LightGCN --seeds=2020,2021,2022

Each cell is one run of `run_unlearn` with every method, on the paper's request (noise in a fifth of the users) or,
with `--request=genuine`, on a fifth of the rows of a fifth of the users. Its result.json stays in OUT; a second
call goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from deletion_requests import KINDS, draw
from tabulate import tabulate
from trainings import settings_of

from recbole_unlearn import run_unlearn

METHODS = [
    "retrain", "finetune", "gradient_ascent", "rrl", "scif", "ifru", "sisa", "receraser", "ultrare",
    "obliviate_paper",
]  # fmt: skip


def cell(args: argparse.Namespace, model: str, seed: int) -> dict[str, Any]:
    """One run, or what an earlier call found."""
    folder = Path(args.out) / f"{args.dataset}-{model}-{args.request}-{seed}"
    if not (folder / "result.json").exists():
        values = {
            "seed": seed, "show_progress": False, "tensorboard": False, "save_unlearned": False,
            "cache_dir": args.cache_dir, "cache_size": 20.0, "workers": 1,
            **settings_of(model, args.dataset),
        }  # fmt: skip
        values |= {"data_path": args.data_path} if args.data_path else {}
        run_unlearn(
            model, args.dataset, forget=draw(args.request, model, args.dataset, values, seed),
            unlearn="obliviate", compare=args.methods.split(","), output_dir=folder, config_dict=values,
        )  # fmt: skip
    result = json.loads((folder / "result.json").read_text())
    return {name: figures(result["phases"], name) for name in result["phases"]}


def figures(phases: dict[str, Any], name: str) -> dict[str, float | None]:
    """A row of the table for one run; *recovered* is measured from the method's own original."""
    phase, goal = phases[name], phases["retrained"]
    before = phase.get("before", phases["original"])

    def ndcg(of: dict, group: str) -> float:
        return of[group]["ndcg@20"]

    gain = ndcg(goal, "affected") - ndcg(before, "affected")
    forgetting = phase["forgetting"]
    return {
        "all": ndcg(phase, "metrics"),
        "affected": ndcg(phase, "affected"),
        "before": ndcg(before, "affected"),
        "recovered": (ndcg(phase, "affected") - ndcg(before, "affected")) / gain if gain else None,
        "gap": forgetting["demotion_rate"] - goal["forgetting"]["demotion_rate"],
        "AUC": forgetting.get("attack", {}).get("auc"),
        "overlap": forgetting.get("overlap@20", {}).get("affected"),
        "seconds": phase["seconds"],
        "speed-up": goal["seconds"] / phase["seconds"] if phase["seconds"] else None,
    }


DIGITS = {"recovered": 2, "gap": 3, "AUC": 3, "overlap": 2, "seconds": 1, "speed-up": 1}
SPREAD = {"all", "affected", "recovered", "gap"}


def written(key: str, cells: list[dict[str, Any]]) -> str:
    """Mean, and ± standard deviation where there is more than one run."""
    values = [one[key] for one in cells if one.get(key) is not None]
    if not values:
        return ""
    digits = DIGITS.get(key, 4)
    text = f"{statistics.fmean(values):.{digits}f}"
    return text + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 and key in SPREAD else "")


def main() -> None:
    """Run what is missing, print a table for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--data_path")
    parser.add_argument("--models", default="BPR,LightGCN")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--request", default="injected", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--seeds", default="2020,2021,2022")
    parser.add_argument("--cache_dir", default="saved/cache")
    parser.add_argument("--out", default="saved/baselines")
    args = parser.parse_args()
    for model in args.models.split(","):
        found: dict[str, list[dict[str, Any]]] = {}
        for seed in map(int, args.seeds.split(",")):
            for name, row in cell(args, model, seed).items():
                found.setdefault("obliviate" if name == "unlearned" else name, []).append(row)
        heads = list(next(iter(found.values()))[0])
        rows = [[name, *(written(key, cells) for key in heads)] for name, cells in found.items()]
        print(f"{model} on {args.dataset}, {args.request}, seeds {args.seeds}, test rows")
        print(tabulate(rows, ["method", *heads], tablefmt="github", disable_numparse=True), flush=True)


if __name__ == "__main__":
    main()
