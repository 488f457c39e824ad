"""The headline table as plain text, for the end of a command."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_agent.report.load import Run
from jaxrl_agent.report.surface import Surface, compute_surface
from jaxrl_agent.statistics import Estimate

_NAME, _CELL = 20, 24


def headline(runs: Sequence[Run]) -> str:
    """Lay Pass@1 of every run and every difference out by budget, in per cent with 95% intervals."""
    surface = compute_surface(runs)
    head = "".join(f"{f'T={budget.turns} ({budget.percent}%)':>{_CELL}}" for budget in surface.budgets)
    lines = [f"{'Pass@1, per cent':<{_NAME}}{head}"]
    lines += [_line(surface, run.name, surface.cells[run.name], signed=False) for run in surface.runs]
    lines += [_line(surface, d.label, d.cells, signed=True) for d in surface.differences]
    return "\n".join(lines)


def _line(surface: Surface, name: str, cells: dict, *, signed: bool) -> str:
    values = (_cell(cells[1, budget.turns], signed=signed) for budget in surface.budgets)
    return f"{name:<{_NAME}}" + "".join(f"{value:>{_CELL}}" for value in values)


def _cell(estimate: Estimate, *, signed: bool) -> str:
    sign = "+" if signed else ""
    value, low, high = (100 * part for part in (estimate.estimate, estimate.low, estimate.high))
    return f"{value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"
