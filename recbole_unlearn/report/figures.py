"""The figures, as plotly describes them: mappings with `data` and `layout`, drawn by `page.py`.

A phase has the same colour, dash and marker in every figure, so it can be told apart without colours too. The colours
are those of Okabe and Ito, shifted to a contrast of at least 3:1 on white and on the dark background. Paper and plot
are transparent; text and grid lines get their colours from the style sheet, which knows about dark mode and print.
An axis of shares, metrics or losses starts at 0, and every other one has a least span, so that what hardly moves does
not look steep. A function returns None when there is nothing to draw.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from recbole_unlearn.report.values import difference, phase_title
from recbole_unlearn.results import ORIGINAL, RETRAINED, SECOND, UNLEARNED, Curve, PhaseResult

Figure = dict[str, Any]
Phases = Mapping[str, PhaseResult]
# Groupings of `groups` in a result: under which key the size of a group is, and what is counted. The labels are
# narrow enough for plotly to leave them level.
GROUPINGS = {"user_activity": ("users", "users"), "item_popularity": ("rows", "test<br>interactions")}


LEAST_CHANGE = 0.05  # of recall@20, that the axis of changes shows to each side at least
LEAST_SPAN = 0.5  # of the largest value, that an axis which need not start at 0 shows at least
LEAST_SHARE = 0.2  # that an axis of shares or metrics shows at least
LEAST_SHADES = 0.1  # the same for the colours of a heat map


class Look(NamedTuple):
    """How a phase is drawn."""

    color: str
    dash: str
    symbol: str


class Point(NamedTuple):
    """One phase of one run in a trade-off."""

    name: str
    x: float
    y: float


_FIXED = {
    ORIGINAL: Look("#858b94", "solid", "square"),
    UNLEARNED: Look("#1f7ac2", "solid", "circle"),
    RETRAINED: Look("#d55e00", "dash", "diamond"),
    SECOND: Look("#b8860b", "dot", "diamond-open"),
}
_FROM_ZERO = {"rangemode": "tozero"}
_METHODS = (
    Look("#009e73", "dashdot", "triangle-up"),
    Look("#c065a0", "longdash", "triangle-down"),
    Look("#8566c9", "longdashdot", "cross"),
    Look("#3a9fb5", "dot", "x"),
    Look("#8c7a2e", "dash", "star"),
)


def looks(names: Iterable[str]) -> dict[str, Look]:
    """The look of each phase; methods take theirs in the order they come.

    Where no phase is called unlearned, because all go by the name of their method, the first one looks like it.
    """
    names = list(names)
    palette = _METHODS if UNLEARNED in names else (_FIXED[UNLEARNED], *_METHODS)
    methods = [name for name in names if name not in _FIXED]
    return _FIXED | {name: palette[place % len(palette)] for place, name in enumerate(methods)}


def distribution(phases: Phases) -> Figure | None:
    """How the scores of deleted pairs spread: per bin, count / all counts, as steps."""
    traces = []
    for name, look in _drawn(phases):
        spread = phases[name].distribution
        if spread is None or sum(spread.counts) <= 0:
            continue
        edges, counts = spread.edges, spread.counts
        shares = [value / sum(counts) for value in counts]
        trace = _line(name, look, [edges[0], *edges], [0, *shares, 0]) | {"mode": "lines"}
        trace["line"] = {**trace["line"], "shape": "hv"}
        # Filling compared methods as well would hide the three curves the figure is about.
        if name in (ORIGINAL, UNLEARNED, RETRAINED):
            trace |= {"fill": "tozeroy", "fillcolor": _faint(look.color)}
        traces.append(trace)
    axis = {**_FROM_ZERO, "tickformat": ".0%"}
    return _figure(traces, "normalised score of a deleted pair", "share of deleted pairs", y_axis=axis)


def by_k(phases: Phases, metric: str) -> Figure | None:
    """``metric`` of affected users at each K it was measured at, a line per phase."""
    traces = []
    for name, look in _drawn(phases):
        found = {key.partition("@")[::2]: value for key, value in phases[name].affected.items()}
        own = {cut: value for (kind, cut), value in found.items() if kind == metric and cut.isdecimal()}
        if own:
            cuts = sorted(own, key=int)
            traces.append(_line(name, look, cuts, [own[cut] for cut in cuts]))
    return _figure(traces, "K", f"{metric_title(metric)}@K", x_axis={"type": "category"}, y_axis=_FROM_ZERO)


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
    for name, look in _drawn(phases):
        known = changes(phases, name, grouping) if name != ORIGINAL else {}
        if known:
            titles = [_with_size(group, before[group].get(size), unit) for group in known]
            trace = _named(name, "bar", titles, list(known.values()))
            traces.append(trace | {"marker": {"color": look.color}})
    heights = [height for trace in traces for height in trace["y"]]
    low, high = min(heights, default=0.0), max(heights, default=0.0)
    # Room beyond the bars on their own side.
    ends = [min(-LEAST_CHANGE, 1.1 * low), max(LEAST_CHANGE, 1.1 * high)]
    axis = {"zeroline": True, "zerolinewidth": 2, "range": ends, "tickformat": ".2f"}
    title = grouping.replace("_", " ")
    return _figure(traces, title, "change of recall@20", x_axis={"type": "category"}, y_axis=axis)


def curve(
    curves: Mapping[str, Mapping[str, Curve]],
    kind: str,
    y_title: str,
    goal: float | None = None,
    is_share: bool = False,
) -> Figure | None:
    """``kind`` of curve by step of the method, a line per phase; ``goal`` is the retrained model's value.

    The axis of a share goes from 0 to 1, and that of anything else that is never negative starts at 0.
    """
    traces = []
    for name, look in looks(curves).items():
        points = curves.get(name, {}).get(kind, [])
        if len(points) > 1:  # one alone is no line
            steps, heights = zip(*points, strict=True)
            traces.append(_line(name, look, steps, heights) | {"mode": "lines"})
    if traces and goal is not None:
        ends = [min(min(trace["x"]) for trace in traces), max(max(trace["x"]) for trace in traces)]
        traces.append(_line(RETRAINED, _FIXED[RETRAINED], ends, [goal, goal]) | {"mode": "lines"})
    values = [value for trace in traces for value in trace["y"]]
    axis: Mapping[str, Any] = {"range": [0, 1.02]} if is_share else _FROM_ZERO
    if values and min(values) < 0:
        axis = {"range": span(values)}
    return _figure(traces, "step", y_title, y_axis=axis)


def span(values: Sequence[float], least: float = 0.0) -> list[float]:
    """The ends of an axis around ``values``: a tenth of room to each side, and in all at least ``least``.

    At least half of the largest value as well, so that no difference looks larger than it is.
    """
    low, high = min(values), max(values)
    wide = max(1.2 * (high - low), LEAST_SPAN * max(abs(low), abs(high)), least, 1e-9)
    start = (low + high - wide) / 2
    if low >= 0:  # nothing is negative, so neither is the axis
        start = max(0.0, start)
    return [start, start + wide]


def trade_off(
    points: Sequence[Point],
    methods: Mapping[str, Look],
    x_title: str,
    y_title: str,
    logarithmic: bool = False,
) -> Figure | None:
    """A point per phase and run; ``methods`` gives the looks, so that they agree over several figures.

    Both axes are of shares and metrics, between 0 and 1, unless the first is ``logarithmic``.
    """
    traces = []
    for name in dict.fromkeys(point.name for point in points):
        own = [point for point in points if point.name == name]
        trace = _line(name, methods[name], [point.x for point in own], [point.y for point in own])
        marker = {**trace["marker"], "size": 12, "opacity": 0.85}
        # A point at 0 is on the edge, and whole.
        traces.append(trace | {"mode": "markers", "marker": marker, "cliponaxis": False})
    if not points:
        return None
    axis: dict[str, Any] = {} if logarithmic else {"range": span([point.x for point in points], LEAST_SHARE)}
    if logarithmic:
        wide = max(point.x for point in points) > 1000 * min(point.x for point in points)
        # Marks at 1, 2, 5, 10, 20, ...; at powers of ten where those would touch.
        axis = {"type": "log", "tickformat": "~g", "dtick": 1 if wide else "D2"}
    return _figure(
        traces,
        x_title,
        y_title,
        x_axis=axis,
        y_axis={"range": span([point.y for point in points], LEAST_SHARE)},
    )


def heat(
    columns: Sequence[str],
    rows: Sequence[str],
    values: Sequence[Sequence[float | None]],
    x_title: str,
    y_title: str,
    form: str,
) -> Figure | None:
    """A coloured cell per column and row, empty where there is no value; ``form`` is how values are written.

    The colours are Cividis, which reads the same with and without colour vision. They span at least a tenth of the
    largest value, so that values that hardly differ look alike.
    """
    known = [value for row in values for value in row if value is not None]
    if not known:
        return None
    low, high = _shades(known)
    trace = {
        "type": "heatmap",
        "x": [label(name) for name in columns],
        "y": [label(name) for name in rows],
        "z": [list(row) for row in values],
        "colorscale": "Cividis",
        "zmin": low,
        "zmax": high,
        "colorbar": {"tickformat": form, "thickness": 14, "outlinewidth": 0},
        "hovertemplate": f"%{{y}}, %{{x}}: %{{z:{form}}}<extra></extra>",
        "xgap": 1,
        "ygap": 1,
    }
    figure = _figure([trace], x_title, y_title, x_axis={"type": "category"})
    if figure:
        figure["layout"]["yaxis"] |= {"type": "category", "showgrid": False}
        figure["layout"]["showlegend"] = False
    return figure


def _shades(values: Sequence[float]) -> tuple[float, float]:
    """The values at the ends of the colours: the least and the largest, or further apart where they are near."""
    low, high = min(values), max(values)
    more = max(0.0, LEAST_SHADES * max(abs(low), abs(high)) - (high - low)) / 2
    return low - more, high + more


def over_time(
    series: Mapping[str, Sequence[tuple[str, float]]],
    y_title: str,
    limit: float | None = None,
    form: str | None = None,
    whole: bool = False,
) -> Figure | None:
    """Heights that hold from a time (ISO) to the next, a line per name; ``limit`` is one not to be reached.

    ``whole`` heights are counts: their axis has whole numbers only.
    """
    traces = []
    for (name, points), look in zip(series.items(), (_FIXED[UNLEARNED], _FIXED[ORIGINAL]), strict=False):
        if points:
            times, heights = zip(*points, strict=True)
            trace = _line(name, look, times, heights)
            traces.append(trace | {"line": {**trace["line"], "shape": "hv"}, "cliponaxis": False})
    if traces and limit is not None:
        ends = [min(min(trace["x"]) for trace in traces), max(max(trace["x"]) for trace in traces)]
        traces.append(_line("budget", _FIXED[RETRAINED], ends, [limit, limit]) | {"mode": "lines"})
    axis: dict[str, Any] = _FROM_ZERO | ({"tickformat": form} if form else {})
    if traces and whole:
        axis |= {"tick0": 0, "dtick": _whole_step(max(max(trace["y"]) for trace in traces))}
    return _figure(traces, "", y_title, x_axis={"type": "date"}, y_axis=axis)


def _whole_step(largest: float) -> int:
    """The least of 1, 2, 5, 10, 20, … with which an axis from 0 to ``largest`` has at most six steps."""
    return next(
        step * power
        for power in (10**exponent for exponent in itertools.count())
        for step in (1, 2, 5)
        if largest <= 6 * step * power
    )


def deadlines(rows: Sequence[tuple[str, str, str]], now: str) -> Figure | None:
    """For each (name, from, due) a line up to its deadline; times are ISO. Those that have passed look different."""
    waits = _line("waits", _FIXED[ORIGINAL], [], []) | {"mode": "lines"}
    for name, start, due in rows:
        waits["x"] += [start, due, None]
        waits["y"] += [label(name), label(name), None]
    traces = [waits]
    for title, look, passed in (("due", _FIXED[UNLEARNED], False), ("overdue", _FIXED[RETRAINED], True)):
        own = [(due, name) for name, _, due in rows if (due < now) is passed]
        if own:
            marks = _line(title, look, [due for due, _ in own], [label(name) for _, name in own])
            traces.append(marks | {"mode": "markers"})
    figure = _figure(traces if rows else [], "", "", x_axis={"type": "date"}, y_axis={"type": "category"})
    if figure:
        across = {"xref": "x", "yref": "paper", "x0": now, "x1": now, "y0": 0, "y1": 1}
        figure["layout"]["shapes"] = [{"type": "line", **across, "line": {"color": "#858b94", "dash": "dot"}}]
        figure["layout"]["annotations"] = [
            {"x": now, "xref": "x", "y": 0, "yref": "paper", "yanchor": "bottom", "text": "now", "showarrow": False,
             "xanchor": "left", "xshift": 4}
        ]  # fmt: skip
    return figure


def label(text: str) -> str:
    """Text for a figure: plotly reads markup in labels, so it is escaped there as it is in a page."""
    return html.escape(text, quote=False)


def metric_title(metric: str) -> str:
    """NDCG@20 of ndcg@20, Recall@20 of recall@20."""
    name, at, cut = metric.partition("@")
    return (name.upper() if name in ("ndcg", "mrr", "map", "gauc") else name.capitalize()) + at + cut


def _drawn(phases: Phases) -> list[tuple[str, Look]]:
    chosen = looks(phases)
    return [(name, chosen[name]) for name in phases]


def _named(name: str, kind: str, x: Sequence[Any], y: Sequence[Any]) -> dict[str, Any]:
    return {"type": kind, "name": label(phase_title(name)), "x": list(x), "y": list(y)}


def _line(name: str, look: Look, x: Sequence[Any], y: Sequence[Any]) -> dict[str, Any]:
    return _named(name, "scatter", x, y) | {
        "mode": "lines+markers",
        "line": {"color": look.color, "dash": look.dash, "width": 3 if name == UNLEARNED else 2},
        "marker": {"color": look.color, "symbol": look.symbol, "size": 8},
    }


def _figure(
    traces: list[dict[str, Any]],
    x_title: str,
    y_title: str,
    x_axis: Mapping[str, Any] | None = None,
    y_axis: Mapping[str, Any] | None = None,
) -> Figure | None:
    if not traces:
        return None
    axis = {"automargin": True, "zeroline": False, "ticks": "", "fixedrange": True}
    layout: dict[str, Any] = {
        "autosize": True,
        "margin": {"l": 56, "r": 16, "t": 8, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
        "hovermode": "closest",
        "bargap": 0.25,
        "xaxis": {**axis, "title": {"text": label(x_title)}, "showgrid": False, **(x_axis or {})},
        "yaxis": {**axis, "title": {"text": label(y_title), "standoff": 10}, **(y_axis or {})},
    }
    return {"data": traces, "layout": layout}


def _with_size(group: str, size: float | None, unit: str) -> str:
    return label(group) + (f"<br>{size:,.0f} {unit}" if size is not None else "")


def _faint(color: str) -> str:
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.14)"
