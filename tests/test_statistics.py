from __future__ import annotations

import math
import time
from fractions import Fraction

import numpy as np
import pytest

from jaxrl_agent import statistics
from jaxrl_agent.errors import ArgumentError


@pytest.mark.parametrize(
    ("n", "c", "k", "exact"),
    [
        (1, 1, 1, 1),
        (4, 1, 1, Fraction(1, 4)),
        (4, 1, 4, 1),
        (4, 4, 2, 1),
        (8, 1, 8, 1),
        (8, 2, 4, Fraction(11, 14)),
        (8, 7, 2, 1),
        (10, 3, 5, Fraction(11, 12)),
        (16, 2, 8, Fraction(23, 30)),
        (16, 5, 8, Fraction(77, 78)),
        (32, 3, 8, Fraction(367, 620)),
        (64, 1, 32, Fraction(1, 2)),
        (64, 13, 4, Fraction(4589, 7564)),
        (64, 60, 5, 1),
        (200, 40, 10, Fraction(8818599397593, 9812501883310)),
        (5, 0, 3, 0),
    ],
)
def test_pass_at_k_equals_the_exact_fraction(n, c, k, exact):
    assert statistics.pass_at_k(n, c, k) == pytest.approx(float(exact), abs=1e-14)


def test_pass_at_k_table_equals_binomials_for_every_count():
    for n in range(1, 13):
        for k in range(1, n + 1):
            expected = [1 - math.comb(n - c, k) / math.comb(n, k) for c in range(n + 1)]
            np.testing.assert_allclose(statistics.pass_at_k_table(n, k), expected, atol=1e-14)


def test_pass_at_k_is_stable_for_many_samples():
    assert statistics.pass_at_k(1_000_000, 10, 100_000) == pytest.approx(1 - 0.9**10, abs=1e-5)


@pytest.mark.parametrize(
    ("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 2), (4, -1, 2), (-4, 0, 1), (0, 0, 1), (4, 1.5, 2), (4, 1, 2.0)]
)
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match=r"k|successes|integer"):
        statistics.pass_at_k(n, c, k)


@pytest.mark.parametrize(
    ("c", "n", "low", "high"),
    [
        (0, 16, 0.0, 0.193608),
        (8, 16, 0.279996, 0.720004),
        (43, 100, 0.337333, 0.527846),
        (428, 1000, 0.397666, 0.458885),
        (16, 16, 1 - 0.193608, 1.0),
    ],
)
def test_wilson_equals_the_hand_computed_interval(c, n, low, high):
    result = statistics.wilson(c, n)
    assert result.estimate == c / n
    np.testing.assert_allclose([result.low, result.high], [low, high], atol=1e-6)
    assert 0 <= result.low <= result.estimate <= result.high <= 1


@pytest.mark.parametrize(("c", "n"), [(1, 0), (-1, 4), (5, 4)])
def test_wilson_refuses_impossible_counts(c, n):
    with pytest.raises(ArgumentError):
        statistics.wilson(c, n)


def test_bootstrap_interval_of_coin_flips_matches_the_normal_one():
    values = np.tile([0.0, 1.0], 200)
    result = statistics.bootstrap_mean(values)
    assert (result.estimate, result.n) == (0.5, 400)
    np.testing.assert_allclose([result.low, result.high], 0.5 + np.array([-1, 1]) * 1.96 * 0.025, atol=2e-3)


def test_bootstrap_reproduces_the_standard_error_over_tasks():
    """Three tasks with Pass@4 of 13/14, 0 and 1 at T = 5: sd / sqrt(3) = 0.330978 with ddof 1."""
    per_task = np.array([1 - math.comb(4, 4) / math.comb(8, 4), 0.0, 1.0])
    counts = np.concatenate(list(statistics.resampled_counts(3, resamples=200_000, seed=1)))
    resampled_sd = (counts @ per_task / 3).std()
    assert resampled_sd * np.sqrt(3 / 2) == pytest.approx(0.33097807, rel=0.01)


def test_bootstrap_repeats_with_its_seed_and_keeps_cells_paired():
    values = np.random.default_rng(0).random((30, 2, 3))
    values[:, 1, 2] = values[:, 0, 0]
    one, two = (statistics.bootstrap_mean(values, resamples=500, seed=3) for _ in range(2))
    np.testing.assert_array_equal(one.low, two.low)
    assert one.low.shape == one.high.shape == one.estimate.shape == (2, 3)
    np.testing.assert_allclose([one.low[1, 2], one.high[1, 2]], [one.low[0, 0], one.high[0, 0]], rtol=1e-12)
    other = statistics.bootstrap_mean(values, resamples=500, seed=4)
    assert (one.low != other.low).any()


def test_bootstrap_does_not_depend_on_its_chunks(monkeypatch):
    values = np.random.default_rng(0).random(7)
    whole = statistics.bootstrap_mean(values, resamples=100)
    monkeypatch.setattr(statistics, "_MAX_CHUNK", 7)
    assert statistics.bootstrap_mean(values, resamples=100) == whole


def test_a_paired_difference_is_narrower_than_an_unpaired_one():
    rng = np.random.default_rng(0)
    difficulty = rng.random(100)
    a, b = difficulty + 0.05, difficulty + 0.01 * rng.normal(size=100)
    paired = statistics.bootstrap_difference(a, b)
    assert paired.low < 0.05 < paired.high
    assert paired.high - paired.low < 0.01
    assert statistics.bootstrap_difference(a, a) == statistics.Estimate(0.0, 0.0, 0.0, 100)


def test_bootstrap_intervals_cover_at_about_their_level():
    rng = np.random.default_rng(0)
    results = [statistics.bootstrap_mean(rng.random(50) < 0.3, resamples=400, seed=i) for i in range(300)]
    covered = np.mean([result.low <= 0.3 <= result.high for result in results])
    assert 0.90 < covered < 0.98


def test_a_ratio_pools_over_clusters():
    result = statistics.bootstrap_ratio([2, 0, 5, 0], [4, 0, 5, 3])
    assert result.estimate == 7 / 12
    assert result.low < 7 / 12 < result.high
    with pytest.raises(ArgumentError, match="denominators"):
        statistics.bootstrap_ratio([0, 0], [0, 0])


def test_a_grid_of_sixty_cells_over_256_tasks_takes_less_than_two_seconds():
    values = np.random.default_rng(0).random((256, 5, 12))
    start = time.process_time()
    statistics.bootstrap_mean(values)
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize("values", [[], 1.0, [0.5, np.nan], [np.inf]])
def test_estimates_of_nothing_or_of_nan_are_refused(values):
    with pytest.raises(ArgumentError, match="finite"):
        statistics.bootstrap_mean(values)
    with pytest.raises(ArgumentError, match="finite"):
        statistics.mean_and_sd(values)


def test_settings_out_of_range_are_refused():
    with pytest.raises(ArgumentError, match="same tasks"):
        statistics.bootstrap_difference([1.0, 2.0], [1.0])
    with pytest.raises(ArgumentError, match="resamples"):
        statistics.bootstrap_mean([1.0], resamples=0)
    with pytest.raises(ArgumentError, match="level"):
        statistics.bootstrap_mean([1.0], level=95)


def test_holm_steps_down_and_never_reorders():
    result = statistics.holm([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(result.adjusted, [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_array_equal(result.rejected, [True, False, False, True])
    np.testing.assert_allclose(statistics.holm([0.9, 0.8]).adjusted, [1.0, 1.0])
    with pytest.raises(ArgumentError, match="p-values"):
        statistics.holm([0.5, 1.5])


def test_mean_and_sd_over_seeds():
    spread = statistics.mean_and_sd([1.0, 2.0, 4.0])
    assert (spread.mean, spread.n) == (pytest.approx(7 / 3), 3)
    assert spread.sd == pytest.approx(np.sqrt(7 / 3))
    cells = statistics.mean_and_sd([[1.0, 5.0], [3.0, 5.0]])
    np.testing.assert_allclose([cells.mean, cells.sd], [[2, 5], [np.sqrt(2), 0]])
    assert math.isnan(statistics.mean_and_sd([1.0]).sd)


def test_step_reward_averages_differ_when_failures_are_long():
    averages = statistics.step_reward_averages([[0.2, 0.5, 1.0], [0.1, 0.1, 0.1, 0.1, 0.2], [], [1.0]])
    np.testing.assert_allclose(averages.pooled, 0.36666667, atol=1e-8)
    np.testing.assert_allclose(averages.mean_of_means, 0.56222222, atol=1e-8)
    np.testing.assert_allclose(averages.first_turn, 0.43333333, atol=1e-8)
    assert averages.n == 3
    assert statistics.step_reward_averages([[]]) == statistics.StepRewardAverages(None, None, None, 0)


def test_error_correction_counts_follow_ups():
    ok, error, talk = True, False, None
    result = statistics.error_correction([[ok, error, ok, error], [error, error, ok], [ok, ok], [error]])
    assert (result.error_turns, result.followed, result.corrected) == (5, 3, 2)
    assert result.rate == pytest.approx(2 / 3)
    assert result.rate_of_all == pytest.approx(0.4)
    gave_up = statistics.error_correction([[error, talk], np.array([True, True])])
    assert (gave_up.followed, gave_up.corrected, gave_up.rate) == (1, 0, 0.0)
    assert statistics.error_correction([np.array([False, True])]).corrected == 1
    assert statistics.error_correction([[ok]]).rate is None
