"""The page that sets runs beside each other: methods by dataset, model and kind of request.

Runs of one dataset, model and source of requests belong together; over their seeds, values are averaged. The
original and the retrained model come again in every run, so what has the same figures under the same name and seed
counts once.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recbole_unlearn import files
from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.report import figures, page
from recbole_unlearn.report.page import Html
from recbole_unlearn.report.values import (
    MISSING,
    RETRAINED,
    SECOND,
    decimal,
    difference,
    duration,
    number,
    percent,
    phase_title,
    phases_of,
    signed,
    text,
    times,
)
from recbole_unlearn.result import SCHEMA

_Key = tuple[str, str, str]  # dataset, model, source of the requests
_REFERENCES = ("original", RETRAINED, SECOND)
_HEAD = (
    "Method",
    "NDCG@20, affected",
    "Recovered",
    "Demotion rate",
    "Attack AUC",
    "Top-20 overlap",
    "Time",
    "Speed-up",
    "Runs",
)


class _Entry(NamedTuple):
    """One phase of one run, beside the original and the retrained model of the same run."""

    name: str
    seed: str | None
    phase: dict[str, Any]
    original: dict[str, Any]
    retrained: dict[str, Any]


def write_comparison(directories: Sequence[Path], target: Path) -> Path:
    """Read `result.json` of each directory, write one page about them to ``target``, and return its path."""
    if not directories:
        raise UnlearnError("Nothing to compare. Name the output directories of one or more runs.")
    content = page_of([_read(Path(directory) / "result.json") for directory in directories])
    files.write_bytes(Path(target), content)
    return Path(target)


def page_of(results: Sequence[dict[str, Any]]) -> bytes:
    """The page about ``results``, each the content of a `result.json`."""
    groups: dict[_Key, list[_Entry]] = {}
    for result in results:
        source = text(result.get("forget"), "source")
        key = (text(result, "dataset") or MISSING, text(result, "model") or MISSING, source or MISSING)
        groups.setdefault(key, []).extend(_entries(result))
    groups = {key: _once(entries) for key, entries in groups.items()}
    names = dict.fromkeys(entry.name for entries in groups.values() for entry in entries)
    looks = figures.looks(names)
    return page.document(
        "Unlearning methods compared",
        _header(len(results), groups, names),
        _table(groups, looks),
        (_drawings(key, entries, looks) for key, entries in groups.items()),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise _refused(path, "it is not JSON") from error
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        raise _refused(path, f"it is not a result of schema {SCHEMA}")
    if not phases_of(result):
        raise _refused(path, "it has no phases")
    return result


def _refused(path: Path, why: str) -> UnlearnError:
    return UnlearnError(
        f"Cannot compare {path}: {why}. Name output directories of finished runs, or run that one again."
    )


def _entries(result: dict[str, Any]) -> Iterable[_Entry]:
    phases = phases_of(result)
    original, retrained = (phases.get(name, {}) for name in ("original", RETRAINED))
    for name, phase in phases.items():
        if name == "unlearned":
            # An exact method is retraining: its own row would say the same twice.
            if retrained and _figures(phase) == _figures(retrained):
                continue
            name = text(result, "method") or name
        yield _Entry(name, text(result, "seed"), phase, original, retrained)


def _figures(phase: dict[str, Any]) -> str:
    return json.dumps([phase.get(key) for key in ("metrics", "affected", "forgetting")], sort_keys=True)


def _once(entries: Iterable[_Entry]) -> list[_Entry]:
    unique = {(entry.name, entry.seed, _figures(entry.phase)): entry for entry in reversed(list(entries))}
    order = {name: place for place, name in enumerate(_REFERENCES)}
    return sorted(reversed(unique.values()), key=lambda entry: order.get(entry.name, len(order)))


def _header(runs: int, groups: dict[_Key, list[_Entry]], names: Iterable[str]) -> Html:
    methods = [name for name in names if name not in _REFERENCES]
    datasets, models = ({key[place] for key in groups} for place in (0, 1))
    counted = (
        _counted(len(part), noun)
        for part, noun in ((methods, "method"), (datasets, "dataset"), (models, "model"))
    )
    return page.element(
        "header",
        page.element("p", f"{_counted(runs, 'run')}: {', '.join(counted)}", class_="quiet"),
        page.element("h1", "How near each method comes to retraining, and how fast"),
        page.element("p", "The goal is the retrained model's value in every column but time."),
        class_="verdict",
    )


def _counted(amount: int, noun: str) -> str:
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"


def _table(groups: dict[_Key, list[_Entry]], looks: dict[str, figures.Look]) -> Html:
    bodies = {}
    for key, entries in groups.items():
        names = dict.fromkeys(entry.name for entry in entries)
        bodies[_title(key)] = [
            _row(name, [entry for entry in entries if entry.name == name], looks[name].color)
            for name in names
        ]
    caption = (
        "Means over runs, ± standard deviation. Small below: the distance to the same run's retrained model."
    )
    return page.section("All figures", page.table(caption, _HEAD, bodies))


def _title(key: _Key) -> str:
    return " · ".join(key)


def _row(name: str, entries: list[_Entry], color: str) -> list[str]:
    reference = name in _REFERENCES
    return [
        page.chip(color, phase_title(name)),
        _mean(entries, "affected", "ndcg@20", digits=4),
        "" if reference else percent(_recovered(entries)),
        _mean(entries, "forgetting", "demotion_rate"),
        _mean(entries, "forgetting", "attack", "auc"),
        _mean(entries, "forgetting", "overlap@20", "affected"),
        duration(_average(number(entry.phase, "seconds") for entry in entries)),
        "" if reference else times(_speedup(entries)),
        str(len(entries)),
    ]


def _average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _mean(entries: list[_Entry], *path: str, digits: int = 3) -> str:
    """Mean ± deviation, and below it the mean of value − retrained's value in the same run."""
    known = [value for entry in entries if (value := number(entry.phase, *path)) is not None]
    if not known:
        return MISSING
    written = decimal(statistics.fmean(known), digits)
    if len(known) > 1:
        written += f" ± {decimal(statistics.stdev(known), digits)}"
    away = _average(
        difference(number(entry.phase, *path), number(entry.retrained, *path)) for entry in entries
    )
    if away is None or entries[0].name == RETRAINED:
        return written
    return page.lines(written, signed(away, digits))


def _recovered(entries: list[_Entry]) -> float | None:
    """Σ(phase − original) / Σ(retrained − original) of NDCG@20 of affected users, over runs that have all three.

    A ratio of sums: the mean of ratios is ruled by the run in which retraining moved least.
    """
    path = ("affected", "ndcg@20")
    moves = [
        [
            difference(number(phase, *path), number(entry.phase.get("before") or entry.original, *path))
            for phase in (entry.phase, entry.retrained)
        ]
        for entry in entries
    ]
    return _ratio(moves)


def _speedup(entries: list[_Entry]) -> float | None:
    """Σ retrained seconds / Σ seconds, over runs that have both."""
    return _ratio(
        [[number(phase, "seconds") for phase in (entry.retrained, entry.phase)] for entry in entries]
    )


def _ratio(pairs: list[list[float | None]]) -> float | None:
    known = [pair for pair in pairs if None not in pair]
    above, below = (sum(pair[place] for pair in known) for place in (0, 1))
    return above / below if below else None


def _drawings(key: _Key, entries: list[_Entry], looks: dict[str, figures.Look]) -> Html:
    """Utility against forgetting, and utility against time."""
    utility = "NDCG@20, affected users"
    views = (
        (
            ("forgetting", "demotion_rate"),
            "demotion rate",
            "Utility against forgetting.",
            "Retraining is the goal.",
            False,
        ),
        (("seconds",), "seconds", "Utility against time.", "Further left is faster.", True),
    )
    drawn = []
    for path, x_title, title, caption, logarithmic in views:
        points = [
            figures.Point(entry.name, x, y)
            for entry in entries
            if (x := number(entry.phase, *path)) is not None
            and (y := number(entry.phase, "affected", "ndcg@20")) is not None
        ]
        figure = figures.trade_off(points, looks, x_title, utility, logarithmic)
        if figure:
            drawn.append(page.drawing(figure, title, caption))
    return page.section(_title(key), page.element("div", drawn, class_="figures") if drawn else "")
