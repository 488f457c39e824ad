"""Rewards along training, with numbers worked by hand."""

from __future__ import annotations

import pytest

from jaxrl_agent.analysis.dynamics import change, change_gap, dynamics, window
from jaxrl_agent.statistics import step_reward_averages


@pytest.mark.parametrize(("updates", "first"), [(1, 1), (19, 1), (20, 5), (59, 5), (60, 6), (150, 15)])
def test_windows_are_a_tenth_and_never_tiny_in_long_runs(updates, first):
    assert window(updates) == first


def test_a_change_is_last_tenth_minus_first():
    values = [1.0, 2.0, 3.0, 4.0, 5.0, *[100.0] * 10, 11.0, 12.0, 13.0, 14.0, 15.0]
    found = change(values)
    assert (found["value"], found["n"], found["n_tasks"]) == (10.0, 10, None)
    assert 6.0 < found["ci_low"] < 10.0 < found["ci_high"] < 14.0


def test_constant_windows_have_a_certain_change():
    found = change([0.25] * 10 + [0.75] * 10)
    assert (found["value"], found["ci_low"], found["ci_high"]) == (0.5, 0.5, 0.5)


def test_short_runs_have_a_change_without_interval_and_the_shortest_none():
    found = change([0.0, 5.0, 5.0, 1.0])
    assert (found["value"], found["ci_low"], found["ci_high"], found["n"]) == (1.0, None, None, 2)
    assert change([0.0, 1.0, 1.0]) is None
    assert change([None, 0.0, 1.0, 1.0]) is None


def test_changes_of_two_runs_are_subtracted_with_the_spread_of_both():
    steady, rising = [0.5] * 20, [0.0, 0.2] * 10
    assert change_gap(steady, steady) == {
        "value": 0.0,
        "ci_low": 0.0,
        "ci_high": 0.0,
        "n_tasks": None,
        "per_task": None,
    }
    found = change_gap([x + 1 if i >= 10 else x for i, x in enumerate(rising)], steady)
    # The first window has two updates of 0.2, the last three: 1.12 - 0.08.
    assert found["value"] == pytest.approx(1.04)
    assert found["ci_low"] < 1.04 < found["ci_high"]
    assert change_gap([1.0], steady) is None


def test_series_keep_the_order_of_updates_and_gaps():
    rows = [{"update": u, "trajectory_reward": u / 10, "optimal_share": None} for u in range(1, 6)]
    found = dynamics(rows)
    assert found["updates"] == [1, 2, 3, 4, 5]
    assert found["trajectory_reward"] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert found["step_reward_pooled"] == [None] * 5
    assert found["change"]["trajectory_reward"]["value"] == pytest.approx(0.4)
    assert found["change"]["optimal_share"] is None


def test_a_policy_without_updates_has_no_dynamics():
    assert dynamics(None) is None
    assert dynamics([]) is None


def test_the_three_averages_of_step_rewards_differ_when_failures_are_long():
    """What the series are made of: the numbers of three trajectories, the failing one being the longest."""
    rates = [[0.2, 0.5, 1.0], [0.1, 0.1, 0.1, 0.1, 0.2], [1.0]]
    averages = step_reward_averages(rates)
    found = (averages.pooled, averages.mean_of_means, averages.first_turn)
    assert found == pytest.approx((0.36666667, 0.56222222, 0.43333333))
