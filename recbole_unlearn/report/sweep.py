"""The page of a sweep, `tune.html`: the best settings, the front, heat maps, and every trial.

A sweep is the content of `tune.json` just after it was made, so its keys are there. `templates/tune.html` has the
headings and captions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recbole_unlearn.report import figures
from recbole_unlearn.report.page import (
    decimal,
    duration,
    lines,
    percent,
    plain,
    run_title,
    signed,
    write_page,
)
from recbole_unlearn.results import ORIGINAL, RETRAINED, number

NAME = "tune.html"
BINS = 6  # of a heat map's axis, where there are more values than MOST
MOST = 8

Sweep = Mapping[str, Any]
TrialReport = dict[
    str, Any
]  # figures of a trial after some steps: a candidate, with the settings of its trial


def write_sweep(result: Sweep, directory: Path) -> Path:
    """Write the page of ``result`` (the content of `tune.json`) into ``directory`` and return its path."""
    run = run_title(*(result[key] for key in ("method", "model", "dataset", "seed")))
    objective, trials = result["objective"], result["trials"]
    metric = figures.metric_title(objective["metric"])
    references = {name: result[name] for name in (ORIGINAL, RETRAINED) if result[name]}
    good = [record for record in trials if record["state"] != "failed"]
    candidates = [
        {**report, "trial": record["number"], "asked": record["settings"]}
        for record in good
        for report in record["reports"]
    ]
    affected = objective["affected"]
    how = {
        "searcher": result["searcher"],
        "scheduler": result["scheduler"],
        "utility": f"{percent(1 - affected)} all users, {percent(affected)} affected users",
        "weight of forgetting": objective["weight"],
        "space": {key: plain(domain) for key, domain in result["space"].items()},
    }
    return write_page(
        Path(directory) / NAME,
        "tune.html",
        title=f"Sweep: {run}",
        run=run,
        result=result,
        metric=metric,
        candidates=candidates,
        failed=[(f"trial {r['number']}", r["error"]) for r in trials if r["state"] == "failed"],
        cards=_key_figures(result, metric, references),
        front=None if objective["target"] is None else _front(result, metric, references, candidates),
        maps=_maps(result, metric, references, candidates),
        trials=_trials(result, good),
        seconds=sum(one["work_seconds"] for r in trials for one in r["reports"] if one["last"]),
        record={"The sweep": how, "The request": result["forget"], "Environment": result["environment"]},
    )


def _key_figures(
    result: Sweep, metric: str, references: Mapping[str, TrialReport]
) -> list[tuple[str, str, str]]:
    best, objective = result["best"], result["objective"]

    def held(key: str) -> str:
        return "\n".join(f"{name} {decimal(own[key])}" for name, own in references.items())

    goal = {RETRAINED: "retrained", "expected": "expected of never-seen items"}[objective["target_source"]]
    return [
        (f"{metric}, all users", decimal(best["everyone"]), held("everyone")),
        (f"{metric}, affected", decimal(best["affected"]), held("affected")),
        ("Demotion rate", decimal(best["demotion"]), f"to reach: {decimal(objective['target'])}\n{goal}"),
        ("Score", decimal(best["score"]), held("score")),
        ("Time to forget", duration(best["seconds"]), ""),
    ]


def _front(
    result: Sweep, metric: str, references: Mapping[str, TrialReport], candidates: Sequence[TrialReport]
) -> tuple[figures.Figure | None, list[str], list[list[str]]]:
    """Utility against distance to the target for every candidate, and the table of the front."""

    def key(candidate: TrialReport) -> tuple[int, int | None]:
        return candidate["trial"], candidate["step"]

    best, front = key(result["best"]), {key(candidate) for candidate in result["front"]}
    named: dict[str, list[TrialReport]] = {"candidates": [], "front": [], "best": []}
    for one in candidates:
        named["best" if key(one) == best else "front" if key(one) in front else "candidates"].append(one)
    named |= {name: [own] for name, own in references.items()}
    points = [(name, each["distance"], each["utility"]) for name, group in named.items() for each in group]
    looks = figures.looks(["front", "best", "candidates"])
    figure = figures.trade_off(points, looks, "demotion rate, distance to target", f"{metric}, utility")
    keys = list(dict.fromkeys(key for each in result["front"] for key in each["settings"]))
    rows = [
        [
            f"trial {each['trial']}",
            decimal(each["utility"], 4),
            decimal(each["demotion"]),
            decimal(each["distance"]),
            decimal(each["score"], 4),
            *(plain(each["settings"].get(key)) for key in keys),
        ]
        for each in result["front"]
    ]
    return figure, ["Trial", "Utility", "Demotion rate", "Distance", "Score", *keys], rows


class _Axis(NamedTuple):
    """An axis of the heat maps."""

    title: str
    labels: list[str]
    place: Callable[[TrialReport], int | None]  # where a candidate belongs, None for nowhere


def _maps(
    result: Sweep, metric: str, references: Mapping[str, TrialReport], candidates: Sequence[TrialReport]
) -> list[tuple[figures.Figure | None, str, str]]:
    """By steps (or the second setting) and the first setting: utility or recovered share, demotion rate and time."""
    keys = list(result["space"])
    stepped = any(candidate["step"] is not None for candidate in candidates)
    if not keys or (len(keys) < 2 and not stepped):
        return []
    y = _axis(keys[0], candidates, lambda candidate: candidate["asked"].get(keys[0]))
    if stepped:
        x = _axis("steps", candidates, lambda candidate: candidate["step"])
    else:
        x = _axis(keys[1], candidates, lambda candidate: candidate["asked"].get(keys[1]))
    cells: dict[tuple[int, int], TrialReport] = {}
    for candidate in candidates:
        column, row = x.place(candidate), y.place(candidate)
        if column is None or row is None:
            continue
        if (column, row) not in cells or candidate["score"] > cells[column, row]["score"]:
            cells[column, row] = candidate
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
            [value(cells[column, row]) if (column, row) in cells else None for column in range(len(x.labels))]
            for row in range(len(y.labels))
        ]
        figure = figures.heat(x.labels, y.labels, heights, x.title, y.title, form)
        drawn.append((figure, f"{title} by {y.title} and {x.title}.", "The best candidate of each cell."))
    return drawn


def _axis(title: str, candidates: Sequence[TrialReport], of: Callable[[TrialReport], Any]) -> _Axis:
    """An axis of single values, or of bins with about equally many where numbers are too many."""
    values = [of(candidate) for candidate in candidates]
    numbers = sorted({value for value in values if number(value) is not None})
    others = sorted({str(value) for value in values if value is not None and number(value) is None})
    groups = [[value] for value in numbers]
    if len(numbers) > MOST:
        cuts = sorted({numbers[len(numbers) * k // BINS] for k in range(BINS)})
        groups = [
            [v for v in numbers if low <= v and (high is None or v < high)]
            for low, high in zip(cuts, [*cuts[1:], None], strict=True)
        ]
    labels = [plain(g[0]) if len(g) == 1 else f"{plain(g[0])} to {plain(g[-1])}" for g in groups] + others
    places = {value: place for place, group in enumerate(groups) for value in group}
    named = {value: len(groups) + place for place, value in enumerate(others)}
    return _Axis(
        title, labels, lambda c: places.get(of(c)) if number(of(c)) is not None else named.get(str(of(c)))
    )


def _trials(result: Sweep, good: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A row per trial with its best candidate, best first."""
    rows = []
    for record in good:
        top = max(record["reports"], key=lambda report: report["score"])
        cells = [
            f"trial {record['number']}",
            *(plain(record["settings"].get(key)) for key in result["space"]),
            plain(top["step"]),
            decimal(top["everyone"], 4),
            decimal(top["affected"], 4),
            decimal(top["demotion"]),
            lines(decimal(top["score"], 4), signed(top["score"] - result[ORIGINAL]["score"], 4)),
            duration(top["seconds"]),
            record["state"],
        ]
        rows.append((top["score"], cells))
    return [cells for _, cells in sorted(rows, key=lambda row: -row[0])]
