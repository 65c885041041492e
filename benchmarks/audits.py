"""Audits of the shipped defaults: methods against retraining and doing nothing, with shadow models.

    python benchmarks/audits.py --dataset=amazon-music --data_path=DIR --models=BPR,LightGCN --out=AUDITS

Each audit keeps its `audit.json` in OUT; a second call goes on where the first one stopped. Requests are those of
`obliviate.py`; `docs_tables.py --audits=AUDITS` writes the table of docs/results.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from deletion_requests import KINDS, draw
from trainings import settings_of

from recbole_unlearn import audit_unlearn


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--data_path")
    parser.add_argument("--models", default="BPR,LightGCN")
    parser.add_argument("--requests", default="injected,genuine", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--methods", default="obliviate,rebuild,finetune,rrl")
    parser.add_argument("--seed", type=int, default=2020)
    parser.add_argument("--shadows", type=int, default=16)
    parser.add_argument("--out", default="saved/audits")
    args = parser.parse_args()
    first, *others = args.methods.split(",")
    for model in args.models.split(","):
        for kind in args.requests.split(","):
            folder = Path(args.out) / f"{args.dataset}-{model}-{kind}-{args.seed}"
            if (folder / "audit.json").exists():
                continue
            values = {
                "seed": args.seed, "show_progress": False, "tensorboard": False, "cache": False, "min_group": 1,
                "shadows": args.shadows, "workers": 1, "threads": 1, **settings_of(model, args.dataset),
            }  # fmt: skip
            if args.data_path:
                values["data_path"] = args.data_path
            made = audit_unlearn(
                model,
                args.dataset,
                forget=draw(kind, model, args.dataset, values, args.seed),
                unlearn=first,
                compare=others,
                output_dir=folder,
                config_dict=values,
            )
            print(made)


if __name__ == "__main__":
    main()
