"""Two policies in the same state, with numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl_agent.analysis.step_quality import compare_replies, compare_states, mean_value, measured, step_quality
from jaxrl_agent.errors import RunError
from jaxrl_agent.testing.fake_probes import fake_probe

# Values of 16 replies of the policy and of the base, as (value, how often).
CASES = {
    "clear win": ([(0.8, 12), (0.5, 4)], [(0.8, 8), (0.5, 8)], "win", 0.075, 0.625),
    "the same replies in another order": ([(0.8, 8), (0.5, 8)], [(0.5, 8), (0.8, 8)], "tie", 0.0, 0.5),
    "one catastrophic reply": ([(0.82, 15), (0.0, 1)], [(0.78, 16)], "loss", -0.01125, 0.9375),
    "both always optimal": ([(1.0, 16)], [(1.0, 16)], "tie", 0.0, 0.5),
}


def replies_of(case: str) -> tuple[list[int], list[int], list[float]]:
    policy, base, *_ = CASES[case]
    values = sorted({value for value, _ in policy + base})
    return *([values.index(v) for v, count in side for _ in range(count)] for side in (policy, base)), values


def states_of(cases, *, tasks=None, turns_left=None, **covariates):
    policy, base, values = map(list, zip(*map(replies_of, cases), strict=True))
    n = len(cases)
    return {
        "task": tasks or list(range(n)),
        "turns_left": turns_left or [1] * n,
        "covariates": covariates,
        "values": {"q": values},
        "policy_actions": policy,
        "base_actions": base,
    }


def probe_of(ordinary, error=None):
    return {
        "base": "base",
        "policy": "rl",
        "replies_per_state": 16,
        "qualities": {"q": {"definition": "made up", "fair": True}},
        "primary_quality": "q",
        "states": {"ordinary": ordinary, "error": error},
    }


@pytest.mark.parametrize("case", CASES)
def test_a_state_is_won_tied_or_lost_as_worked_by_hand(case):
    policy, base, values = replies_of(case)
    *_, outcome, d, pairwise = CASES[case]
    win, tie, loss, half_ties, share, difference, *_ = compare_replies(policy, base, values)
    assert (win, tie, loss) == tuple(float(outcome == name) for name in ("win", "tie", "loss"))
    assert half_ties == win + tie / 2
    assert (difference, share) == (pytest.approx(d, abs=1e-12), pairwise)


def test_the_four_states_together():
    cell = step_quality(probe_of(states_of(CASES)))["ordinary"]
    assert (cell["win"], cell["tie"], cell["loss"]) == (0.25, 0.5, 0.25)
    assert (cell["wins_plus_half_ties"], cell["win_among_non_ties"]) == (0.5, 0.5)
    assert cell["mean_difference"] == pytest.approx((0.075 - 0.01125) / 4)
    assert (cell["n_states"], cell["n_tasks"], cell["quality"], cell["fair"]) == (4, 4, "q", True)
    assert cell["intervals"]["win"][0] <= 0.25 <= cell["intervals"]["win"][1]
    # Replies with the best value: 12, 8, 15, 16 of the policy's 16; 8, 8, 0, 16 of the base's.
    assert cell["best_share"] == {"policy": 51 / 64, "base": 32 / 64}


def test_equal_counts_tie_exactly_in_whatever_order_the_replies_came():
    rng = np.random.default_rng(0)
    for _ in range(200):
        values, actions = rng.random(5).tolist(), rng.integers(0, 5, 16)
        _, tie, *_, d, _, _ = compare_replies(rng.permutation(actions).tolist(), actions.tolist(), values)
        assert (tie, d) == (1.0, 0.0)


def test_values_that_nobody_needs_may_be_unknown_and_others_may_not():
    assert mean_value([2, 0], [0.5, np.nan]) == 0.5
    assert compare_replies([0, 0], [0, 0], [0.5, None])[1] == 1.0
    with pytest.raises(RunError, match="a value for each outcome that was replied"):
        compare_replies([0, 1], [0, 0], [0.5, None])


def test_replies_that_could_not_be_checked_are_left_out_and_states_without_any_other():
    states = states_of(["clear win", "one catastrophic reply", "clear win"], turns_left=[1, 2, 3])
    states["policy_actions"][0][3] = None  # one of the good ones
    states["base_actions"][2] = [None] * 16
    states["values"]["q"][2] = [None, None]
    compared = compare_states(states, "q")
    assert compared.tasks.tolist() == [0, 1]
    assert compared.positions["turns_left"].tolist() == [1.0, 2.0]
    assert step_quality(probe_of(states))["ordinary"]["mean_difference"] == pytest.approx(
        ((11 * 0.8 + 4 * 0.5) / 15 - 0.65 - 0.01125) / 2
    )
    unknown = {**states, "base_actions": [[None] * 16] * 3}
    assert compare_states(unknown, "q") is None


def test_tasks_weigh_the_same_however_many_of_their_states_were_probed():
    states = states_of(["clear win"] * 3 + ["one catastrophic reply"], tasks=[0, 0, 0, 1])
    cell = step_quality(probe_of(states))["ordinary"]
    assert (cell["win"], cell["loss"], cell["n_states"], cell["n_tasks"]) == (0.5, 0.5, 4, 2)


def test_states_are_told_apart_by_turns_left_and_by_every_covariate():
    states = states_of(CASES, turns_left=[2, 3, 4, 16], depth=[1, None, 1, 5])
    cell = step_quality(probe_of(states))["ordinary"]
    rows = [(row["low"], row["high"], row["win"], row["loss"], row["n_states"]) for row in cell["by_turns_left"]]
    assert rows == [(1, 2, 1.0, 0.0, 1), (3, 4, 0.0, 0.5, 2), (9, 16, 0.0, 0.0, 1)]
    assert [row["p_holm"] is None for row in cell["by_turns_left"]] == [True, False, True]
    rows = [(row["low"], row["high"], row["n_states"]) for row in cell["by_depth"]]
    assert rows == [(1, 2, 2), (5, 8, 1)], "the state of unknown depth is left out"


def test_p_values_of_a_table_are_adjusted_together():
    states = states_of(["clear win"] * 8, turns_left=[1, 1, 1, 1, 5, 5, 5, 5])
    cell = step_quality(probe_of(states))["ordinary"]
    assert [row["p_holm"] for row in cell["by_turns_left"]] == pytest.approx([4 / 10_001] * 2)


def test_identical_policies_tie_everywhere_and_differ_by_exactly_0():
    found = step_quality(fake_probe(identical=True))
    for quality in found["by_quality"].values():
        for cell in quality.values():
            assert (cell["tie"], cell["win"], cell["loss"], cell["mean_difference"]) == (1.0, 0.0, 0.0, 0.0)
            assert (cell["ci_low"], cell["ci_high"], cell["wins_plus_half_ties"]) == (0.0, 0.0, 0.5)
            assert (cell["intervals"]["tie"], cell["win_among_non_ties"]) == ([1.0, 1.0], None)
            assert {row["p_holm"] for row in cell["by_turns_left"]} <= {1.0, None}


def test_without_states_there_is_no_cell():
    empty = {**states_of(CASES), "task": []}
    for error in (None, empty):
        found = step_quality(probe_of(states_of(CASES), error))
        assert found["error_states"] is None
        assert found["ordinary"] is not None
    assert compare_states(states_of(CASES), "unknown quality") is None


def test_what_is_judged_has_its_values_by_task():
    found = measured(probe_of(states_of(CASES)))
    assert found["ordinary_wins_plus_half_ties"].values.tolist() == [1.0, 0.5, 0.0, 0.5]
    assert found["ordinary_mean_difference"].values == pytest.approx([0.075, 0.0, -0.01125, 0.0])
    assert found["error_states_mean_difference"] is None
