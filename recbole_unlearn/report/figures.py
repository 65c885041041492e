"""The figures: what they show of which phase, as lines, points or bars on two axes. None where there is nothing.

A phase has the same color, dash and marker in every figure, so it can be told apart without colors too. The colors
are those of Okabe and Ito, shifted to a contrast of at least 3:1 on white and on the dark background. An axis of
shares, metrics or losses starts at 0, every other one has a least span: small changes must not look steep.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from recbole_unlearn.report.page import difference, metric_title, phase_title
from recbole_unlearn.results import ORIGINAL, RETRAINED, SECOND, UNLEARNED, Curve, PhaseResult

Phases = Mapping[str, PhaseResult]
Point = tuple[str, float, float]  # the name of a phase, x and y
# Groupings of `groups` in a result: the key of a group's size, and the unit.
GROUPINGS = {"user_activity": ("users", "users"), "item_popularity": ("rows", "test interactions")}
LEAST_CHANGE = 0.05  # of recall@20, that the axis of changes shows to each side at least
LEAST_SPAN = 0.5  # of the largest value, that an axis which need not start at 0 shows at least
LEAST_SHARE = 0.2  # that an axis of shares or metrics shows at least


class Look(NamedTuple):
    """How a phase is drawn: color, lengths of dashes and gaps, and the sign of its points."""

    color: str
    dash: str
    sign: str


class Trace(NamedTuple):
    """What is drawn of one phase; ``kind`` is lines, points, both, steps, filled (steps) or bars."""

    name: str
    look: Look
    points: list[tuple[Any, float]]
    kind: str = "both"


class Axis(NamedTuple):
    """One axis; ``kind`` is linear, log or category."""

    title: str
    ends: Sequence[float] | None = None  # None: from 0, or where the values begin, to where they end
    kind: str = "linear"
    is_share: bool = False  # written in percent


class Figure(NamedTuple):
    """What `drawing.py` draws."""

    traces: list[Trace]
    x: Axis
    y: Axis


_FIXED = {
    ORIGINAL: Look("#858b94", "", "■"),
    UNLEARNED: Look("#1f7ac2", "", "●"),
    RETRAINED: Look("#d55e00", "8 5", "◆"),
    SECOND: Look("#b8860b", "2 4", "◇"),
}
_METHODS = (
    Look("#009e73", "8 4 2 4", "▲"),
    Look("#c065a0", "14 6", "▼"),
    Look("#8566c9", "14 5 2 5", "✚"),
    Look("#3a9fb5", "2 4", "✖"),
    Look("#8c7a2e", "8 5", "★"),
)
LOOKS = (*_FIXED.values(), *_METHODS)


def looks(names: Iterable[str]) -> dict[str, Look]:
    """The look of each phase; methods in their order, the first as unlearned where no phase is called that."""
    names = list(names)
    palette = _METHODS if UNLEARNED in names else (_FIXED[UNLEARNED], *_METHODS)
    methods = [name for name in names if name not in _FIXED]
    return _FIXED | {name: palette[place % len(palette)] for place, name in enumerate(methods)}


def _figure(traces: list[Trace], x: Axis, y: Axis) -> Figure | None:
    titled = [trace._replace(name=phase_title(trace.name)) for trace in traces]
    return Figure(titled, x, y) if traces else None


def distribution(phases: Phases) -> Figure | None:
    """How the scores of deleted pairs spread: per bin, count / all counts, as steps."""
    traces = []
    for name, look in looks(phases).items():
        spread = phases.get(name, PhaseResult()).distribution
        if spread is None or sum(spread.counts) <= 0:
            continue
        shares = [value / sum(spread.counts) for value in spread.counts]
        points = [(spread.edges[0], 0.0), *zip(spread.edges, [*shares, 0.0], strict=True)]
        # Filling compared methods as well would hide the three curves the figure is about.
        traces.append(Trace(name, look, points, "filled" if name in (ORIGINAL, UNLEARNED, RETRAINED) else "steps"))
    return _figure(traces, Axis("normalized score of a deleted pair"), Axis("share of deleted pairs", is_share=True))


def by_k(phases: Phases, metric: str) -> Figure | None:
    """``metric`` of affected users at each K it was measured at, a line per phase."""
    traces = []
    for name, look in looks(phases).items():
        found = {key.partition("@")[::2]: v for key, v in phases.get(name, PhaseResult()).affected.items()}
        own = [(cut, value) for (kind, cut), value in found.items() if kind == metric and cut.isdecimal()]
        if own:
            traces.append(Trace(name, look, sorted(own, key=lambda point: int(point[0]))))
    return _figure(traces, Axis("K", kind="category"), Axis(f"{metric_title(metric)}@K"))


def changes(phases: Phases, name: str, grouping: str) -> dict[str, float]:
    """By group, recall@20 of phase ``name`` − recall@20 of the original, where both are known."""
    before, after = (phases.get(phase, PhaseResult()).groups.get(grouping, {}) for phase in (ORIGINAL, name))
    found = {
        group: difference(own.get("recall@20"), before.get(group, {}).get("recall@20"))
        for group, own in after.items()
    }
    return {group: change for group, change in found.items() if change is not None}


def damage(phases: Phases, grouping: str) -> Figure | None:
    """Change of recall@20 against the original, recall(phase) − recall(original), a bar per group and phase."""
    before = phases.get(ORIGINAL, PhaseResult()).groups.get(grouping, {})
    size, unit = GROUPINGS[grouping]
    traces = []
    for name, look in looks(phases).items():
        known = changes(phases, name, grouping) if name != ORIGINAL else {}
        titles = [f"{one}\n{before[one][size]:,.0f} {unit}" if size in before[one] else one for one in known]
        if known:
            traces.append(Trace(name, look, list(zip(titles, known.values(), strict=True)), "bars"))
    heights = [1.1 * height for trace in traces for _, height in trace.points]  # room beyond the bars on their side
    ends = [min([-LEAST_CHANGE, *heights]), max([LEAST_CHANGE, *heights])]
    return _figure(traces, Axis(grouping.replace("_", " "), kind="category"), Axis("change of recall@20", ends))


def curve(
    curves: dict[str, dict[str, Curve]], kind: str, y_title: str, goal: float | None = None, is_share: bool = False,
    unit: str = "step",
) -> Figure | None:  # fmt: skip
    """A ``kind`` of curve by ``unit``, a line per phase, with the retrained model's ``goal``; shares up to 1."""
    traces = []
    for name, look in looks(curves).items():
        points = curves.get(name, {}).get(kind, [])
        if len(points) > 1:  # one alone is no line
            traces.append(Trace(name, look, [(x, y) for x, y in points], "lines"))
    if goal is not None:
        traces += _level(traces, RETRAINED, goal)
    values = [value for trace in traces for _, value in trace.points]
    ends = [0, 1.02] if is_share else span(values) if values and min(values) < 0 else None
    return _figure(traces, Axis(unit), Axis(y_title, ends))


def _level(traces: Sequence[Trace], name: str, height: float) -> list[Trace]:
    """A level line below all ``traces``; none without traces."""
    places = [place for trace in traces for place, _ in trace.points]
    ends = [(min(places), height), (max(places), height)] if places else []
    return [Trace(name, _FIXED[RETRAINED], ends, "lines")] if places else []


def span(values: Sequence[float], least: float = 0.0) -> list[float]:
    """The ends of an axis around ``values``: a tenth of room, at least ``least`` and half of the largest value."""
    low, high = min(values), max(values)
    wide = max(1.2 * (high - low), LEAST_SPAN * max(abs(low), abs(high)), least, 1e-9)
    start = (low + high - wide) / 2
    if low >= 0:  # nothing is negative, so neither is the axis
        start = max(0.0, start)
    return [start, start + wide]


def trade_off(
    points: Sequence[Point], methods: Mapping[str, Look], x_title: str, y_title: str, logarithmic: bool = False
) -> Figure | None:
    """A point per phase and run, with the looks of ``methods``; axes of shares, or in x ``logarithmic``."""
    points = [point for point in points if point[1] > 0 or not logarithmic]
    if not points:
        return None
    traces = [
        Trace(name, methods[name], [(x, y) for one, x, y in points if one == name], "points")
        for name in dict.fromkeys(name for name, _, _ in points)
    ]
    places, heights = [x for _, x, _ in points], [y for _, _, y in points]
    ends = [min(places) / 1.5, max(places) * 1.5] if logarithmic else span(places, LEAST_SHARE)
    x = Axis(x_title, ends, "log" if logarithmic else "linear")
    return _figure(traces, x, Axis(y_title, span(heights, LEAST_SHARE)))
