"""Figures from rows: each task weighs the same, and intervals resample whole tasks.

Rows (states, actions, trajectories) of one task are averaged first, then tasks. Rows whose value is undefined (NaN) are
left out, and with them tasks that keep no row: `n` and `n_tasks` say how many remain. A figure over no task is None,
and so are the ends of an interval over one task, which says nothing of others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.run_dir import Json
from jaxrl_agent.statistics import RESAMPLES, Estimate, bootstrap_mean, holm, resampled_counts

INTERVAL = f"95% percentile interval from {RESAMPLES} resamples of the tasks"
EQUAL_WEIGHT = "mean within each task, then over tasks"


@dataclasses.dataclass(frozen=True)
class PerTask:
    """One value, or one value for each of C columns, of every task that has one."""

    tasks: np.ndarray  # int64 [P], ascending
    values: np.ndarray  # float64 [P] or [P, C]
    n: int  # rows that were averaged

    @property
    def mean(self) -> float | np.ndarray:
        """Mean over tasks, of each column."""
        return self.values.mean(axis=0)

    @property
    def estimate(self) -> Estimate:
        """Mean over tasks with its interval; its ends are NaN for one task."""
        found = bootstrap_mean(self.values)
        if len(self.tasks) > 1:
            return found
        unknown = np.full_like(self.values[0], np.nan)
        return Estimate(found.estimate, unknown, unknown, 1)

    def column(self, c: int) -> PerTask:
        """One of the columns."""
        return PerTask(self.tasks, self.values[:, c], self.n)


def by_task(tasks: ArrayLike, values: ArrayLike) -> PerTask | None:
    """Average rows within each task.

    Args:
        tasks: [S] integers, the task of each row.
        values: [S] or [S, C]; a row with a NaN is left out.

    Returns:
        PerTask, or None where no row is left.

    Raises:
        ArgumentError: different numbers of tasks and values.
    """
    tasks, values = np.asarray(tasks, np.int64), np.asarray(values, np.float64)
    if tasks.ndim != 1 or len(tasks) != len(values):
        raise ArgumentError("every row needs one task", value=(tasks.shape, values.shape))
    known = ~np.isnan(values.reshape(len(values), -1)).any(axis=1) if values.size else np.zeros(len(tasks), bool)
    if not known.any():
        return None
    found, place, counts = np.unique(tasks[known], return_inverse=True, return_counts=True)
    sums = np.zeros((len(found), *values.shape[1:]))
    np.add.at(sums, place, values[known])
    means = sums / counts.reshape(-1, *[1] * (values.ndim - 1))
    return PerTask(found, means, int(known.sum()))


def paired(a: PerTask | None, b: PerTask | None) -> PerTask | None:
    """Subtract b from a on the tasks that both have; None where they share none."""
    if a is None or b is None:
        return None
    common, in_a, in_b = np.intersect1d(a.tasks, b.tasks, return_indices=True)
    return PerTask(common, a.values[in_a] - b.values[in_b], a.n + b.n) if len(common) else None


def number(value: float) -> float | None:
    """A plain number; None for NaN."""
    return None if np.isnan(value) else float(value)


def ends(estimate: Estimate | None) -> list[float | None] | None:
    """Both ends of an interval."""
    return None if estimate is None else [number(estimate.low), number(estimate.high)]


def figure(found: PerTask | None, definition: str) -> Json | None:
    """One number with its interval and its counts, as JSON; None over no task."""
    if found is None:
        return None
    estimate = found.estimate
    low, high = ends(estimate)
    return {
        "value": float(estimate.estimate),
        "ci_low": low,
        "ci_high": high,
        "n": found.n,
        "n_tasks": len(found.tasks),
        "definition": definition,
    }


def measure(found: PerTask | None) -> Json | None:
    """One number with its interval and its value in each task: what means over seeds are made of."""
    if found is None:
        return None
    values = zip(found.tasks.tolist(), found.values.tolist(), strict=True)
    return {
        "value": float(found.mean),
        **dict(zip(("ci_low", "ci_high"), ends(found.estimate), strict=True)),
        "n_tasks": len(found.tasks),
        "per_task": {str(task): value for task, value in values},
    }


def bootstrap_p_value(values: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """Estimate the two-sided p-value of a mean over tasks against 0.

    2 min(share of resampled means <= 0, share >= 0), at most 1, each share counted with one resample more, so that it
    is never 0. Source: Davison and Hinkley, Bootstrap Methods and their Application, section 4.2.

    Args:
        values: [P], one value for each task.
        resamples: bootstrap draws.
        seed: seed of the resampling.

    Returns:
        The p-value, above 0 and at most 1; NaN for one task.
    """
    values = np.asarray(values, np.float64)
    if len(values) < 2:
        return float("nan")
    means = np.concatenate(
        [counts @ values for counts in resampled_counts(len(values), resamples=resamples, seed=seed)]
    )
    fewest = min((means <= 0).sum(), (means >= 0).sum())
    return min(1.0, 2 * (1 + int(fewest)) / (1 + resamples))


def holm_column(p_values: Sequence[float]) -> list[float | None]:
    """Adjust the p-values of one table by Holm; None where there is none (NaN), which does not count as a test."""
    p = np.asarray(p_values, np.float64)
    known = ~np.isnan(p)
    adjusted = np.full(len(p), np.nan)
    if known.any():
        adjusted[known] = holm(p[known]).adjusted
    return [number(value) for value in adjusted]


def power_bins(values: ArrayLike) -> list[tuple[int, int]]:
    """List the bins 0, 1-2, 3-4, 5-8, 9-16, ... that hold any of these whole numbers.

    Raises:
        ArgumentError: a number below 0, or one with a fraction.
    """
    values = np.asarray(values, np.float64)
    if (values < 0).any() or (values % 1).any():
        raise ArgumentError("bins are for whole numbers of 0 or more", value=values.min())
    tops = sorted({0 if v == 0 else max(2, 1 << (int(v) - 1).bit_length()) for v in values.tolist()})
    return [(0 if top == 0 else 1 if top == 2 else top // 2 + 1, top) for top in tops]
