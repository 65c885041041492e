"""Where the parts of a figure are, for the SVG of `templates/figure.html`; units are those of its viewBox."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from recbole_unlearn.report.figures import Axis, Figure, Trace

WIDTH, HEIGHT = 560, 330
LEFT, RIGHT, TOP, BOTTOM = 76, 550, 14, 262  # the plot; ticks and titles are outside
MOST = 6  # ticks of an axis
BARS = 0.75  # of a category's width


class Scale(NamedTuple):
    """From values to places on an axis, with its ticks."""

    low: float
    high: float
    start: float
    end: float
    names: Sequence[str] = ()  # of categories, which are at 0, 1, 2, …
    kind: str = "linear"

    @classmethod
    def of(cls, axis: Axis, values: Sequence[Any], start: float, end: float) -> "Scale":
        """For an axis with these values."""
        names = list(dict.fromkeys(values)) if axis.kind == "category" else ()
        plain = cls(0, 1, start, end, names, axis.kind)
        if names:
            return plain._replace(low=-0.5, high=len(names) - 0.5)
        found = [plain.number(value) for value in axis.ends or values]
        low, high = min(found), max(found)
        if axis.ends is None and start > end:  # heights begin at 0, and the highest has room
            low, high = min(low, 0.0), high + 0.05 * (high - min(low, 0.0))
        return plain._replace(low=low, high=high if high > low else low + 1.0)

    def number(self, value: Any) -> float:
        """A value as a number on the axis."""
        if self.kind == "category":
            return float(self.names.index(value))
        return math.log10(value) if self.kind == "log" else float(value)

    def at(self, number: float) -> float:
        """The place of a number."""
        return round(self.start + (self.end - self.start) * (number - self.low) / (self.high - self.low), 1)

    def ticks(self, is_share: bool) -> list[tuple[float, list[str]]]:
        """Places and lines of text."""
        if self.names:
            return [(self.at(place), name.split("\n")) for place, name in enumerate(self.names)]
        if self.kind == "log":
            powers = range(math.floor(self.low), math.ceil(self.high) + 1)
            marks = [m * 10.0**power for power in powers for m in ((1, 2, 5) if self.high - self.low < 2.5 else (1,))]
            return [(self.at(math.log10(x)), [f"{x:g}"]) for x in marks if self.low <= math.log10(x) <= self.high]
        rough = (self.high - self.low) / MOST
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * (1 - 1e-9))
        digits = max(0, -math.floor(math.log10(step) + 1e-9) - 2 * is_share)
        marks = [k * step for k in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)]
        form = f"z.{digits}%" if is_share else f"z.{digits}f"
        return [(self.at(x), [f"{x:{form}}".replace("-", "−")]) for x in marks]


def layout(figure: Figure) -> dict[str, Any]:
    """What the template draws: ticks, the line of zero, and of every trace a path, points and bars."""
    places, heights = ([point[side] for trace in figure.traces for point in trace.points] for side in (0, 1))
    x, y = Scale.of(figure.x, places, LEFT, RIGHT), Scale.of(figure.y, heights, BOTTOM, TOP)
    bars = [trace for trace in figure.traces if trace.kind == "bars"]
    drawn = []
    for trace in figure.traces:
        points = [(x.at(x.number(place)), y.at(height)) for place, height in trace.points]
        told = [f"{trace.name}: {str(place).replace(chr(10), ', ')}, {height:.4g}" for place, height in trace.points]
        own: dict[str, Any] = {"name": trace.name, "look": trace.look, "path": "", "signs": [], "bars": []}
        if trace.kind == "bars":
            wide = BARS * (RIGHT - LEFT) / len(x.names) / len(bars)
            first = bars.index(trace) * wide - BARS * (RIGHT - LEFT) / len(x.names) / 2
            ends = [(left + first, *sorted((top, y.at(0.0)))) for left, top in points]
            own["bars"] = [
                (round(left, 1), top, round(wide, 1), round(bottom - top, 1), text)
                for (left, top, bottom), text in zip(ends, told, strict=True)
            ]
        elif trace.kind != "points":
            own["path"] = path(trace, points)
        if trace.kind in ("points", "both"):
            own["signs"] = [(*point, text) for point, text in zip(points, told, strict=True)]
        own["fill"] = f"{own['path']}V{y.at(0.0)}H{points[0][0]}Z" if trace.kind == "filled" else ""
        drawn.append(own)
    zero = y.at(0.0) if y.low < 0 < y.high else None
    ticks = x.ticks(figure.x.is_share)
    below = max((len(lines) for _, lines in ticks), default=1)
    return {
        "traces": drawn, "zero": zero, "title_at": 288 + 17 * below, "x": figure.x.title, "y": figure.y.title,
        "x_ticks": ticks, "y_ticks": y.ticks(figure.y.is_share),
    }  # fmt: skip


def path(trace: Trace, points: Sequence[tuple[float, float]]) -> str:
    """A line through points; of steps, each height holds until the next place."""
    (left, top), *rest = points
    step = (lambda x, y: f"H{x}V{y}") if trace.kind in ("steps", "filled") else (lambda x, y: f"L{x} {y}")
    return f"M{left} {top}" + "".join(step(*point) for point in rest)
