"""What every figure and table of the report carries: panels, key, caption, and the numbers as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import urllib.parse
from collections.abc import Sequence
from typing import Any

from jaxrl_agent.report import svg
from jaxrl_agent.report.panels import Panel


@dataclasses.dataclass(frozen=True)
class Table:
    """Numbers with a header; what a CSV download holds."""

    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def csv(self) -> str:
        """The table as CSV with full precision; an absent value is an empty field."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.rows)
        return stream.getvalue()

    def data_uri(self) -> str:
        """The CSV as the address of a download link."""
        return "data:text/csv;charset=utf-8," + urllib.parse.quote(self.csv(), safe=",.;:-_()[]/+=")


@dataclasses.dataclass(frozen=True)
class Key:
    """An entry of a figure's key: text, class that gives the colour, and the slot of its mark if it has one."""

    label: str
    class_: str
    slot: int | None = None

    def swatch(self) -> str:
        """A short piece of the line with its mark, a patch of the colour, or the steps of a heat map."""
        if self.class_ == "heat-scale":
            cells = (
                svg.tag(
                    "rect", x=5.2 * i, y=1, width=4.6, height=10, class_="heat", fill_opacity=svg.heat_opacity(i / 4)
                )
                for i in range(5)
            )
            content = "".join(cells)
        elif self.slot is None:
            content = svg.tag("rect", x=1, y=1, width=24, height=10, rx=2, class_=f"share {self.class_}")
        else:
            line = svg.tag("path", d="M0 6H26", class_=f"line {self.class_}")
            content = line + svg.tag("g", svg.marker(self.slot, 13.0, 6.0), class_=self.class_)
        return svg.tag("svg", content, viewBox="0 0 26 12", width=26, height=12, aria_hidden="true", class_="swatch")


@dataclasses.dataclass(frozen=True)
class Figure:
    """Panels side by side under one key, with a caption that says how to read them and what the numbers are."""

    key: str  # anchor, and name of the CSV file
    title: str
    panels: tuple[Panel, ...]
    keys: tuple[Key, ...]
    reading: str
    definition: str
    table: Table


def present(figures: Sequence[Figure | None]) -> list[Figure]:
    """The figures that have data."""
    return [figure for figure in figures if figure is not None and figure.panels]
