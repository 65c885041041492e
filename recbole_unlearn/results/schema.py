"""The contract of `result.json`, schema 1: one dataclass a level, to JSON and back.

Everything that reads or writes a result does so through :class:`RunResult`. Files of older versions and edited files
are read by :meth:`RunResult.from_json` and nowhere else: a value that is missing or not of its field's type (for
numbers: finite) becomes the field's default, never zero. docs/result-json.md explains the keys.
"""

import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Self

SCHEMA = 1
ORIGINAL, UNLEARNED, RETRAINED, SECOND, CONTROL = "original", "unlearned", "retrained", "retrained_2", "control"
LEVELS = ("near", "under", "over", "cannot_tell", "unknown", "exact")
_FIRST = (ORIGINAL, UNLEARNED, RETRAINED, SECOND)
_IS_RETRAINED = re.compile(rf"{RETRAINED}(_\d+)?")
_TOO_LARGE = 1e300  # JSON knows integers that no float holds
_OMIT = {"omit": True}  # of a field that is left out of the file where it has its default

Metrics = dict[str, float]
Figure = float | dict[str, float] | None  # of a measure: one number, or several by name
Curve = list[tuple[int, float]]  # (step, value)


class _Record:
    """A level of the file: its fields are the keys, under the name ``key`` of their metadata if there is one.

    A subclass refuses values that do not fit together by a ValueError; such a level is not read.
    """

    def to_json(self) -> dict[str, Any]:
        """The mapping in the file."""
        tree = {}
        for one in fields(self):  # type: ignore[arg-type]
            value, default = getattr(self, one.name), {} if one.default is MISSING else one.default
            if not one.metadata.get("omit") or value != default:
                tree[one.metadata.get("key", one.name)] = _written(value)
        return tree

    @classmethod
    def from_json(cls, tree: Any) -> Self | None:
        """From a file; None where a field without default is missing, or values do not fit together."""
        tree, hints = mapping(tree), typing.get_type_hints(cls)
        found = {
            one.name: _read(hints[one.name], tree.get(one.metadata.get("key", one.name)))
            for one in fields(cls)  # type: ignore[arg-type]
        }
        try:
            return cls(**{key: value for key, value in found.items() if value is not None})
        except (TypeError, ValueError):
            return None


def _written(value: Any) -> Any:
    if isinstance(value, _Record):
        return value.to_json()
    return {key: _written(one) for key, one in value.items()} if isinstance(value, Mapping) else value


def _read(kind: Any, value: Any) -> Any:
    """``value`` as the type ``kind`` of a field; None where it is not one. A list is read whole or not at all."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return next((found for one in inner if (found := _read(one, value)) is not None), None)
    if origin is dict and isinstance(value, Mapping):
        read = {str(key): _read(inner[1], one) for key, one in value.items()}
        may_be_none = inner[1] is Any or type(None) in typing.get_args(inner[1])
        return {key: one for key, one in read.items() if may_be_none or one is not None}
    if origin in (list, tuple) and isinstance(value, (list, tuple)):
        kinds = inner if origin is tuple else inner * len(value)
        found = [_read(one, part) for one, part in zip(kinds, value, strict=False)]
        return origin(found) if len(kinds) == len(value) and None not in found else None
    if kind is Any:
        return value
    if kind in (int, float):
        return number(value)
    if kind is bool:
        return value if isinstance(value, bool) else None
    if kind is str:
        return None if value is None or isinstance(value, (dict, list)) else str(value)
    is_record = isinstance(kind, type) and issubclass(kind, _Record)
    return kind.from_json(value) if is_record and mapping(value) else None


@dataclass(frozen=True)
class Distribution(_Record):
    """A histogram: ``counts[k]`` values lie between ``edges[k]`` and ``edges[k + 1]``."""

    edges: list[float]
    counts: list[float]

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.counts) + 1:
            raise ValueError("a histogram has one edge more than counts")


@dataclass(frozen=True)
class Verdict(_Record):
    """One word and one sentence on a result."""

    level: str = "unknown"
    text: str = ""

    def __post_init__(self) -> None:
        if not self.text:
            raise ValueError("a verdict has a sentence")


@dataclass(frozen=True)
class LeftOut(_Record):
    """Metrics that have no share under `recovered`, and why."""

    metrics: list[str]
    why: str


@dataclass(frozen=True)
class Withheld(_Record):
    """That figures were left out or rounded, because too few users are behind them."""

    min_group: int
    why: str


@dataclass(frozen=True)
class Placebo(_Record):
    """The method on a model that never saw the forget set: the retrained one, with the same request.

    The difference to the retrained model is the method's own ``mark``; the difference to the unlearned model is
    ``memory``, which unlearning should remove.
    """

    demotion_rate: float | None = None
    mark: Metrics = field(default_factory=dict)  # demotion, attack, ks
    memory: Metrics = field(default_factory=dict)


@dataclass(frozen=True)
class Forgotten(_Record):
    """The size of the request, and what the rules of docs/deletion-requests.md left out (``counts``, inlined)."""

    source: str | None = None
    interactions: int | None = None
    users: int | None = None
    items: int | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The mapping in the file."""
        tree = super().to_json()
        return tree | tree.pop("counts")

    @classmethod
    def from_json(cls, tree: Any) -> Self:
        """From a file."""
        own = {one.name for one in fields(cls)}
        counts = {key: value for key, value in mapping(tree).items() if key not in own}
        return super().from_json(mapping(tree) | {"counts": counts}) or cls()


@dataclass(frozen=True)
class PhaseResult(_Record):
    """The figures of one model."""

    seconds: float | None = None  # None for a model that was loaded
    seconds_from_cache: bool = False
    exact: bool = field(default=False, metadata=_OMIT)  # a model of the retained interactions alone
    metrics: Metrics = field(default_factory=dict)  # over all users
    affected: Metrics = field(default_factory=dict)
    unaffected: Metrics = field(default_factory=dict)
    forgetting: dict[str, Figure] = field(default_factory=dict)
    groups: dict[str, dict[str, Metrics]] = field(default_factory=dict, metadata=_OMIT)
    before: "PhaseResult | None" = field(default=None, metadata=_OMIT)  # its own original, if it has one
    distribution: Distribution | None = field(default=None, metadata=_OMIT)
    # Of a method's phase, where there is a retrained model:
    verdict: Verdict | None = field(default=None, metadata=_OMIT)
    recovered: Metrics | None = field(default=None, metadata=_OMIT)
    speedup: float | None = field(default=None, metadata=_OMIT)

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


@dataclass(frozen=True)
class RunResult(_Record):
    """All of `result.json`."""

    model: str | None = None
    dataset: str | None = None
    method: str | None = None
    seed: int | str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    date: str | None = field(default=None, kw_only=True, metadata=_OMIT)  # when written, ISO 8601, UTC
    request: str | None = field(default=None, kw_only=True, metadata=_OMIT)  # the run's id; not its content
    hashes: dict[str, str] = field(default_factory=dict, kw_only=True, metadata=_OMIT)  # keyed
    done_earlier: str | None = field(default=None, kw_only=True, metadata=_OMIT)  # day of the same request
    forget: Forgotten = field(default_factory=Forgotten)
    phases: dict[str, PhaseResult] = field(default_factory=dict)  # original, unlearned, retrained, compared
    certificates: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, dict[str, Curve]] = field(default_factory=dict)  # by phase
    environment: dict[str, Any] = field(default_factory=dict)
    recovered: Metrics | None = field(default=None, metadata=_OMIT)
    left_out: LeftOut | None = field(default=None, metadata=_OMIT | {"key": "recovered_left_out"})
    speedup: float | None = field(default=None, metadata=_OMIT)
    placebo: Placebo | None = field(default=None, metadata=_OMIT)
    control: PhaseResult | None = field(default=None, metadata=_OMIT)  # the original with orphan rows reset alone
    verdict: Verdict | None = field(default=None, metadata=_OMIT)
    withheld: Withheld | None = field(default=None, metadata=_OMIT)  # None: all figures are there, unrounded

    @property
    def unlearned(self) -> PhaseResult:
        """The phase the run is about."""
        return self.phases.get(UNLEARNED, PhaseResult())

    @property
    def few(self) -> bool:
        """Whether the request has so few users that their figures are left out."""
        users = self.forget.users
        return self.withheld is not None and users is not None and users < self.withheld.min_group

    @property
    def retrained(self) -> PhaseResult | None:
        """The phase all others are compared with, when there is one."""
        return self.phases.get(RETRAINED)

    def to_json(self) -> dict[str, Any]:
        """The mapping in the file."""
        return {"schema": SCHEMA} | super().to_json()

    @classmethod
    def from_json(cls, tree: Any) -> Self:
        """From a file of any version of schema 1; the phases every run may have come first."""
        found = super().from_json(tree) or cls()
        return replace(found, phases=in_order(found.phases))


def in_order(phases: Mapping[str, PhaseResult]) -> dict[str, PhaseResult]:
    """Original, unlearned and retrained, then the compared methods."""
    return {name: phases[name] for name in dict.fromkeys([*_FIRST, *phases]) if name in phases}


def method_phases(phases: Iterable[str]) -> list[str]:
    """The names of phases that are a method's: neither the original nor a model retrained for comparison."""
    return [name for name in phases if name != ORIGINAL and not _IS_RETRAINED.fullmatch(name)]


def seen_from(phases: Mapping[str, PhaseResult], name: str) -> dict[str, PhaseResult]:
    """The phases of a run about phase ``name``: its original, itself, and the retrained models."""
    others = {key: phases[key] for key in (ORIGINAL, RETRAINED, SECOND) if key in phases}
    mine = phases[name]
    return others | ({} if mine.before is None else {ORIGINAL: mine.before}) | {UNLEARNED: mine}


def mapping(tree: Any) -> dict[str, Any]:
    """A mapping with text for keys; empty when ``tree`` is none."""
    return {str(key): value for key, value in tree.items()} if isinstance(tree, Mapping) else {}


def flat(tree: Mapping[str, Any], separator: str = ", ", above: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings, each with its path: ``margin, mean``."""
    for key, value in tree.items():
        name = f"{above}{separator}{key}" if above else str(key)
        if isinstance(value, Mapping) and value:
            yield from flat(value, separator, name)
        else:
            yield name, value


def number(value: Any) -> Any:
    """A finite number, or None."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and abs(value) < _TOO_LARGE else None
