"""Figures from rows: equal weight of tasks, what is left out, p-values and bins."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jaxrl_agent.analysis.estimates import (
    PerTask,
    bootstrap_p_value,
    by_task,
    figure,
    holm_column,
    measure,
    paired,
    power_bins,
)
from jaxrl_agent.errors import ArgumentError


def test_every_task_weighs_the_same_however_many_rows_it_has():
    found = by_task([7, 3, 7, 7], [1.0, 0.0, 1.0, 1.0])
    assert found.tasks.tolist() == [3, 7]
    assert found.values.tolist() == [0.0, 1.0]
    assert (found.n, found.mean) == (4, 0.5)


def test_undefined_rows_are_left_out_and_counted():
    found = figure(by_task([0, 0, 1, 2], [1.0, math.nan, 0.0, math.nan]), "x")
    assert (found["value"], found["n"], found["n_tasks"]) == (0.5, 2, 2)
    assert found["ci_low"] == 0.0
    assert found["ci_high"] == 1.0


def test_a_figure_over_no_task_is_none():
    assert by_task([0, 1], [math.nan, math.nan]) is None
    assert by_task([], []) is None
    assert figure(None, "x") is measure(None) is None


def test_one_task_has_a_value_and_no_interval():
    found = measure(by_task([4, 4], [0.25, 0.75]))
    assert found == {"value": 0.5, "ci_low": None, "ci_high": None, "n_tasks": 1, "per_task": {"4": 0.5}}
    assert math.isnan(bootstrap_p_value([0.5]))


def test_differences_are_paired_on_the_tasks_that_both_have():
    a, b = by_task([0, 1, 2], [1.0, 2.0, 3.0]), by_task([1, 2, 5], [0.5, 1.0, 9.0])
    found = paired(a, b)
    assert found.tasks.tolist() == [1, 2]
    assert found.values.tolist() == [1.5, 2.0]
    assert paired(a, by_task([9], [0.0])) is paired(a, None) is None


def test_columns_are_averaged_side_by_side():
    found = by_task([0, 0, 1], np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]))
    assert isinstance(found.column(1), PerTask)
    assert found.mean.tolist() == [0.75, 0.5]


def test_rows_and_tasks_must_match():
    with pytest.raises(ArgumentError, match="every row needs one task"):
        by_task([0, 1], [1.0])


def test_p_values_are_two_sided_and_never_0():
    assert bootstrap_p_value([1.0, 2.0, 3.0], resamples=999) == pytest.approx(2 / 1000)
    assert bootstrap_p_value([-1.0, -2.0], resamples=999) == pytest.approx(2 / 1000)
    assert bootstrap_p_value([0.0, 0.0, 0.0]) == 1.0
    # Two tasks at +-1: resampled means are -1, 0, 0, 1, so that about 3/4 lie on either side.
    assert bootstrap_p_value([1.0, -1.0]) == 1.0


def test_a_bin_of_one_task_is_no_test_of_its_table():
    assert holm_column([0.01, math.nan, 0.03]) == [0.02, None, 0.03]
    assert holm_column([math.nan]) == [None]


def test_bins_are_powers_of_two_without_empty_ones():
    assert power_bins([1, 2, 3, 5, 8, 17, 32]) == [(1, 2), (3, 4), (5, 8), (17, 32)]
    assert power_bins([0, 9, 16]) == [(0, 0), (9, 16)]
    assert power_bins([]) == []
    with pytest.raises(ArgumentError, match="whole numbers"):
        power_bins([1.5])
