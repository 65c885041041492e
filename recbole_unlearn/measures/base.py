"""The registration of measures of forgetting.

A measure is a function of a model's answers (:class:`View`) that carries ``@measure``. Once registered, it is in
`result.json` under `forgetting`, in the table at the end of a run, in the report and in docs/measuring.md (a test
checks that). Measures of another package come through the entry-point group `recbole_unlearn.measures`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from recbole_unlearn.measures.scores import Observation, Questions
from recbole_unlearn.registry import Registry
from recbole_unlearn.results.schema import Figure

DECIMALS = 6  # of figures in a result
GROUPS = ("compared", "matched", "emptied", "measured", "probed")  # of users, counted by results.disclosure.Crowd


class View(NamedTuple):
    """The input of a measure: the questions, the model's answers, and those of other models."""

    questions: Questions
    seen: Observation
    before: Observation | None = None  # of the model the method started from; None for an original itself
    retrained: Observation | None = None  # given to distances only

    @property
    def target(self) -> Observation:
        """The retrained model's answers, for measures with ``is_distance``."""
        assert self.retrained is not None, "the measure has to set is_distance"
        return self.retrained


Of = Callable[[View], dict[str, Figure]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """A measure and its documentation."""

    key: str  # under `forgetting`; it may have entries KEY@K for several K
    of: Of
    title: str  # with {k} where there are several
    meaning: str
    good: str
    parts: Mapping[str, str] = dataclasses.field(default_factory=dict)  # figures of an entry, with their titles
    is_distance: bool = False  # to the retrained model: 0 or 1 is equal, and there is none without retraining
    of_sequences: bool = False  # of sequential models alone
    discloses: Mapping[str, str]  # the users behind each part, "*" for all others: results/disclosure.py
    place: int = 100  # in tables, lowest first

    def figures(self, entries: Mapping[str, Figure]) -> Iterator[tuple[tuple[str, ...], str]]:
        """The path of every figure of this measure in ``entries``, with its title."""
        for key in entries:
            name, _, k = key.partition("@")
            if name != self.key:
                continue
            title = self.title.format(k=k)
            if not self.parts:
                yield (key,), title
            for part, words in self.parts.items():
                yield (key, part), f"{title}{words}"


MEASURES: Registry[Measure] = Registry("measure", "recbole_unlearn.measures", "recbole_unlearn.measures")


def measure(key: str, *, discloses: str | Mapping[str, str] = "compared", **fields: Any) -> Callable[[Of], Of]:
    """Decorator: make a function of a :class:`View` a measure, with ``fields`` of :class:`Measure`.

    The function returns the measure's entries; none when it cannot be taken. ``discloses`` names the users behind the
    figures, which decides when these are withheld: one of ``GROUPS``, or a mapping from parts to them.
    """

    def add(function: Of) -> Of:
        groups = {"*": discloses} if isinstance(discloses, str) else {"*": "compared", **discloses}
        if not set(groups.values()) <= set(GROUPS):
            raise ValueError(f"A measure discloses figures of one of {', '.join(GROUPS)}.")
        MEASURES.add(key, Measure(key=key, of=function, discloses=groups, **fields), function)
        return function

    return add


def measures() -> list[Measure]:
    """All measures: those of a model by itself first, then the distances to the retrained one."""
    MEASURES.discover()
    return sorted(MEASURES.entries.values(), key=lambda one: (one.is_distance, one.place))


def rounded(value: object) -> float:
    """A figure, rounded as in results."""
    return round(float(value), DECIMALS)  # type: ignore[arg-type]
