"""A table of all methods from finished runs: means over seeds of what docs/baselines.md shows.

    python run_unlearn.py --grid=properties/grid/machine.yaml --output_dir=DIR
    python benchmarks/table.py DIR

Reads result.json of the directories below DIR, and makes a table for each dataset, model and kind of request.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from tabulate import tabulate

DIGITS = {"recovered": 2, "gap": 3, "AUC": 3, "overlap": 2, "seconds": 1, "speed-up": 1}
SPREAD = {"all", "affected", "recovered", "gap"}


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
        "before": ndcg(before, "affected"),
        "affected": ndcg(phase, "affected"),
        "recovered": (ndcg(phase, "affected") - ndcg(before, "affected")) / gain if gain else None,
        "gap": forgetting["demotion_rate"] - goal["forgetting"]["demotion_rate"],
        "AUC": forgetting.get("attack", {}).get("auc"),
        "overlap": forgetting.get("overlap@20", {}).get("affected"),
        "seconds": phase["seconds"],
        "speed-up": goal["seconds"] / phase["seconds"] if phase["seconds"] else None,
    }


def written(key: str, cells: list[dict[str, Any]]) -> str:
    """Mean, and ± standard deviation where there is more than one run."""
    values = [one[key] for one in cells if one.get(key) is not None]
    if not values:
        return ""
    digits = DIGITS.get(key, 4)
    text = f"{statistics.fmean(values):.{digits}f}"
    return text + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 and key in SPREAD else "")


def main() -> None:
    """Print the tables of the directory that is named."""
    groups: dict[tuple[str, ...], dict[str, list[dict[str, Any]]]] = {}
    for file in sorted(Path(sys.argv[1]).glob("*/result.json")):
        result = json.loads(file.read_text())
        key = (result["dataset"], result["model"], result["forget"]["source"])
        for name in result["phases"]:
            method = result["method"] if name == "unlearned" else name
            groups.setdefault(key, {}).setdefault(method, []).append(figures(result["phases"], name))
    for key, found in groups.items():
        heads = list(next(iter(found.values()))[0])
        rows = [
            [name, len(cells), *(written(head, cells) for head in heads)] for name, cells in found.items()
        ]
        print(f"\n{' · '.join(key)}, test rows")
        print(tabulate(rows, ["method", "runs", *heads], tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
