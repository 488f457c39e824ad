"""What the headline table says in words: each statement is judged by its interval, never by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxrl_agent.report.load import Run, setting
from jaxrl_agent.report.surface import Surface
from jaxrl_agent.report.svg import MINUS
from jaxrl_agent.statistics import CONTRADICTED, SUPPORTED, UNDECIDED, Estimate, judge_above, judge_below
from jaxrl_agent.statistics import PARITY_MARGIN as MARGIN


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement about two runs at one budget, what the interval says of it, and by which rule."""

    topic: str
    statement: str
    verdict: str
    label: str  # names of the difference
    estimate: Estimate
    rule: str


def mixes_budgets(run: Run) -> bool:
    """Whether the run was trained on a mixture of budgets."""
    return str(setting(run.config, "budget.schedule", "fixed")).startswith("budget_mix")


def read(surface: Surface) -> list[Claim]:
    """Statements on Pass@1 that the report judges: gain, reversal, repair and parity, as far as the runs allow."""
    base, *others = surface.runs
    claims = [claim for run in others if not mixes_budgets(run) for claim in _against_base(surface, run, base)]
    stored = {(d.better.name, d.than.name) for d in surface.differences}
    mixed = [run for run in others if mixes_budgets(run)]
    for run in mixed:
        # The reference itself is such a run where it was trained: then nobody claims a gain over it at full budget.
        trained = [f for f in surface.runs if f.metrics and not mixes_budgets(f)]
        fixed = next((f for f in trained if (run.name, f.name) in stored), None)
        claims += _against_base(surface, run, base) if fixed is None else _against_fixed(surface, run, fixed)
    return claims


def _against_base(surface: Surface, run: Run, base: Run) -> list[Claim]:
    tight, generous = surface.budgets[0], surface.budgets[-1]
    difference = surface.difference(run, base)
    gain = difference.cells[1, generous.turns]
    claims = [
        Claim(
            topic="Gain with turns to spare",
            statement=f"With {generous.text}, {run.name} succeeds more often than {base.name}.",
            verdict=judge_above(gain, 0.0),
            label=difference.label,
            estimate=gain,
            rule="the whole interval lies above 0",
        )
    ]
    if tight != generous:
        loss = difference.cells[1, tight.turns]
        claims.append(
            Claim(
                topic="Reversal when turns are scarce",
                statement=f"With {tight.text}, {run.name} succeeds less often than {base.name}.",
                verdict=judge_below(loss, 0.0),
                label=difference.label,
                estimate=loss,
                rule="the whole interval lies below 0",
            )
        )
    return claims


def _against_fixed(surface: Surface, mixed: Run, fixed: Run) -> list[Claim]:
    tight, generous = surface.budgets[0], surface.budgets[-1]
    difference = surface.difference(mixed, fixed)
    parity = difference.cells[1, generous.turns]
    claims = []
    if tight != generous:
        repair = difference.cells[1, tight.turns]
        claims.append(
            Claim(
                topic="Repair by mixed budgets",
                statement=f"With {tight.text}, {mixed.name} succeeds more often than {fixed.name}.",
                verdict=judge_above(repair, 0.0),
                label=difference.label,
                estimate=repair,
                rule="the whole interval lies above 0",
            )
        )
    claims.append(
        Claim(
            topic="Parity with turns to spare",
            statement=f"With {generous.text}, {mixed.name} gives up less than {100 * MARGIN:g} points to {fixed.name}.",
            verdict=judge_above(parity, -MARGIN),
            label=difference.label,
            estimate=parity,
            rule=f"the whole interval lies above {MINUS}{100 * MARGIN:g} points",
        )
    )
    return claims


def tally(claims: Sequence[Claim]) -> str:
    """How many statements got which verdict, in words."""
    counts = {v: sum(c.verdict == v for c in claims) for v in (SUPPORTED, CONTRADICTED, UNDECIDED)}
    return ", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n).capitalize()
