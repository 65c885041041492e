"""What a sweep costs beside its trials: its wall time against the sum of the trials' own work over the workers.

    python benchmarks/tune_overhead.py --dataset=ml-1m --data_path=DIR

The bar is 1.3 for 16 trials. A trial's own work is its unlearning run and its figures on validation interactions,
by its own clock. The sweep's time is the command's without what a single trial would need too (loading the data,
the original from the cache, its figures, the target): starting and stopping Ray, importing torch in the workers,
handing over data and weights, all trials, the table and the report. The ratio of the whole command is printed
beside it. About fifteen seconds are the same for any sweep, so that trials of a second or two (ml-100k) are above
the bar.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time

from recbole_unlearn import tune_unlearn


def main() -> None:
    """Time a sweep and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        tune_unlearn(args.model, args.dataset, output_dir=f"{folder}/first", config_dict=values | {"trials": 1})
        start = time.perf_counter()
        outcome = tune_unlearn(
            args.model, args.dataset, output_dir=f"{folder}/sweep", config_dict=values | {"trials": args.trials}
        )
        seconds = time.perf_counter() - start
    work = sum(record["figures"]["work_seconds"] for record in outcome.result["trials"])
    least = work / args.workers
    own = seconds - outcome.result["prepare_seconds"]
    print(
        f"{args.model} on {args.dataset}: {args.trials} trials with {args.workers} workers, {work:.1f} s of own "
        f"work, {least:.1f} s over the workers.\n"
        f"The sweep took {own:.1f} s, {own / least:.2f}x; the whole command {seconds:.1f} s, {seconds / least:.2f}x."
    )


if __name__ == "__main__":
    main()
