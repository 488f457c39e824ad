from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.algorithms import gigpo
from jaxrl_agent.errors import ArgumentError

# Four trajectories of one group; t1 and t3 succeed, t3 after staying in A for one turn.
TRAJECTORIES = ["t1"] * 3 + ["t2"] * 2 + ["t3"] * 4 + ["t4"] * 2
STATES = list("ABC" + "AB" + "AADC" + "AD")
REWARDS_N = np.array([0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0], np.float32)
GROUPS = ["g"] * 11
TRAJECTORY_N = jnp.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3])
STATE_N = jnp.array([ord(state) for state in STATES])
GROUP_N = jnp.full(11, 5)

STEP = {
    "mean_norm": [0.370025, 0.475, 0, -0.532475, -0.475, 0.3249, 0.370025, 0.475, 0, -0.532475, -0.475],
    "mean_std_norm": [
        *[0.760694, 0.707106, 0, -1.094657, -0.707106],
        *[0.667926, 0.760694, 0.707106, 0, -1.094657, -0.707106],
    ],
}
# A_episode of a success and of a failure.
EPISODE = {
    ("mean_norm", "trajectories"): (0.5, -0.5),
    ("mean_norm", "steps"): (0.363636, -0.636364),
    ("mean_std_norm", "trajectories"): (0.866024, -0.866024),
    ("mean_std_norm", "steps"): (0.720749, -1.26131),
}


def episode_N(mode: str, baseline: str) -> np.ndarray:
    success, failure = EPISODE[mode, baseline]
    return np.where(np.isin(TRAJECTORIES, ["t1", "t3"]), success, failure)


@pytest.mark.parametrize("omega", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("mode", "baseline"), list(EPISODE))
def test_advantages_equal_the_hand_computed_ones(variant, mode, baseline, omega):
    function = functools.partial(gigpo.advantages, omega=omega, mode=mode, episode_baseline=baseline)
    expected_N = episode_N(mode, baseline) + omega * np.array(STEP[mode])
    np.testing.assert_allclose(variant(function)(REWARDS_N, TRAJECTORY_N, GROUP_N, STATE_N), expected_N, atol=3e-6)
    np.testing.assert_allclose(function(REWARDS_N, TRAJECTORIES, GROUPS, STATES), expected_N, atol=3e-6)


def test_step_returns_are_discounted_within_a_trajectory(variant):
    returns_N = variant(functools.partial(gigpo.step_returns, gamma=0.95))(REWARDS_N, TRAJECTORY_N)
    expected_N = [0.9025, 0.95, 1, 0, 0, 0.857375, 0.9025, 0.95, 1, 0, 0]
    np.testing.assert_allclose(returns_N, expected_N, rtol=1e-6)


def test_groups_do_not_touch_each_other(variant):
    """Two copies of one group, with trajectory ids that repeat and states that coincide."""
    twice = [jnp.tile(x_N, 2) for x_N in (REWARDS_N, TRAJECTORY_N, STATE_N)]
    group_N = jnp.repeat(jnp.array([9, 4]), 11)
    advantages_N = np.asarray(variant(gigpo.advantages)(twice[0], twice[1], group_N, twice[2]))
    expected_N = episode_N("mean_norm", "trajectories") + STEP["mean_norm"]
    np.testing.assert_allclose(advantages_N, np.tile(expected_N, 2), atol=3e-6)


def test_padded_turns_move_nothing_and_get_zero(variant):
    """[B, T] arrays flattened, with garbage in the turns that were not played."""
    mask_BT = np.arange(4) < np.array([3, 2, 4, 2])[:, None]
    rewards_BT, states_BT = np.full((4, 4), np.nan, np.float32), np.full((4, 4), ord("A"))
    rewards_BT[mask_BT], states_BT[mask_BT] = REWARDS_N, STATE_N
    advantages_N = variant(lambda r, t, g, s, m: gigpo.advantages(r, t, g, s, mask=m))(
        rewards_BT.ravel(),
        jnp.repeat(jnp.arange(4), 4),
        jnp.zeros(16, int),
        jnp.asarray(states_BT.ravel()),
        mask_BT.ravel(),
    )
    expected_BT = np.zeros((4, 4))
    expected_BT[mask_BT] = episode_N("mean_norm", "trajectories") + STEP["mean_norm"]
    np.testing.assert_allclose(advantages_N, expected_BT.ravel(), atol=3e-6)


def test_a_state_met_once_gets_no_step_advantage(variant):
    function = functools.partial(gigpo.advantages, mode="mean_std_norm")
    lonely_N = jnp.arange(11)
    advantages_N = variant(function)(REWARDS_N, TRAJECTORY_N, GROUP_N, lonely_N)
    np.testing.assert_allclose(advantages_N, episode_N("mean_std_norm", "trajectories"), atol=3e-6)


def test_equal_outcomes_give_exactly_zero(variant):
    advantages_N = variant(functools.partial(gigpo.advantages, mode="mean_std_norm", gamma=1.0))(
        jnp.full(6, 0.1), jnp.repeat(jnp.arange(3), 2), jnp.zeros(6, int), jnp.tile(jnp.arange(2), 3)
    )
    assert not np.asarray(advantages_N).any()


def test_the_penalty_of_an_invalid_action_is_not_propagated_back(variant):
    invalid_N = np.zeros(11, bool)
    invalid_N[1] = True  # t1 in state B
    function = functools.partial(gigpo.advantages, invalid=invalid_N)
    change_N = np.asarray(variant(function)(REWARDS_N, TRAJECTORY_N, GROUP_N, STATE_N)) - np.asarray(
        gigpo.advantages(REWARDS_N, TRAJECTORY_N, GROUP_N, STATE_N)
    )
    # Its anchor group is the two turns in B: -0.1 for it, and the mean falls by 0.05 for both.
    np.testing.assert_allclose(change_N, [0, -0.05, 0, 0, 0.05, 0, 0, 0, 0, 0, 0], atol=1e-6)


def test_unknown_modes_are_refused():
    for options in ({"mode": "std"}, {"episode_baseline": "rows"}):
        with pytest.raises(ArgumentError, match="mean_norm, mean_std_norm"):
            gigpo.advantages(REWARDS_N, TRAJECTORY_N, GROUP_N, STATE_N, **options)
