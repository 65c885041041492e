"""Obliviate against retraining: every preset and ablation, several requests and seeds, one table.

    python benchmarks/obliviate.py --dataset=ml-1m --data_path=DIR --models=BPR,LightGCN --seeds=2020,2021,2022

Each cell is one run of `run_unlearn`, whose result.json stays in OUT; a second call goes on where the first one
stopped. Retraining has the cell's seed plus one, and is done in the same run as what it is compared with.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import yaml
from deletion_requests import KINDS, draw
from tabulate import tabulate
from trainings import settings_of

from recbole_unlearn import run_unlearn

PRESETS = ["obliviate_paper", "no_lua", "no_lac", "no_distill"]
VARIANTS = {
    "obliviate": {},
    "  without the new start": {"lua_target": "none"},
    "  without the downdate": {"lua_scale": 0.0},
    "  without LAC": {"lac_steps": 0},
    "  rank 8": {"rank": 8},
    "  full rows": {"rank": "full"},
    "  pushed down": {"lac_forget": 0.1},
}


def run(args: argparse.Namespace, model: str, kind: str, seed: int, variant: str) -> dict:
    """One cell, or what an earlier call found."""
    name = f"{args.dataset}-{model}-{kind}-{seed}-{variant.strip().replace(' ', '_')}"
    folder = Path(args.out) / name
    if (folder / "result.json").exists():
        return json.loads((folder / "result.json").read_text())
    values = {
        "seed": seed, "show_progress": False, "tensorboard": False, "save_unlearned": False,
        "cache_dir": args.cache_dir, "cache_size": 20.0, "min_group": 1, **settings_of(model, args.dataset),
    }  # fmt: skip
    if args.data_path:
        values["data_path"] = args.data_path
    request = draw(kind, model, args.dataset, values, seed)
    others = args.methods.split(",") if args.methods and variant == "obliviate" else []
    compare = ["retrain", *others]
    if args.fresh:
        values["cache"] = False
    values |= VARIANTS[variant] | yaml.safe_load(args.settings)
    outcome = run_unlearn(
        model,
        args.dataset,
        forget=request,
        unlearn="obliviate",
        compare=compare,
        output_dir=folder,
        config_dict=values,
    )
    return outcome.result


def figures(result: dict, phase: str) -> dict[str, float]:
    """The bars' figures for one phase of a result."""
    phases = result["phases"]
    first, last, mine = (phases[name] for name in ("original", "retrained", phase))

    def ndcg(of: dict, group: str) -> float:
        return of[group].get("ndcg@20", float("nan"))

    def auc(of: dict) -> float:
        return (of["forgetting"].get("attack") or {}).get("auc", float("nan"))

    gain = ndcg(last, "affected") - ndcg(first, "affected")
    return {
        "recovered": (ndcg(mine, "affected") - ndcg(first, "affected")) / gain,
        "affected": ndcg(mine, "affected"),
        "demotion": mine["forgetting"]["demotion_rate"],
        "gap": mine["forgetting"]["demotion_rate"] - last["forgetting"]["demotion_rate"],
        "attack": auc(mine) - auc(last),
        "unaffected": ndcg(mine, "unaffected") / ndcg(first, "unaffected") - 1,
        "all": ndcg(mine, "metrics") / ndcg(last, "metrics") - 1,
        "seconds": mine["seconds"],
        "speedup": last["seconds"] / mine["seconds"] if mine["seconds"] else float("nan"),
    }


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--data_path")
    parser.add_argument("--models", default="BPR,LightGCN")
    parser.add_argument("--requests", default="injected,genuine", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--seeds", default="2020,2021,2022")
    parser.add_argument("--variants", action="store_true", help="also variants of obliviate itself")
    parser.add_argument("--methods", default=",".join(PRESETS), help="to compare with; empty for none")
    parser.add_argument("--cached", dest="fresh", action="store_false", help="models may come from the cache")
    parser.add_argument("--cache_dir", default="saved/cache")
    parser.add_argument("--settings", default="{}", help="more settings of every run, as YAML: {relearn_epochs: 10}")
    parser.add_argument("--out", default="saved/benchmark")
    args = parser.parse_args()
    rows = []
    for model in args.models.split(","):
        for kind in args.requests.split(","):
            found: dict[str, list[dict]] = {}
            for seed in map(int, args.seeds.split(",")):
                for variant in VARIANTS if args.variants else ["obliviate"]:
                    result = run(args, model, kind, seed, variant)
                    for phase in result["phases"] if variant == "obliviate" else ["unlearned"]:
                        name = variant if phase == "unlearned" else phase
                        found.setdefault(name, []).append(figures(result, phase))
            for name, cells in found.items():
                row = [model, kind, name]
                for key in cells[0]:
                    values = np.array([cell[key] for cell in cells], dtype=float)
                    spread = (
                        f" ±{values.std(ddof=1):.3f}"
                        if len(values) > 1 and key in ("recovered", "gap", "attack")
                        else ""
                    )
                    row.append(f"{values.mean():.4f}{spread}" if key != "speedup" else f"{values.mean():.0f}x")
                rows.append(row)
            heads = ["model", "request", "method", *cells[0]]
            print(tabulate(rows, heads, tablefmt="github"), flush=True)
            print(f"seeds {args.seeds}; means (± standard deviation). {KINDS[kind]}.\n", flush=True)


if __name__ == "__main__":
    main()
