"""The page of a sweep, `tune.html`: the best settings, the front, heat maps, and every trial.

A sweep is the content of `tune.json` just after it was made, so its keys are there; the template has the captions.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from recbole_unlearn.report import figures
from recbole_unlearn.report.page import metric_title, plain, run_title, write_page
from recbole_unlearn.results import ORIGINAL, RETRAINED, number

BINS = 6  # of a heat map's axis, where there are more values than MOST
MOST = 8

Sweep = Mapping[str, Any]
TrialReport = dict[str, Any]  # figures of a trial after some steps: a candidate, with settings of its trial


def write_sweep(result: Sweep, directory: Path) -> Path:
    """Write the page of ``result`` (the content of `tune.json`) into ``directory`` and return its path."""
    run = run_title(*(result[key] for key in ("method", "model", "dataset", "seed")))
    objective, trials = result["objective"], result["trials"]
    metric = metric_title(objective["metric"])
    references = {name: result[name] for name in (ORIGINAL, RETRAINED) if result[name]}
    good = [record for record in trials if record["state"] != "failed"]
    own = [(report, {"trial": one["number"], "asked": one["settings"]}) for one in good for report in one["reports"]]
    candidates = [report | about for report, about in own]
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
        maps=_maps(result, metric, references, candidates),
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


def _maps(
    result: Sweep, metric: str, references: Mapping[str, TrialReport], candidates: Sequence[TrialReport]
) -> list[tuple[figures.Figure | None, str, str]]:
    """By steps (or the second setting) and the first setting: utility or recovered share, demotion rate and time."""
    keys = list(result["space"])
    stepped = any(candidate["step"] is not None for candidate in candidates)
    if not keys or (len(keys) < 2 and not stepped):
        return []
    y_title, x_title = keys[0], "steps" if stepped else keys[1]
    ranked = sorted(candidates, key=lambda candidate: -candidate["score"])
    rows, down = _axis([one["asked"].get(y_title) for one in ranked])
    columns, across = _axis([one["step"] if stepped else one["asked"].get(x_title) for one in ranked])
    cells: dict[tuple[int | None, int | None], TrialReport] = {}
    for candidate, row, column in zip(ranked, down, across, strict=True):
        cells.setdefault((row, column), candidate)
    # (utility − original) / (retrained − original), where retraining moved it.
    start = references[ORIGINAL]["utility"]
    gap = references[RETRAINED]["utility"] - start if RETRAINED in references else 0.0
    views: list[tuple[str, Callable[[TrialReport], float | None], str]] = [
        ("Share of retraining recovered", lambda c: (c["utility"] - start) / gap, ".0%")
        if gap
        else (f"Utility ({metric})", lambda c: c["utility"], ".3f"),
        ("Demotion rate", lambda c: c["demotion"], ".3f"),
        ("Seconds", lambda c: c["seconds"], ".2f"),
    ]
    drawn = []
    for title, value, form in views:
        heights = [
            [value(cells[row, column]) if (row, column) in cells else None for column in range(len(columns))]
            for row in range(len(rows))
        ]
        figure = figures.heat(columns, rows, heights, x_title, y_title, form)
        drawn.append((figure, f"{title} by {y_title} and {x_title}.", "The best candidate of each cell."))
    return drawn


def _axis(values: Sequence[Any]) -> tuple[list[str], list[int | None]]:
    """Labels of an axis, numbers first, in bins if they are many; and the place of each of ``values``, or None."""
    numbers = sorted({value for value in values if number(value) is not None})
    others = sorted({str(value) for value in values if value is not None and number(value) is None})
    starts = numbers if len(numbers) <= MOST else sorted({numbers[len(numbers) * k // BINS] for k in range(BINS)})
    bins = [list(own) for _, own in groupby(numbers, key=lambda value: bisect_right(starts, value))]
    labels = [plain(one[0]) if len(one) == 1 else f"{plain(one[0])} to {plain(one[-1])}" for one in bins]

    def place(value: Any) -> int | None:
        if value is None:
            return None
        return len(bins) + others.index(str(value)) if number(value) is None else bisect_right(starts, value) - 1

    return labels + others, list(map(place, values))
