"""Means over seeds with two uncertainties: what other tasks would change, and what other seeds would."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike

from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.statistics import Estimate, Spread, bootstrap_mean, mean_and_sd


@dataclasses.dataclass(frozen=True)
class SeedMean:
    """A mean over seeds and tasks."""

    mean: float
    tasks: Estimate  # for these seeds, under other tasks: bootstrap over tasks of their means over seeds
    seeds: Estimate  # for these tasks, under other seeds: t interval of the seeds' means
    sd: float  # between the seeds' means, ddof 1; NaN for one seed
    per_seed: tuple[float, ...]


def means_over_seeds(values_SPC: ArrayLike) -> list[SeedMean]:
    """Average over seeds and tasks, cell by cell.

    All seeds share the tasks, so a resample of tasks takes a task with all its seeds. Every call resamples alike: a
    difference passed as values is paired by seed and by task.

    Args:
        values_SPC: [seeds, tasks, cells], for example per-task Pass@K, or differences of it.

    Returns:
        A SeedMean for each cell, with 95% intervals.

    Raises:
        ArgumentError: not three axes, an empty one, or a value that is not finite.
    """
    values_SPC = np.asarray(values_SPC, np.float64)
    if values_SPC.ndim != 3:
        raise ArgumentError("values over seeds have the axes seeds, tasks, cells", value=values_SPC.shape)
    seeds_SC = values_SPC.mean(axis=1)
    tasks, spread = bootstrap_mean(values_SPC.mean(axis=0)), mean_and_sd(seeds_SC)
    seeds = student_interval(spread)
    return [
        SeedMean(
            mean=float(spread.mean[c]),
            tasks=_cell(tasks, c),
            seeds=_cell(seeds, c),
            sd=float(spread.sd[c]),
            per_seed=tuple(seeds_SC[:, c].tolist()),
        )
        for c in range(values_SPC.shape[2])
    ]


def _cell(many: Estimate, c: int) -> Estimate:
    return Estimate(float(many.estimate[c]), float(many.low[c]), float(many.high[c]), many.n)


def student_interval(spread: Spread, *, level: float = 0.95) -> Estimate:
    """Estimate a mean over seeds with Student's t interval, mean +- t sd / sqrt(n).

    Args:
        spread: of the seeds' values.
        level: coverage, if the seeds' values are normal.

    Returns:
        Estimate with fields of the spread's shape, n = seeds; the ends are NaN for one seed.
    """
    t = student_quantile(level, spread.n - 1) if spread.n > 1 else math.nan
    half_width = t * spread.sd / math.sqrt(spread.n)
    return Estimate(spread.mean, spread.mean - half_width, spread.mean + half_width, spread.n)


def student_quantile(level: float, dof: int) -> float:
    """Find t with P(|T| <= t) = level for Student's T, by bisection of the exact finite series.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.

    Args:
        level: above 0 and below 1.
        dof: degrees of freedom, 1 or more.

    Returns:
        t, above 0.

    Raises:
        ArgumentError: `level` or `dof` out of range.
    """
    if not 0 < level < 1 or dof < 1:
        raise ArgumentError("a t quantile needs 0 < level < 1 and dof >= 1", value={"level": level, "dof": dof})
    low, high = 0.0, math.pi / 2  # of the angle atan(t / sqrt(dof))
    while low < (middle := (low + high) / 2) < high:
        if _central_probability(middle, dof) < level:
            low = middle
        else:
            high = middle
    return math.sqrt(dof) * math.tan(high)


def _central_probability(angle: float, dof: int) -> float:
    """P(|T| <= sqrt(dof) tan(angle))."""
    odd = dof % 2
    term = math.cos(angle) if odd else 1.0
    series = 0.0
    for power in range(1 if odd else 0, dof - 1, 2):
        series += term
        term *= (power + 1) / (power + 2) * math.cos(angle) ** 2
    series *= math.sin(angle)
    return 2 / math.pi * (angle + series) if odd else series
