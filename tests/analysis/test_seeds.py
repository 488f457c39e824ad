"""Means over seeds: t quantiles against published tables, and which interval sees which kind of spread."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jaxrl_agent.analysis.seeds import means_over_seeds, student_interval, student_quantile
from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.statistics import Spread, bootstrap_difference


@pytest.mark.parametrize(
    ("level", "dof", "t"),
    [
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 4, 2.776),
        (0.95, 7, 2.365),
        (0.95, 30, 2.042),
        (0.95, 120, 1.980),
        (0.9, 3, 2.353),
        (0.99, 4, 4.604),
        (0.5, 1, 1.0),
    ],
)
def test_t_quantiles_are_those_of_the_printed_tables(level, dof, t):
    assert student_quantile(level, dof) == pytest.approx(t, abs=6e-4)


def test_t_quantiles_agree_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    for level in (0.1, 0.8, 0.95, 0.999):
        for dof in (1, 2, 3, 6, 9, 50):
            assert student_quantile(level, dof) == pytest.approx(stats.t.ppf(0.5 + level / 2, dof), rel=1e-9)


@pytest.mark.parametrize(("level", "dof"), [(0.0, 3), (1.0, 3), (0.95, 0)])
def test_quantiles_that_do_not_exist_are_refused(level, dof):
    with pytest.raises(ArgumentError, match="dof >= 1"):
        student_quantile(level, dof)


def test_the_interval_of_three_seeds_is_that_worked_by_hand():
    interval = student_interval(Spread(mean=2.0, sd=1.0, n=3))
    assert interval.high - 2 == 2 - interval.low == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    assert interval.n == 3


def test_one_seed_has_no_interval_over_seeds_but_one_over_tasks():
    (value,) = means_over_seeds([[[0.0], [1.0], [0.0], [1.0]]])
    assert math.isnan(value.seeds.low)
    assert math.isnan(value.seeds.high)
    assert math.isnan(value.sd)
    assert value.tasks.low < value.mean == 0.5 < value.tasks.high


def test_spread_between_seeds_widens_the_interval_over_seeds_alone():
    values_SPC = np.broadcast_to(np.array([0.4, 0.5, 0.6])[:, None, None], (3, 20, 1))
    (value,) = means_over_seeds(values_SPC)
    assert (value.tasks.low, value.tasks.high) == pytest.approx((0.5, 0.5))
    assert (value.seeds.low, value.seeds.high) == pytest.approx((0.5 - 0.24841, 0.5 + 0.24841), abs=1e-4)
    assert value.sd == pytest.approx(0.1)
    assert value.per_seed == pytest.approx((0.4, 0.5, 0.6))


def test_spread_between_tasks_widens_the_interval_over_tasks_alone():
    values_SPC = np.broadcast_to(np.linspace(0, 1, 20)[None, :, None], (3, 20, 1))
    (value,) = means_over_seeds(values_SPC)
    assert value.tasks.high - value.tasks.low > 0.2
    assert (value.seeds.low, value.seeds.high) == pytest.approx((0.5, 0.5))


def test_a_difference_is_paired_by_seed_and_task():
    """Two policies that move together across seeds and tasks differ by a constant, whatever each of them does."""
    rng = np.random.default_rng(0)
    a_SPC = rng.random((4, 30, 2))
    values = means_over_seeds(a_SPC - (a_SPC - 0.1))
    for value in values:
        ends = (value.tasks.low, value.tasks.high, value.seeds.low, value.seeds.high)
        assert ends == pytest.approx((0.1, 0.1, 0.1, 0.1))


def test_the_interval_over_tasks_is_the_paired_bootstrap_of_means_over_seeds():
    rng = np.random.default_rng(1)
    a_SPC, b_SPC = rng.random((2, 3, 25, 2))
    expected = bootstrap_difference(a_SPC.mean(axis=0), b_SPC.mean(axis=0))
    for c, value in enumerate(means_over_seeds(a_SPC - b_SPC)):
        assert (value.mean, value.tasks.low, value.tasks.high) == pytest.approx(
            (expected.estimate[c], expected.low[c], expected.high[c])
        )


def test_values_without_an_axis_of_seeds_are_refused():
    with pytest.raises(ArgumentError, match="seeds, tasks, cells"):
        means_over_seeds(np.zeros((3, 4)))
