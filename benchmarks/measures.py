"""What measuring costs: all measures of a phase against RecBole's full-sort evaluation of the same model.

    python benchmarks/measures.py --dataset=ml-1m --data_path=DIR

The bar is three evaluations. Times are of one run, the median of three; the model is trained for one epoch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time

import torch

from recbole_unlearn import recbole_compat
from recbole_unlearn import settings as groups
from recbole_unlearn.data import divide, inject, load, loaders
from recbole_unlearn.measures import Measurement, utility
from recbole_unlearn.settings import UnlearnConfig, read
from recbole_unlearn.training import PhaseTrainer, build_model, compose


def main() -> None:
    """Time both and print their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="BPR")
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--data_path")
    args = parser.parse_args()
    sys.argv[1:] = []
    torch.set_num_threads(1)
    recbole_compat.restore_numpy_names()
    with tempfile.TemporaryDirectory() as work:
        values = {
            "embedding_size": 64, "epochs": 1, "show_progress": False, "tensorboard": False, "checkpoint_dir": work,
            "inject_mode": "random", "output_dir": None,
        }  # fmt: skip
        if args.data_path:
            values["data_path"] = args.data_path
        config = UnlearnConfig(args.model, args.dataset, config_dict=values)
        splits = load(config).splits
        full, located = inject(splits, read(groups.ForgetSettings, config), 0, None)
        data = divide(full, located, "injected random")
        test = loaders(config, data.retain)
        models = {name: compose(PhaseTrainer, config, build_model(config, data.retain), name) for name in "abc"}
        plain, everything = [], []
        for _ in range(3):
            start = time.perf_counter()
            utility(models["a"], config, test, data.affected_users)
            plain.append(time.perf_counter() - start)
            start = time.perf_counter()
            measurement = Measurement(config, data, test, 100)
            names = ("original", "unlearned", "retrained")
            phases = {name: measurement.measure(t) for name, t in zip(names, models.values(), strict=True)}
            for one in phases.values():
                measurement.distances(one, phases["retrained"])
            everything.append((time.perf_counter() - start) / len(names))
    one, all_of_them = statistics.median(plain), statistics.median(everything)
    print(
        f"{args.model} on {args.dataset}: RecBole's evaluation {one:.2f} s, all measures {all_of_them:.2f} s a phase "
        f"(that evaluation included), {all_of_them / one:.2f}x"
    )


if __name__ == "__main__":
    main()
