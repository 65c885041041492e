"""The figures: what they show of which phase, and where its lines are in the SVG of `templates/figure.html`.

A phase has the same color and dash in every figure, so it can be told apart without colors too. The colors are those
of Okabe and Ito, shifted to a contrast of at least 3:1 on white and on the dark background. Heights start at 0 where
nothing is negative: small changes must not look steep.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from recbole_unlearn.report.page import phase_title
from recbole_unlearn.results import ORIGINAL, RETRAINED, SECOND, UNLEARNED, Curve, PhaseResult

LEFT, RIGHT, TOP, BOTTOM = 76, 550, 14, 262  # the plot in its viewBox; ticks and titles are outside
MOST = 6  # ticks of an axis
Figure = dict[str, Any]  # what the template draws


class Look(NamedTuple):
    """How a phase is drawn: color, and lengths of dashes and gaps."""

    color: str
    dash: str = "none"


class Trace(NamedTuple):
    """What is drawn of one phase; ``kind`` is lines, steps or filled (steps)."""

    name: str
    look: Look
    points: Sequence[tuple[float, float]]
    kind: str = "lines"


_FIXED = {
    ORIGINAL: Look("#858b94"), UNLEARNED: Look("#1f7ac2"), RETRAINED: Look("#d55e00", "8 5"),
    SECOND: Look("#b8860b", "2 4"),
}  # fmt: skip
_METHODS = (
    Look("#009e73", "8 4 2 4"), Look("#c065a0", "14 6"), Look("#8566c9", "14 5 2 5"), Look("#3a9fb5", "2 4"),
    Look("#8c7a2e", "8 5"),
)  # fmt: skip


def looks(names: Iterable[str]) -> dict[str, Look]:
    """The look of each phase; compared methods in their order."""
    methods = [name for name in names if name not in _FIXED]
    return _FIXED | {name: _METHODS[place % len(_METHODS)] for place, name in enumerate(methods)}


def distribution(phases: Mapping[str, PhaseResult]) -> Figure | None:
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
    return layout(traces, "normalized score of a deleted pair", "share of deleted pairs", in_percent=True)


def curve(
    curves: Mapping[str, Mapping[str, Curve]],
    kind: str,
    titles: tuple[str, str],
    goal: float | None = None,
    most: float | None = None,
) -> Figure | None:
    """A ``kind`` of curve, a line per phase, with the retrained ``goal`` as a level; heights up to ``most``."""
    found = {name: curves.get(name, {}).get(kind, []) for name in looks(curves)}
    traces = [Trace(name, looks(curves)[name], points) for name, points in found.items() if len(points) > 1]
    places = [place for trace in traces for place, _ in trace.points]
    if goal is not None and places:
        traces.append(Trace(RETRAINED, _FIXED[RETRAINED], [(min(places), goal), (max(places), goal)]))
    return layout(traces, *titles, most=most)


def layout(
    traces: Sequence[Trace], x_title: str, y_title: str, most: float | None = None, in_percent: bool = False
) -> Figure | None:
    """The places of ticks and of every trace's path; None where there is nothing to draw."""
    if not traces:
        return None
    places, heights = ([float(point[side]) for trace in traces for point in trace.points] for side in (0, 1))
    low = min(0.0, *heights)
    high = max(heights) + 0.05 * (max(heights) - low) if most is None else most
    x, y = _Scale.of(min(places), max(places), LEFT, RIGHT), _Scale.of(low, high, BOTTOM, TOP)
    drawn = []
    for trace in traces:
        (left, top), *rest = [(x.at(place), y.at(height)) for place, height in trace.points]
        step = "L{} {}" if trace.kind == "lines" else "H{}V{}"  # of steps, a height holds until the next place
        path = f"M{left} {top}" + "".join(step.format(*point) for point in rest)
        fill = f"{path}V{y.at(0.0)}H{left}Z" if trace.kind == "filled" else ""
        drawn.append({"name": phase_title(trace.name), "look": trace.look, "path": path, "fill": fill})
    return {
        "traces": drawn, "x": x_title, "y": y_title, "x_ticks": x.ticks(False), "y_ticks": y.ticks(in_percent),
        "zero": y.at(0.0) if low < 0 < high else None,
    }  # fmt: skip


class _Scale(NamedTuple):
    """From values to places on an axis, with its ticks."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def of(cls, low: float, high: float, start: float, end: float) -> "_Scale":
        return cls(low, high if high > low else low + max(1.0, abs(low) / 1e6), start, end)

    def at(self, value: float) -> float:
        """The place of a value."""
        return round(self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low), 1)

    def ticks(self, in_percent: bool) -> list[tuple[float, str]]:
        """Places and texts."""
        rough = (self.high - self.low) / MOST
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * (1 - 1e-9))
        digits = max(0, -math.floor(math.log10(step) + 1e-9) - 2 * in_percent)
        marks = [k * step for k in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)]
        form = f"z.{digits}%" if in_percent else f"z.{digits}f"
        return [(self.at(mark), f"{mark:{form}}".replace("-", "−")) for mark in marks]
