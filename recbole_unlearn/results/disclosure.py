"""The disclosure rule: a result shows no figure by which a user of the request could be recognised.

An attacker who has the data and the original can compute the figures of every single user and compare them with those
of a result. So there are three cases (`benchmarks/infer_members.py` attacks what is left, see docs/results.md):

* **Few users**, fewer than ``min_group``: their figures are left out. Means over all users keep one decimal, because
  they tell who is missing; the demotion rate is 0, 0.5 or 1, and the size of the request is rough.
* **Enough users**: figures are rounded. A mean over k users has steps of 1/k or more, so that no user moves it by
  more than a step. With all decimals and a histogram, an integer program found all ten users of a request.
* **Injected noise and drawn requests** ask for no one. They are shown unrounded, and so is everything with
  ``min_group`` = 1.

Which users are behind a measure's figures is declared by the measure (``discloses``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch

from recbole_unlearn.data import SequenceSplits, UnlearnData
from recbole_unlearn.measures import deleted_targets, measures, probed_users, restated
from recbole_unlearn.results import schema
from recbole_unlearn.results.schema import Figure, Metrics, PhaseResult, Placebo, RunResult, Verdict

_UTILITY_STEP = 0.1  # for few users: how a training ends depends on each interaction, and so do more decimals
_RATE_STEP = 0.5  # for few users, of the demotion rate: a first decimal is rare for some of them
_MANY = 10  # times min_group: so many users hide one of them in a decimal
_HISTOGRAM = 100  # times min_group: users needed for sixty figures; each tells a little of who they are
_SETTINGS = ("exact", "rank", "shards", "steps")  # certificates that repeat a setting
_FOR_ALL = ("exact", "shards")  # of these, the ones that are the same for every request


class Crowd(NamedTuple):
    """How many users are behind the figures of a run."""

    users: int  # with a deleted interaction
    compared: int  # of them, with a deleted pair that no retained interaction has, and a history for its score
    matched: int  # of those, with held-out interactions: the attacks are about them
    measured: int  # with a deleted interaction and with test interactions
    tested: int  # with test interactions
    usual: int  # training interactions that at least `min_group` users have
    emptied: int = 0  # with a deleted pair that has no cleaned history, of a sequential model
    probed: int = 0  # with enough deleted pairs for the probe of item vectors

    @classmethod
    def of(cls, data: UnlearnData, min_group: int) -> Self:
        """Count them."""
        affected, train = data.affected_users, data.full.train
        valid, test = (part.inter_feat[part.uid_field] for part in (data.retain.valid, data.retain.test))
        histories = torch.bincount(train.inter_feat[train.uid_field]).sort(descending=True).values
        compared, emptied = torch.unique(data.forget_pairs[0]), torch.empty(0)
        if isinstance(data.full, SequenceSplits):
            raw = data.full.sequences.raw
            users = raw.inter_feat[raw.uid_field]
            compared, emptied = (torch.unique(users[rows]) for rows in deleted_targets(data))
        return cls(
            users=len(affected),
            compared=len(compared),
            matched=int(torch.isin(compared, torch.cat([valid, test])).sum()),
            measured=int(torch.isin(affected, test).sum()),
            tested=len(torch.unique(test)),
            usual=int(histories[min_group - 1]) if len(histories) >= min_group else 0,
            emptied=len(emptied),
            probed=probed_users(data),
        )


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
    return type(value)(float(f"{value:.1e}"))


def _mean(value: float, users: int) -> float:
    """A mean over ``users``, in steps of which no user is worth more than one."""
    return to_step(value, step_from(1 / max(1, users)))


def _means(values: Mapping[str, float], users: int) -> Metrics:
    return {key: _mean(value, users) for key, value in values.items()}


def _count(count: float, users: int) -> int:
    """``count`` in steps of what an average one of ``users`` adds to it."""
    return round(to_step(count, step_from(max(1.0, count / max(1, users)))))


def _blunt_tree(value: Any) -> Any:
    """All numbers of a tree with two significant digits; times are not about users."""
    if isinstance(value, Mapping):
        return {key: one if str(key).endswith("seconds") else _blunt_tree(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_blunt_tree(inner) for inner in value]
    return blunt(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


@dataclass(frozen=True)
class Discretion:
    """How much a run may show."""

    min_group: int
    crowd: Crowd
    made_up: bool = False

    @classmethod
    def of(cls, data: UnlearnData, min_group: int) -> Self:
        """For the request that ``data`` is divided by."""
        return cls(min_group, Crowd.of(data, min_group), data.is_made_up)

    @property
    def shows_all(self) -> bool:
        """Whether figures are shown unrounded."""
        return self.made_up or self.min_group <= 1

    @property
    def few(self) -> bool:
        """Whether the request has so few users that their figures are left out."""
        crowd = self.crowd
        too_few = crowd.users < self.min_group or self._too_few(crowd.compared or crowd.emptied)
        return too_few and not self.shows_all

    def _too_few(self, users: int) -> bool:
        """Whether a group is too small to be shown; one without users has no figures."""
        return 0 < users < self.min_group

    @property
    def _hides_utility(self) -> bool:
        """Whether users with or without a deleted interaction are too few where utility is measured."""
        measured = self.crowd.measured
        return self.few or self._too_few(measured) or self._too_few(self.crowd.tested - measured)

    def _behind(self, group: str) -> int | None:
        """The number of users in a group that a measure names; None where its figures are left out."""
        users = getattr(self.crowd, group)
        if group == "emptied":  # these are shown with users who have no deleted interaction
            users = min(users, self.crowd.tested - self.crowd.measured)
        hides = self._hides_utility if group == "measured" else self._too_few(users)
        return None if hides else users

    @property
    def withheld(self) -> schema.Withheld | None:
        """The notice about what is not shown; None where all is."""
        if self.shows_all:
            return None
        if self.few:
            why = (
                f"Fewer than {self.min_group} users have a deleted interaction, and figures of so few could be "
                "recognised: they are left out, and the others are rough"
            )
        else:
            why = "Figures are rounded, so that no single user of the request can be recognised in them"
        return schema.Withheld(self.min_group, f"{why} (min_group={self.min_group}; --min_group=1 shows all).")

    def forgotten(self, forget: schema.Forgotten) -> schema.Forgotten:
        """The size of the request; with few users without held-out and orphan counts, which often fit one user."""
        if self.shows_all:
            return forget
        users = self.crowd.users
        most = max(1, users * self.crowd.usual)

        def size(count: int) -> int:
            return coarse(min(count, most)) if self.few else _count(count, users)

        sizes = {"interactions": forget.interactions, "items": forget.items}
        shown: dict[str, Any] = {key: None if count is None else size(count) for key, count in sizes.items()}
        kept = {key: n for key, n in forget.counts.items() if key.startswith("lines_") or not self.few}
        counts = {key: size(count) for key, count in kept.items()}
        return replace(forget, **shown, counts=counts)

    def phase(self, phase: PhaseResult) -> PhaseResult:
        """The figures of one model by itself; its comparison with the retrained model is added by :meth:`shown`.

        Utility of affected and unaffected users is shown together or not at all: with the mean over all users, each
        of them tells the other one.
        """
        if self.shows_all:
            return phase
        before = None if phase.before is None else self.phase(phase.before)
        crowd, rate = self.crowd, phase.demotion_rate
        if self.few:
            metrics = phase.metrics if max(1, crowd.tested) >= _MANY * self.min_group else {}
            metrics = {key: to_step(value, _UTILITY_STEP) for key, value in metrics.items()}
            figures: dict[str, Figure] = {"demotion_rate": None if rate is None else to_step(rate, _RATE_STEP)}
            times = phase.seconds, phase.seconds_from_cache
            return PhaseResult(*times, metrics=metrics, forgetting=figures, before=before)
        hides, histogram = self._hides_utility, phase.distribution
        if histogram is not None and crowd.compared >= _HISTOGRAM * self.min_group:
            step = step_from(max(1.0, sum(histogram.counts) / crowd.compared))  # what an average user adds to it
            edges, counts = [round(edge, 2) for edge in histogram.edges], [to_step(n, step) for n in histogram.counts]
            histogram = schema.Distribution(edges, counts)
        else:
            histogram = None
        return replace(
            phase,
            metrics=_means(phase.metrics, crowd.tested),
            affected={} if hides else _means(phase.affected, crowd.measured),
            unaffected={} if hides else _means(phase.unaffected, crowd.tested - crowd.measured),
            forgetting=self._forgetting(phase.forgetting),
            groups=self._groups(phase.groups),
            before=before,
            distribution=histogram,
            verdict=None,
            recovered=None,
            speedup=None,
        )

    def _forgetting(self, figures: Mapping[str, Figure]) -> dict[str, Figure]:
        """The measures: means over the users that each declares, and counts of what these have."""
        declared = {one.key: one.discloses for one in measures()}
        shown: dict[str, Figure] = {}
        for key, figure in figures.items():
            groups = declared.get(key.partition("@")[0], {"*": "compared"})
            parts: dict[str, Any] = {}
            for part, value in (figure if isinstance(figure, Mapping) else {"": figure}).items():
                users = self._behind(groups.get(part, groups["*"]))
                if users is not None:
                    rounded = _count if isinstance(value, int) else _mean
                    parts[part] = None if value is None else rounded(value, users)
            if parts:
                shown[key] = parts if isinstance(figure, Mapping) else parts[""]
        return shown

    def _groups(self, groups: Mapping[str, dict[str, Metrics]]) -> dict[str, dict[str, Metrics]]:
        """Utility of parts of the users; with one part too small none is shown, as the others would tell it."""

        def rough(part: Metrics) -> Metrics:
            users = int(part["users"])
            return {key: (_count if key == "users" else _mean)(value, users) for key, value in part.items()}

        def is_large(part: Metrics) -> bool:
            return part.get("users", 0) >= self.min_group

        large = {name: parts for name, parts in groups.items() if all(map(is_large, parts.values()))}
        return {name: {part: rough(own) for part, own in parts.items()} for name, parts in large.items()}

    def shown(self, result: RunResult) -> RunResult:
        """The result that may be seen: in `result.json`, in the report and in the table."""
        if self.shows_all:
            return result
        phases = {name: self.phase(phase) for name, phase in result.phases.items()}
        judged = {}
        for name, found in result.phases.items():
            shares = self._shares(found.recovered)
            verdict = self._verdict(found.verdict, schema.seen_from(phases, name), shares or {})
            judged[name] = replace(phases[name], verdict=verdict, recovered=shares, speedup=found.speedup)
        control = result.control
        if control is not None:  # of few users its level alone
            shown = PhaseResult() if self.few else self.phase(control)
            control = replace(shown, verdict=self._verdict(control.verdict, phases | {schema.UNLEARNED: shown}, {}))
        shares, compared = self._shares(result.recovered), self.crowd.compared
        return replace(
            result,
            forget=self.forgotten(result.forget),
            phases=judged,
            certificates={
                key: result.certificates[key] if key in _SETTINGS else value
                for key, value in _blunt_tree(result.certificates).items()
                if key in _FOR_ALL or not self.few
            },
            curves={} if self.few else {
                name: {
                    kind: [(at, _mean(y, compared) if kind.endswith("demotion") else blunt(y)) for at, y in curve]
                    for kind, curve in own.items()
                    if not kind.endswith("attack") or self._behind("matched") is not None
                }
                for name, own in result.curves.items()
            },
            recovered=shares,
            left_out=None if shares is None else result.left_out,
            placebo=self._placebo(result.placebo),
            control=control,
            verdict=self._verdict(result.verdict, phases, shares or {}),
            withheld=self.withheld,
        )  # fmt: skip

    def _shares(self, found: Metrics | None) -> Metrics | None:
        """Shares that were recovered, in steps of a tenth."""
        if found is None or self._hides_utility:
            return None
        return {key: to_step(value, 0.1) for key, value in found.items()}

    def _verdict(self, found: Verdict | None, phases: Mapping[str, PhaseResult], shares: Metrics) -> Verdict | None:
        """The level is that of the exact figures; its sentence has the figures that are shown."""
        return None if found is None else restated(found, {} if self.few else phases, shares)

    def _placebo(self, found: Placebo | None) -> Placebo | None:
        """Figures of deleted pairs, rounded and left out like those of the phases."""
        if found is None or self.few:
            return None
        users, rate = self.crowd.compared, found.demotion_rate
        hidden = {"attack"} if self._behind("matched") is None else set()
        mark, memory = (
            {key: _mean(value, users) for key, value in part.items() if key not in hidden}
            for part in (found.mark, found.memory)
        )
        return Placebo(None if rate is None else _mean(rate, users), mark, memory)
