"""What training changed, method by method: step quality, recovery and likelihood over seeds, as a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxrl_agent.analysis.over_seeds import NATS, POINTS, REWARD, SHARE, Unit, combine
from jaxrl_agent.run_dir import AnalysisDir, Json, read_json
from jaxrl_agent.statistics import mean_and_sd

COLUMNS: tuple[tuple[str, str, Unit], ...] = (
    ("wins + half ties", "ordinary_wins_plus_half_ties", SHARE),
    ("mean difference", "ordinary_mean_difference", REWARD),
    ("after an error", "error_states_wins_plus_half_ties", SHARE),
    ("recovery", "recovery_difference", POINTS),
    ("extra gain", "extra_gain", POINTS),
    ("LLR of its episodes", "llr_policy_all", NATS),
)


def study_table(folders: Sequence[str | Path]) -> str:
    """Lay out the measures of every policy against the base.

    Args:
        folders: analysed folders, one for each seed, of the same policies.

    Returns:
        A Markdown table with a legend: mean over seeds, [95% interval over tasks], ± the standard deviation between
        seeds.
    """
    found = [read_json(AnalysisDir.at(folder).result) for folder in folders]
    first = found[0]
    head = [f"minus {first['base']}", *(title for title, _, _ in COLUMNS)]
    lines = [f"| {' | '.join(head)} |", f"| --- | {' | '.join('---:' for _ in COLUMNS)} |"]
    for name in first["policies"]:
        pairs = [one["pairs"][name] for one in found]
        cells = [_cell([pair["measures"].get(measure) for pair in pairs], unit) for _, measure, unit in COLUMNS]
        lines.append(f"| {' | '.join([name, *cells])} |")
    quality = first["step_quality"]["primary_quality"]
    spread = f", ± the standard deviation between {len(found)} seeds" if len(found) > 1 else ""
    legend = (
        f"Mean over seeds, [95% interval over {first['n_tasks']} tasks]{spread}. Step quality by {quality} values in "
        "states of both policies; wins + half ties above 50% favour the method. Recovery: success behind an injected "
        "error, method minus base; extra gain: that difference minus the one from the same states without the error. "
        "LLR in nats, log-likelihood under the method minus under the base."
    )
    return "\n".join([*lines, "", legend]) + "\n"


def _cell(measures: Sequence[Json | None], unit: Unit) -> str:
    value = combine(measures)
    if value is None:
        return "-"
    over_tasks = value.intervals.get("tasks")
    span = ""
    if over_tasks is not None and not np.isnan(over_tasks.low):
        span = f" [{unit.text(over_tasks.low)}, {unit.text(over_tasks.high)}]"
    known = [measure["value"] for measure in measures if measure is not None]
    spread = f" ± {Unit(unit.factor, unit.digits).text(mean_and_sd(known).sd)}" if len(known) > 1 else ""
    return f"{unit.text(value.value)}{span}{spread}"
