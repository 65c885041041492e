"""The page of a sweep, `tune.html`: the best settings, the front, and every trial.

A sweep is the content of `tune.json` just after it was made, so its keys are there; the template has the captions.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from recbole_unlearn.report import figures
from recbole_unlearn.report.page import metric_title, run_title, write_page
from recbole_unlearn.results import ORIGINAL, RETRAINED

Sweep = Mapping[str, Any]
TrialReport = dict[str, Any]  # figures of a trial after some steps: a candidate, with settings of its trial


def write_sweep(result: Sweep, directory: Path) -> Path:
    """Write the page of ``result`` (the content of `tune.json`) into ``directory`` and return its path."""
    run = run_title(*(result[key] for key in ("method", "model", "dataset", "seed")))
    objective, trials = result["objective"], result["trials"]
    metric = metric_title(objective["metric"])
    references = {name: result[name] for name in (ORIGINAL, RETRAINED) if result[name]}
    good = [record for record in trials if record["state"] != "failed"]
    candidates = [report | {"trial": one["number"]} for one in good for report in one["reports"]]
    tops = [(max(one["reports"], key=lambda report: report["score"]), one) for one in good]
    return write_page(
        Path(directory) / "tune.html",
        "tune.html",
        title=f"Sweep: {run}",
        run=run,
        result=result,
        metric=metric,
        candidates=candidates,
        failed=[(f"trial {r['number']}", r["error"]) for r in trials if r["state"] == "failed"],
        references=references,
        front=None if objective["target"] is None else _front(result, metric, references, candidates),
        tops=sorted(tops, key=lambda top: -top[0]["score"]),
        seconds=sum(one["work_seconds"] for r in trials for one in r["reports"] if one["last"]),
    )


def _front(
    result: Sweep, metric: str, references: Mapping[str, TrialReport], candidates: Sequence[TrialReport]
) -> figures.Figure | None:
    key = itemgetter("trial", "step")
    best, front = key(result["best"]), {key(candidate) for candidate in result["front"]}
    named: dict[str, list[TrialReport]] = {"candidates": [], "front": [], "best": []}
    for one in candidates:
        named["best" if key(one) == best else "front" if key(one) in front else "candidates"].append(one)
    named |= {name: [own] for name, own in references.items()}
    points = [(name, each["distance"], each["utility"]) for name, group in named.items() for each in group]
    looks = figures.looks(["front", "best", "candidates"])
    return figures.trade_off(points, looks, "demotion rate, distance to target", f"{metric}, utility")
