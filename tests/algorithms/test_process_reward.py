"""Process rewards beside the advantage of the trajectory."""

from __future__ import annotations

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.algorithms.grpo import advantages as grpo_advantages
from jaxrl_agent.algorithms.process_reward import advantages
from jaxrl_agent.envs.frozenlake_exact import discounted_q, finite_horizon_q

REWARDS = np.array([1.0, 0.0, 1.0, 1.0])
GROUPS = np.array([7, 7, 3, 3])
PLAYED = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]], bool)
PROCESS = np.array([[0.0, -0.2, 9], [-0.4, 0.0, -0.1], [-0.3, 9, 9], [0.0, -0.1, 9]])


def compute(variant, **options):
    return np.asarray(
        variant(functools.partial(advantages, **options))(
            jnp.asarray(REWARDS), jnp.asarray(PROCESS), jnp.asarray(GROUPS), jnp.asarray(PLAYED)
        )
    )


def test_every_turn_gets_the_advantage_of_its_trajectory_and_its_own(variant):
    found = compute(variant, omega=0.5, scale="none")
    expected = np.array([[0.5, 0.4, 0], [-0.7, -0.5, -0.55], [-0.15, 0, 0], [0, -0.05, 0]])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_without_weight_it_is_grpo(variant):
    found = compute(variant, omega=0.0)
    episode_B = np.asarray(grpo_advantages(jnp.asarray(REWARDS), jnp.asarray(GROUPS)))
    np.testing.assert_allclose(found, np.where(PLAYED, episode_B[:, None], 0), atol=1e-6)


def test_division_is_by_the_spread_over_the_turns_of_the_group(variant):
    found = compute(variant, scale="none", divide=True)
    episode = np.array([0.5, -0.5, 0, 0])
    for rows in ((0, 1), (2, 3)):
        spread = np.concatenate([PROCESS[row][PLAYED[row]] for row in rows]).std(ddof=1)
        for row in rows:
            expected = np.where(PLAYED[row], episode[row] + PROCESS[row] / (spread + 1e-6), 0)
            np.testing.assert_allclose(found[row], expected, atol=1e-5)


def test_rows_that_do_not_count_move_nothing(variant):
    mask = jnp.array([True, True, True, False])
    found = compute(variant, scale="none", divide=True, mask_B=mask)
    assert not found[3].any()
    np.testing.assert_allclose(found[2, 0], 0.0, atol=1e-6)  # one turn alone has no spread


def test_an_exact_advantage_does_not_pay_for_dawdling_where_raw_q_does():
    """On firm ice with turns to spare, walking in circles collects Q turn after turn, and advantage never."""
    desc, horizon = ["SFF", "FFF", "FFG"], 12
    q = finite_horizon_q(desc, success_rate=1.0, horizon=horizon)
    straight = [(0, 2), (1, 2), (2, 1), (5, 1)]
    circles = [(0, 2), (1, 0)] * 3 + straight

    def total(path, value):
        return sum(value(horizon - turn, cell, action) for turn, (cell, action) in enumerate(path))

    def raw(h, cell, action):
        return q[h, cell, action]

    def advantage(h, cell, action):
        return q[h, cell, action] - q[h, cell].max()

    assert total(circles, raw) > total(straight, raw) + 3
    assert total(circles, advantage) == pytest.approx(total(straight, advantage), abs=1e-12)
    values = [advantage(h, c, a) for h, c, a in itertools.product(range(1, horizon + 1), range(8), range(4))]
    assert max(values) <= 0


@pytest.mark.parametrize(("bumps", "sum_q", "sum_a"), [(0, 5.851985, 0.0), (5, 10.559386, -0.04755)])
def test_discounted_values_along_a_path_are_the_known_ones(bumps, sum_q, sum_a):
    """Five bumps into the wall, then the way: five more turns of nearly full value, and a small loss."""
    q = discounted_q(["SFFF", "FHFH", "FFFH", "HFFG"], success_rate=1.0, gamma=0.99)
    path = [(0, 0)] * bumps + [(0, 1), (4, 1), (8, 2), (9, 1), (13, 2), (14, 2)]
    assert sum(q[cell, action] for cell, action in path) == pytest.approx(sum_q, abs=1e-5)
    assert sum(q[cell, action] - q[cell].max() for cell, action in path) == pytest.approx(sum_a, abs=1e-5)
