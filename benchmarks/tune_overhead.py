"""What a sweep costs beside its trials: its wall time against the sum of the trials' own work over the workers.

    python benchmarks/tune_overhead.py --dataset=ml-1m --data_path=DIR

The bar is 1.3 for 16 trials. A trial's own work is its unlearning run and its looks at validation rows, by its own
clock. The sweep's time is that of the whole command with a cached original: loading the data, starting and
stopping Ray, importing torch in every worker, handing over data and weights, all trials, the table and the report.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time

from recbole_unlearn import tune_unlearn


def main() -> None:
    """Time a sweep and print the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="LightGCN")
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--data_path")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    sys.argv[1:] = []
    with tempfile.TemporaryDirectory() as folder:
        values = {
            "embedding_size": 64, "epochs": 2, "inject_mode": "random", "show_progress": False, "tensorboard": False,
            "state": "WARNING", "tune": True, "unlearn": "obliviate", "workers": args.workers,
            "cache_dir": f"{folder}/cache",
        }  # fmt: skip
        if args.data_path:
            values["data_path"] = args.data_path
        tune_unlearn(
            args.model,
            args.dataset,
            output_dir=f"{folder}/first",
            config_dict=values | {"trials": 1, "tune_looks": 1},
        )
        start = time.perf_counter()
        outcome = tune_unlearn(
            args.model,
            args.dataset,
            output_dir=f"{folder}/sweep",
            config_dict=values | {"trials": args.trials},
        )
        seconds = time.perf_counter() - start
    work = sum(record["reports"][-1]["work_seconds"] for record in outcome.result["trials"])
    least = work / args.workers
    print(
        f"{args.model} on {args.dataset}: {args.trials} trials with {args.workers} workers took {seconds:.1f} s.\n"
        f"Their own work is {work:.1f} s, over the workers {least:.1f} s: {seconds / least:.2f}x, or "
        f"{seconds - least:.1f} s more."
    )


if __name__ == "__main__":
    main()
