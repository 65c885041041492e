"""The contract of `result.json`, schema 1: one class a level, to JSON and back.

Everything that reads or writes a result does so through :class:`RunResult`. Files of older versions, and files that
somebody edited, are read by :meth:`RunResult.from_json` and nowhere else: what is missing, or is not a finite number
where one belongs, is None or absent afterwards, never zero. docs/result-json.md explains the keys.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

SCHEMA = 1
ORIGINAL, UNLEARNED, RETRAINED, SECOND = "original", "unlearned", "retrained", "retrained_2"
LEVELS = ("near", "under", "over", "cannot_tell", "unknown")
_FIRST = (ORIGINAL, UNLEARNED, RETRAINED, SECOND)
_IS_RETRAINED = re.compile(rf"{RETRAINED}(_\d+)?")
_TOO_LARGE = 1e300  # JSON knows integers that no float holds

Metrics = dict[str, float]
Figure = float | dict[str, float] | None  # of a measure: one number, or several by name
Curve = list[tuple[int, float]]  # (step, value)


class Distribution(NamedTuple):
    """A histogram: ``counts[k]`` values lie between ``edges[k]`` and ``edges[k + 1]``."""

    edges: list[float]
    counts: list[float]


class Provisional(NamedTuple):
    """What a result without retraining looks like, and what that rests on."""

    looks: str  # near, under, over or cannot_tell
    rests_on: str
    expected: float | None = None  # the demotion rate to expect of a model that never saw the deleted pairs
    users: int | None = None  # whose deleted pairs that is about

    def to_json(self) -> dict[str, Any]:
        """As it is in the file."""
        return {key: value for key, value in self._asdict().items() if value is not None}

    @classmethod
    def from_json(cls, tree: Any) -> Provisional | None:
        """From a file; None where there is none."""
        tree = mapping(tree)
        looks, rests_on = (_word(tree.get(key)) for key in ("looks", "rests_on"))
        if looks not in LEVELS or not rests_on:
            return None
        return cls(looks, rests_on, number(tree.get("expected")), number(tree.get("users")))


class Verdict(NamedTuple):
    """One word and one sentence on a result."""

    level: str
    text: str
    provisional: Provisional | None = None  # where the level is unknown

    def to_json(self) -> dict[str, Any]:
        """As it is in the file."""
        tree: dict[str, Any] = {"level": self.level, "text": self.text}
        return tree if self.provisional is None else tree | {"provisional": self.provisional.to_json()}

    @classmethod
    def from_json(cls, tree: Any) -> Verdict | None:
        """From a file; None where there is none."""
        tree = mapping(tree)
        text = _word(tree.get("text"))
        if not text:
            return None
        return cls(
            _word(tree.get("level")) or "unknown", text, Provisional.from_json(tree.get("provisional"))
        )


class LeftOut(NamedTuple):
    """Metrics that have no share under `recovered`, and why."""

    metrics: list[str]
    why: str

    @classmethod
    def from_json(cls, tree: Any) -> LeftOut | None:
        """From a file; None where there is none."""
        tree = mapping(tree)
        metrics, why = tree.get("metrics"), _word(tree.get("why"))
        if not isinstance(metrics, list) or not metrics or not why:
            return None
        return cls([str(metric) for metric in metrics], why)


class Withheld(NamedTuple):
    """That figures were left out or rounded, because too few users are behind them."""

    min_group: int
    why: str


@dataclasses.dataclass(frozen=True)
class Placebo:
    """The method on a model that never saw the forget set: the retrained one, with the same request.

    What is between it and the retrained model is the method's own ``mark``; what is between it and the unlearned
    model is ``memory``, which is what unlearning is about.
    """

    demotion_rate: float | None = None
    mark: Metrics = dataclasses.field(default_factory=dict)  # demotion, attack, ks
    memory: Metrics = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As it is in the file."""
        return {"demotion_rate": self.demotion_rate, "mark": self.mark, "memory": self.memory}

    @classmethod
    def from_json(cls, tree: Any) -> Placebo | None:
        """From a file; None where there is none."""
        tree = mapping(tree)
        if not tree:
            return None
        return cls(number(tree.get("demotion_rate")), numbers(tree.get("mark")), numbers(tree.get("memory")))


@dataclasses.dataclass(frozen=True)
class Forgotten:
    """How much was to be forgotten, and what the rules of docs/deletion-requests.md left out (``counts``)."""

    source: str | None = None
    interactions: int | None = None
    users: int | None = None
    items: int | None = None
    counts: dict[str, int] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As it is in the file."""
        own = {key: getattr(self, key) for key in ("source", "interactions", "users", "items")}
        return own | self.counts

    @classmethod
    def from_json(cls, tree: Any) -> Forgotten:
        """From a file."""
        values = mapping(tree)
        source = values.pop("source", None)
        own = {key: number(values.pop(key, None)) for key in ("interactions", "users", "items")}
        return cls(None if source is None else str(source), **own, counts=numbers(values))


@dataclasses.dataclass(frozen=True)
class PhaseResult:
    """The figures of one model."""

    seconds: float | None = None  # None for a model that was loaded
    seconds_from_cache: bool = False
    metrics: Metrics = dataclasses.field(default_factory=dict)  # over all users
    affected: Metrics = dataclasses.field(default_factory=dict)
    unaffected: Metrics = dataclasses.field(default_factory=dict)
    masked: Metrics = dataclasses.field(default_factory=dict)
    forgetting: dict[str, Figure] = dataclasses.field(default_factory=dict)
    groups: dict[str, dict[str, Metrics]] = dataclasses.field(default_factory=dict)
    before: PhaseResult | None = None  # what it started from, where that is not the run's original
    distribution: Distribution | None = None
    verdict: Verdict | None = (
        None  # this and the next two: of a method's phase, where there is a retrained model
    )
    recovered: Metrics | None = None
    speedup: float | None = None

    def figure(self, *path: str) -> float | None:
        """A number under `forgetting`, for example ``figure("attack", "auc")``."""
        found: Any = self.forgetting.get(path[0])
        for key in path[1:]:
            found = found.get(key) if isinstance(found, Mapping) else None
        return None if isinstance(found, Mapping) else found

    @property
    def demotion_rate(self) -> float | None:
        """The share of comparisons in which a deleted item scores lower than a never-touched one."""
        return self.figure("demotion_rate")

    def to_json(self) -> dict[str, Any]:
        """As it is in the file."""
        tree = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for key in ("masked", "groups"):
            if not tree[key]:
                del tree[key]
        for key in ("before", "distribution", "verdict", "recovered", "speedup"):
            if tree[key] is None:
                del tree[key]
        if self.before is not None:
            tree["before"] = self.before.to_json()
        if self.distribution is not None:
            tree["distribution"] = self.distribution._asdict()
        if self.verdict is not None:
            tree["verdict"] = self.verdict.to_json()
        return tree

    @classmethod
    def from_json(cls, tree: Any) -> PhaseResult:
        """From a file."""
        tree = mapping(tree)
        before = mapping(tree.get("before"))
        return cls(
            number(tree.get("seconds")),
            bool(tree.get("seconds_from_cache")),
            **{key: numbers(tree.get(key)) for key in ("metrics", "affected", "unaffected", "masked")},
            forgetting={key: _figure(value) for key, value in mapping(tree.get("forgetting")).items()},
            groups={
                name: {part: numbers(values) for part, values in mapping(parts).items()}
                for name, parts in mapping(tree.get("groups")).items()
            },
            before=cls.from_json(before) if before else None,
            distribution=_distribution(tree.get("distribution")),
            verdict=Verdict.from_json(tree.get("verdict")),
            recovered=_shares(tree.get("recovered")),
            speedup=number(tree.get("speedup")),
        )


@dataclasses.dataclass(frozen=True)
class RunResult:
    """All of `result.json`."""

    model: str | None
    dataset: str | None
    method: str | None
    seed: int | str | None
    settings: dict[str, Any]
    forget: Forgotten
    phases: dict[str, PhaseResult]  # original, unlearned, retrained and each compared method
    difficulty: dict[str, Any] = dataclasses.field(default_factory=dict)
    certificates: dict[str, Any] = dataclasses.field(default_factory=dict)
    curves: dict[str, dict[str, Curve]] = dataclasses.field(default_factory=dict)  # by phase
    environment: dict[str, Any] = dataclasses.field(default_factory=dict)
    recovered: Metrics | None = None
    left_out: LeftOut | None = None  # `recovered_left_out` in the file
    speedup: float | None = None
    placebo: Placebo | None = None
    verdict: Verdict | None = None
    withheld: Withheld | None = None  # None: all figures are there, as they are
    date: str | None = None  # when it was written, ISO 8601, UTC
    request: str | None = None  # the run's id, which says nothing about its content
    hashes: dict[str, str] = dataclasses.field(default_factory=dict)  # keyed: request, original, result
    done_earlier: str | None = None  # the day on which this request was done before

    @property
    def unlearned(self) -> PhaseResult:
        """The phase the run is about."""
        return self.phases.get(UNLEARNED, PhaseResult())

    @property
    def retrained(self) -> PhaseResult | None:
        """The phase all others are compared with, when there is one."""
        return self.phases.get(RETRAINED)

    def to_json(self) -> dict[str, Any]:
        """As it is in the file."""
        tree: dict[str, Any] = {"schema": SCHEMA}
        tree |= {key: getattr(self, key) for key in ("model", "dataset", "method", "seed", "settings")}
        for key in ("date", "request", "hashes", "done_earlier"):
            if getattr(self, key):
                tree[key] = getattr(self, key)
        tree["forget"] = self.forget.to_json()
        tree["phases"] = {name: phase.to_json() for name, phase in self.phases.items()}
        tree |= {key: getattr(self, key) for key in ("difficulty", "certificates", "curves", "environment")}
        if self.recovered is not None:
            tree["recovered"] = self.recovered
        if self.left_out is not None:
            tree["recovered_left_out"] = self.left_out._asdict()
        if self.speedup is not None:
            tree["speedup"] = self.speedup
        if self.placebo is not None:
            tree["placebo"] = self.placebo.to_json()
        if self.verdict is not None:
            tree["verdict"] = self.verdict.to_json()
        if self.withheld is not None:
            tree["withheld"] = self.withheld._asdict()
        return tree

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> RunResult:
        """From a file of any version of schema 1; the phases every run may have come first."""
        seed = tree.get("seed")
        found = {
            name: PhaseResult.from_json(p) for name, p in mapping(tree.get("phases")).items() if mapping(p)
        }
        return cls(
            model=_word(tree.get("model")),
            dataset=_word(tree.get("dataset")),
            method=_word(tree.get("method")),
            seed=seed if isinstance(seed, int) and not isinstance(seed, bool) else _word(seed),
            settings=mapping(tree.get("settings")),
            forget=Forgotten.from_json(tree.get("forget")),
            phases=in_order(found),
            difficulty=mapping(tree.get("difficulty")),
            certificates=mapping(tree.get("certificates")),
            environment=mapping(tree.get("environment")),
            curves={
                name: {key: _curve(points) for key, points in mapping(curves).items()}
                for name, curves in mapping(tree.get("curves")).items()
            },
            recovered=_shares(tree.get("recovered")),
            left_out=LeftOut.from_json(tree.get("recovered_left_out")),
            speedup=number(tree.get("speedup")),
            placebo=Placebo.from_json(tree.get("placebo")),
            verdict=Verdict.from_json(tree.get("verdict")),
            withheld=_withheld(tree.get("withheld")),
            **{key: _word(tree.get(key)) for key in ("date", "request", "done_earlier")},
            hashes={k: v for k, v in mapping(tree.get("hashes")).items() if isinstance(v, str)},
        )


def in_order(phases: Mapping[str, PhaseResult]) -> dict[str, PhaseResult]:
    """Those every run may have, in the order they are made, then the compared methods."""
    return {name: phases[name] for name in dict.fromkeys([*_FIRST, *phases]) if name in phases}


def method_phases(phases: Iterable[str]) -> list[str]:
    """The names of phases that are a method's: neither the original nor a model retrained for comparison."""
    return [name for name in phases if name != ORIGINAL and not _IS_RETRAINED.fullmatch(name)]


def seen_from(phases: Mapping[str, PhaseResult], name: str) -> dict[str, PhaseResult]:
    """The phases of a run that would be about phase ``name``: what it started from, it, and the retrained models."""
    others = {key: phases[key] for key in (ORIGINAL, RETRAINED, SECOND) if key in phases}
    mine = phases[name]
    return others | ({} if mine.before is None else {ORIGINAL: mine.before}) | {UNLEARNED: mine}


def mapping(tree: Any) -> dict[str, Any]:
    """A mapping with text for keys; empty when it is none."""
    return {str(key): value for key, value in tree.items()} if isinstance(tree, Mapping) else {}


def number(value: Any) -> Any:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) < _TOO_LARGE else None


def numbers(tree: Any) -> dict[str, Any]:
    """The finite numbers of a mapping."""
    return {key: value for key, value in mapping(tree).items() if number(value) is not None}


def _shares(tree: Any) -> Metrics | None:
    """Shares by metric; None where there are none, which is not the same as no metric with one."""
    return numbers(tree) if isinstance(tree, Mapping) else None


def _withheld(tree: Any) -> Withheld | None:
    group, why = number(mapping(tree).get("min_group")), _word(mapping(tree).get("why"))
    return Withheld(group, why) if isinstance(group, int) and why else None


def _word(value: Any) -> str | None:
    return None if value is None or isinstance(value, (dict, list)) else str(value)


def _figure(value: Any) -> Figure:
    return numbers(value) if isinstance(value, Mapping) else number(value)


def _distribution(tree: Any) -> Distribution | None:
    edges, counts = (mapping(tree).get(key) for key in ("edges", "counts"))
    if not isinstance(edges, list) or not isinstance(counts, list) or len(edges) != len(counts) + 1:
        return None
    if any(number(value) is None for value in [*edges, *counts]):
        return None
    return Distribution(edges, counts)


def _curve(points: Any) -> Curve:
    if not isinstance(points, list):
        return []
    pairs = [point for point in points if isinstance(point, (list, tuple)) and len(point) == 2]
    return [(pair[0], pair[1]) for pair in pairs if None not in (number(pair[0]), number(pair[1]))]
