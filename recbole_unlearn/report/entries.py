"""Many results beside each other: read, sorted by what they are about, each model counted once.

The original and the retrained model come again in every run, so what has the same figures under the same name and
seed is one entry. A grid also has a plan, which says what should be there, so that what is missing can be shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.report.values import MISSING, RETRAINED, SECOND, mapping, number, phases_of, text
from recbole_unlearn.results.schema import SCHEMA

PLAN_FILE, FAILED_FILE = "grid.json", "failed.json"
REFERENCES = ("original", RETRAINED, SECOND)


class Place(NamedTuple):
    """What runs have in common that can be averaged; ``ratio`` is the share of users of an injected request."""

    dataset: str
    model: str
    request: str
    ratio: float | None = None


class Entry(NamedTuple):
    """One phase of one run, beside the original and the retrained model of the same run."""

    name: str
    seed: str | None
    phase: dict[str, Any]
    original: dict[str, Any]
    retrained: dict[str, Any]


class GridPlan(NamedTuple):
    """What grids should have: the seeds of every phase by place, and why cells are missing, by their names."""

    seeds: Mapping[Place, Mapping[str, set[str]]]
    missing: Mapping[str, str]


NO_PLAN = GridPlan({}, {})


def results_in(directory: Path) -> list[Path]:
    """``directory`` when it has a result, else the directories in it that have one (or itself, to be refused)."""
    # Names with a dot are of directories that a killed process has not finished.
    below = sorted(path.parent for path in directory.glob("[!.]*/result.json"))
    return [directory] if (directory / "result.json").exists() or not below else below


def read_result(path: Path) -> dict[str, Any]:
    """The content of a `result.json`; refuses what is none."""
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


def read_json(path: Path) -> dict[str, Any]:
    """A mapping that the plugin wrote; empty when there is none, or none that can be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def read_plan(directories: Iterable[Path]) -> GridPlan:
    """The plans of those directories that hold a grid, as one."""
    seeds: dict[Place, dict[str, set[str]]] = {}
    missing: dict[str, str] = {}
    for directory in map(Path, directories):
        failed = read_json(directory / FAILED_FILE)
        cells = read_json(directory / PLAN_FILE).get("cells")
        for cell in cells if isinstance(cells, list) else ():
            name, seed, phases = text(cell, "name"), text(cell, "seed"), mapping(cell).get("phases")
            if name is None or seed is None or not isinstance(phases, list):
                continue
            place = _place(cell, text(cell, "source"), number(cell, "ratio"))
            for phase in phases:
                seeds.setdefault(place, {}).setdefault(str(phase), set()).add(seed)
            if not (directory / name / "result.json").exists():
                missing[name] = text(failed, name) or "not done yet"
    return GridPlan(seeds, missing)


def grouped(results: Sequence[dict[str, Any]]) -> dict[Place, list[Entry]]:
    """The phases of all results by place, the original and the retrained model first."""
    groups: dict[Place, list[Entry]] = {}
    for result in results:
        source = text(result.get("forget"), "source")
        injected = source is not None and source.startswith("injected")
        ratio = number(result, "settings", "inject_users") if injected else None
        groups.setdefault(_place(result, source, ratio), []).extend(_entries(result))
    return {place: _once(entries) for place, entries in groups.items()}


def _place(tree: Mapping[str, Any], source: str | None, ratio: float | None) -> Place:
    request = source or MISSING
    if ratio is not None:
        request += f", {100 * ratio:.6g}% of users"
    return Place(text(tree, "dataset") or MISSING, text(tree, "model") or MISSING, request, ratio)


def _entries(result: dict[str, Any]) -> Iterable[Entry]:
    phases = phases_of(result)
    original, retrained = (phases.get(name, {}) for name in ("original", RETRAINED))
    for name, phase in phases.items():
        if name == "unlearned":
            # An exact method is retraining: its own row would say the same twice.
            if retrained and _figures(phase) == _figures(retrained):
                continue
            name = text(result, "method") or name
        yield Entry(name, text(result, "seed"), phase, original, retrained)


def _figures(phase: dict[str, Any]) -> str:
    return json.dumps([phase.get(key) for key in ("metrics", "affected", "forgetting")], sort_keys=True)


def _once(entries: Iterable[Entry]) -> list[Entry]:
    unique = {(entry.name, entry.seed, _figures(entry.phase)): entry for entry in reversed(list(entries))}
    order = {name: place for place, name in enumerate(REFERENCES)}
    return sorted(reversed(unique.values()), key=lambda entry: order.get(entry.name, len(order)))


def before(entry: Entry) -> dict[str, Any]:
    """What the phase started from: the run's original, or one of its own."""
    return mapping(entry.phase, "before") or entry.original


def ratio_of_sums(pairs: Sequence[Sequence[float | None]]) -> float | None:
    """Σ first / Σ second over pairs that have both; not ruled, as a mean of ratios is, by the smallest of them."""
    known = [pair for pair in pairs if None not in pair]
    above, below = (sum(pair[place] for pair in known) for place in (0, 1))
    return above / below if below else None
