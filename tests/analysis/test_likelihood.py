"""Likelihoods of actions and trajectories, with numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl_agent.analysis.likelihood import cumulative, likelihood, measured, turn_llr
from jaxrl_agent.errors import RunError
from jaxrl_agent.statistics import CONTRADICTED, SUPPORTED
from jaxrl_agent.testing.fake_probes import fake_probe

# Three actions of one trajectory, all tokens of each summed: log-probabilities under the policy and under its base.
POLICY, BASE = [-0.3, -0.3, -0.5], [-1.5, -0.2, -2.1]


def side(task, success, policy, base):
    scores = {"policy": policy, "base": base}
    return {"task": task, "success": success, "logprobs": scores, "action_logprobs": scores}


def probe_of(policy, base):
    return {"episodes": {"policy": policy, "base": base}, "states": {}}


ONE = probe_of(side([0], [True], [POLICY], [BASE]), side([0], [False], [[-1.0]], [[-0.5]]))


def test_an_action_is_scored_by_the_sum_of_its_tokens():
    found = likelihood(ONE)["action_nll"]
    assert found["policy_actions_under_policy"] == pytest.approx(0.36666667)
    assert found["policy_actions_under_base"] == pytest.approx(1.26666667)
    assert (found["base_actions_under_base"], found["base_actions_under_policy"]) == (0.5, 1.0)
    assert found["n_actions"] == {"policy": 3, "base": 1}
    assert found["without_reasoning"]["policy_actions_under_base"] == found["policy_actions_under_base"]
    assert found["intervals"]["base_actions_under_base"] == [None, None], "one task has no interval"


def test_the_ratio_of_a_trajectory_adds_up_turn_by_turn():
    found = likelihood(ONE)["llr"]
    assert [row["mean"] for row in found["by_turn"]["policy"]] == pytest.approx([1.2, 1.1, 2.7])
    assert [row["n"] for row in found["by_turn"]["policy"]] == [1, 1, 1]
    assert found["policy_success"] == found["policy_all"] == pytest.approx(2.7)
    assert found["per_action"]["policy_all"]["value"] == pytest.approx(0.9)
    assert found["base_all"] == found["base_failure"] == -0.5
    assert found["policy_failure"] is found["base_success"] is found["intervals"]["base_success"] is None
    assert (found["n"]["policy_success"], found["n"]["base_success"]) == (1, 0)


def test_a_trajectory_that_has_ended_keeps_its_last_value():
    turns = [np.array([1.0]), np.array([0.5, 0.5, 2.0]), np.array([])]
    assert cumulative(turns).tolist() == [[1.0, 1.0, 1.0], [0.5, 1.0, 3.0], [0.0, 0.0, 0.0]]
    policy = side([0, 1], [True, True], [[-1.0], [-1.0, -1.0]], [[-3.0], [-2.0, -5.0]])
    rows = likelihood(probe_of(policy, policy))["llr"]["by_turn"]["policy"]
    assert [(row["turn"], row["mean"], row["n"]) for row in rows] == [(1, 1.5, 2), (2, 3.5, 1)]


def test_every_task_weighs_the_same():
    policy = side([0, 0, 0, 1], [True, True, True, True], [[-1.0]] * 4, [[-2.0]] * 3 + [[-4.0]])
    found = likelihood(probe_of(policy, policy))
    assert found["llr"]["policy_success"] == (1.0 + 3.0) / 2
    assert found["action_nll"]["policy_actions_under_base"] == (2.0 + 4.0) / 2


def test_what_is_judged_is_paired_by_task():
    policy = side([0, 1], [True, True], [[-1.0], [-1.0]], [[-2.0], [-4.0]])
    base = side([0, 1], [True, False], [[-2.0], [-3.0]], [[-1.0], [-1.5]])
    found = measured(probe_of(policy, base))
    assert found["nll_under_base_difference"].values.tolist() == [1.0, 2.5]
    assert (found["llr_success_difference"].tasks.tolist(), found["llr_success_difference"].values.tolist()) == (
        [0],
        [2.0],
    ), "the base solved the first task alone"


def test_identical_policies_have_a_ratio_of_exactly_0():
    found = likelihood(fake_probe(identical=True))["llr"]
    for name in ("policy_success", "policy_failure", "base_success", "base_failure", "policy_all", "base_all"):
        assert (found[name], found["intervals"][name]) == (0.0, [0.0, 0.0])
    assert found["sanity"]["policy_all_at_least_0"] == found["sanity"]["base_all_at_most_0"] == SUPPORTED
    assert {row["mean"] for rows in found["by_turn"].values() for row in rows} == {0.0}
    assert found["by_state_kind"]["ordinary"]["policy"]["value"] == 0.0


def test_ratios_of_the_wrong_sign_fail_the_sanity_check():
    wrong = side([0, 1, 2], [True] * 3, [[-2.0], [-3.0], [-4.0]], [[-1.0]] * 3)
    sanity = likelihood(probe_of(wrong, wrong))["llr"]["sanity"]
    assert (sanity["policy_all_at_least_0"], sanity["base_all_at_most_0"]) == (CONTRADICTED, SUPPORTED)


def test_replies_to_probed_states_have_a_ratio_by_kind_of_state():
    states = {"task": [0, 1], "policy_llr": [[1.0, 2.0], [3.0, 4.0]], "base_llr": [[-1.0, 0.0], [-1.0, -2.0]]}
    found = likelihood({**ONE, "states": {"ordinary": states}})["llr"]["by_state_kind"]
    assert (found["ordinary"]["policy"]["value"], found["ordinary"]["base"]["value"]) == (2.5, -1.0)
    assert found["error_states"] == {"policy": None, "base": None}


def test_trajectories_of_unknown_success_count_among_all_alone():
    found = likelihood(probe_of(*[side([0, 1, 2], [True, None, False], [[2.0], [5.0], [1.0]], [[1.0]] * 3)] * 2))["llr"]
    assert (found["policy_success"], found["policy_failure"], found["policy_all"]) == (1.0, 0.0, 5 / 3)


def test_states_where_nobody_replied_have_no_ratio():
    states = {"task": [0, 1], "policy_llr": [[1.0, None], [None, None]], "base_llr": [[None], [-2.0]]}
    found = likelihood({**ONE, "states": {"ordinary": states}})["llr"]["by_state_kind"]["ordinary"]
    assert [(found[name]["value"], found[name]["n"]) for name in ("policy", "base")] == [(1.0, 1), (-2.0, 1)]


def test_unscored_trajectories_give_nothing():
    for episodes in (None, {}, {"policy": None, "base": None}):
        assert likelihood({"episodes": episodes}) == {"action_nll": None, "llr": None}
        assert set(measured({"episodes": episodes}).values()) == {None}
    nobody = side([], [], [], [])
    found = likelihood(probe_of(nobody, nobody))
    assert found["llr"]["policy_all"] is None
    assert found["llr"]["by_turn"] == {"policy": [], "base": []}


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(RunError, match="finite log-probability"):
        turn_llr([-1.0, None], [-1.0, -2.0])
    with pytest.raises(RunError, match="score every turn"):
        turn_llr([-1.0], [-1.0, -2.0])
