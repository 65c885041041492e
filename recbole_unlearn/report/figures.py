"""The figures, as plotly describes them: mappings with `data` and `layout`. None where there is nothing to draw.

A phase has the same color, dash and marker in every figure, so it can be told apart without colors too. The colors
are those of Okabe and Ito, shifted to a contrast of at least 3:1 on white and on the dark background. Paper and plot
are transparent; text and grid lines get their colors from the style sheet, which knows about dark mode and print. An
axis of shares, metrics or losses starts at 0, every other one has a least span: small changes must not look steep.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from recbole_unlearn.report.page import difference, metric_title, phase_title
from recbole_unlearn.results import ORIGINAL, RETRAINED, SECOND, UNLEARNED, Curve, PhaseResult

Figure = dict[str, Any]
Phases = Mapping[str, PhaseResult]
Point = tuple[str, float, float]  # the name of a phase, x and y
Steps = Sequence[tuple[str, float]]  # a time (ISO), and the height from then on
# Groupings of `groups` in a result: the key of a group's size, and the unit. Labels are narrow enough to stay level.
GROUPINGS = {"user_activity": ("users", "users"), "item_popularity": ("rows", "test<br>interactions")}
LEAST_CHANGE = 0.05  # of recall@20, that the axis of changes shows to each side at least
LEAST_SPAN = 0.5  # of the largest value, that an axis which need not start at 0 shows at least
LEAST_SHARE = 0.2  # that an axis of shares or metrics shows at least


class Look(NamedTuple):
    """How a phase is drawn."""

    color: str
    dash: str
    symbol: str


_FIXED = {
    ORIGINAL: Look("#858b94", "solid", "square"),
    UNLEARNED: Look("#1f7ac2", "solid", "circle"),
    RETRAINED: Look("#d55e00", "dash", "diamond"),
    SECOND: Look("#b8860b", "dot", "diamond-open"),
}
_METHODS = (
    Look("#009e73", "dashdot", "triangle-up"),
    Look("#c065a0", "longdash", "triangle-down"),
    Look("#8566c9", "longdashdot", "cross"),
    Look("#3a9fb5", "dot", "x"),
    Look("#8c7a2e", "dash", "star"),
)
LOOKS = (*_FIXED.values(), *_METHODS)
_FROM_ZERO = {"rangemode": "tozero"}
_CATEGORIES = {"type": "category"}


def looks(names: Iterable[str]) -> dict[str, Look]:
    """The look of each phase; methods in their order, the first as unlearned where no phase is called that."""
    names = list(names)
    palette = _METHODS if UNLEARNED in names else (_FIXED[UNLEARNED], *_METHODS)
    methods = [name for name in names if name not in _FIXED]
    return _FIXED | {name: palette[place % len(palette)] for place, name in enumerate(methods)}


def label(text: str) -> str:
    """Text for a figure, escaped: plotly reads markup in labels."""
    return html.escape(text, quote=False)


def _trace(name: str, look: Look, points: Iterable[tuple[Any, Any]], mode: str = "lines+markers") -> Figure:
    x, y = zip(*points, strict=True) if (points := list(points)) else ((), ())
    return {
        "type": "scatter", "name": label(phase_title(name)), "x": list(x), "y": list(y), "mode": mode,
        "line": {"color": look.color, "dash": look.dash, "width": 3 if name == UNLEARNED else 2},
        "marker": {"color": look.color, "symbol": look.symbol, "size": 8},
    }  # fmt: skip


def _figure(
    traces: list[Figure], x_title: str, y_title: str, x_axis: Mapping[str, Any], y_axis: Mapping[str, Any]
) -> Figure | None:
    if not traces:
        return None
    axis = {"automargin": True, "zeroline": False, "ticks": "", "fixedrange": True}
    layout: dict[str, Any] = {
        "autosize": True, "margin": {"l": 56, "r": 16, "t": 8, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13}, "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
        "hovermode": "closest", "bargap": 0.25,
        "xaxis": {**axis, "title": {"text": label(x_title)}, "showgrid": False, **x_axis},
        "yaxis": {**axis, "title": {"text": label(y_title), "standoff": 10}, **y_axis},
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def distribution(phases: Phases) -> Figure | None:
    """How the scores of deleted pairs spread: per bin, count / all counts, as steps."""
    traces = []
    for name, look in looks(phases).items():
        spread = phases.get(name, PhaseResult()).distribution
        if spread is None or sum(spread.counts) <= 0:
            continue
        edges, shares = spread.edges, [value / sum(spread.counts) for value in spread.counts]
        trace = _trace(name, look, zip([edges[0], *edges], [0, *shares, 0], strict=True), "lines")
        trace["line"]["shape"] = "hv"
        # Filling compared methods as well would hide the three curves the figure is about.
        if name in (ORIGINAL, UNLEARNED, RETRAINED):
            red, green, blue = (int(look.color[start : start + 2], 16) for start in (1, 3, 5))
            trace |= {"fill": "tozeroy", "fillcolor": f"rgba({red},{green},{blue},0.14)"}
        traces.append(trace)
    axis = {**_FROM_ZERO, "tickformat": ".0%"}
    return _figure(traces, "normalized score of a deleted pair", "share of deleted pairs", {}, axis)


def by_k(phases: Phases, metric: str) -> Figure | None:
    """``metric`` of affected users at each K it was measured at, a line per phase."""
    traces = []
    for name, look in looks(phases).items():
        found = {key.partition("@")[::2]: v for key, v in phases.get(name, PhaseResult()).affected.items()}
        own = [(cut, value) for (kind, cut), value in found.items() if kind == metric and cut.isdecimal()]
        if own:
            traces.append(_trace(name, look, sorted(own, key=lambda point: int(point[0]))))
    return _figure(traces, "K", f"{metric_title(metric)}@K", _CATEGORIES, _FROM_ZERO)


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
    traces: list[Figure] = []
    for name, look in looks(phases).items():
        known = changes(phases, name, grouping) if name != ORIGINAL else {}
        if known:
            sizes = [f"<br>{before[one][size]:,.0f} {unit}" if size in before[one] else "" for one in known]
            titles = [label(group) + amount for group, amount in zip(known, sizes, strict=True)]
            bars = {"type": "bar", "name": label(phase_title(name)), "x": titles, "y": list(known.values())}
            traces.append(bars | {"marker": {"color": look.color}})
    heights = [1.1 * height for trace in traces for height in trace["y"]]  # room beyond the bars on their side
    ends = [min([-LEAST_CHANGE, *heights]), max([LEAST_CHANGE, *heights])]
    axis = {"zeroline": True, "zerolinewidth": 2, "range": ends, "tickformat": ".2f"}
    return _figure(traces, grouping.replace("_", " "), "change of recall@20", _CATEGORIES, axis)


def curve(
    curves: dict[str, dict[str, Curve]], kind: str, y_title: str, goal: float | None = None, is_share: bool = False,
    unit: str = "step",
) -> Figure | None:  # fmt: skip
    """A ``kind`` of curve by ``unit``, a line per phase, with the retrained model's ``goal``; shares up to 1."""
    traces = []
    for name, look in looks(curves).items():
        points = curves.get(name, {}).get(kind, [])
        if len(points) > 1:  # one alone is no line
            traces.append(_trace(name, look, points, "lines"))
    if goal is not None:
        traces += _level(traces, RETRAINED, goal)
    values = [value for trace in traces for value in trace["y"]]
    axis: Mapping[str, Any] = {"range": [0, 1.02]} if is_share else _FROM_ZERO
    if values and min(values) < 0:
        axis = {"range": span(values)}
    return _figure(traces, unit, y_title, {}, axis)


def _level(traces: Sequence[Figure], name: str, height: float) -> list[Figure]:
    """A level line below all ``traces``; none without traces."""
    places = [place for trace in traces for place in trace["x"]]
    ends = [(min(places), height), (max(places), height)] if places else []
    return [_trace(name, _FIXED[RETRAINED], ends, "lines")] if places else []


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
    if not points:
        return None
    traces = []
    for name in dict.fromkeys(name for name, _, _ in points):
        trace = _trace(name, methods[name], [(x, y) for one, x, y in points if one == name], "markers")
        trace["marker"] |= {"size": 12, "opacity": 0.85}
        traces.append(trace | {"cliponaxis": False})  # a point at 0 is on the edge, and whole
    places, heights = [x for _, x, _ in points], [y for _, _, y in points]
    # Logarithmic marks are at 1, 2, 5, 10, 20, ...; at powers of ten where those would touch.
    log = {"type": "log", "tickformat": "~g", "dtick": 1 if max(places) > 1000 * min(places) else "D2"}
    axis = log if logarithmic else {"range": span(places, LEAST_SHARE)}
    return _figure(traces, x_title, y_title, axis, {"range": span(heights, LEAST_SHARE)})


def over_time(name: str, points: Steps, limit: float, form: str = "") -> Figure | None:
    """Heights from a time (ISO) to the next, and a ``limit``."""
    trace = _trace(name, _FIXED[UNLEARNED], points)
    trace["line"]["shape"] = "hv"
    traces = [trace | {"cliponaxis": False}]
    axis: dict[str, Any] = _FROM_ZERO | ({"tickformat": form} if form else {})
    return _figure(traces + _level(traces, "budget", limit), "", name, {"type": "date"}, axis)
