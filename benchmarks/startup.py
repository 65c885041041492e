"""What a command costs before it works: imports of commands, and loading a dataset against RecBole's own way.

    python benchmarks/startup.py --dataset=ml-1m --data_path=DIR

Seconds of CPU, the least of ``--tries``. Ratios are to the import of torch, and of loading to RecBole's own way.
"""

import argparse
import functools
import resource
import subprocess
import sys
import time
from collections.abc import Callable

from tabulate import tabulate

from recbole_unlearn.data import load
from recbole_unlearn.settings import UnlearnConfig

COMMANDS = {
    "import torch": ["-c", "import torch"],
    "--version": ["-m", "recbole_unlearn", "--version"],
    "requests --help": ["-m", "recbole_unlearn", "requests", "--help"],
    "import of requests status": ["-c", "from recbole_unlearn.state import commands"],
    "import of a run": ["-c", "import recbole_unlearn.quick_start"],
    "--unlearn=?": ["-m", "recbole_unlearn", "--unlearn=?"],  # all methods
}


def of_children() -> float:
    """Seconds of CPU of the processes that have ended."""
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def seconds(clock: Callable[[], float], work: Callable[[], object], tries: int) -> float:
    """The least seconds that ``work`` took by ``clock``."""
    least = float("inf")
    for _ in range(tries):
        start = clock()
        work()
        least = min(least, clock() - start)
    return least


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("dataset", "ml-100k"), ("data_path", "dataset"), ("model", "BPR"), ("tries", "5")):
        parser.add_argument(f"--{name}", default=default)
    args = parser.parse_args()
    tries, table = int(args.tries), []
    for name, command in COMMANDS.items():
        run = functools.partial(subprocess.run, [sys.executable, *command], stdout=subprocess.DEVNULL, check=True)
        spent = seconds(of_children, run, tries)
        table.append((name, spent, spent / (table[0][1] if table else spent)))
    config = UnlearnConfig(args.model, args.dataset, config_dict={"data_path": args.data_path})
    ways = (load.__wrapped__, load)
    own, fast = (seconds(time.process_time, functools.partial(way, config), tries) for way in ways)
    table += [(f"load {args.dataset}, RecBole", own, 1.0), (f"load {args.dataset}", fast, fast / own)]
    print(tabulate(table, headers=("", "seconds", "ratio"), floatfmt=".2f"))
