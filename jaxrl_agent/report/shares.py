"""How trajectories end and which budgets teach, along training: shares and a heat map from metrics.jsonl."""

from __future__ import annotations

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
            "token limit is another reason, and is masked from the loss unless train_on_cut_replies keeps it."
        ),
        table=Table(("run", "update", *reasons), rows),
    )


def _by_level(row: Json) -> list[tuple[int, float, float]]:
    """(per cent of t_max, effective groups, groups) of each budget level that this update drew."""
    effective, groups = row.get("effective_groups_by_budget") or [], row.get("groups_by_budget") or []
    levels = range(len(groups))
    return [
        (round(100 * (i + 1) / len(groups)), useful, n)
        for i, useful, n in zip(levels, effective, groups, strict=True)
        if n
    ]


def effective_groups_figure(runs: Sequence[Run]) -> Figure | None:
    """Share of groups with a spread of reward, by budget, along training."""
    runs = [run for run in runs if any(_by_level(row) for row in run.metrics)]
    if not runs:
        return None
    panels = []
    for run in runs:
        edges, grid = _bin_groups(run)
        names = tuple(f"{level}%" for level in grid)
        panels.append(HeatPanel(run.name, "update", updates_axis([run]), edges, names, tuple(grid.values())))
    rows = tuple(
        (run.name, row["update"], level / 100, useful, n)
        for run in runs
        for row in run.metrics
        for level, useful, n in _by_level(row)
    )
    return Figure(
        key="training-effective-groups",
        title="Where the gradient comes from: groups with a spread of reward, by budget",
        panels=tuple(panels),
        keys=(Key("none to all groups of a budget", "heat-scale"),),
        reading=(
            "Each row is a training budget in per cent of the largest; the stronger a cell's colour, the more of its "
            "groups taught something. A row that fades has been learned, or given up."
        ),
        definition=(
            "A group is effective if its trajectories do not all earn the same reward; only such groups have a "
            f"gradient. Cells pool the groups of up to {HEAT_COLUMNS} equal spans of training."
        ),
        table=Table(("run", "update", "budget_fraction", "effective_groups", "groups"), rows),
    )


def _bin_groups(run: Run) -> tuple[list[float], dict[int, list[float | None]]]:
    """Edges of the columns, and for each budget level the share of effective groups in each column."""
    rows = [{level: (useful, n) for level, useful, n in _by_level(row)} for row in run.metrics]
    columns = min(HEAT_COLUMNS, len(rows))
    cuts = [round(i * len(rows) / columns) for i in range(columns + 1)]
    grid: dict[int, list[float | None]] = {level: [] for level in sorted({level for row in rows for level in row})}
    for level, shares in grid.items():
        for a, b in itertools.pairwise(cuts):
            useful, n = (sum(row[level][i] for row in rows[a:b] if level in row) for i in (0, 1))
            shares.append(useful / n if n else None)
    first = run.metrics[0]["update"]
    return [float(first + cut - 1) for cut in cuts], grid
