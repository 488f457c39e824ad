"""How rewards move along training: series of a run's metrics, and last updates against first ones.

Source: "Training dynamics": the pooled step reward falls when failing trajectories grow long, without any change of
skill; the first turn alone cannot be moved by length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxrl_agent.run_dir import Json
from jaxrl_agent.statistics import RESAMPLES, resampled_counts

SERIES = (
    "trajectory_reward",
    "step_reward_pooled",
    "step_reward_mean_of_means",
    "step_reward_first_turn",
    "regret",
    "optimal_share",
)
FEWEST = 4  # updates from which a change is told
DEFINITION = (
    "Mean over the last {window} updates minus mean over the first {window}; 95% percentile interval from {resamples} "
    "resamples of the updates within both windows, which takes updates as independent."
)
NO_INTERVAL = "Last update minus first; one update each has no interval."


def dynamics(metrics: Sequence[Json] | None) -> Json | None:
    """Follow rewards along training.

    Args:
        metrics: rows of metrics.jsonl in order; none for a policy without updates.

    Returns:
        "updates", one series for each name (None where an update lacks it), and "change" of each; None without rows.
    """
    if not metrics:
        return None
    series = {name: [row.get(name) for row in metrics] for name in SERIES}
    return {
        "updates": [row["update"] for row in metrics],
        **series,
        "change": {name: change(values) for name, values in series.items()},
    }


def window(n_updates: int) -> int:
    """A tenth of the updates, at least 1, and at least 5 of 20 or more."""
    return max(n_updates // 10, 5 if n_updates >= 20 else 1)


def change(values: Sequence[float | None]) -> Json | None:
    """Subtract the mean of the first tenth from that of the last.

    Args:
        values: one for each update, in order.

    Returns:
        A figure (n counts the updates of both windows), with an interval where a window has more than one update; None
        for fewer than 4 updates, or where one of the windows lacks a value.
    """
    n = window(len(values))
    first, last = _windows(values)
    if len(values) < FEWEST or np.isnan(first).any() or np.isnan(last).any():
        return None
    low, high = _interval(last, first) if n > 1 else (None, None)
    return {
        "value": float(last.mean() - first.mean()),
        "ci_low": low,
        "ci_high": high,
        "n": 2 * n,
        "n_tasks": None,
        "definition": DEFINITION.format(window=n, resamples=RESAMPLES) if n > 1 else NO_INTERVAL,
    }


def change_gap(a: Sequence[float | None], b: Sequence[float | None]) -> Json | None:
    """Subtract the change of one run from that of another.

    Args:
        a: one value for each update of the first run.
        b: the same of the second run.

    Returns:
        "value", "ci_low", "ci_high" (None for windows of one update), and None for "n_tasks" and "per_task": it is no
        mean over tasks. None where one of the changes is not known.
    """
    changes = change(a), change(b)
    if None in changes:
        return None
    windows = [_windows(values) for values in (a, b)]
    parts = windows[0][1], windows[1][0], windows[0][0], windows[1][1]  # the first two add, the others subtract
    low, high = _interval(*parts) if min(map(len, parts)) > 1 else (None, None)
    value = changes[0]["value"] - changes[1]["value"]
    return {"value": value, "ci_low": low, "ci_high": high, "n_tasks": None, "per_task": None}


def _windows(values: Sequence[float | None]) -> tuple[np.ndarray, np.ndarray]:
    """First and last tenth."""
    series, n = np.array(values, np.float64), window(len(values))
    return series[:n], series[len(series) - n :]


def _interval(*parts: np.ndarray) -> tuple[float, float]:
    """95% interval of the sum of means of the first half of parts minus that of the other half, each resampled."""
    means = [
        np.concatenate([counts @ part for counts in resampled_counts(len(part), seed=seed)]) / len(part)
        for seed, part in enumerate(parts)
    ]
    half = len(means) // 2
    low, high = np.quantile(sum(means[:half]) - sum(means[half:]), [0.025, 0.975]).tolist()
    return low, high
