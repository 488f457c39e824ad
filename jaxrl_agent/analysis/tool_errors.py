"""How often a turn after a failed tool call makes one that works. Source: "Step quality"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxrl_agent.analysis.estimates import INTERVAL, number
from jaxrl_agent.run_dir import Json
from jaxrl_agent.statistics import bootstrap_ratio, error_correction, resampled_counts

DEFINITION = (
    "Of the turns whose tool call returned an error and that have a next turn, the share whose next turn calls without "
    "error, pooled over all trajectories; rate_of_all counts an error in the last turn as not corrected. "
    f"{INTERVAL}; n_tasks: tasks with such a turn of either policy."
)


def tool_error_correction(probe: Json) -> Json | None:
    """Compare how two policies correct the errors of their own tool calls; None for a task without tools.

    Args:
        probe: with "episodes" of both policies.

    Returns:
        Rates of both and their difference (policy minus base), None where one of them made no error to correct.
    """
    episodes = probe.get("episodes") or {}
    sides = [episodes.get(side) or {} for side in ("base", "policy")]
    if any(side.get("call_ok") is None for side in sides):
        return None
    tasks = sorted({task for side in sides for task in side["task"]})
    counts = [corrections_by_task(side["task"], side["call_ok"], tasks) for side in sides]
    both_rated = all(found[:, 1].any() for found in counts)
    difference, low, high = _difference(*counts) if both_rated else (None, None, None)
    return {
        "base": _rate(sides[0]["call_ok"], counts[0]),
        "policy": _rate(sides[1]["call_ok"], counts[1]),
        "difference": difference,
        "ci_low": low,
        "ci_high": high,
        "n_tasks": int(((counts[0] + counts[1])[:, 1] > 0).sum()),
        "definition": DEFINITION,
    }


def corrections_by_task(
    tasks: Sequence[int], calls: Sequence[Sequence[bool | None]], order: Sequence[int]
) -> np.ndarray:
    """Count corrected errors and errors with a next turn in each task, int64 [tasks of `order`, 2]."""
    by_task = {task: [turns for of, turns in zip(tasks, calls, strict=True) if of == task] for task in order}
    found = [error_correction(by_task[task]) for task in order]
    return np.array([[one.corrected, one.followed] for one in found], np.int64).reshape(-1, 2)


def _rate(calls: Sequence[Sequence[bool | None]], counts: np.ndarray) -> Json:
    found = error_correction(calls)
    rated = counts[counts[:, 1] > 0]
    interval = bootstrap_ratio(counts[:, 0], counts[:, 1]) if len(rated) > 1 else None
    return {
        "rate": found.rate,
        "rate_of_all": found.rate_of_all,
        "error_turns": found.error_turns,
        "followed": found.followed,
        "corrected": found.corrected,
        "ci_low": None if interval is None else number(interval.low),
        "ci_high": None if interval is None else number(interval.high),
    }


def _difference(base: np.ndarray, policy: np.ndarray) -> tuple[float, float | None, float | None]:
    """Difference of two pooled shares with its interval, both policies on the same resampled tasks."""
    columns = np.concatenate([policy, base], axis=1).astype(np.float64)
    value = float(_share_gap(columns.sum(axis=0)))
    if (columns[:, [1, 3]] > 0).any(axis=1).sum() < 2:
        return value, None, None
    sums = np.concatenate([counts @ columns for counts in resampled_counts(len(columns))])
    sums = sums[(sums[:, 1] > 0) & (sums[:, 3] > 0)]
    low, high = np.quantile(_share_gap(sums), [0.025, 0.975])
    return value, float(low), float(high)


def _share_gap(sums: np.ndarray) -> np.ndarray:
    """First share minus second, of [..., 4]: numerator and denominator of each."""
    return sums[..., 0] / sums[..., 1] - sums[..., 2] / sums[..., 3]
