"""Time and throughput of training, from metrics.jsonl."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from jaxrl_agent.report.figure import Table
from jaxrl_agent.report.load import Run
from jaxrl_agent.report.training import column


def cost_table(runs: Sequence[Run]) -> Table | None:
    """Time by phase, throughput and compilations of each trained run."""
    trained = [run for run in runs if run.metrics]
    phases: list[str] = []
    for run in trained:
        for row in run.metrics:
            phases += [phase for phase in row.get("seconds") or {} if phase not in phases]
    if not trained or not phases:
        return None
    header = ("run", "updates", *(f"{p} s" for p in phases), "total s", "s / update", "tokens / s", "compiles")
    rows = []
    for run in trained:
        seconds = [[float((row.get("seconds") or {}).get(p) or 0.0) for p in phases] for row in run.metrics]
        totals = [sum(values) for values in zip(*seconds, strict=True)]
        speed = [v for v in column(run.metrics, "tokens_per_s") if math.isfinite(v)]
        compiles = [v for v in column(run.metrics, "compiles") if math.isfinite(v)]
        rows.append(
            (
                run.name,
                len(run.metrics),
                *totals,
                sum(totals),
                statistics.median(sum(values) for values in seconds),
                statistics.median(speed) if speed else None,
                int(sum(compiles)) if compiles else None,
            )
        )
    return Table(header, tuple(rows))
