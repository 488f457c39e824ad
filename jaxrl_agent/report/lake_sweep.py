"""The page of a FrozenLake sweep: heat maps of its rows with their definitions, in one file that needs no network."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from jaxrl_agent import __version__
from jaxrl_agent.report import svg
from jaxrl_agent.report.figure import Figure, Table
from jaxrl_agent.report.page import points, share
from jaxrl_agent.report.svg import tag
from jaxrl_agent.run_dir import Json

_TEMPLATES = Path(__file__).parent / "templates"
_CELL = ("size", "frozen_prob", "success_rate", "policy", "budget")
_STRONG = 0.62  # opacity above which a cell's number is written in the colour of the ground
_MOST_NUMBERS = 12  # columns that leave room for numbers


@dataclasses.dataclass(frozen=True)
class GridPanel:
    """Named rows and columns of numbers, stronger in colour where they are larger; below zero another colour."""

    title: str
    x_label: str
    rows: tuple[str, ...]  # from top to bottom
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    scale: float  # value of the strongest colour
    text: Callable[[float], str]
    hints: tuple[tuple[str, ...], ...]  # what a cell tells under the pointer

    def render(self) -> str:
        """SVG of the panel, as tall as its rows need."""
        left, step = svg.LEFT + 8.0, 24.0
        width = (svg.WIDTH - left - svg.RIGHT) / len(self.columns)
        parts = []
        for r, name in enumerate(self.rows):
            y = svg.TOP + r * step
            parts.append(svg.label(name, left - 6, y + step / 2 + 3.8, anchor="end"))
            for c, value in enumerate(self.values[r]):
                parts.append(self._cell(value, self.hints[r][c], left + c * width, y, width, step))
        bottom = svg.TOP + step * len(self.rows)
        for c, name in enumerate(self.columns):
            parts.append(svg.label(name, left + (c + 0.5) * width, bottom + 15))
        parts.append(svg.label(self.x_label, (left + svg.WIDTH - svg.RIGHT) / 2, bottom + 32, class_="axis-label"))
        description = f"{self.title}: rows {', '.join(self.rows)}; columns {', '.join(self.columns)}"
        return svg.drawing("".join(parts), description, height=bottom + svg.BOTTOM)

    def _cell(self, value: float, hint: str, x: float, y: float, width: float, height: float) -> str:
        strength = min(1.0, abs(value) / self.scale) if self.scale else 0.0
        opacity = svg.heat_opacity(strength)
        patch = tag(
            "rect",
            x=x + 0.75,
            y=y + 0.75,
            width=width - 1.5,
            height=height - 1.5,
            class_="loss" if value < 0 else "heat",
            fill_opacity=opacity,
        )
        number = ""
        if len(self.columns) <= _MOST_NUMBERS:
            class_ = "number strong" if opacity > _STRONG else "number"
            number = svg.label(self.text(value), x + width / 2, y + height / 2 + 3.6, class_=class_)
        return tag("g", tag("title", html.escape(hint)), patch, number)


@dataclasses.dataclass(frozen=True)
class _View:
    """One figure: which quantity, of which policy (None: a row of the grid for each), and its words."""

    key: str
    title: str
    quantity: str
    policy: str | None
    reading: str
    definition: str
    signed: bool = False


def write_page(rows: Sequence[Json], answer: Sequence[str], out: str | Path, *, facts: Mapping[str, Any]) -> Path:
    """Draw a sweep.

    Args:
        rows: of the sweep, in its order.
        answer: what it says, in sentences.
        out: HTML file to write.
        facts: `styles`, the free parameters of the policies, and `margin`.

    Returns:
        The path written.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"share": share, "points": points}
    swept = [(name, _texts(rows, name)) for name in ("size", "frozen_prob", "success_rate", "budget")]
    text = environment.get_template("lake_sweep.html.j2").render(
        title="FrozenLake: where a turn budget matters",
        swept=swept,
        n_maps=rows[0]["n_maps"],
        t_max=rows[0]["t_max"],
        answer=[_true_minus(sentence) for sentence in answer],
        figures=list(enumerate(figures(rows, margin=facts["margin"]), start=1)),
        styles=facts["styles"],
        version=__version__,
        css=Markup((_TEMPLATES / "style.css").read_text(encoding="utf-8")),
    )
    out = Path(out)
    out.write_text(text, encoding="utf-8")
    return out


def figures(rows: Sequence[Json], *, margin: float) -> list[Figure]:
    """The figures of a sweep: leads, the best possible, and every policy."""
    policies, t_max = _unique(rows, "policy"), rows[0]["t_max"]
    ks = [int(name.removeprefix("pass_at_")) for name in rows[0] if name.removeprefix("pass_at_").isdecimal()]
    lead = (
        f"Success within the budget less that of the optimum for {t_max} turns stopped at the budget, in percentage "
        f"points, mean over the same maps. A lead counts when its 95% interval lies above {100 * margin:g} points."
    )
    quick = lead.replace("the optimum for", "the quickest of the optima for")
    whole = "Blue: budgets matter, and training on mixed budgets has something to win. Orange: it costs."
    ties = "What is left when the optimum for the full budget breaks its ties in favour of speed, as a discount would."
    views = [
        _View("told", "Lead of the optimum that is told its budget", "over_full", "told", whole, lead, signed=True),
        _View("told-quick", "The same lead beyond ties", "over_quick", "told", ties, quick, signed=True),
        _View("hidden", "Lead of the optimum for BudgetMix, not told", "over_full", "hidden", whole, lead, signed=True),
        _View("hidden-quick", "The same lead beyond ties", "over_quick", "hidden", ties, quick, signed=True),
        _View(
            "best",
            "Best possible success",
            "best",
            policies[0],
            "Where this is low, no policy can do well.",
            "V_B(start): the largest probability of reaching the goal within B turns, by backward induction, in per "
            "cent, mean over maps. Structural headroom is this less a policy's success.",
        ),
        _View(
            "infeasible",
            "Maps on which the goal is out of reach",
            "infeasible_share",
            policies[0],
            "Groups that draw such a budget on such a map cannot succeed, and teach nothing.",
            "Per cent of maps with V_B(start) = 0: the shortest path is longer than the budget.",
        ),
        _View(
            "success",
            "Success of every policy",
            "success",
            None,
            "The rows between random and told show what is left to learn.",
            "Probability of reaching the goal within the budget, exact for each map, in per cent, mean over maps.",
        ),
        _View(
            "recovery",
            "Recovery of every policy",
            "recovery",
            None,
            "Compare with the figure above: the difference is the price of one error.",
            "Success within the same budget when the first turn was the worst move at the start among those that can "
            "leave the agent alive, given that it did; in per cent, mean over maps.",
        ),
    ]
    views += [
        _View(
            "pass",
            f"Pass@{k} of every policy",
            f"pass_at_{k}",
            None,
            "Many samples close the gap where a policy succeeds now and then, and not where it never does.",
            f"1 - (1 - p)^{k} with p the success on a map, in per cent, mean over maps.",
        )
        for k in ks[-1:]
    ]
    return [_figure(rows, view) for view in views if view.policy is None or view.policy in policies]


def _figure(rows: Sequence[Json], view: _View) -> Figure:
    columns = [name for name in rows[0] if name.removesuffix("_low").removesuffix("_high") == view.quantity]
    shown = [row for row in rows if view.policy in (None, row["policy"])]
    most = max(abs(row[view.quantity]) for row in shown)
    facets = ("success_rate", "frozen_prob") if view.policy else ("size", "success_rate", "frozen_prob")
    down = "size" if view.policy else "policy"
    panels = []
    for values in sorted({tuple(row[name] for name in facets) for row in shown}):
        cells = [row for row in shown if tuple(row[name] for name in facets) == values]
        panels.append(_panel(cells, view, down, dict(zip(facets, values, strict=True)), most if view.signed else 1.0))
    numbers = [tuple(f"{row[name]:.6g}" for name in columns) for row in shown]
    table = Table(
        (*_CELL, *columns), tuple((*(row[name] for name in _CELL), *n) for row, n in zip(shown, numbers, strict=True))
    )
    return Figure(view.key, view.title, tuple(panels), (), view.reading, view.definition, table)


def _panel(cells: Sequence[Json], view: _View, down: str, facet: Json, scale: float) -> GridPanel:
    names, budgets = _unique(cells, down), _unique(cells, "budget")
    at = {(row[down], row["budget"]): row for row in cells}
    text = _points if view.signed else _percent
    by_row = [[at[name, budget] for budget in budgets] for name in names]
    return GridPanel(
        title=", ".join(f"{_name(key)} {_plain(value)}" for key, value in facet.items()),
        x_label="budget, turns",
        rows=tuple(f"{name} x {name}" if down == "size" else name for name in names),
        columns=tuple(map(str, budgets)),
        values=tuple(tuple(row[view.quantity] for row in line) for line in by_row),
        scale=scale,
        text=text,
        hints=tuple(tuple(_hint(row, view.quantity, down, text) for row in line) for line in by_row),
    )


def _hint(row: Json, quantity: str, down: str, text: Callable[[float], str]) -> str:
    said = f"{_name(down)} {row[down]}, {row['budget']} turns: {text(row[quantity])}"
    if f"{quantity}_low" in row:
        said += f" [{text(row[f'{quantity}_low'])}, {text(row[f'{quantity}_high'])}]"
    return said


def _unique(rows: Iterable[Json], key: str) -> list:
    return list(dict.fromkeys(row[key] for row in rows))


def _texts(rows: Sequence[Json], key: str) -> str:
    return ", ".join(map(_plain, _unique(rows, key)))


def _plain(value: float | int | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _name(key: str) -> str:
    return key.replace("_", " ")


def _percent(value: float) -> str:
    return f"{100 * value:.0f}"


def _points(value: float) -> str:
    text = f"{100 * value:+.0f}"
    return "0" if text in ("+0", "-0") else _true_minus(text)


def _true_minus(text: str) -> str:
    """Write a true minus sign before digits, and leave hyphens alone."""
    return "".join(
        svg.MINUS if c == "-" and text[i + 1 : i + 2].isdigit() and not text[i - 1 : i].isalnum() else c
        for i, c in enumerate(text)
    )
