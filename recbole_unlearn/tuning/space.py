"""Search spaces: YAML that says for each setting of a method which values a sweep may give it.

    rank: {choice: [8, 32, full]}
    lac_steps: {int: [20, 80, 20]}
    lac_learning_rate: {loguniform: [0.002, 0.05]}

A space is data: it is read without Python objects, nothing in it is evaluated, and it is checked against the method's
own settings before anything is trained.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recbole_unlearn import settings
from recbole_unlearn.errors import UnlearnError, nearest
from recbole_unlearn.methods import UnlearnTrainer
from recbole_unlearn.settings import UnlearnConfig, packaged, properties_dir, read_yaml

DIGITS = 4  # significant digits of a number drawn from a range
MISSES = 200  # consecutive draws without a new value, after which a space counts as exhausted
LARGEST = 10_000  # combinations that a grid may have
KINDS = {  # each with an example
    "choice": "[8, 16, full]", "int": "[20, 80] or, with a step, [20, 80, 20]",
    "uniform": "[0.0, 1.0]", "loguniform": "[0.001, 0.1]",
}  # fmt: skip

Settings = dict[str, Any]


def identity(values: Settings) -> str:
    """The same text for the same settings."""
    return json.dumps(values, sort_keys=True)


@dataclasses.dataclass(frozen=True)
class Space:
    """The settings of a sweep in the order of the file, each with its line: {"rank": {"choice": [8, "full"]}}."""

    lines: Mapping[str, Mapping[str, list[Any]]]

    def values(self, key: str) -> Sequence[Any] | None:
        """All values of a setting; None for a range."""
        ((kind, values),) = self.lines[key].items()
        if kind == "int":
            low, high, *step = values
            return range(low, high + 1, *step)
        return values if kind == "choice" else None

    def draw(self, key: str, rng: np.random.Generator) -> Any:
        """A value of a setting: one of its values, or of a range a number with few digits, inside it."""
        if (values := self.values(key)) is not None:
            return values[int(rng.integers(len(values)))]
        ((kind, (low, high)),) = self.lines[key].items()
        drawn = rng.uniform(low, high) if kind == "uniform" else math.exp(rng.uniform(math.log(low), math.log(high)))
        return min(max(float(f"{drawn:.{DIGITS}g}"), float(low)), float(high))

    def grid(self) -> list[Settings]:
        """All combinations; ranges have none."""
        columns: dict[str, Sequence[Any]] = {}
        for key in self.lines:
            if (values := self.values(key)) is None:
                raise UnlearnError(
                    f"Grid search cannot go through the range of {key}: list its values, {key}: {{choice: [...]}}, "
                    "or use --searcher=random."
                )
            columns[key] = values
        if (size := math.prod(map(len, columns.values()))) > LARGEST:
            raise UnlearnError(
                f"The grid has {size} combinations, more than {LARGEST}: leave values out, or use --searcher=random."
            )
        return [dict(zip(columns, row, strict=True)) for row in itertools.product(*columns.values())]

    def random(self, trials: int, seed: int) -> list[Settings]:
        """Distinct draws; the first are the same for any ``trials``."""
        rng = np.random.default_rng(seed)
        found: dict[str, Settings] = {}
        misses = 0
        while len(found) < trials and misses < MISSES:
            values = {key: self.draw(key, rng) for key in self.lines}
            misses = misses + 1 if identity(values) in found else 0
            found.setdefault(identity(values), values)
        return list(found.values())


def load(config: UnlearnConfig, method: type[UnlearnTrainer], file: str | None) -> Space:
    """The space in ``file``, where no setting may be fixed by the run, or the method's own without those that are."""
    kind = config.model_class.type.name.lower()
    path = _own_path(method, kind) if file is None else packaged(file, "tune", "--space")
    fixed = set(config.external_config_dict) & set(settings.names(method.Settings))
    raw = read_yaml(path, "search space", "--space", "key: {choice: [...]}")
    if not raw:
        raise UnlearnError(f"{path} is empty; expected lines such as lac_steps: {{int: [20, 80]}}.")
    if file is None:
        raw = {key: line for key, line in raw.items() if key not in fixed}
        if not raw:
            raise UnlearnError("Every setting of the search space is fixed by this run; leave one out.")
    base = config.method_values(method.name)
    for key, line in raw.items():
        try:
            if not isinstance(key, str) or key not in base:
                raise UnlearnError(
                    f"{key!r} is not a setting of {method.name}.{nearest(str(key), base)} A sweep changes the "
                    "method's settings only: the original is trained once."
                )
            if key in fixed:
                raise UnlearnError(f"{key} is swept over, but this run sets it too; leave one out.")
            for value in _checked(key, line):
                method.check(settings.read(method.Settings, base | {key: value}), config)
        except UnlearnError as error:
            raise UnlearnError(f"{path}: {error}") from error
    return Space(raw)


def _own_path(method: type[UnlearnTrainer], kind: str) -> Path:
    folder = properties_dir() / "tune"
    for path in (folder / f"{method.name}-{kind}.yaml", folder / f"{method.name}.yaml"):  # for a type of model first
        if path.is_file():
            return path
    known = ", ".join(sorted(found.stem for found in folder.glob("*.yaml") if "-" not in found.stem))
    raise UnlearnError(
        f"{method.name} has no search space of its own: give --space=FILE.yaml. These have one: {known}."
    )


def _checked(key: str, line: Any) -> list[Any]:
    """Values of a line that are allowed if and only if all of its values are; a line that is not valid is refused."""
    if not isinstance(line, dict) or len(line) != 1:
        expected = ", ".join(f"{{{kind}: {example}}}" for kind, example in KINDS.items())
        raise UnlearnError(f"{key} needs one kind of values: {expected}.")
    ((kind, values),) = line.items()
    if kind not in KINDS:
        raise UnlearnError(f"{key}: unknown kind {kind!r}.{nearest(str(kind), KINDS)} One of {', '.join(KINDS)}.")
    if not isinstance(values, list) or not values:
        raise UnlearnError(f"{key}: {kind} needs a list of values, not {values!r}.")
    for value in values:
        if not isinstance(value, int | float | str | None) or value in (math.inf, -math.inf) or value != value:
            raise UnlearnError(f"{key}: {value!r} is not a plain value or a finite number.")
    if kind == "choice":
        if len({identity({key: value}) for value in values}) < len(values):
            raise UnlearnError(f"{key}: a value is there twice: {values!r}.")
        return values
    is_int = kind == "int"
    if not {type(v) for v in values} <= ({int} if is_int else {int, float}) or not 2 <= len(values) <= 2 + is_int:
        expected = "int needs two whole numbers and perhaps a step" if is_int else "a range needs two numbers"
        raise UnlearnError(f"{key}: {expected}, not {values!r}.")
    low, high, *step = values
    if not low < high:
        raise UnlearnError(f"{key}: the range [{low}, {high}] is upside down or empty; the lower end comes first.")
    if step and step[0] < 1:
        raise UnlearnError(f"{key}: the step {step[0]} is not valid: expected at least 1.")
    if kind == "loguniform" and low <= 0:
        raise UnlearnError(f"{key}: loguniform needs numbers above 0, not {values!r}.")
    return [low, range(low, high + 1, *step)[-1]] if is_int else [float(low), float(high)]
