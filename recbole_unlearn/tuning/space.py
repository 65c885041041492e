"""Search spaces: YAML that says for each setting of a method which values a sweep may give it.

    rank: {choice: [8, 32, full]}
    lac_steps: {int: [20, 80, 20]}
    lac_learning_rate: {loguniform: [0.002, 0.05]}

Nothing in a space is ever evaluated: it is data, read without Python objects and checked against the method's own
settings before anything is trained. :class:`Space` also draws from it, the same values for the same seed.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from recbole_unlearn import settings
from recbole_unlearn.errors import UnlearnError, nearest
from recbole_unlearn.methods import UnlearnTrainer
from recbole_unlearn.settings import UnlearnConfig, packaged, properties_dir, read_yaml

DIGITS = 4  # that count, of a number drawn from a range
MISSES = 200  # consecutive draws that bring nothing new, after which a space is taken to be exhausted
LARGEST = 10_000  # combinations that a grid may have

Settings = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Values:
    """Some values; ``every`` one of them is tried (`grid`), or one is drawn (`choice`)."""

    values: tuple[Any, ...]
    every: bool = False

    forms: ClassVar[str] = "{choice: [8, 16, full]} or {grid: [8, 16]}"

    def draw(self, rng: np.random.Generator) -> Any:
        """One of them, each as likely as the others."""
        return self.values[int(rng.integers(len(self.values)))]

    def all(self) -> list[Any]:
        """All of them."""
        return list(self.values)

    def ends(self) -> list[Any]:
        """Values that are allowed if and only if all are."""
        return list(self.values)

    def holds(self, value: Any) -> bool:
        """Whether ``value`` is one of them; 1, 1.0 and yes are three."""
        return any(type(own) is type(value) and own == value for own in self.values)


@dataclasses.dataclass(frozen=True)
class Whole:
    """Whole numbers from ``low`` to ``high``, both included, in steps (`int`)."""

    low: int
    high: int
    step: int = 1

    every: ClassVar[bool] = False
    forms: ClassVar[str] = "{int: [20, 80]} or, with a step, {int: [20, 80, 20]}"

    def draw(self, rng: np.random.Generator) -> int:
        """One of them, each as likely as the others."""
        return self.low + self.step * int(rng.integers((self.high - self.low) // self.step + 1))

    def all(self) -> list[int]:
        """All of them."""
        return list(range(self.low, self.high + 1, self.step))

    def ends(self) -> list[int]:
        """The first and the last."""
        return [self.low, self.low + (self.high - self.low) // self.step * self.step]

    def holds(self, value: Any) -> bool:
        """Whether ``value`` is one of them."""
        return type(value) is int and self.low <= value <= self.high and (value - self.low) % self.step == 0


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers between ``low`` and ``high`` (`uniform`), or their logarithms (`loguniform`)."""

    low: float
    high: float
    logarithmic: bool = False

    every: ClassVar[bool] = False
    forms: ClassVar[str] = "{uniform: [0.0, 1.0]} or {loguniform: [0.001, 0.1]}"

    def draw(self, rng: np.random.Generator) -> float:
        """One of them: low + u (high − low), or low (high / low)^u, with u uniform in [0, 1)."""
        u = float(rng.random())
        if self.logarithmic:
            value = math.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + u * (self.high - self.low)
        return self.tidy(value)

    def tidy(self, value: float) -> float:
        """``value`` to the digits that count, inside the range: what is tried is what a file can say."""
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def ends(self) -> list[float]:
        """The lowest and the highest."""
        return [self.low, self.high]

    def holds(self, value: Any) -> bool:
        """Whether ``value`` is one of them."""
        return type(value) is float and self.low <= value <= self.high


Domain = Values | Whole | Range


@dataclasses.dataclass(frozen=True)
class Space:
    """The settings of a sweep, each with its domain, in the order of the file."""

    domains: Mapping[str, Domain]

    def holds(self, values: Settings) -> bool:
        """Whether a sweep over this space can try ``values``."""
        return values.keys() == self.domains.keys() and all(
            self.domains[k].holds(v) for k, v in values.items()
        )

    def refuse_grids(self, searcher: str) -> None:
        """Refuse settings of which every value is to be tried, for a searcher that draws."""
        for key, domain in self.domains.items():
            if domain.every:
                raise UnlearnError(
                    f"{searcher} draws and does not go through the grid of {key}: "
                    f"write {key}: {{choice: [...]}}, or use --searcher=grid."
                )

    def grid(self) -> list[Settings]:
        """All combinations; ranges have none."""
        columns: list[list[Any]] = []
        for key, domain in self.domains.items():
            if isinstance(domain, Range):
                raise UnlearnError(
                    f"Grid search cannot go through the range of {key}: list its values, "
                    f"{key}: {{grid: [...]}}, or use --searcher=random."
                )
            columns.append(domain.all())
        sizes = math.prod([len(column) for column in columns])
        if sizes > LARGEST:
            raise UnlearnError(
                f"The grid has {sizes} combinations, more than {LARGEST}: leave values out, or use --searcher=random."
            )
        return [dict(zip(self.domains, row, strict=True)) for row in itertools.product(*columns)]

    def random(self, trials: int, seed: int) -> list[Settings]:
        """``trials`` distinct draws, for every combination of those with `grid`; fewer when there are no more.

        The first trials are the same for any number of them.
        """
        listed = {key: domain for key, domain in self.domains.items() if domain.every}
        drawn = {key: domain for key, domain in self.domains.items() if not domain.every}
        found = []
        for number, fixed in enumerate(Space(listed).grid()):
            rest = itertools.islice(_distinct(drawn, np.random.default_rng([seed, number])), trials)
            found.append([{key: {**fixed, **some}[key] for key in self.domains} for some in rest])
        # One of each combination before the second of any, so that a sweep that is cut short has seen all of them.
        turns = itertools.zip_longest(*found)
        return [values for turn in turns for values in turn if values is not None]


def _distinct(domains: Mapping[str, Domain], rng: np.random.Generator) -> Iterator[Settings]:
    """Draws without repetition, until there seem to be no more."""
    seen: set[str] = set()
    missed = 0
    while missed < MISSES:
        values = {key: domain.draw(rng) for key, domain in domains.items()}
        name = identity(values)
        if name in seen:
            missed += 1
            continue
        seen.add(name)
        missed = 0
        yield values


def identity(values: Settings) -> str:
    """The same text for the same settings."""
    return json.dumps(values, sort_keys=True)


def load(config: UnlearnConfig, method: type[UnlearnTrainer], file: str | None) -> Space:
    """The space in ``file``, or the method's own, checked against the method's settings.

    A setting that the user fixes for the run is no longer part of the method's own space; in a file of the user's it
    is a contradiction.
    """
    path = _path(method, file, config.model_class.type.name.lower())
    fixed = set(config.external_config_dict) & set(settings.names(method.Settings))
    raw = read_yaml(path, "search space", "--space", "key: {choice: [...]}")
    if not raw:
        raise UnlearnError(f"{path} is empty; expected lines such as lac_steps: {{int: [20, 80]}}.")
    if file is None:
        raw = {key: domain for key, domain in raw.items() if key not in fixed}
        if not raw:
            raise UnlearnError("Every setting of the search space is fixed by this run; leave one out.")
    domains = {}
    base = config.method_values(method.name)
    for key, domain in raw.items():
        if not isinstance(key, str) or key not in base:
            raise UnlearnError(f"{path}: {_unknown(key, method, base)}")
        if key in fixed:
            raise UnlearnError(f"{path}: {key} is swept over, but this run sets it too; leave one out.")
        try:
            domains[key] = _domain(key, domain)
            for value in domains[key].ends():
                method.check(settings.read(method.Settings, base | {key: value}), config)
        except UnlearnError as error:
            raise UnlearnError(f"{path}: {error}") from error
    return Space(domains)


def _path(method: type[UnlearnTrainer], file: str | None, kind: str) -> Path:
    if file is not None:
        return packaged(file, "tune", "--space")
    folder = properties_dir() / "tune"
    special = folder / f"{method.name}-{kind}.yaml"  # for a type of model
    path = special if special.is_file() else folder / f"{method.name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in folder.glob("*.yaml") if "-" not in found.stem))
        raise UnlearnError(
            f"{method.name} has no search space of its own: give --space=FILE.yaml. These have one: {known}."
        )
    return path


def _unknown(key: Any, method: type[UnlearnTrainer], known: Mapping[str, Any]) -> str:
    return (
        f"{key!r} is not a setting of {method.name}.{nearest(str(key), known)} A sweep changes the method's settings "
        "only: the original is trained once."
    )


def _domain(key: str, raw: Any) -> Domain:
    """One line of a space."""
    if not isinstance(raw, dict) or len(raw) != 1:
        several = isinstance(raw, dict) and len(raw) > 1
        raise UnlearnError(
            f"{key} has {'several kinds of values' if several else 'no kind of values'}; expected one of "
            f"{Values.forms}, {Whole.forms}, {Range.forms}."
        )
    ((kind, values),) = raw.items()
    if kind not in _KINDS:
        raise UnlearnError(
            f"{key}: unknown kind {kind!r}.{nearest(str(kind), _KINDS)} One of {', '.join(_KINDS)}."
        )
    if not isinstance(values, list) or not values:
        raise UnlearnError(f"{key}: {kind} needs a list of values, not {values!r}.")
    return _KINDS[kind](key, values)


def _values(key: str, values: list[Any], every: bool) -> Values:
    for value in values:
        if not (value is None or isinstance(value, (bool, int, float, str))):
            raise UnlearnError(f"{key}: {value!r} is not a plain value.")
        if isinstance(value, float) and not math.isfinite(value):
            raise UnlearnError(f"{key}: {value!r} is not a finite number.")
    if len({identity({key: value}) for value in values}) < len(values):
        raise UnlearnError(f"{key}: a value is there twice: {values!r}.")
    return Values(tuple(values), every)


def _whole(key: str, values: list[Any]) -> Whole:
    if len(values) not in (2, 3) or any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise UnlearnError(f"{key}: int needs two whole numbers and perhaps a step, not {values!r}.")
    whole = Whole(*values)
    _ordered(key, whole.low, whole.high)
    if whole.step < 1:
        raise UnlearnError(f"{key}: the step {whole.step} is not valid: expected at least 1.")
    return whole


def _range(key: str, values: list[Any], logarithmic: bool) -> Range:
    numbers = [
        v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)
    ]
    if len(values) != 2 or len(numbers) != 2:
        raise UnlearnError(f"{key}: a range needs two numbers, not {values!r}.")
    low, high = map(float, numbers)
    _ordered(key, low, high)
    if logarithmic and low <= 0:
        raise UnlearnError(f"{key}: loguniform needs numbers above 0, not {values!r}.")
    return Range(low, high, logarithmic)


def _ordered(key: str, low: float, high: float) -> None:
    if not low < high:
        raise UnlearnError(
            f"{key}: the range [{low:g}, {high:g}] is upside down or empty; the lower end comes first."
        )


_KINDS: dict[str, Callable[[str, list[Any]], Domain]] = {
    "choice": lambda key, values: _values(key, values, every=False),
    "grid": lambda key, values: _values(key, values, every=True),
    "int": _whole,
    "uniform": lambda key, values: _range(key, values, logarithmic=False),
    "loguniform": lambda key, values: _range(key, values, logarithmic=True),
}
