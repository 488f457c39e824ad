"""From the numbers of an analysis to rows, lines and axes; a number that is null is not drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from jaxrl_agent.report import svg
from jaxrl_agent.report.panels import LinePanel, Series
from jaxrl_agent.report.rows import EstimatePanel, Row
from jaxrl_agent.run_dir import Json

Ends = tuple[float, float, float]  # value, low, high
Bin = tuple[float, float]
UNKNOWN: Ends = (math.nan, math.nan, math.nan)


def ends(entry: Json | None, name: str = "value", interval: Sequence[float | None] | None = None) -> Ends:
    """A value with its interval, from `ci_low` and `ci_high` beside it or from `interval`; nan where null."""
    if entry is None:
        return UNKNOWN
    low, high = (entry.get("ci_low"), entry.get("ci_high")) if interval is None else interval
    value, low, high = (math.nan if x is None else float(x) for x in (entry.get(name), low, high))
    return value, low, high


def known(value: object) -> object:
    """A field of a CSV: nan, which stands for null, becomes empty."""
    return None if isinstance(value, float) and math.isnan(value) else value


def known_rows(rows: Iterable[Sequence[object]]) -> tuple[tuple[object, ...], ...]:
    """Rows of a CSV, with an empty field for what is not known."""
    return tuple(tuple(known(value) for value in row) for row in rows)


def percent(value: float) -> str:
    """A share with one decimal."""
    return f"{100 * value:.1f}%".replace("-", svg.MINUS)


def points(value: float) -> str:
    """A difference of shares in percentage points with its sign and one decimal."""
    return _signed(f"{100 * value:+.1f}")


def signed(digits: int) -> Callable[[float], str]:
    """Text of a signed number with so many decimals."""
    return lambda value: _signed(f"{value:+.{digits}f}")


def _signed(text: str) -> str:
    return text[1:] if float(text) == 0 else text.replace("-", svg.MINUS)


def axis_of(values: Iterable[float], text: Callable[[float], str] = svg.plain, **options) -> svg.Axis:
    """A linear axis over what is known."""
    return svg.nice_axis(list(values), text=text, **options)


def estimate_panel(
    title: str,
    x_label: str,
    rows: Sequence[Row],
    *,
    text: Callable[[float], str],
    ticks: Callable[[float], str],
    axis: svg.Axis | None = None,
    reference: float = 0.0,
) -> EstimatePanel:
    """Estimates on an axis that holds them and the reference."""
    drawn = [v for row in rows for v in (row.value, row.low, row.high)]
    axis = axis or axis_of(drawn, ticks, include=() if math.isnan(reference) else (reference,))
    return EstimatePanel(title, x_label, axis, tuple(rows), text, reference)


def binned(rows: Sequence[Json], name: str, label: str, slot: int, bins: Sequence[Bin], *, band: bool) -> Series:
    """A line over bins, each at its place among all `bins` of the panel."""
    found = {(row["low"], row["high"]): ends(row, name) for row in rows}
    places = [i for i, key in enumerate(bins) if key in found and not math.isnan(found[key][0])]
    drawn = [found[bins[i]] for i in places]
    lows, highs = ([e[i] if not math.isnan(e[i]) else None for e in drawn] for i in (1, 2))
    values = [e[0] for e in drawn]
    return Series(label, slot, places, values, lows if band else None, highs if band else None)


def bins_of(tables: Iterable[Sequence[Json]]) -> list[Bin]:
    """All bins of some tables, in order."""
    return sorted({(row["low"], row["high"]) for rows in tables for row in rows})


def bins_axis(bins: Sequence[Bin]) -> svg.Axis:
    """An axis with a tick for each bin, the same distance apart."""
    labels = [f"{low:g}" if low == high else f"{low:g}\N{EN DASH}{high:g}" for low, high in bins]
    return svg.listed_axis(list(range(len(bins))), labels, pad=0.08)


def line_panel(
    title: str,
    x_label: str,
    x_axis: svg.Axis,
    series: Sequence[Series],
    *,
    text: Callable[[float], str],
    ticks: Callable[[float], str] = svg.plain,
    y_axis: svg.Axis | None = None,
    reference: float | None = None,
) -> LinePanel:
    """Lines with marks, on an axis that holds their bands and the reference."""
    y_axis = y_axis or axis_of(values_of(series), ticks, include=() if reference is None else (reference,))
    return LinePanel(title, x_label, x_axis, y_axis, tuple(series), marks=True, text=text, reference=reference)


def values_of(series: Iterable[Series]) -> list[float | None]:
    """Everything that lines and bands reach."""
    return [v for s in series for v in (*s.ys, *(s.lows or ()), *(s.highs or ()))]


def definitions(entries: Mapping[str, str | None]) -> str:
    """Named definitions as sentences; one that several share is given once."""
    told = dict.fromkeys(f"{name}{text.strip().rstrip('.')}." for name, text in entries.items() if text)
    return " ".join(told)
