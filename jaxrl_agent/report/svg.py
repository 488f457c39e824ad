"""Scales, axes and marks, written as SVG that takes colours and fonts from the page's style sheet.

A panel is about as wide as a phone's screen, and a figure is a row of panels that wraps: text keeps its size on every
device. Colours are classes (`slot-0` ... ), so that light, dark and print styles need no second drawing.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Callable, Iterable, Sequence

WIDTH, HEIGHT = 380.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 14.0, 10.0, 40.0
N_SLOTS = 8
MINUS = "\N{MINUS SIGN}"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NICE = (1.0, 2.0, 2.5, 5.0)
_MOST_TICKS = 7


def number(value: float) -> str:
    """Shortest text of a coordinate with two decimals at most."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def tag(name: str, *children: str, **attributes: object) -> str:
    """One element; `class_` gives `class`, other underscores give hyphens. Children are markup already."""
    parts = [name]
    for key, value in attributes.items():
        if value is not None:
            text = number(value) if isinstance(value, float) else str(value)
            parts.append(f'{key.rstrip("_").replace("_", "-")}="{html.escape(text, quote=True)}"')
    return f"<{' '.join(parts)}>{''.join(children)}</{name}>"


def label(text: str, x: float, y: float, *, class_: str = "tick", anchor: str = "middle") -> str:
    """Text at a point."""
    return tag("text", html.escape(text), x=x, y=y, class_=class_, text_anchor=anchor)


def path(points: Iterable[tuple[float, float]]) -> str:
    """`d` of a polyline; a point with a nan breaks the line."""
    commands, pen_down = [], False
    for x, y in points:
        if math.isnan(x) or math.isnan(y):
            pen_down = False
            continue
        commands.append(f"{'L' if pen_down else 'M'}{number(x)} {number(y)}")
        pen_down = True
    return "".join(commands)


@dataclasses.dataclass(frozen=True)
class Axis:
    """A linear or logarithmic scale with its ticks."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def fraction(self, value: float) -> float:
        """Where `value` lies between the ends: 0 at `low`, 1 at `high`."""
        if self.log:
            if value <= 0:
                return math.nan
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def x(self, value: float) -> float:
        """Horizontal coordinate."""
        return LEFT + self.fraction(value) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Vertical coordinate."""
        return HEIGHT - BOTTOM - self.fraction(value) * (HEIGHT - TOP - BOTTOM)


def plain(value: float) -> str:
    """Tick text: four significant digits, thousands shortened, a true minus sign."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k".replace("-", MINUS)
    return f"{value:.4g}".replace("-", MINUS)


def percent(value: float) -> str:
    """Tick text of a share."""
    return f"{100 * value:.4g}%".replace("-", MINUS)


def points(value: float) -> str:
    """Tick text of a difference of two shares, in percentage points with its sign."""
    return "0" if abs(value) < 1e-12 else f"{100 * value:+.4g}".replace("-", MINUS)


def nice_axis(
    values: Iterable[float | None],
    *,
    include: Sequence[float] = (),
    text: Callable[[float], str] = plain,
    bounds: tuple[float, float] | None = None,
) -> Axis:
    """Linear axis over the finite `values` and `include`, with round ticks, kept inside `bounds`."""
    finite = [v for v in (*values, *include) if v is not None and math.isfinite(v)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if high - low < 1e-12 * max(1.0, abs(high)):
        pad = abs(high) * 0.1 or 1.0
        low, high = low - pad, high + pad
    ticks = _round_ticks(low, high)
    if bounds is not None:
        ticks = [t for t in ticks if bounds[0] - 1e-9 <= t <= bounds[1] + 1e-9]
    return Axis(ticks[0], ticks[-1], tuple((t, text(t)) for t in ticks))


def _round_ticks(low: float, high: float) -> list[float]:
    """Multiples of a round step around low..high: of all steps with 3 to 7 ticks the one that wastes least room.

    Among equally tight ones the fewest ticks win.
    """
    power = math.floor(math.log10(high - low))
    best: tuple[float, int, list[float]] | None = None
    for step in (factor * 10.0**p for p in (power - 1, power) for factor in _NICE):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        n = last - first + 1
        if 3 <= n <= _MOST_TICKS:
            waste = (last - first) * step / (high - low) + 0.04 * abs(n - 5)
            if best is None or (waste, n) < best[:2]:
                best = waste, n, [i * step for i in range(first, last + 1)]
    return best[2] if best else [low, high]


def log_axis(values: Iterable[float | None]) -> Axis:
    """Logarithmic axis from the power of ten below the smallest positive value to the one above the largest."""
    positive = [v for v in values if v is not None and math.isfinite(v) and v > 0] or [1.0, 10.0]
    first = math.floor(math.log10(min(positive)) + 1e-9)
    last = max(first + 1, math.ceil(math.log10(max(positive)) - 1e-9))
    stride = max(1, math.ceil((last - first) / 5))
    ticks = tuple((10.0**i, f"10{str(i).translate(_SUPERSCRIPT)}") for i in range(first, last + 1, stride))
    return Axis(10.0**first, 10.0**last, ticks, log=True)


def listed_axis(values: Sequence[float], labels: Sequence[str], *, log: bool = False, pad: float = 0.0) -> Axis:
    """Axis whose ticks are exactly `values`, with `pad` of the length left free on both sides."""
    low, high = min(values), max(values)
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - 1, high + 1)
    if log:
        room = (high / low) ** pad
        low, high = low / room, high * room
    else:
        low, high = low - pad * (high - low), high + pad * (high - low)
    return Axis(low, high, tuple(zip(values, labels, strict=True)), log=log)


def frame(x_axis: Axis, y_axis: Axis, x_label: str) -> str:
    """Horizontal grid, base line, tick texts and the label of the horizontal axis."""
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for value, text in y_axis.ticks:
        y = y_axis.y(value)
        parts.append(tag("line", x1=LEFT, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(label(text, LEFT - 7, y + 3.8, anchor="end"))
    parts.append(tag("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
    for value, text in x_axis.ticks:
        x = x_axis.x(value)
        parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(label(text, x, bottom + 16))
    parts.append(label(x_label, (LEFT + right) / 2, HEIGHT - 6, class_="axis-label"))
    return "".join(parts)


def marker(slot: int, x: float, y: float, size: float = 3.6) -> str:
    """A filled mark whose shape depends on the slot, so that colour is never the only difference."""
    shapes = (
        [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
        None,
        [(-1, -1), (1, -1), (1, 1), (-1, 1)],
        [(0, -1.25), (1.2, 0.9), (-1.2, 0.9)],
        [(0, 1.25), (1.2, -0.9), (-1.2, -0.9)],
    )
    shape = shapes[slot % len(shapes)]
    if shape is None:
        return tag("circle", cx=x, cy=y, r=size, class_="mark")
    corners = " ".join(f"{number(x + size * dx)},{number(y + size * dy)}" for dx, dy in shape)
    return tag("polygon", points=corners, class_="mark")


def heat_opacity(value: float) -> float:
    """Opacity of a share in a heat map; a share of 0 stays visible, unlike a cell without data."""
    return 0.06 + 0.94 * value


def drawing(content: str, description: str, *, height: float = HEIGHT) -> str:
    """The svg element; `description` is what a screen reader says."""
    return tag(
        "svg",
        content,
        viewBox=f"0 0 {number(WIDTH)} {number(height)}",
        role="img",
        aria_label=description,
        class_="chart",
    )
