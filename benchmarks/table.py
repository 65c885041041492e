"""A table of all methods from finished runs: means over seeds of what docs/results.md shows.

    python run_unlearn.py --grid=properties/grid/machine.yaml --output_dir=DIR
    python benchmarks/table.py DIR

Reads result.json of the directories below DIR, and makes a table for each dataset, model, kind of request and share
of users. *recovered* is the mean of the runs' shares; the tables of `--report` have the share of the sums.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from tabulate import tabulate

from recbole_unlearn.report.comparison import (
    Entry,
    affected_ndcg,
    grouped,
    ratio_of_sums,
    read_result,
    recovered,
    results_in,
)
from recbole_unlearn.report.page import difference

DIGITS = {"recovered": 2, "gap": 3, "AUC": 3, "overlap": 2, "seconds": 1, "speed-up": 1}
SPREAD = {"all", "affected", "recovered", "gap"}


def figures(entry: Entry) -> dict[str, float | None]:
    """A row of the table for one run; *recovered* is measured from the method's own original."""
    phase, goal = entry.phase, entry.retrained
    return {
        "all": phase.metrics.get("ndcg@20"),
        "before": affected_ndcg(entry.before),
        "affected": affected_ndcg(phase),
        "recovered": recovered([entry]),
        "gap": difference(phase.demotion_rate, goal.demotion_rate),
        "AUC": phase.figure("attack", "auc"),
        "overlap": phase.figure("overlap@20", "affected"),
        "seconds": phase.seconds,
        "speed-up": ratio_of_sums([(goal.seconds, phase.seconds)]),
    }


def written(key: str, cells: list[dict[str, float | None]]) -> str:
    """Mean, and ± standard deviation where there is more than one run."""
    values = [value for one in cells if (value := one[key]) is not None]
    if not values:
        return ""
    digits = DIGITS.get(key, 4)
    text = f"{statistics.fmean(values):.{digits}f}"
    return text + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 and key in SPREAD else "")


def main() -> None:
    """Print the tables of the directory that is named."""
    results = [read_result(path / "result.json") for path in results_in(Path(sys.argv[1]))]
    for place, methods in grouped(results).items():
        found = {runs.name: [figures(entry) for entry in runs.entries] for runs in methods}
        heads = list(next(iter(found.values()))[0])
        rows = [[name, len(cells), *(written(head, cells) for head in heads)] for name, cells in found.items()]
        print(f"\n{place.dataset} · {place.model} · {place.request}, test interactions")
        print(tabulate(rows, ["method", "runs", *heads], tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
