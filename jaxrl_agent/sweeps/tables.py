"""A comparison as text: for the terminal, for a README, and as tidy CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from jaxrl_agent.analysis.arms import partners
from jaxrl_agent.analysis.pass_surface import Comparison, record
from jaxrl_agent.analysis.seeds import SeedMean
from jaxrl_agent.run_dir import to_jsonable

OPTIMUM = "optimum"
FEW = 3  # methods of which every pair is shown


def terminal(comparison: Comparison) -> str:
    """Lay Pass@K of every arm and every difference out by budget, in per cent."""
    blocks = []
    for k in comparison.headline_ks:
        head = [f"Pass@{k}, per cent", *(_heading(comparison, turns) for turns in comparison.headline_budgets)]
        rows = [head, *_rows(comparison, k)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = ["  ".join([row[0].ljust(widths[0]), *(map(str.rjust, row[1:], widths[1:]))]).rstrip() for row in rows]
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, legend(comparison)])


def markdown(comparison: Comparison) -> str:
    """The same as Markdown tables."""
    blocks = []
    for k in comparison.headline_ks:
        head = [f"Pass@{k}, %", *(_heading(comparison, turns) for turns in comparison.headline_budgets)]
        rows = [head, ["---", *["---:"] * (len(head) - 1)], *_rows(comparison, k)]
        blocks.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join([*blocks, legend(comparison)]) + "\n"


def legend(comparison: Comparison) -> str:
    """What the cells of a table are."""
    facts, n = comparison.facts, len(comparison.seeds)
    spread = f"± the standard deviation between {n} seeds" if n > 1 else "one seed"
    optimum = f"; {OPTIMUM}: the best agent that sees everything" if any(comparison.headroom.values()) else ""
    return (
        f"Mean over seeds, [95% interval over {facts['n_tasks']} held-out tasks], {spread}; "
        f"{facts['n_samples']} samples a task and budget; differences are paired by seed and task{optimum}."
    )


def tidy(comparison: Comparison) -> str:
    """CSV with a line for every mean, and for every difference to the arm in "minus", at every K and T.

    The spread of one seed is left empty.
    """
    counts = {"n_seeds": len(comparison.seeds), **{key: comparison.facts[key] for key in ("n_tasks", "n_samples")}}
    pairs = {(name, ""): cells for name, cells in comparison.values.items()} | comparison.differences
    lines = [
        to_jsonable({"method": name, "minus": minus, **record(comparison, cell, value), **counts})
        for (name, minus), cells in pairs.items()
        for cell, value in cells.items()
    ]
    stream = io.StringIO()
    columns = [name for name in lines[0] if name != "per_seed"]
    writer = csv.DictWriter(stream, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()


def _rows(comparison: Comparison, k: int) -> Iterator[list[str]]:
    budgets = comparison.headline_budgets
    for name, cells in comparison.values.items():
        yield [name, *(_text(cells[k, turns]) for turns in budgets)]
    for (a, b), cells in _headline_differences(comparison):
        yield [f"{a} - {b}", *(_text(cells[k, turns], sign="+") for turns in budgets)]
    headroom = next(iter(comparison.headroom.values()))  # the optimum is the task's, whatever the arm
    if headroom and k == 1:
        yield [OPTIMUM, *(f"{100 * headroom[turns].optimal:.1f}" for turns in budgets)]


def _headline_differences(comparison: Comparison) -> Iterator[tuple[tuple[str, str], dict]]:
    """All differences of a few methods; of many, those to their base and of mixed budgets to fixed ones."""
    methods = [arm for arm in comparison.arms if arm.base is not None]
    mixed = {(arm.name, other.name) for arm in methods if arm.mixes_budgets for other in partners(arm, _fixed(methods))}
    for (a, b), cells in comparison.differences.items():
        if len(methods) <= FEW or (a, b) in mixed or b in {arm.base for arm in methods}:
            yield (a, b), cells


def _fixed(methods: list) -> list:
    return [arm for arm in methods if not arm.mixes_budgets]


def _heading(comparison: Comparison, turns: int) -> str:
    return f"T={turns} ({comparison.share(turns)})"


def _text(value: SeedMean, *, sign: str = "") -> str:
    mean, low, high = (_percent(number, sign) for number in (value.mean, value.tasks.low, value.tasks.high))
    spread = f" ± {100 * value.sd:.1f}" if len(value.per_seed) > 1 else ""
    return f"{mean} [{low}, {high}]{spread}"


def _percent(number: float, sign: str) -> str:
    text = f"{100 * number:{sign}.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text
