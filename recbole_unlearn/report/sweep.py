"""The page of a sweep, `tune.html`: the best settings, the front, heat maps, and every trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recbole_unlearn.files import atomic as files
from recbole_unlearn.report import figures, page
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.values import (
    count,
    decimal,
    difference,
    duration,
    flat,
    mapping,
    number,
    percent,
    plain,
    signed,
    text,
)

NAME = "tune.html"
BINS = 6  # of a heat map's axis, where there are more values than MOST
MOST = 8

Candidate = dict[str, Any]


class _Axis(NamedTuple):
    """An axis of the heat maps."""

    title: str
    labels: list[str]
    place: Callable[[Candidate], int | None]  # where a candidate belongs, None for nowhere


def write_sweep(result: dict[str, Any], directory: Path) -> Path:
    """Write the page of ``result`` (the content of `tune.json`) into ``directory`` and return its path."""
    candidates = _candidates(result)
    content = page.document(
        f"Sweep: {_run(result)}",
        _header(result, candidates),
        page.cards(_key_figures(result)),
        _best(result),
        _front(result, candidates),
        _maps(result, candidates),
        _trials(result),
        _record(result),
    )
    target = Path(directory) / NAME
    files.write_bytes(target, content)
    return target


def _run(result: Mapping[str, Any]) -> str:
    parts = [text(result, key) for key in ("method", "model", "dataset")]
    return " · ".join([*(part for part in parts if part), f"seed {text(result, 'seed')}"])


def _candidates(result: Mapping[str, Any]) -> list[Candidate]:
    """Every report of every trial that did not fail, with its trial's number and settings as they were asked for."""
    return [
        {**report, "trial": record["number"], "asked": record["settings"]}
        for record in result["trials"]
        if record["state"] != "failed"
        for report in record["reports"]
    ]


def _header(result: Mapping[str, Any], candidates: Sequence[Candidate]) -> Html:
    trials = result["trials"]
    failed = sum(record["state"] == "failed" for record in trials)
    counted = f"{len(trials)} trials, {len(candidates)} candidates" + (f", {failed} failed" if failed else "")
    return page.element(
        "header",
        page.element("p", f"{_run(result)} · {counted}", class_="quiet"),
        page.element("h1", f"Best of the sweep: trial {result['best']['trial']}"),
        page.element("p", "Chosen on validation rows. Test rows were not looked at."),
        class_="verdict",
    )


def _metric(result: Mapping[str, Any]) -> str:
    return figures.metric_title(result["objective"]["metric"])


def _key_figures(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    best, objective = result["best"], result["objective"]
    beside = [(name, mapping(result, name)) for name in ("original", "retrained") if mapping(result, name)]

    def lines(key: str) -> str:
        return "\n".join(f"{name} {decimal(number(figures_of, key))}" for name, figures_of in beside)

    target = number(objective, "target")
    goal = {"retrained": "retrained", "expected": "expected of never-seen items"}[objective["target_source"]]
    return [
        (f"{_metric(result)}, all users", decimal(best["everyone"]), lines("everyone")),
        (f"{_metric(result)}, affected", decimal(number(best, "affected")), lines("affected")),
        ("Demotion rate", decimal(number(best, "demotion")), f"to reach: {decimal(target)}\n{goal}"),
        ("Score", decimal(best["score"]), lines("score")),
        ("Time to forget", duration(best["seconds"]), ""),
    ]


def _best(result: Mapping[str, Any]) -> Html:
    entries = [(key, plain(value)) for key, value in result["best"]["settings"].items()]
    return page.section("Best settings", page.pairs("As they stand in best.yaml.", entries))


def _front(result: Mapping[str, Any], candidates: Sequence[Candidate]) -> Html:
    """Utility against distance to the target, for every candidate."""
    if number(result, "objective", "target") is None:
        return Html("")
    places = {_key(candidate) for candidate in result["front"]}
    best = _key(result["best"])
    named: dict[str, list[Mapping[str, Any]]] = {"candidates": [], "front": [], "best": []}
    for candidate in candidates:
        key = _key(candidate)
        named["best" if key == best else "front" if key in places else "candidates"].append(candidate)
    for name in ("original", "retrained"):
        if mapping(result, name):
            named[name] = [mapping(result, name)]
    points = [
        figures.Point(name, each["distance"], each["utility"])
        for name, group in named.items()
        for each in group
    ]
    looks = figures.looks(["front", "best", "candidates"])
    utility = f"{_metric(result)}, utility"
    figure = figures.trade_off(points, looks, "distance of the demotion rate to its target", utility)
    caption = "Up and to the left is better. No candidate beats one of the front in both."
    keys = list(dict.fromkeys(key for each in result["front"] for key in each["settings"]))
    rows = [
        [
            f"trial {each['trial']}",
            decimal(each["utility"], 4),
            decimal(number(each, "demotion")),
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


def _key(candidate: Mapping[str, Any]) -> tuple[int, int | None]:
    return candidate["trial"], candidate["step"]


def _maps(result: Mapping[str, Any], candidates: Sequence[Candidate]) -> Html:
    """By steps and the first setting of the space: utility (or what was recovered), demotion rate and time."""
    axes = _axes(result, candidates)
    if axes is None:
        return Html("")
    x, y = axes
    cells: dict[tuple[int, int], Candidate] = {}
    for candidate in candidates:
        place = x.place(candidate), y.place(candidate)
        if None not in place and (place not in cells or candidate["score"] > cells[place]["score"]):
            cells[place] = candidate
    share = _recovered(result)
    views: list[tuple[str, Callable[[Candidate], float | None], str]] = [
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


def _recovered(result: Mapping[str, Any]) -> Callable[[Candidate], float | None] | None:
    """(utility − original) / (retrained − original), where retraining moved it."""
    before, after = (number(result, name, "utility") for name in ("original", "retrained"))
    gap = difference(after, before)
    return (lambda candidate: (candidate["utility"] - before) / gap) if gap else None


def _axes(result: Mapping[str, Any], candidates: Sequence[Candidate]) -> tuple[_Axis, _Axis] | None:
    """Steps (or the second setting) to the right, the first setting upwards; None when there is one setting alone."""
    keys = list(result["space"])
    stepped = any(candidate["step"] is not None for candidate in candidates)
    if not keys or (len(keys) < 2 and not stepped):
        return None
    first = _axis(keys[0], [c["asked"].get(keys[0]) for c in candidates], lambda c: c["asked"].get(keys[0]))
    if stepped:
        return _axis("steps", [c["step"] for c in candidates], lambda c: c["step"]), first
    return _axis(
        keys[1], [c["asked"].get(keys[1]) for c in candidates], lambda c: c["asked"].get(keys[1])
    ), first


def _axis(title: str, values: Sequence[Any], of: Callable[[Candidate], Any]) -> _Axis:
    """An axis of single values, or of bins with about equally many where numbers are too many."""
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


def _trials(result: Mapping[str, Any]) -> Html:
    """A row per trial with its best candidate, best first; failures at the end with their reason."""
    keys = list(result["space"])
    head = ["Trial", *keys, "Steps", _metric(result), "Affected", "Demotion rate", "Score", "Time", "State"]
    good = []
    for record in result["trials"]:
        if record["state"] != "failed":
            top = max(record["reports"], key=lambda report: report["score"])
            good.append((top["score"], record, top))
    before = mapping(result, "original")
    rows = [
        [
            f"trial {record['number']}",
            *(plain(record["settings"].get(key)) for key in keys),
            plain(top["step"]),
            decimal(top["everyone"], 4),
            decimal(number(top, "affected"), 4),
            decimal(number(top, "demotion")),
            page.lines(decimal(score, 4), signed(difference(score, number(before, "score")), 4)),
            duration(top["seconds"]),
            record["state"],
        ]
        for score, record, top in sorted(good, key=lambda entry: -entry[0])
    ]
    caption = (
        "The best of every trial, on validation rows. Small below the score: the gain over the original."
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


def _record(result: Mapping[str, Any]) -> Html:
    weights = mapping(result, "objective")
    how = {
        "searcher": result["searcher"],
        "scheduler": result["scheduler"],
        "utility": f"{percent(1 - weights['affected'])} all users, {percent(weights['affected'])} affected users",
        "weight of forgetting": weights["weight"],
        "space": {key: plain(domain) for key, domain in result["space"].items()},
    }
    parts = {
        "The sweep": how,
        "The request": mapping(result, "forget"),
        "Environment": mapping(result, "environment"),
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
        "p", f"{count(len(result['trials']))} trials, {duration(total)} of work.", class_="quiet"
    )
    return page.section("How it was made", note, tables)
