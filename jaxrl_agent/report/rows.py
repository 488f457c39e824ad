"""Panels made of horizontal rows with their words above them: shares of won and lost, estimates, and small tables.

The words stand over the marks and not beside them, so that long names fit a phone's screen.
"""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
from collections.abc import Callable, Sequence

from jaxrl_agent.report import svg
from jaxrl_agent.report.svg import Axis, tag

EDGE = 12.0  # free room left and right of the scale
_SCALE = 34.0  # room below the last row for ticks and the label
_HEADING, _GAP = 22.0, 8.0
_NARROW = 0.08  # a segment with less of the width has no number in it


def x_of(axis: Axis, value: float) -> float:
    """Horizontal coordinate on an axis as wide as the panel."""
    return EDGE + min(max(axis.fraction(value), 0.0), 1.0) * (svg.WIDTH - 2 * EDGE)


def _scale(axis: Axis, label: str, bottom: float, reference: float) -> str:
    """Vertical grid with its ticks; the reference line is stronger than the rest."""
    parts = []
    for value, text in axis.ticks:
        x = x_of(axis, value)
        class_ = "zero" if abs(value - reference) < 1e-12 else "grid"
        parts.append(tag("line", x1=x, x2=x, y1=4.0, y2=bottom, class_=class_))
        parts.append(svg.label(text, x, bottom + 14))
    parts.append(svg.label(label, svg.WIDTH / 2, bottom + 29, class_="axis-label"))
    return "".join(parts)


def _words(left: str, right: str, y: float, *, slot: int | None = None) -> str:
    """Name of a row at the left, its number at the right, both on the ground so that grid lines do not cross them."""
    class_ = "row-name" if slot is None else f"row-name slot-{slot}"
    return svg.label(left, EDGE, y, class_=class_, anchor="start") + svg.label(
        right, svg.WIDTH - EDGE, y, class_="row-value", anchor="end"
    )


def _whisker(axis: Axis, slot: int, value: float, low: float, high: float, y: float) -> str:
    """A mark with its interval; without ends where there are none."""
    known = not (math.isnan(low) or math.isnan(high))
    line = tag("line", x1=x_of(axis, low), x2=x_of(axis, high), y1=y, y2=y, class_="whisker") if known else ""
    return line + svg.marker(slot, x_of(axis, value), y)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Shares of states won, tied and lost by one policy, and wins plus half the ties with its interval."""

    heading: str  # rows of one heading stand together
    label: str
    slot: int
    win: float
    tie: float
    loss: float
    value: float
    low: float
    high: float
    main: bool = True  # others are drawn smaller

    @property
    def text(self) -> str:
        """Wins plus half the ties in words."""
        return f"{100 * self.value:.1f}% [{100 * self.low:.1f}, {100 * self.high:.1f}]"


@dataclasses.dataclass(frozen=True)
class OutcomePanel:
    """Stacked bars from won at the left to lost at the right; below each bar, wins plus half the ties against 50%.

    Wins plus half the ties ends in the middle of the ties, so mark and bar share one scale.
    """

    title: str
    outcomes: tuple[Outcome, ...]
    base_slot: int

    def render(self) -> str:
        """SVG of the panel, as tall as its rows need."""
        axis = svg.listed_axis([0.0, 0.25, 0.5, 0.75, 1.0], ["0%", "25%", "50%", "75%", "100%"], pad=0.0)
        rows, y, heading = [], 0.0, None
        for outcome in self.outcomes:
            if outcome.heading != heading:
                heading = outcome.heading
                y += _GAP * bool(rows) + _HEADING
                rows.append(svg.label(heading, EDGE, y - 7, class_="row-heading", anchor="start"))
            bar = 20.0 if outcome.main else 9.0
            rows.append(_words(outcome.label, outcome.text, y + 10, slot=outcome.slot))
            rows.append(self._bar(outcome, axis, y + 15, bar))
            rows.append(self._half(outcome, axis, y + 15 + bar + 7))
            y += 15 + bar + 19
        said = "; ".join(
            f"{o.heading}, {o.label}: won {o.win:.0%}, tied {o.tie:.0%}, lost {o.loss:.0%}, "
            f"wins plus half ties {o.text}"
            for o in self.outcomes
        )
        scale = _scale(axis, "share of states", y, 0.5)
        return svg.drawing(scale + "".join(rows), f"{self.title}. {said}", height=y + _SCALE)

    def _bar(self, outcome: Outcome, axis: Axis, y: float, height: float) -> str:
        shares = (outcome.win, outcome.tie, outcome.loss)
        ends = list(itertools.accumulate(shares, initial=0.0))
        parts = []
        for name, share, start, end, class_ in zip(
            ("won", "tied", "lost"),
            shares,
            ends[:-1],
            ends[1:],
            (f"part slot-{outcome.slot}", "part tied", f"part slot-{self.base_slot}"),
            strict=True,
        ):
            left, right = x_of(axis, start), x_of(axis, end)
            words = tag("title", html.escape(f"{outcome.label}, {outcome.heading}: {name} {100 * share:.1f}%"))
            box = tag("rect", words, x=left, y=y, width=right - left, height=height, class_=class_)
            inside = svg.label(f"{100 * share:.0f}", (left + right) / 2, y + height - 6, class_=f"{class_} part-number")
            parts.append(box + inside * (outcome.main and share >= _NARROW))
        return "".join(parts)

    @staticmethod
    def _half(outcome: Outcome, axis: Axis, y: float) -> str:
        words = tag("title", html.escape(f"{outcome.label}: wins plus half ties {outcome.text}"))
        mark = _whisker(axis, outcome.slot, outcome.value, outcome.low, outcome.high, y)
        return tag("g", words, mark, class_=f"slot-{outcome.slot}")


@dataclasses.dataclass(frozen=True)
class Row:
    """One estimate with its interval; nan where it is not known."""

    heading: str
    label: str
    slot: int
    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class EstimatePanel:
    """Estimates with whiskers on one scale, grouped under headings, each with its numbers in words."""

    title: str
    x_label: str
    axis: Axis
    rows: tuple[Row, ...]
    text: Callable[[float], str]
    reference: float = 0.0

    def words(self, row: Row) -> str:
        """An estimate with its ends."""
        if math.isnan(row.value):
            return "not known"
        ends = "" if math.isnan(row.low) else f" [{self.text(row.low)}, {self.text(row.high)}]"
        return f"{self.text(row.value)}{ends}"

    def render(self) -> str:
        """SVG of the panel, as tall as its rows need."""
        parts, y, heading = [], 0.0, None
        for row in self.rows:
            if row.heading != heading:
                heading = row.heading
                y += _GAP * bool(parts) + _HEADING
                parts.append(svg.label(heading, EDGE, y - 7, class_="row-heading", anchor="start"))
            parts.append(_words(row.label, self.words(row), y + 10, slot=row.slot))
            if not math.isnan(row.value):
                mark = _whisker(self.axis, row.slot, row.value, row.low, row.high, y + 20)
                parts.append(tag("g", mark, class_=f"slot-{row.slot}"))
            y += 31
        said = "; ".join(f"{row.heading}, {row.label}: {self.words(row)}" for row in self.rows)
        scale = _scale(self.axis, self.x_label, y, self.reference)
        return svg.drawing(scale + "".join(parts), f"{self.title}, {self.x_label}. {said}", height=y + _SCALE)


@dataclasses.dataclass(frozen=True)
class MatrixPanel:
    """A small table of numbers, each over a line of smaller words; so are the names of rows and columns."""

    title: str
    corner: str
    columns: tuple[tuple[str, str, int], ...]  # name, smaller words, slot
    rows: tuple[tuple[str, str, int], ...]
    cells: Sequence[Sequence[tuple[str, str]]]  # [row][column] (number, words below)

    def render(self) -> str:
        """HTML of the table."""

        def small(words: str) -> str:
            return tag("span", html.escape(words), class_="interval")

        def head(label: str, words: str, slot: int, scope: str) -> str:
            return tag("th", tag("b", html.escape(label), class_=f"run slot-{slot}"), small(words), scope=scope)

        heads = "".join(head(*column, "col") for column in self.columns)
        top = tag("thead", tag("tr", tag("th", html.escape(self.corner), scope="col", class_="corner"), heads))
        lines = []
        for row, values in zip(self.rows, self.cells, strict=True):
            cells = (tag("td", tag("span", html.escape(n), class_="value"), small(w)) for n, w in values)
            lines.append(tag("tr", head(*row, "row"), *cells))
        return tag("table", top, tag("tbody", *lines), class_="matrix", aria_label=self.title)


RowPanel = OutcomePanel | EstimatePanel | MatrixPanel
