"""Many results next to each other: read, grouped by data, model and request, each model counted once.

The original and the retrained model come again in every run, so phases with the same figures, name and seed are one
entry. A grid also has a plan, which says what should be there, so that missing cells can be named.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple, Self

from recbole_unlearn.data import DRAWN, INJECTED
from recbole_unlearn.errors import UnlearnError, shown
from recbole_unlearn.measures import SHORT
from recbole_unlearn.report.page import MISSING, difference, spread
from recbole_unlearn.results import ORIGINAL, RETRAINED, SECOND, UNLEARNED, PhaseResult, RunResult
from recbole_unlearn.results.schema import SCHEMA, mapping, number
from recbole_unlearn.settings import read_json

PLAN_FILE, FAILED_FILE = "grid.json", "failed.json"
REFERENCES = (ORIGINAL, RETRAINED, SECOND)
BEFORE, AFTER, GOAL = "before", "phase", "retrained"  # attributes of an entry

FigureOf = Callable[[PhaseResult], float | None]  # takes a figure from a phase


class Place(NamedTuple):
    """Data, model and request of runs that can be averaged; ``ratio`` is the share of users with injected noise."""

    dataset: str
    model: str
    request: str
    ratio: float | None = None

    @classmethod
    def of(cls, dataset: str | None, model: str | None, source: str | None, ratio: float | None) -> Self:
        """The place with dashes for unknown parts."""
        request = (source or MISSING) + ("" if ratio is None else f", {100 * ratio:.6g}% of users")
        return cls(dataset or MISSING, model or MISSING, request, ratio)


class Entry(NamedTuple):
    """One phase of one run, with the original and the retrained model of the same run."""

    name: str
    seed: str | None
    phase: PhaseResult
    original: PhaseResult  # without figures where the run has none, like the next one
    retrained: PhaseResult
    is_moved: bool = True  # whether retraining moves NDCG@20 of affected users by more than noise
    level: str | None = None  # of its verdict, where it has one

    @property
    def before(self) -> PhaseResult:
        """The original of the phase: the run's, or one of its own."""
        return self.phase.before or self.original


class Runs(NamedTuple):
    """All runs of one method at one place; a phase is named as :class:`Entry` does."""

    place: Place
    name: str
    entries: list[Entry]

    def known(self, phase: str, of: FigureOf) -> list[float]:
        """A figure, of the runs that have it."""
        return [value for entry in self.entries if (value := of(getattr(entry, phase))) is not None]

    def spread(self, phase: str, of: FigureOf, digits: int = 4) -> str:
        """Mean ± standard deviation of a figure."""
        return spread(self.known(phase, of), digits)

    def pairs(self, one: str, other: str, of: FigureOf) -> list[tuple[float, float]]:
        """A figure of two phases, in the runs that have both; none of retraining and itself."""
        if self.name == RETRAINED and GOAL in (one, other):
            return []
        both = ((of(getattr(entry, one)), of(getattr(entry, other))) for entry in self.entries)
        return [(a, b) for a, b in both if a is not None and b is not None]


class GridPlan(NamedTuple):
    """The cells that grids should have and have not, each with the reason, and the names of their requests."""

    missing: Mapping[str, str]
    requests: Set[str]


NO_PLAN = GridPlan({}, frozenset())


def results_in(directory: Path) -> list[Path]:
    """``directory`` when it has a result, else the directories in it that have one (or itself, to be refused)."""
    # Names with a dot are of directories that a killed process has not finished.
    below = sorted(path.parent for path in directory.glob("[!.]*/result.json"))
    return [directory] if (directory / "result.json").exists() or not below else below


def affected_ndcg(phase: PhaseResult) -> float | None:
    """NDCG@20 of affected users."""
    return phase.affected.get("ndcg@20")


def read_result(path: Path) -> RunResult:
    """The result in a `result.json`; refuses a file that is none."""
    try:
        tree = read_json(path)
    except UnlearnError as error:
        raise UnlearnError(f"Cannot compare {shown(path.parent)}: {error}") from error
    except ValueError:
        why = "it is not JSON"
    else:
        result = RunResult.from_json(tree)
        if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
            why = f"it is not a result of schema {SCHEMA}"
        elif not result.phases:
            why = "it has no phases"
        else:
            return result
    raise UnlearnError(
        f"Cannot compare {shown(path)}: {why}. Name output directories of finished runs, or run that one again."
    )


def read_mapping(path: Path) -> dict[str, Any]:
    """A mapping that the plugin wrote; empty when there is none, or none that can be read."""
    try:
        return mapping(read_json(path))
    except (ValueError, UnlearnError):
        return {}


def read_plan(directories: Iterable[Path]) -> GridPlan:
    """The plans of those directories that hold a grid, as one."""
    requests: set[str] = set()
    missing: dict[str, str] = {}
    for directory in map(Path, directories):
        failed = read_mapping(directory / FAILED_FILE)
        cells = mapping(read_mapping(directory / PLAN_FILE).get("cells"))
        requests |= {str(request) for request in cells.values() if request is not None}
        left = (name for name in cells if not (directory / name / "result.json").exists())
        missing |= {name: _text(failed.get(name)) or "not done yet" for name in left}
    return GridPlan(missing, requests)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def is_noise(result: RunResult) -> bool:
    """Whether the plugin made the request up itself: its figures must not be taken for a user's request."""
    return (result.forget.source or "").startswith((INJECTED, DRAWN))


def grouped(results: Sequence[RunResult], plan: GridPlan = NO_PLAN) -> dict[Place, list[Runs]]:
    """By place, the runs of every phase; the original and the retrained model first."""
    found: dict[Place, dict[str, dict[tuple[str | None, str], Entry]]] = {}  # by place and name, each model once
    for result in results:
        is_injected = (result.forget.source or "").startswith(INJECTED)
        ratio = number(result.settings.get("inject_users")) if is_injected else None
        source = f"{result.forget.source} {result.request}" if result.request in plan.requests else None
        place = Place.of(result.dataset, result.model, source or result.forget.source, ratio)
        for entry in _entries(result):
            own = found.setdefault(place, {}).setdefault(entry.name, {})
            own.setdefault((entry.seed, _figures(entry.phase)), entry)
    return {
        place: [
            Runs(place, name, list(there[name].values()))
            for name in dict.fromkeys([*REFERENCES, *there])
            if name in there
        ]
        for place, there in found.items()
    }


def _entries(result: RunResult) -> Iterable[Entry]:
    original, retrained = (result.phases.get(name, PhaseResult()) for name in (ORIGINAL, RETRAINED))
    levels = levels_of(result)
    is_moved = result.left_out is None or "ndcg@20" not in result.left_out.metrics
    for name, phase in result.phases.items():
        # An exact method is retraining: its own row would say the same twice.
        if name == UNLEARNED and RETRAINED in result.phases and _figures(phase) == _figures(retrained):
            continue
        title = result.method or name if name == UNLEARNED else name
        yield Entry(title, _text(result.seed), phase, original, retrained, is_moved, levels.get(name))


def levels_of(result: RunResult) -> dict[str, str]:
    """The level of every phase that has a verdict; the run's own is that of the unlearned model."""
    found = {name: phase.verdict for name, phase in result.phases.items()} | {UNLEARNED: result.verdict}
    return {name: one.level for name, one in found.items() if one is not None and one.level in SHORT}


def _figures(phase: PhaseResult) -> str:
    return json.dumps([phase.metrics, phase.affected, phase.forgetting], sort_keys=True)


def recovered(entries: Sequence[Entry]) -> float | None:
    """Σ(phase − before) / Σ(retrained − before) of affected NDCG@20; None if half of the runs moved by noise."""
    if 2 * sum(entry.is_moved for entry in entries) <= len(entries):
        return None
    starts = [affected_ndcg(entry.before) for entry in entries]
    return ratio_of_sums(
        (difference(affected_ndcg(entry.phase), start), difference(affected_ndcg(entry.retrained), start))
        for entry, start in zip(entries, starts, strict=True)
    )


def ratio_of_sums(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Σ first / Σ second over pairs that have both; not ruled, as a mean of ratios is, by the smallest of them."""
    known = [(first, second) for first, second in pairs if first is not None and second is not None]
    below = sum(second for _, second in known)
    return sum(first for first, _ in known) / below if below else None
