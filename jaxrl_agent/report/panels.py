"""The panels on two axes that the report's figures are made of: lines, intervals, shares and a heat map."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Callable, Sequence

from jaxrl_agent.report import svg
from jaxrl_agent.report.rows import RowPanel
from jaxrl_agent.report.svg import Axis, tag

Number = float | None


@dataclasses.dataclass(frozen=True)
class Series:
    """One line: its colour slot, points, optional interval band and optional unsmoothed values behind it."""

    label: str
    slot: int
    xs: Sequence[float]
    ys: Sequence[Number]
    lows: Sequence[Number] | None = None
    highs: Sequence[Number] | None = None
    faint: Sequence[Number] | None = None


@dataclasses.dataclass(frozen=True)
class LinePanel:
    """Lines over one horizontal axis."""

    title: str
    x_label: str
    x_axis: Axis
    y_axis: Axis
    series: tuple[Series, ...]
    marks: bool = False
    text: Callable[[float], str] = svg.plain
    reference: float | None = None  # height of a line to hold the others against

    def render(self) -> str:
        """SVG of the panel."""
        layers = [svg.frame(self.x_axis, self.y_axis, self.x_label)]
        if self.reference is not None:
            y = self.y_axis.y(self.reference)
            layers.append(tag("line", x1=svg.LEFT, x2=svg.WIDTH - svg.RIGHT, y1=y, y2=y, class_="zero"))
        layers += [self._band(s) for s in self.series if s.lows is not None]
        layers += [self._stroke(s, s.faint, "faint") for s in self.series if s.faint is not None]
        layers += [self._stroke(s, s.ys, "line") for s in self.series]
        layers += [self._marks(s) if self.marks else self._last_mark(s) for s in self.series]
        names = ", ".join(s.label for s in self.series)
        return svg.drawing("".join(layers), f"{self.title} against {self.x_label}: {names}")

    def _points(self, series: Series, values: Sequence[Number]) -> list[tuple[float, float]]:
        return [
            (self.x_axis.x(x), math.nan if y is None else self.y_axis.y(y))
            for x, y in zip(series.xs, values, strict=True)
        ]

    def _stroke(self, series: Series, values: Sequence[Number], class_: str) -> str:
        return tag("path", d=svg.path(self._points(series, values)), class_=f"{class_} slot-{series.slot}")

    def _band(self, series: Series) -> str:
        upper = [p for p in self._points(series, series.highs) if not math.isnan(p[1])]
        lower = [p for p in self._points(series, series.lows) if not math.isnan(p[1])]
        outline = svg.path([*upper, *reversed(lower)])
        return tag("path", d=f"{outline}Z" if outline else "", class_=f"band slot-{series.slot}")

    def _marks(self, series: Series) -> str:
        parts = []
        for i, (x, y) in enumerate(self._points(series, series.ys)):
            if math.isnan(y):
                continue
            text = f"{series.label}: {self.text(series.ys[i])}"
            if series.lows is not None and series.lows[i] is not None:
                text += f" [{self.text(series.lows[i])}, {self.text(series.highs[i])}]"
            hit = tag("circle", cx=x, cy=y, r=11.0, class_="hit")
            parts.append(tag("g", tag("title", html.escape(text)), svg.marker(series.slot, x, y), hit))
        return tag("g", *parts, class_=f"slot-{series.slot}")

    def _last_mark(self, series: Series) -> str:
        """The mark alone at the end of a line: tells lines apart without colour."""
        known = [point for point in self._points(series, series.ys) if not math.isnan(point[1])]
        return tag("g", svg.marker(series.slot, *known[-1]), class_=f"slot-{series.slot}") if known else ""


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate with its interval on one row of an IntervalPanel."""

    row: int
    label: str
    slot: int
    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class IntervalPanel:
    """Estimates with whiskers, grouped in rows, and a line at zero."""

    title: str
    x_label: str
    rows: tuple[str, ...]
    axis: Axis
    intervals: tuple[Interval, ...]

    def render(self) -> str:
        """SVG of the panel."""
        bottom = svg.HEIGHT - svg.BOTTOM
        parts = [svg.label(self.x_label, (svg.LEFT + svg.WIDTH - svg.RIGHT) / 2, svg.HEIGHT - 6, class_="axis-label")]
        for value, text in self.axis.ticks:
            x = self.axis.x(value)
            class_ = "zero" if abs(value) < 1e-12 else "grid"
            parts.append(tag("line", x1=x, x2=x, y1=svg.TOP, y2=bottom, class_=class_))
            parts.append(svg.label(text, x, bottom + 16))
        step = (bottom - svg.TOP) / max(1, len(self.rows))
        for i, text in enumerate(self.rows):
            parts.append(svg.label(text, svg.LEFT - 7, svg.TOP + (i + 0.5) * step + 3.8, anchor="end"))
            if i:
                y = svg.TOP + i * step
                parts.append(tag("line", x1=svg.LEFT, x2=svg.WIDTH - svg.RIGHT, y1=y, y2=y, class_="row-rule"))
        parts += [self._whisker(interval, step) for interval in self.intervals]
        return svg.drawing("".join(parts), f"{self.title}, with 95% intervals")

    def _whisker(self, interval: Interval, step: float) -> str:
        siblings = [other for other in self.intervals if other.row == interval.row]
        place = (siblings.index(interval) + 1) / (len(siblings) + 1)
        y = svg.TOP + (interval.row + place) * step
        low, mid, high = (self.axis.x(v) for v in (interval.low, interval.value, interval.high))
        text = (
            f"{interval.label}, {self.rows[interval.row]}: "
            f"{svg.points(interval.value)} [{svg.points(interval.low)}, {svg.points(interval.high)}]"
        )
        return tag(
            "g",
            tag("title", html.escape(text)),
            tag("line", x1=low, x2=high, y1=y, y2=y, class_="whisker"),
            svg.marker(interval.slot, mid, y),
            tag("rect", x=low - 6, y=y - 7, width=high - low + 12, height=14.0, class_="hit"),
            class_=f"slot-{interval.slot}",
        )


@dataclasses.dataclass(frozen=True)
class SharePanel:
    """Shares that add up to one, stacked over one horizontal axis."""

    title: str
    x_label: str
    x_axis: Axis
    xs: Sequence[float]
    layers: tuple[tuple[str, str, Sequence[float]], ...]  # label, class, shares in 0..1

    def render(self) -> str:
        """SVG of the panel."""
        y_axis = svg.nice_axis((0.0, 1.0), text=svg.percent)
        floor = [0.0] * len(self.xs)
        areas = []
        for name, class_, shares in self.layers:
            ceiling = [f + s for f, s in zip(floor, shares, strict=True)]
            up = [(self.x_axis.x(x), y_axis.y(min(1.0, c))) for x, c in zip(self.xs, ceiling, strict=True)]
            down = [(self.x_axis.x(x), y_axis.y(min(1.0, f))) for x, f in zip(self.xs, floor, strict=True)]
            outline = f"{svg.path([*up, *reversed(down)])}Z"
            areas.append(tag("path", tag("title", html.escape(name)), d=outline, class_=f"share {class_}"))
            floor = ceiling
        names = ", ".join(name for name, _, _ in self.layers)
        return svg.drawing(svg.frame(self.x_axis, y_axis, self.x_label) + "".join(areas), f"{self.title}: {names}")


@dataclasses.dataclass(frozen=True)
class HeatPanel:
    """A grid of shares in 0..1, stronger in colour where they are larger; `rows` from bottom to top."""

    title: str
    x_label: str
    x_axis: Axis
    edges: Sequence[float]  # one more than there are columns
    rows: tuple[str, ...]
    values: Sequence[Sequence[Number]]  # [row][column]

    def render(self) -> str:
        """SVG of the panel, no taller than its rows need."""
        step = min(26.0, (svg.HEIGHT - svg.BOTTOM - svg.TOP) / max(1, len(self.rows)))
        bottom = svg.TOP + step * len(self.rows)
        parts = []
        for i, (name, row) in enumerate(zip(self.rows, self.values, strict=True)):
            y = bottom - (i + 1) * step
            parts.append(svg.label(name, svg.LEFT - 7, y + step / 2 + 3.8, anchor="end"))
            for left, right, value in zip(self.edges[:-1], self.edges[1:], row, strict=True):
                x, end = self.x_axis.x(left), self.x_axis.x(right)
                text = f"{name}, updates {left:g} to {right:g}: {'none' if value is None else svg.percent(value)}"
                cell = {"x": x, "y": y + 0.75, "width": end - x - 1.0, "height": step - 1.5}
                opacity = 0.0 if value is None else svg.heat_opacity(value)
                parts.append(tag("rect", tag("title", html.escape(text)), **cell, class_="heat", fill_opacity=opacity))
        for value, text in self.x_axis.ticks:
            parts.append(svg.label(text, self.x_axis.x(value), bottom + 16))
        middle = (svg.LEFT + svg.WIDTH - svg.RIGHT) / 2
        parts.append(svg.label(self.x_label, middle, bottom + svg.BOTTOM - 6, class_="axis-label"))
        description = f"{self.title}: rows {', '.join(self.rows)}"
        return svg.drawing("".join(parts), description, height=bottom + svg.BOTTOM)


Panel = LinePanel | IntervalPanel | SharePanel | HeatPanel | RowPanel
