"""The page of a sweep, `tune.html`: the best settings, the front, heat maps, and every trial.

A sweep is the content of `tune.json` as the sweep has just made it, so its keys are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recbole_unlearn.report import figures, page
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.values import (
    counted,
    day,
    decimal,
    duration,
    flat,
    percent,
    plain,
    run_title,
    signed,
)
from recbole_unlearn.results import ORIGINAL, RETRAINED, number

NAME = "tune.html"
BINS = 6  # of a heat map's axis, where there are more values than MOST
MOST = 8

Sweep = Mapping[str, Any]
TrialReport = dict[
    str, Any
]  # what a trial reported after some steps: a candidate, with what was asked of its trial


class _Axis(NamedTuple):
    """An axis of the heat maps."""

    title: str
    labels: list[str]
    place: Callable[[TrialReport], int | None]  # where a candidate belongs, None for nowhere


def write_sweep(result: Sweep, directory: Path) -> Path:
    """Write the page of ``result`` (the content of `tune.json`) into ``directory`` and return its path."""
    candidates = _candidates(result)
    return page.write(
        Path(directory) / NAME,
        f"Sweep: {_run(result)}",
        _header(result, candidates),
        page.cards(_key_figures(result)),
        _best(result),
        _front(result, candidates),
        _maps(result, candidates),
        _trials(result),
        _record(result),
    )


def _run(result: Sweep) -> str:
    return run_title(*(result[key] for key in ("method", "model", "dataset", "seed")))


def _references(result: Sweep) -> dict[str, dict[str, Any]]:
    """What candidates are held against: the original, and the retrained model where there is one."""
    return {name: result[name] for name in (ORIGINAL, RETRAINED) if result[name]}


def _candidates(result: Sweep) -> list[TrialReport]:
    """Every report of every trial that did not fail, with its trial's number and settings as they were asked for."""
    return [
        {**report, "trial": record["number"], "asked": record["settings"]}
        for record in result["trials"]
        if record["state"] != "failed"
        for report in record["reports"]
    ]


def _header(result: Sweep, candidates: Sequence[TrialReport]) -> Html:
    trials = result["trials"]
    failed = sum(record["state"] == "failed" for record in trials)
    amounts = [counted(len(trials), "trial"), counted(len(candidates), "candidate")]
    amounts += [f"{failed} failed"] if failed else []
    date = day(result.get("date"))
    said = [_run(result), ", ".join(amounts), *([date] if date else [])]
    return page.element(
        "header",
        page.element("p", " · ".join(said), class_="quiet"),
        page.element("h1", f"Best of the sweep: trial {result['best']['trial']}"),
        page.element("p", "Chosen on validation interactions. Test interactions were not looked at."),
        class_="verdict",
    )


def _metric(result: Sweep) -> str:
    return figures.metric_title(result["objective"]["metric"])


def _key_figures(result: Sweep) -> list[tuple[str, str, str]]:
    best, objective = result["best"], result["objective"]

    def lines(key: str) -> str:
        return "\n".join(f"{name} {decimal(own[key])}" for name, own in _references(result).items())

    goal = {RETRAINED: "retrained", "expected": "expected of never-seen items"}[objective["target_source"]]
    return [
        (f"{_metric(result)}, all users", decimal(best["everyone"]), lines("everyone")),
        (f"{_metric(result)}, affected", decimal(best["affected"]), lines("affected")),
        ("Demotion rate", decimal(best["demotion"]), f"to reach: {decimal(objective['target'])}\n{goal}"),
        ("Score", decimal(best["score"]), lines("score")),
        ("Time to forget", duration(best["seconds"]), ""),
    ]


def _best(result: Sweep) -> Html:
    entries = [(key, plain(value)) for key, value in result["best"]["settings"].items()]
    return page.section("Best settings", page.pairs("As they are in best.yaml.", entries))


def _front(result: Sweep, candidates: Sequence[TrialReport]) -> Html:
    """Utility against distance to the target, for every candidate."""
    if result["objective"]["target"] is None:
        return Html("")
    places = {_key(candidate) for candidate in result["front"]}
    best = _key(result["best"])
    named: dict[str, list[TrialReport]] = {"candidates": [], "front": [], "best": []}
    for candidate in candidates:
        key = _key(candidate)
        named["best" if key == best else "front" if key in places else "candidates"].append(candidate)
    named |= {name: [own] for name, own in _references(result).items()}
    points = [
        figures.Point(name, each["distance"], each["utility"])
        for name, group in named.items()
        for each in group
    ]
    looks = figures.looks(["front", "best", "candidates"])
    utility = f"{_metric(result)}, utility"
    figure = figures.trade_off(points, looks, "demotion rate, distance to target", utility)
    caption = "Up and to the left is better. No candidate beats one of the front in both."
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
    head = ["Trial", "Utility", "Demotion rate", "Distance", "Score", *keys]
    drawn = page.drawing(figure, "Utility against forgetting.", caption) if figure else Html("")
    return page.section(
        "The front", drawn, page.table("The front, nearest to the target first.", head, {"": rows})
    )


def _key(candidate: TrialReport) -> tuple[int, int | None]:
    return candidate["trial"], candidate["step"]


def _maps(result: Sweep, candidates: Sequence[TrialReport]) -> Html:
    """By steps and the first setting of the space: utility (or what was recovered), demotion rate and time."""
    axes = _axes(result, candidates)
    if axes is None:
        return Html("")
    x, y = axes
    cells: dict[tuple[int, int], TrialReport] = {}
    for candidate in candidates:
        column, row = x.place(candidate), y.place(candidate)
        if column is None or row is None:
            continue
        if (column, row) not in cells or candidate["score"] > cells[column, row]["score"]:
            cells[column, row] = candidate
    share = _recovered(result)
    views: list[tuple[str, Callable[[TrialReport], float | None], str]] = [
        ("Share of retraining recovered", share, ".0%")
        if share
        else (f"Utility ({_metric(result)})", lambda c: c["utility"], ".3f"),
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
        if figure:
            drawn.append(
                page.drawing(
                    figure, f"{title} by {y.title} and {x.title}.", "The best candidate of each cell."
                )
            )
    return page.section("Where it is good", page.element("div", drawn, class_="figures") if drawn else "")


def _recovered(result: Sweep) -> Callable[[TrialReport], float | None] | None:
    """(utility − original) / (retrained − original), where retraining moved it."""
    utility = {name: own["utility"] for name, own in _references(result).items()}
    gap = utility[RETRAINED] - utility[ORIGINAL] if RETRAINED in utility else 0.0
    return (lambda candidate: (candidate["utility"] - utility[ORIGINAL]) / gap) if gap else None


def _axes(result: Sweep, candidates: Sequence[TrialReport]) -> tuple[_Axis, _Axis] | None:
    """Steps (or the second setting) to the right, the first setting upwards; None when there is one setting alone."""
    keys = list(result["space"])
    stepped = any(candidate["step"] is not None for candidate in candidates)
    if not keys or (len(keys) < 2 and not stepped):
        return None

    def asked(key: str) -> _Axis:
        return _axis(key, candidates, lambda candidate: candidate["asked"].get(key))

    steps = _axis("steps", candidates, lambda candidate: candidate["step"]) if stepped else asked(keys[1])
    return steps, asked(keys[0])


def _axis(title: str, candidates: Sequence[TrialReport], of: Callable[[TrialReport], Any]) -> _Axis:
    """An axis of single values, or of bins with about equally many where numbers are too many."""
    values = [of(candidate) for candidate in candidates]
    numbers = sorted({value for value in values if number(value) is not None})
    others = sorted({str(value) for value in values if value is not None and number(value) is None})
    if len(numbers) > MOST:
        cuts = sorted({numbers[len(numbers) * k // BINS] for k in range(BINS)})
        groups = [
            [v for v in numbers if low <= v and (high is None or v < high)]
            for low, high in zip(cuts, [*cuts[1:], None], strict=True)
        ]
    else:
        groups = [[value] for value in numbers]
    labels = [plain(g[0]) if len(g) == 1 else f"{plain(g[0])} to {plain(g[-1])}" for g in groups] + others
    places = {value: place for place, group in enumerate(groups) for value in group}
    named = {value: len(groups) + place for place, value in enumerate(others)}
    return _Axis(
        title, labels, lambda c: places.get(of(c)) if number(of(c)) is not None else named.get(str(of(c)))
    )


def _trials(result: Sweep) -> Html:
    """A row per trial with its best candidate, best first; failures at the end with their reason."""
    keys = list(result["space"])
    head = ["Trial", *keys, "Steps", _metric(result), "Affected", "Demotion rate", "Score", "Time", "State"]
    good = []
    for record in result["trials"]:
        if record["state"] != "failed":
            top = max(record["reports"], key=lambda report: report["score"])
            good.append((top["score"], record, top))
    rows = [
        [
            f"trial {record['number']}",
            *(plain(record["settings"].get(key)) for key in keys),
            plain(top["step"]),
            decimal(top["everyone"], 4),
            decimal(top["affected"], 4),
            decimal(top["demotion"]),
            page.lines(decimal(score, 4), signed(score - result[ORIGINAL]["score"], 4)),
            duration(top["seconds"]),
            record["state"],
        ]
        for score, record, top in sorted(good, key=lambda entry: -entry[0])
    ]
    caption = (
        "The best of every trial, on validation interactions. Below the score: the gain over the original."
    )
    failed = [
        (f"trial {record['number']}", plain(record["error"]))
        for record in result["trials"]
        if record["state"] == "failed"
    ]
    return page.section(
        "All trials",
        page.table(caption, head, {"": rows}),
        page.pairs("Trials that failed.", failed) if failed else "",
    )


def _record(result: Sweep) -> Html:
    weights = result["objective"]
    how = {
        "searcher": result["searcher"],
        "scheduler": result["scheduler"],
        "utility": f"{percent(1 - weights['affected'])} all users, {percent(weights['affected'])} affected users",
        "weight of forgetting": weights["weight"],
        "space": {key: plain(domain) for key, domain in result["space"].items()},
    }
    parts = {
        "The sweep": how,
        "The request": result["forget"],
        "Environment": result["environment"],
    }
    tables = (
        page.pairs(title, [(key, plain(value)) for key, value in flat(part)]) for title, part in parts.items()
    )
    total = sum(
        report["work_seconds"]
        for record in result["trials"]
        for report in record["reports"]
        if report["last"]
    )
    note = page.element(
        "p", f"{counted(len(result['trials']), 'trial')}, {duration(total)} of work.", class_="quiet"
    )
    return page.section("How it was made", note, tables)
