"""How trajectories end and which budgets teach, along training: shares and a heat map from metrics.jsonl."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from jaxrl_agent.report.figure import Figure, Key, Table
from jaxrl_agent.report.load import Run
from jaxrl_agent.report.panels import HeatPanel, SharePanel
from jaxrl_agent.report.training import MAX_DRAWN, smooth, updates_axis, window_for
from jaxrl_agent.run_dir import Json

HEAT_COLUMNS = 12
STOP_REASONS = (
    "success",
    "failure",
    "budget",
    "token_limit",
    "context_limit",
    "invalid",
    "environment_error",
    "time_limit",
    "could_not_check",
)


def _shares(row: Json) -> dict[str, float]:
    """Stop reasons of one update as shares (counts are divided by their sum)."""
    reasons = {k: float(v) for k, v in (row.get("stop_reasons") or {}).items() if v}
    total = sum(reasons.values())
    return {k: v / total for k, v in reasons.items()} if total else {}


def stop_reason_figure(runs: Sequence[Run]) -> Figure | None:
    """How trajectories ended, along training."""
    runs = [run for run in runs if any(row.get("stop_reasons") for row in run.metrics)]
    if not runs:
        return None
    shares = {run.name: [_shares(row) for row in run.metrics] for run in runs}
    seen = {reason for rows in shares.values() for row in rows for reason in row}
    reasons = [r for r in STOP_REASONS if r in seen] + sorted(seen - set(STOP_REASONS))
    panels = []
    for run in runs:
        stride = math.ceil(len(run.metrics) / MAX_DRAWN)
        layers = []
        for reason in reasons:
            values = np.array([row.get(reason, 0.0) for row in shares[run.name]])
            layers.append((reason, f"reason-{reason}", smooth(values, window_for(len(values)))[::stride].tolist()))
        updates = [row["update"] for row in run.metrics][::stride]
        panels.append(SharePanel(run.name, "update", updates_axis([run]), updates, tuple(layers)))
    rows = tuple(
        (run.name, row["update"], *(s.get(reason, 0.0) for reason in reasons))
        for run in runs
        for row, s in zip(run.metrics, shares[run.name], strict=True)
    )
    return Figure(
        key="training-stop-reasons",
        title="How trajectories end, along training",
        panels=tuple(panels),
        keys=tuple(Key(reason.replace("_", " "), f"reason-{reason}") for reason in reasons),
        reading="The height of a colour is the share of an update's trajectories that ended this way (smoothed).",
        definition=(
            "Budget: the allowed turns were used up; reward 0, kept in the loss. A reply or a context that hit its "
            "token limit is another reason and is masked from the loss by default."
        ),
        table=Table(("run", "update", *reasons), rows),
    )


def _by_budget(row: Json) -> dict[str, float]:
    values = row.get("effective_groups_by_budget") or {}
    if isinstance(values, list):
        values = {f"{10 * (i + 1)}%": v for i, v in enumerate(values)}
    return {str(k): float(v) for k, v in values.items() if isinstance(v, (int, float))}


def effective_groups_figure(runs: Sequence[Run]) -> Figure | None:
    """Groups with a spread of reward, by budget, along training."""
    runs = [run for run in runs if any(_by_budget(row) for row in run.metrics)]
    if not runs:
        return None
    binned = {run.name: _bin_groups(run) for run in runs}
    panels = []
    for run in runs:
        edges, grid = binned[run.name]
        panel = HeatPanel(run.name, "update", updates_axis([run]), edges, tuple(grid), tuple(grid.values()))
        panels.append(dataclasses.replace(panel, title=f"{run.name}: up to {panel.largest:.3g} groups an update"))
    rows = tuple(
        (run.name, row["update"], budget, value)
        for run in runs
        for row in run.metrics
        for budget, value in sorted(_by_budget(row).items(), key=_budget_order)
    )
    return Figure(
        key="training-effective-groups",
        title="Where the gradient comes from: groups with a spread of reward, by budget",
        panels=tuple(panels),
        keys=(),
        reading=(
            "Each row is a training budget; the stronger a cell's colour, the more groups of an update taught "
            "something. Every panel has its own scale, from none to the number in its title."
        ),
        definition=(
            "A group is effective if its trajectories do not all earn the same reward; only such groups have a "
            f"gradient. Cells average up to {HEAT_COLUMNS} equal spans of training."
        ),
        table=Table(("run", "update", "budget", "effective_groups"), rows),
    )


def _budget_order(item: tuple[str, float]) -> tuple[float, str]:
    try:
        return float(item[0].rstrip("%")), item[0]
    except ValueError:
        return math.inf, item[0]


def _bin_groups(run: Run) -> tuple[list[float], dict[str, list[float | None]]]:
    """Edges of the columns, and for each budget the mean of each column."""
    rows = [_by_budget(row) for row in run.metrics]
    budgets = [name for name, _ in sorted({(b, 0.0) for row in rows for b in row}, key=_budget_order)]
    columns = min(HEAT_COLUMNS, len(rows))
    cuts = [round(i * len(rows) / columns) for i in range(columns + 1)]
    grid = {
        budget: [_mean([row[budget] for row in rows[a:b] if budget in row]) for a, b in itertools.pairwise(cuts)]
        for budget in budgets
    }
    grid = {budget: values for budget, values in grid.items() if any(values)}  # the others were never drawn
    first = run.metrics[0]["update"]
    return [float(first + cut - 1) for cut in cuts], grid


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
