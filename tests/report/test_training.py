from __future__ import annotations

import math
import types

import numpy as np
import pytest

from jaxrl_agent.report.cost import cost_table
from jaxrl_agent.report.load import load_run
from jaxrl_agent.report.shares import effective_groups_figure, stop_reason_figure
from jaxrl_agent.report.training import (
    MAX_DRAWN,
    column,
    health_figure,
    reward_figure,
    smooth,
    step_reward_figure,
    warm_start_figure,
    window_for,
)


def run(name="grpo", slot=1, metrics=(), warm_start=(), config=None):
    """As much of a run as figures of training look at."""
    rows = {"metrics": tuple(metrics), "warm_start": tuple(warm_start)}
    return types.SimpleNamespace(name=name, slot=slot, config=config or {}, **rows)


def test_smoothing_is_a_centred_mean_with_shorter_ends():
    np.testing.assert_allclose(smooth(np.array([1.0, 2, 3, 4, 10]), 3), [1.5, 2, 3, 17 / 3, 7])


def test_smoothing_skips_what_is_not_known():
    values = np.array([1.0, math.nan, 3, math.nan, math.nan, math.nan])
    np.testing.assert_allclose(smooth(values, 3), [1, 2, 3, 3, math.nan, math.nan])


@pytest.mark.parametrize(("n", "window"), [(1, 1), (29, 1), (45, 3), (150, 11), (1000, 67)])
def test_the_window_is_odd(n, window):
    assert window_for(n) == window


def test_absent_and_null_values_are_not_known():
    np.testing.assert_array_equal(column([{"a": 1}, {"a": None}, {}], "a"), [1, math.nan, math.nan])


def test_turns_are_named_in_the_words_of_the_task():
    rows = [{"update": i, "trajectory_reward": 0.0, "success": 0.1 * i, "optimal_share": 0.5} for i in range(1, 5)]
    code = {"task": {"name": "deepcoder"}}
    for config, title in (({}, "Turns with a best action"), (code, "Turns that pass all tests")):
        figure = reward_figure([run(metrics=rows, config=config)])
        assert figure.panels[-1].title == title
        assert ("best action" in figure.definition) == (not config)


def test_success_is_left_out_where_it_equals_the_reward():
    rows = [{"update": i, "trajectory_reward": 0.1 * i, "success": 0.1 * i} for i in range(1, 5)]
    equal = reward_figure([run(metrics=rows)])
    assert [panel.title for panel in equal.panels] == ["Trajectory reward"]
    assert "equal to the trajectory reward" in equal.definition
    other = reward_figure([run(metrics=[{**row, "success": 1.0} for row in rows])])
    assert [panel.title for panel in other.panels] == ["Trajectory reward", "Success"]


def test_long_runs_are_thinned_for_drawing_and_whole_in_the_download():
    rows = [{"update": i, "entropy": 1.0 / i} for i in range(1, 2001)]
    figure = health_figure([run(metrics=rows)])
    assert len(figure.panels[0].series[0].xs) <= MAX_DRAWN
    assert len(figure.table.rows) == 2000


def test_the_reference_kl_is_shown_only_if_there_is_a_reference():
    rows = [{"update": i, "kl": 0.1, "reference_kl": 0.0} for i in range(3)]
    assert len(health_figure([run(metrics=rows)]).panels) == 1
    assert len(health_figure([run(metrics=[{**row, "reference_kl": 0.2} for row in rows])]).panels) == 2


def test_figures_without_data_are_left_out():
    for make in (reward_figure, step_reward_figure, health_figure, stop_reason_figure, effective_groups_figure):
        assert make([run()]) is None
    assert warm_start_figure([run()]) is None
    assert cost_table([run()]) is None


def test_counts_of_stop_reasons_become_shares():
    rows = [{"update": 1, "stop_reasons": {"success": 30, "budget": 10, "failure": 0}}]
    figure = stop_reason_figure([run(metrics=rows)])
    assert figure.table.header == ("run", "update", "success", "budget")
    assert figure.table.rows == (("grpo", 1, 0.75, 0.25),)


def test_effective_groups_are_pooled_over_spans_of_training():
    rows = [
        {"update": i, "effective_groups_by_budget": [0, 1, 0, i % 2], "groups_by_budget": [0, 2, 1, 3]}
        for i in range(1, 25)
    ]
    panel = effective_groups_figure([run(metrics=rows)]).panels[0]
    assert panel.rows == ("50%", "75%", "100%")
    assert [set(values) for values in panel.values] == [{0.5}, {0.0}, {1 / 6}]
    assert list(panel.edges) == [float(e) for e in range(0, 25, 2)]


def test_a_span_in_which_a_budget_was_not_drawn_is_empty():
    rows = [{"update": i, "effective_groups_by_budget": [1, 0], "groups_by_budget": [1, i - 1]} for i in (1, 2)]
    panel = effective_groups_figure([run(metrics=rows)]).panels[0]
    assert panel.values == ([1.0, 1.0], [None, 0.0])


def test_a_shared_warm_start_is_drawn_once_under_all_its_names():
    rows = [{"update": u, "loss": 2.0 / u, "demonstration_success": 0.5} for u in (20, 40)]
    figure = warm_start_figure([run("base", 0, warm_start=rows), run("grpo", 1, warm_start=rows), run("other", 2)])
    assert [series.label for series in figure.panels[0].series] == ["base, grpo"]
    assert [panel.title for panel in figure.panels] == ["Loss, nats per token", "Demonstrations that succeed"]
    assert len(figure.table.rows) == 4


def test_the_cost_table_adds_seconds_and_takes_medians():
    rows = [
        {"update": 1, "seconds": {"rollout": 5.0, "update": 2.0}, "tokens_per_s": 10.0, "compiles": 3},
        {"update": 2, "seconds": {"rollout": 1.0, "update": 2.0}, "tokens_per_s": 100.0, "compiles": 0},
        {"update": 3, "seconds": {"rollout": 1.0, "update": 1.0}, "tokens_per_s": 90.0, "compiles": 0},
    ]
    table = cost_table([run("base", 0), run(metrics=rows)])
    assert table.header == (
        "run",
        "updates",
        "rollout s",
        "update s",
        "total s",
        "s / update",
        "tokens / s",
        "compiles",
    )
    assert table.rows == (("grpo", 3, 7.0, 5.0, 12.0, 3.0, 90.0, 3),)


def test_step_reward_has_a_panel_for_each_trained_run(pristine_runs):
    loaded = [load_run(name, str(path), slot=i) for i, (name, path) in enumerate(pristine_runs.items())]
    figure = step_reward_figure(loaded)
    assert [panel.title for panel in figure.panels] == ["grpo", "budgetmix"]
    assert [len(panel.series) for panel in figure.panels] == [3, 3]
    assert figure.panels[0].y_axis == figure.panels[1].y_axis
