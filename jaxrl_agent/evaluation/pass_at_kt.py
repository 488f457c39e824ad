"""Pass@(K,T): the chance that one of K attempts succeeds within T turns, as a grid with intervals.

With a hidden budget one run at t_max serves every T, because a success at turn s is a success within every T >= s.
With a told budget the policy may behave differently at each T, so each T has a run of its own and its own column.
Source: "Pass@(K,T)".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from jaxrl_agent import statistics
from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.statistics import pass_at_k

__all__ = ["PassGrid", "default_ks", "grid_difference", "pass_at_k", "pass_at_kt", "pass_grid", "turn_grid"]

TURN_PERCENTS = (10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 100)


@dataclasses.dataclass(frozen=True)
class PassGrid:
    """Pass@(K,T) of one policy for every K and T of a grid; `grid.mean.estimate[i, j]` is at ks[i], ts[j]."""

    ks: tuple[int, ...]
    ts: tuple[int, ...]
    values_KTP: np.ndarray  # float64, per-task values; K and T here index ks and ts
    mean: statistics.Estimate  # fields float64 [len(ks), len(ts)], over tasks


def pass_at_kt(first_success_turn_PN: ArrayLike, k: int, t: int) -> float:
    """Estimate Pass@(K,T), averaged over tasks.

    Mean over tasks of 1 - C(n - c, k) / C(n, k), c the samples whose first success came within t turns.

    Args:
        first_success_turn_PN: [P, N] integers, turn of the first success, 0 = never.
        k: attempts, 1..N.
        t: turns, 1 or more.

    Returns:
        The estimate, 0..1.

    Raises:
        ArgumentError: k outside 1..N, t below 1, or turns that are no non-negative integers.
    """
    return float(_cell(_first_success(first_success_turn_PN), k, t).mean())


def pass_grid(
    first_success_turn_PN: ArrayLike,
    *,
    ts: Sequence[int],
    ks: Sequence[int] | None = None,
    resamples: int = statistics.RESAMPLES,
    seed: int = 0,
) -> PassGrid:
    """Estimate Pass@(K,T) on a grid with 95% intervals from resampled tasks.

    Args:
        first_success_turn_PN: [P, N] integers, turn of the first success, 0 = never.
        ts: turns, for example `turn_grid(t_max)`.
        ks: attempts; `default_ks(N)` by default.
        resamples: bootstrap draws.
        seed: seed of the resampling.

    Returns:
        PassGrid.

    Raises:
        ArgumentError: as `pass_at_kt`.
    """
    first_PN = _first_success(first_success_turn_PN)
    ks = default_ks(first_PN.shape[1]) if ks is None else ks
    if not len(ks) or not len(ts):
        raise ArgumentError("a grid needs at least one k and one t", value=(tuple(ks), tuple(ts)))
    values_KTP = np.array([[_cell(first_PN, k, t) for t in ts] for k in ks])
    mean = statistics.bootstrap_mean(np.moveaxis(values_KTP, -1, 0), resamples=resamples, seed=seed)
    return PassGrid(tuple(ks), tuple(ts), values_KTP, mean)


def grid_difference(
    a: PassGrid, b: PassGrid, *, resamples: int = statistics.RESAMPLES, seed: int = 0
) -> statistics.Estimate:
    """Estimate Pass@(K,T) of a minus b, cell by cell, paired over tasks.

    Args:
        a: grid of the first policy.
        b: grid of the second policy on the same tasks, in the same order.
        resamples: bootstrap draws.
        seed: seed of the resampling.

    Returns:
        Estimate with fields float64 [len(ks), len(ts)].

    Raises:
        ArgumentError: the grids differ in ks, ts or number of tasks.
    """
    if (a.ks, a.ts) != (b.ks, b.ts):
        raise ArgumentError("two grids are compared on the same ks and ts", value=((a.ks, a.ts), (b.ks, b.ts)))
    per_task = (np.moveaxis(grid.values_KTP, -1, 0) for grid in (a, b))
    return statistics.bootstrap_difference(*per_task, resamples=resamples, seed=seed)


def turn_grid(t_max: int, percents: Sequence[int] = TURN_PERCENTS) -> tuple[int, ...]:
    """List T at these percentages of t_max, rounded up in integers; neighbours coincide for a small t_max.

    Raises:
        ArgumentError: t_max below 1.
    """
    if t_max < 1:
        raise ArgumentError("t_max must be 1 or more", value=t_max)
    return tuple((percent * t_max + 99) // 100 for percent in percents)


def default_ks(n: int) -> tuple[int, ...]:
    """List the powers of two up to n / 2: beyond it the estimate hangs on few samples. (1,) for n = 1.

    Raises:
        ArgumentError: n below 1.
    """
    if n < 1:
        raise ArgumentError("the number of samples must be 1 or more", value=n)
    return tuple(2**i for i in range(max(1, (n // 2).bit_length())))


def _cell(first_PN: np.ndarray, k: int, t: int) -> np.ndarray:
    """Per-task Pass@(K,T), float64 [P]."""
    if t < 1:
        raise ArgumentError("Pass@(K,T) needs t of 1 or more turns", value=t)
    successes_P = ((first_PN > 0) & (first_PN <= t)).sum(axis=1)
    return statistics.pass_at_k_table(first_PN.shape[1], k)[successes_P]


def _first_success(first_success_turn_PN: ArrayLike) -> np.ndarray:
    """Return a validated integer array [P, N]."""
    first_PN = np.asarray(first_success_turn_PN)
    if first_PN.ndim != 2 or 0 in first_PN.shape or first_PN.dtype.kind not in "iu" or first_PN.min() < 0:
        raise ArgumentError(
            "first success turns must be integers [tasks, samples], 0 = never",
            value=(first_PN.shape, str(first_PN.dtype)),
            remedy="Give each task the same number of samples, and 0 to a sample without success.",
        )
    return first_PN
