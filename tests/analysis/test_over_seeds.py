"""Measures of one seed and of several, and what their intervals decide."""

from __future__ import annotations

import math

import pytest

from jaxrl_agent.analysis.over_seeds import NATS, POINTS, SHARE, Combined, combine
from jaxrl_agent.statistics import Estimate, judge_above, judge_below


def measure(per_task, **changes):
    values = list(per_task.values())
    found = {"value": sum(values) / len(values), "ci_low": 0.1, "ci_high": 0.3, "n_tasks": len(values)}
    return {**found, "per_task": per_task, **changes}


def alternating(*values: float, tasks: int = 6) -> dict[str, float]:
    return {str(task): values[task % len(values)] for task in range(tasks)}


def test_a_few_tasks_decide_nothing_although_all_of_them_agree():
    """Each of five tasks has the same sign by chance in 1 of 16 cases; of six, in 1 of 32."""
    for seeds in (1, 2):
        five, six = (combine([measure(alternating(0.2, 0.3, tasks=tasks))] * seeds) for tasks in (5, 6))
        assert judge_above(five.intervals["tasks"], 0.0) == "supported"
        assert (five.verdict(judge_above, 0.0), six.verdict(judge_above, 0.0)) == ("undecided", "supported")
        assert "fewer than 6 tasks decide nothing" in five.remark
        assert six.remark == six.note


def test_one_seed_keeps_its_interval_over_tasks_and_says_so():
    found = combine([measure(alternating(0.1, 0.3))])
    assert found.verdict(judge_above, 0.0) == "supported"
    assert found.verdict(judge_below, 0.0) == "contradicted"
    assert found.verdict(judge_above, 0.2) == "undecided"
    assert found.note == "one seed, which says nothing of others"
    assert found.text(POINTS) == "+20.0 points (over tasks +10.0 to +30.0)"


def test_an_interval_that_is_not_known_decides_nothing():
    found = combine([measure({"0": 0.2}, ci_low=None, ci_high=None)])
    assert found.verdict(judge_above, 0.0) == "undecided"
    assert found.text(SHARE) == "20.0% (no interval)"


def test_several_seeds_are_averaged_over_the_tasks_that_all_have():
    found = combine([measure({"0": 0.0, "1": 1.0, "2": 9.0}), measure({"1": 0.5, "0": 0.5})])
    assert found.value == 0.5
    assert set(found.intervals) == {"tasks", "2 seeds"}
    assert (found.intervals["tasks"].low, found.intervals["tasks"].high) == (0.25, 0.75)
    assert found.intervals["2 seeds"].low == found.intervals["2 seeds"].high == 0.5
    assert found.note == ""


def test_the_intervals_over_tasks_and_over_seeds_must_agree():
    agreed = combine([measure(alternating(0.4, 0.5)), measure(alternating(0.5, 0.4))])
    apart = combine([measure(alternating(0.1, 0.1)), measure(alternating(0.9, 0.9))])
    assert agreed.verdict(judge_above, 0.0) == "supported"
    assert judge_above(apart.intervals["tasks"], 0.0) == "supported"
    assert apart.verdict(judge_above, 0.0) == "undecided", "two seeds that far apart say little of others"


def test_a_figure_that_is_no_mean_over_tasks_has_students_interval_alone():
    one = {"value": 1.0, "ci_low": 0.9, "ci_high": 1.1, "n_tasks": None, "per_task": None}
    found = combine([one, {**one, "value": 2.0}, {**one, "value": 3.0}])
    assert set(found.intervals) == {"3 seeds"}
    assert found.intervals["3 seeds"].high == pytest.approx(2 + 4.3027 / math.sqrt(3), abs=1e-4)
    assert combine([one]).text(NATS) == "+1.00 nats (over updates +0.90 to +1.10)"


def test_seeds_without_the_measure_are_counted():
    found = combine([measure({"0": 0.1, "1": 0.2}), None, measure({"0": 0.1, "1": 0.2})])
    assert found.note == "2 of 3 seeds"
    assert combine([None, None]) is None
    assert combine([measure({"0": 0.1, "1": 0.2}), measure({"7": 0.1, "8": 0.2})]) is None


def test_a_zero_has_no_sign():
    assert (
        Combined(-1e-9, {"tasks": Estimate(0.0, -0.0, 0.01, 2)}).text(POINTS) == "0.0 points (over tasks 0.0 to +1.0)"
    )
