"""What a result may show of the users in a request: no figure by which one of them could be recognised.

Whoever has the data and the original can work out the figures of every single user, and compare them with those of a
result. So there are three cases (`benchmarks/infer_members.py` tries what is left, docs/results.md has the outcome):

* **Few users**, fewer than ``min_group``: figures of them are left out. The means over all users have one decimal,
  because they tell who is missing; the demotion rate is 0, 0.5 or 1, and the size of the request is a rough one.
* **Enough users**: figures are rounded. A mean over k users has steps of 1/k or more, so that no user moves it by
  more than a step. With all decimals and a histogram, an integer program found all ten users of a request.
* **Nobody**: noise that was injected is not anybody's request. It is shown as it is, and so is everything with
  ``min_group`` = 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from recbole_unlearn.data import INJECTED, SequenceSplits, UnlearnData
from recbole_unlearn.measures import DONE, EMPTIED, EXACT, NOTHING, UNCHANGED, deleted_targets, sentence
from recbole_unlearn.results.schema import (
    Curve,
    Distribution,
    Figure,
    Forgotten,
    Metrics,
    PhaseResult,
    Placebo,
    Provisional,
    RunResult,
    Verdict,
    Withheld,
    seen_from,
)

_UTILITY_STEP = 0.1  # for few users: how a training ends depends on each interaction, and so do more decimals
_RATE_STEP = 0.5  # for few users, of the demotion rate: some have a first decimal that few others have
_MANY = 10  # times min_group: users enough that one of them is lost in a decimal
_HISTOGRAM = 100  # times min_group: users enough for sixty figures; each tells a little of who they are
_SETTINGS = ("exact", "rank", "shards", "steps")  # certificates that repeat what was asked for
_FOR_ALL = ("exact", "shards")  # those of them that are the same for every request
_DIGITS = 2  # significant ones, of numbers that are not means over users


class Crowd(NamedTuple):
    """How many users are behind the figures of a run."""

    users: int  # with a deleted interaction
    compared: int  # of them, with a deleted pair that no retained interaction has, and a history to ask at
    matched: int  # of those, with held-out interactions: the attacks are about them
    measured: int  # with a deleted interaction and with test interactions
    tested: int  # with test interactions
    usual: int  # training interactions that at least `min_group` users have
    emptied: int = 0  # with a deleted pair that has no cleaned history, of a sequential model

    @classmethod
    def of(cls, data: UnlearnData, min_group: int) -> Crowd:
        """Count them."""
        affected = data.affected_users
        compared, emptied = _compared(data)
        valid, test = (part.inter_feat[part.uid_field] for part in (data.retain.valid, data.retain.test))
        everybody = data.full.train.inter_feat[data.full.train.uid_field]
        histories = torch.bincount(everybody).sort(descending=True).values
        return cls(
            users=len(affected),
            compared=len(compared),
            matched=int(torch.isin(compared, torch.cat([valid, test])).sum()),
            measured=int(torch.isin(affected, test).sum()),
            tested=len(torch.unique(test)),
            usual=int(histories[min_group - 1]) if len(histories) >= min_group else 0,
            emptied=len(emptied),
        )


def _compared(data: UnlearnData) -> tuple[torch.Tensor, torch.Tensor]:
    """The users of deleted pairs that are asked for, and of those of a sequence with no cleaned history."""
    if not isinstance(data.full, SequenceSplits):
        return torch.unique(data.forget_pairs[0]), torch.empty(0)
    raw = data.full.sequences.raw
    asked, emptied = (torch.unique(raw.inter_feat[raw.uid_field][rows]) for rows in deleted_targets(data))
    return asked, emptied


def step_from(least: float) -> float:
    """The first of …, 0.1, 0.2, 0.5, 1, 2, 5, 10, … that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(round(m * power, 12) for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))


def coarse(count: int) -> int:
    """0, 1, 2, 5, 10, 20, 50, 100, …: the first that is not below ``count``."""
    return round(step_from(count)) if count > 0 else 0


def to_step(value: float, step: float) -> float:
    """The multiple of ``step`` that is nearest to ``value``; what is not finite stays, to be refused later."""
    return round(round(value / step) * step, 12) if math.isfinite(value) else value


def blunt(value: float) -> float:
    """``value`` with two significant digits."""
    return type(value)(f"{value:.{_DIGITS - 1}e}") if isinstance(value, float) else _whole(value)


def _whole(value: int) -> int:
    return int(float(f"{value:.{_DIGITS - 1}e}"))


@dataclasses.dataclass(frozen=True)
class Discretion:
    """How much a run may show."""

    min_group: int
    crowd: Crowd
    injected: bool = False

    @classmethod
    def of(cls, data: UnlearnData, min_group: int) -> Discretion:
        """For the request that ``data`` is divided by."""
        return cls(min_group, Crowd.of(data, min_group), data.source.startswith(INJECTED))

    @property
    def shows_all(self) -> bool:
        """Whether figures are shown as they are."""
        return self.injected or self.min_group <= 1

    @property
    def few(self) -> bool:
        """Whether the request has so few users that figures of them are left out."""
        return not self.shows_all and (
            self.crowd.users < self.min_group or self._too_few(self.crowd.compared or self.crowd.emptied)
        )

    def _too_few(self, users: int) -> bool:
        """Whether a group is too small to be shown; one without anybody has no figures."""
        return 0 < users < self.min_group

    @property
    def withheld(self) -> Withheld | None:
        """What is to be said of it; None where all is shown."""
        if self.shows_all:
            return None
        if self.few:
            why = (
                f"Fewer than {self.min_group} users have a deleted interaction, and figures of so few could be "
                "recognised: they are left out, and the others are rough"
            )
        else:
            why = "Figures are rounded, so that no single user of the request can be recognised in them"
        return Withheld(self.min_group, f"{why} (min_group={self.min_group}; --min_group=1 shows all).")

    def forgotten(self, forget: Forgotten) -> Forgotten:
        """The size of the request. What held-out and orphan counts add would often fit one user only."""
        if self.shows_all:
            return forget
        users = self.crowd.users
        most = max(1, users * self.crowd.usual)

        def size(count: int | None) -> int | None:
            if count is None:
                return None
            return coarse(min(count, most)) if self.few else _count(count, users)

        counts = {} if self.few else {key: _count(count, users) for key, count in forget.counts.items()}
        return dataclasses.replace(
            forget, interactions=size(forget.interactions), items=size(forget.items), counts=counts
        )

    def phase(self, phase: PhaseResult) -> PhaseResult:
        """The figures of one model by itself; what is said of it beside the retrained one is added by `shown`."""
        if self.shows_all:
            return phase
        before = None if phase.before is None else self.phase(phase.before)
        tested = max(1, self.crowd.tested)
        if self.few:
            rate = phase.demotion_rate
            return PhaseResult(
                phase.seconds,
                phase.seconds_from_cache,
                metrics=_means(phase.metrics, _UTILITY_STEP) if tested >= _MANY * self.min_group else {},
                forgetting={"demotion_rate": None if rate is None else to_step(rate, _RATE_STEP)},
                before=before,
            )
        affected, unaffected, masked = self._utility(phase)
        return dataclasses.replace(
            phase,
            metrics=_means(phase.metrics, step_from(1 / tested)),
            affected=affected,
            unaffected=unaffected,
            masked=masked,
            forgetting=self._forgetting(phase.forgetting),
            groups=self._groups(phase.groups),
            before=before,
            distribution=self._distribution(phase.distribution),
            verdict=None,
            recovered=None,
            speedup=None,
        )

    def _utility(self, phase: PhaseResult) -> tuple[Metrics, Metrics, Metrics]:
        """Of affected and unaffected users, and of all with deleted items masked; all three or none.

        With the mean over all users, each of them tells another one.
        """
        if self._hides_utility:
            return {}, {}, {}
        measured, tested = self.crowd.measured, self.crowd.tested
        groups = (phase.affected, measured), (phase.unaffected, tested - measured), (phase.masked, tested)
        affected, unaffected, masked = (
            _means(figures, step_from(1 / max(1, users))) for figures, users in groups
        )
        return affected, unaffected, masked

    @property
    def _hides_utility(self) -> bool:
        """Whether users with or without a deleted interaction are too few where utility is measured."""
        measured = self.crowd.measured
        return self.few or self._too_few(measured) or self._too_few(self.crowd.tested - measured)

    def _forgetting(self, figures: Mapping[str, Figure]) -> dict[str, Figure]:
        """The measures: all are about deleted pairs or affected users; the attacks about those with a match."""
        shown: dict[str, Figure] = {}
        for key, figure in figures.items():
            users = self._behind(key)
            if key == "uncleaned" and isinstance(figure, Mapping):
                figure = self._uncleaned(figure)
            elif self._too_few(users):
                continue
            else:
                figure = _figure(figure, max(1, users))
            if figure != {}:
                shown[key] = figure
        return shown

    def _behind(self, key: str) -> int:
        """How many users are behind a measure."""
        if key.startswith("attack"):
            return self.crowd.matched
        if key.startswith("emptied"):  # and beside them users without a deleted interaction
            return min(self.crowd.emptied, self.crowd.tested - self.crowd.measured)
        return self.crowd.compared

    def _uncleaned(self, figures: Mapping[str, float]) -> dict[str, float]:
        """A demotion rate of deleted pairs, and utility of affected users: each shown as at cleaned histories."""
        crowd = self.crowd
        shown = {}
        for key, value in figures.items():
            is_rate = key == "demotion_rate"
            users = crowd.compared if is_rate else crowd.measured
            if not self._too_few(users) if is_rate else not self._hides_utility:
                shown[key] = to_step(value, step_from(1 / max(1, users)))
        return shown

    def _groups(self, groups: Mapping[str, dict[str, Metrics]]) -> dict[str, dict[str, Metrics]]:
        """Utility by activity and popularity, each without its parts if one of them is too small.

        With the mean over all users, one part that is missing could be worked out from the others.
        """
        third = max(1, self.crowd.tested // 3)
        return {
            name: {part: _part(values, third) for part, values in parts.items()}
            for name, parts in groups.items()
            if not any(_size(values) < self.min_group for values in parts.values())
        }

    def _distribution(self, found: Distribution | None) -> Distribution | None:
        """The histogram of very many users, in steps of what an average one adds to it."""
        users = self.crowd.compared
        if found is None or users < _HISTOGRAM * self.min_group:
            return None
        step = step_from(max(1.0, sum(found.counts) / users))
        return Distribution(
            [round(edge, 2) for edge in found.edges], [to_step(count, step) for count in found.counts]
        )

    def shown(self, result: RunResult) -> RunResult:
        """The result that may be seen: in `result.json`, in the report and in the table."""
        if self.shows_all:
            return result
        phases = {name: self.phase(phase) for name, phase in result.phases.items()}
        shares = self._shares(result.recovered)
        return dataclasses.replace(
            result,
            forget=self.forgotten(result.forget),
            phases={name: self._judged(found, name, phases) for name, found in result.phases.items()},
            difficulty={} if self.few else self._difficulty(result.difficulty),
            certificates=self._certificates(result.certificates),
            curves={} if self.few else self._curves(result.curves),
            recovered=shares,
            left_out=None if shares is None else result.left_out,
            placebo=self._placebo(result.placebo),
            verdict=self._verdict(result.verdict, phases, shares or {}),
            withheld=self.withheld,
        )

    def _judged(self, found: PhaseResult, name: str, phases: Mapping[str, PhaseResult]) -> PhaseResult:
        """A phase as it is shown, with what is said of it beside the retrained model."""
        shares = self._shares(found.recovered)
        return dataclasses.replace(
            phases[name],
            verdict=self._verdict(found.verdict, seen_from(phases, name), shares or {}),
            recovered=shares,
            speedup=found.speedup,
        )

    def _shares(self, found: Metrics | None) -> Metrics | None:
        """Shares that were recovered, in steps of a tenth."""
        return None if found is None or self._hides_utility else _means(found, 0.1)

    def _verdict(
        self, found: Verdict | None, phases: Mapping[str, PhaseResult], shares: Metrics
    ) -> Verdict | None:
        """The level is that of the figures themselves; its sentence has what is shown of them."""
        if found is None or found.text in (UNCHANGED, DONE, NOTHING):
            return found
        provisional = self._provisional(found.provisional)
        text = sentence(found.level, {} if self.few else phases, shares, provisional)
        if found.text.endswith(EMPTIED):
            text = f"{text} {EMPTIED}"
        return Verdict(found.level, text, provisional)

    def _provisional(self, found: Provisional | None) -> Provisional | None:
        """What rests on figures of few users is left out; what rests on a certificate has none."""
        if found is None or found == EXACT:
            return found
        if self.few:
            return None
        if found.expected is None:
            return found
        users = found.users or 0
        if users < self.min_group:
            return None
        return found._replace(expected=to_step(found.expected, step_from(1 / users)))

    def _placebo(self, found: Placebo | None) -> Placebo | None:
        """Figures of deleted pairs, as those of the phases."""
        if found is None or self.few:
            return None
        step = step_from(1 / max(1, self.crowd.compared))
        rate = found.demotion_rate
        return Placebo(
            None if rate is None else to_step(rate, step),
            _means(found.mark, step),
            _means(found.memory, step),
        )

    def _difficulty(self, found: Mapping[str, Any]) -> dict[str, Any]:
        step = step_from(1 / max(1, self.crowd.users))
        return {
            key: to_step(value, step) if key.startswith("deleted_share") else _blunt_tree(value)
            for key, value in found.items()
        }

    def _certificates(self, found: Mapping[str, Any]) -> dict[str, Any]:
        if self.few:
            return {key: value for key, value in found.items() if key in _FOR_ALL}
        return {key: found[key] if key in _SETTINGS else value for key, value in _blunt_tree(found).items()}

    def _curves(self, curves: Mapping[str, Mapping[str, Curve]]) -> dict[str, dict[str, Curve]]:
        step = step_from(1 / max(1, self.crowd.compared))

        def points(kind: str, curve: Curve) -> Curve:
            return [(at, to_step(y, step) if kind == "demotion" else blunt(y)) for at, y in curve]

        return {
            name: {kind: points(kind, curve) for kind, curve in own.items()} for name, own in curves.items()
        }


def _count(count: int, users: int) -> int:
    """``count`` in steps of what an average one of ``users`` adds to it."""
    step = step_from(max(1.0, count / max(1, users)))
    return round(to_step(count, step))


def _means(values: Mapping[str, float], step: float) -> Metrics:
    return {key: to_step(value, step) for key, value in values.items()}


def _figure(figure: Figure, users: int) -> Figure:
    """Means over ``users`` and counts of what they have."""
    if isinstance(figure, Mapping):
        return {key: _number(value, users) for key, value in figure.items()}
    return None if figure is None else _number(figure, users)


def _number(value: float, users: int) -> float:
    return _count(value, users) if isinstance(value, int) else to_step(value, step_from(1 / users))


def _size(values: Mapping[str, float]) -> float:
    """How many users or test interactions a part has."""
    return min((values[key] for key in ("users", "rows") if key in values), default=0)


def _part(values: Mapping[str, float], users: int) -> Metrics:
    step = step_from(1 / users)
    return {
        key: _count(int(value), users) if key in ("users", "rows") else to_step(value, step)
        for key, value in values.items()
    }


def _blunt_tree(value: Any) -> Any:
    """All numbers of a tree with two significant digits; times are nobody's."""
    if isinstance(value, Mapping):
        return {
            key: inner if str(key).endswith("seconds") else _blunt_tree(inner) for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_blunt_tree(inner) for inner in value]
    return blunt(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
