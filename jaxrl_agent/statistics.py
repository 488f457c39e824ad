"""Estimates with their uncertainty: Pass@K, bootstrap over tasks, Wilson, Holm. numpy only, float64.

The task is the sampling unit: samples of one task share its difficulty, so every interval resamples whole tasks.
An undefined scalar (a rate without events) is None; a standard deviation of one value is NaN.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from jaxrl_agent.errors import ArgumentError

RESAMPLES = 10_000
SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
PARITY_MARGIN = 0.03  # of Pass@1: a smaller loss counts as parity
_MAX_CHUNK = 2**22  # resampled task indices held at once


@dataclasses.dataclass(frozen=True)
class Estimate:
    """An estimate with the ends of its confidence interval; arrays where many were estimated at once."""

    estimate: float | np.ndarray
    low: float | np.ndarray
    high: float | np.ndarray
    n: int  # sampling units: tasks, or trials of a Wilson interval


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (ddof 1; NaN for one value) over n seeds."""

    mean: float | np.ndarray
    sd: float | np.ndarray
    n: int


@dataclasses.dataclass(frozen=True)
class HolmResult:
    """p-values adjusted for multiple comparisons, in the order they were given."""

    adjusted: np.ndarray
    rejected: np.ndarray  # bool, True where the hypothesis is rejected at the level asked for
    n: int


@dataclasses.dataclass(frozen=True)
class StepRewardAverages:
    """Step reward in three ways; they differ when failing trajectories are long."""

    pooled: float | None  # every step weighs the same
    mean_of_means: float | None  # every trajectory weighs the same
    first_turn: float | None  # no survivorship: every trajectory has a first turn
    n: int  # trajectories with at least one turn


@dataclasses.dataclass(frozen=True)
class ErrorCorrection:
    """How often a tool call that failed is followed by one that works."""

    error_turns: int
    followed: int  # error turns that have a next turn
    corrected: int  # error turns whose next turn calls without error
    rate: float | None  # corrected / followed
    rate_of_all: float | None  # corrected / error_turns: a final error counts as not corrected


def pass_at_k(n: int, c: int, k: int) -> float:
    """Estimate the probability that at least one of k samples succeeds.

    1 - C(n - c, k) / C(n, k), as the product 1 - prod_{i=n-c+1..n} (1 - k / i), stable for large n.
    Source: "Pass@(K,T)"; arXiv 2107.03374, section 2.1.

    Args:
        n: samples drawn.
        c: samples that succeeded, 0..n.
        k: samples of the hypothetical draw, 1..n.

    Returns:
        The unbiased estimate, 0..1.

    Raises:
        ArgumentError: k > n, k < 1, c > n, a negative or a non-integer count.
    """
    n, c, k = (_integer(name, number) for name, number in (("n", n), ("c", c), ("k", k)))
    if not 0 <= c <= n:
        raise ArgumentError("the number of successes must lie within 0..n", value={"n": n, "c": c})
    return float(pass_at_k_table(n, k)[c])


def pass_at_k_table(n: int, k: int) -> np.ndarray:
    """Tabulate `pass_at_k(n, c, k)` for every c.

    Args:
        n: samples drawn.
        k: samples of the hypothetical draw, 1..n.

    Returns:
        float64 [n + 1], entry c for c successes.

    Raises:
        ArgumentError: k outside 1..n, or a non-integer count.
    """
    n, k = _integer("n", n), _integer("k", k)
    if not 1 <= k <= n:
        raise ArgumentError(
            "Pass@k needs 1 <= k <= n samples", value={"n": n, "k": k}, remedy="Draw more samples, 2k or more."
        )
    i = np.arange(n, 0, -1, dtype=np.float64)
    all_fail = np.cumprod(np.maximum(i - k, 0.0) / i)
    return 1.0 - np.concatenate([[1.0], all_fail])


def bootstrap_mean(values: ArrayLike, *, resamples: int = RESAMPLES, level: float = 0.95, seed: int = 0) -> Estimate:
    """Estimate the mean over tasks with a percentile interval from resampled tasks.

    All cells of one call see the same resamples, so that they stay paired. Source: "Pass@(K,T)".

    Args:
        values: [P, ...], one value for each task and cell.
        resamples: bootstrap draws.
        level: coverage of the interval.
        seed: seed of the resampling.

    Returns:
        Estimate with fields of shape [...], floats for [P]; n = P.

    Raises:
        ArgumentError: no tasks, a value that is not finite, or `resamples` or `level` out of range.
    """
    values = _finite("values", values)
    cells = values.reshape(len(values), -1)
    means = np.concatenate(
        [counts @ cells for counts in resampled_counts(len(cells), resamples=resamples, seed=seed)]
    ) / len(cells)
    return _percentile_estimate(cells.mean(axis=0), means, level, values.shape[1:], len(cells))


def bootstrap_difference(
    a: ArrayLike, b: ArrayLike, *, resamples: int = RESAMPLES, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Estimate the mean of a - b over tasks: two policies on the same tasks, paired.

    Args:
        a: [P, ...], values of the first policy.
        b: [P, ...], values of the second policy, the same tasks in the same order.
        resamples: bootstrap draws.
        level: coverage of the interval.
        seed: seed of the resampling.

    Returns:
        Estimate with fields of shape [...]; n = P.

    Raises:
        ArgumentError: different shapes, or as `bootstrap_mean`.
    """
    a, b = _finite("a", a), _finite("b", b)
    if a.shape != b.shape:
        raise ArgumentError("a paired difference needs the same tasks and cells twice", value=(a.shape, b.shape))
    return bootstrap_mean(a - b, resamples=resamples, level=level, seed=seed)


def bootstrap_ratio(
    numerators: ArrayLike,
    denominators: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """Estimate a pooled share, sum of numerators over sum of denominators, resampling whole clusters.

    Resamples whose denominator is 0 say nothing about the share and are left out.

    Args:
        numerators: [P], events of each cluster.
        denominators: [P], opportunities of each cluster, 0 or more.
        resamples: bootstrap draws.
        level: coverage of the interval.
        seed: seed of the resampling.

    Returns:
        Estimate of floats; n = P.

    Raises:
        ArgumentError: different shapes, a negative or all-zero denominator, or as `bootstrap_mean`.
    """
    above, below = _finite("numerators", numerators), _finite("denominators", denominators)
    if above.ndim != 1 or above.shape != below.shape:
        shapes = (above.shape, below.shape)
        raise ArgumentError("a share needs one numerator and one denominator for each cluster", value=shapes)
    if below.min() < 0 or below.sum() == 0:
        raise ArgumentError("denominators must be 0 or more and not all 0", value=below)
    pairs = np.stack([above, below], axis=1)
    sums = np.concatenate([counts @ pairs for counts in resampled_counts(len(pairs), resamples=resamples, seed=seed)])
    sums = sums[sums[:, 1] > 0]
    return _percentile_estimate(above.sum() / below.sum(), sums[:, 0] / sums[:, 1], level, (), len(pairs))


def wilson(successes: int, n: int, *, level: float = 0.95) -> Estimate:
    """Estimate a proportion with the Wilson score interval; for independent trials only.

    Source: E. B. Wilson, JASA 22 (1927).

    Args:
        successes: 0..n.
        n: trials, 1 or more.
        level: coverage of the interval.

    Returns:
        Estimate of floats.

    Raises:
        ArgumentError: counts or `level` out of range.
    """
    successes, n = _integer("successes", successes), _integer("n", n)
    if not 0 <= successes <= n or n < 1:
        raise ArgumentError("a proportion needs 0 <= successes <= n and n >= 1", value={"c": successes, "n": n})
    _check_level(level)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = successes / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half_width = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    low = 0.0 if successes == 0 else centre - half_width
    high = 1.0 if successes == n else centre + half_width
    return Estimate(share, low, high, n)


def holm(p_values: ArrayLike, *, alpha: float = 0.05) -> HolmResult:
    """Adjust p-values so that the chance of any false rejection stays below alpha.

    In increasing order p_(i) becomes max_{j <= i} min(1, (m - j + 1) p_(j)). Source: S. Holm, Scand. J. Stat. 6 (1979).

    Args:
        p_values: [m], each 0..1.
        alpha: family-wise error rate.

    Returns:
        HolmResult in the order given.

    Raises:
        ArgumentError: no p-values, or one outside 0..1.
    """
    p = _finite("p_values", p_values)
    if p.ndim != 1 or p.min() < 0 or p.max() > 1:
        raise ArgumentError("p-values must be a list of numbers within 0..1", value=p_values)
    order = np.argsort(p, kind="stable")
    in_order = np.maximum.accumulate(np.minimum(p[order] * np.arange(len(p), 0, -1), 1.0))
    adjusted = np.empty_like(in_order)
    adjusted[order] = in_order
    return HolmResult(adjusted, adjusted <= alpha, len(p))


def mean_and_sd(values: ArrayLike) -> Spread:
    """Summarise one value, or one array of cells, for each seed by mean and sample standard deviation.

    Args:
        values: [seeds, ...].

    Returns:
        Spread with fields of shape [...], floats for [seeds].

    Raises:
        ArgumentError: no seeds, or a value that is not finite.
    """
    values = _finite("values", values)
    n = len(values)
    sd = values.std(axis=0, ddof=1) if n > 1 else np.full(values.shape[1:], np.nan)
    return Spread(_plain(values.mean(axis=0)), _plain(sd), n)


def judge_above(estimate: Estimate, threshold: float) -> str:
    """Judge that a difference is above `threshold`: the whole interval must lie on one side, and NaN lies on none."""
    if estimate.low > threshold:
        return SUPPORTED
    return CONTRADICTED if estimate.high < threshold else UNDECIDED


def judge_below(estimate: Estimate, threshold: float) -> str:
    """Judge that a difference is below `threshold`."""
    if estimate.high < threshold:
        return SUPPORTED
    return CONTRADICTED if estimate.low > threshold else UNDECIDED


def step_reward_averages(step_rewards: Sequence[Sequence[float]]) -> StepRewardAverages:
    """Average step rewards pooled over steps, as mean of trajectory means, and on first turns only.

    Source: "Training dynamics": long failing trajectories drag the pooled mean down without any change of skill.

    Args:
        step_rewards: for each trajectory, its rewards turn by turn. One without turns has no step to average.

    Returns:
        StepRewardAverages; None where there is no step at all.
    """
    played = [np.asarray(rewards, np.float64) for rewards in step_rewards if len(rewards)]
    if not played:
        return StepRewardAverages(None, None, None, 0)
    return StepRewardAverages(
        pooled=float(np.concatenate(played).mean()),
        mean_of_means=float(np.mean([rewards.mean() for rewards in played])),
        first_turn=float(np.mean([rewards[0] for rewards in played])),
        n=len(played),
    )


def error_correction(calls: Sequence[Sequence[bool | None]]) -> ErrorCorrection:
    """Count how often the turn after a failed tool call makes one that works.

    Source: "Step quality".

    Args:
        calls: for each trajectory, turn by turn: True if the call worked, False if it returned an error, None if the
            turn called nothing (after an error that is a follow-up, and not a correction).

    Returns:
        ErrorCorrection.
    """
    worked = [[None if call is None else bool(call) for call in turns] for turns in calls]
    errors = sum(turns.count(False) for turns in worked)
    after_error = [after for turns in worked for call, after in itertools.pairwise(turns) if call is False]
    corrected = after_error.count(True)
    return ErrorCorrection(
        error_turns=errors,
        followed=len(after_error),
        corrected=corrected,
        rate=corrected / len(after_error) if after_error else None,
        rate_of_all=corrected / errors if errors else None,
    )


def resampled_counts(n: int, *, resamples: int = RESAMPLES, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield float64 [chunk, n]: how often each of n units occurs in each resample of n units."""
    if _integer("resamples", resamples) < 1:
        raise ArgumentError("resamples must be 1 or more", value=resamples)
    rng = np.random.default_rng(seed)
    chunk = max(1, _MAX_CHUNK // n)
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        drawn = rng.integers(0, n, size=(rows, n)) + n * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def _percentile_estimate(estimate, resampled: np.ndarray, level: float, shape: tuple[int, ...], n: int) -> Estimate:
    _check_level(level)
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Estimate(*(_plain(np.reshape(x, shape)) for x in (estimate, low, high)), n)


def _plain(x: np.ndarray) -> float | np.ndarray:
    """Turn a 0-d array into a float."""
    return float(x) if np.ndim(x) == 0 else x


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ArgumentError("a confidence level must lie between 0 and 1", value=level)


def _integer(name: str, number: int) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise ArgumentError(f"{name} must be an integer", value=number) from None


def _finite(name: str, values: ArrayLike) -> np.ndarray:
    """Return float64 [P, ...] with P >= 1 and every value finite."""
    array = np.asarray(values, np.float64)
    if array.ndim == 0 or len(array) == 0 or not np.isfinite(array).all():
        raise ArgumentError(f"{name} must be finite numbers, at least one", value=values)
    return array
