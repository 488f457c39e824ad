"""Estimators that look at turns: their advantages reach the tokens of the right turn of the right trajectory."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.algorithms import ALGORITHMS, gigpo, make_estimator
from jaxrl_agent.rollout.starts import empty_record
from jaxrl_agent.types import Rollout, TokenBatch

# Two groups of two; trajectories of 2, 3, 1 and 2 turns, a token a turn.
N_TURNS = np.array([2, 3, 1, 2])
KEYS = np.array(
    [[[0, 1], [4, 1], [0, 0]], [[0, 1], [4, 2], [4, 1]], [[0, 1], [0, 0], [0, 0]], [[5, 0], [0, 1], [0, 0]]]
)
REWARDS = np.array([[0, 1.0, 0], [0, 0, 0], [1.0, 0, 0], [0, 0, 0]])
ACTIONS = np.array([[1, 2, 0], [1, -1, 3], [2, 0, 0], [0, 1, 0]])


def rollout() -> Rollout:
    turn_BL = np.where(np.arange(3) < N_TURNS[:, None], np.arange(3), -1)
    count_B = jnp.asarray(N_TURNS)
    return Rollout(
        batch=TokenBatch(
            tokens_BL=jnp.ones((4, 3), jnp.int32),
            lengths_B=count_B,
            loss_mask_BL=jnp.asarray(turn_BL >= 0),
            sampler_logprobs_BL=jnp.zeros((4, 3)),
            turn_BL=jnp.asarray(turn_BL),
        ),
        turns=empty_record(4, 3, key_columns=2).replace(
            reward_BT=jnp.asarray(REWARDS),
            action_BT=jnp.asarray(ACTIONS),
            key_BTK=jnp.asarray(KEYS),
            process_BT=jnp.asarray(-0.1 * np.arange(12).reshape(4, 3)),
        ),
        instance_B=jnp.array([5, 5, 2, 2]),
        group_B=jnp.array([0, 0, 1, 1]),
        budget_B=count_B,
        n_turns_B=count_B,
        prompt_lengths_B=count_B,
        stop_B=count_B,
        return_B=jnp.asarray(REWARDS.sum(axis=1)),
        success_B=jnp.asarray(REWARDS.sum(axis=1) > 0),
    )


@pytest.mark.parametrize("options", [{}, {"mode": "mean_std_norm", "episode_baseline": "steps", "invalid_penalty": 0}])
def test_gigpo_groups_turns_by_the_whole_key_within_a_group(variant, options):
    found_BL = np.asarray(variant(make_estimator("gigpo", **options))(rollout()))
    rows = [(b, t) for b in range(4) for t in range(N_TURNS[b])]
    expected = gigpo.advantages(
        [REWARDS[b, t] for b, t in rows],
        [b for b, _ in rows],
        [b // 2 for b, _ in rows],
        [tuple(KEYS[b, t]) for b, t in rows],
        invalid=jnp.array([ACTIONS[b, t] < 0 for b, t in rows]),
        **options,
    )
    np.testing.assert_allclose([found_BL[b, t] for b, t in rows], expected, atol=1e-6)
    assert not found_BL[np.arange(3) >= N_TURNS[:, None]].any()


def test_process_rewards_stand_on_their_turns(variant):
    found_BL = variant(make_estimator("process_reward", scale="none", omega=2.0))(rollout())
    episode = np.array([0.5, -0.5, 0.5, -0.5])
    expected = episode[:, None] - 0.2 * np.arange(12).reshape(4, 3)
    np.testing.assert_allclose(found_BL, np.where(np.arange(3) < N_TURNS[:, None], expected, 0), atol=1e-6)


@pytest.mark.parametrize("name", sorted(name for name, found in ALGORITHMS.items() if not found.critic))
def test_a_row_that_does_not_count_gets_nothing_and_moves_nothing(variant, name):
    counted = jnp.array([True, True, True, False])
    found_BL = np.asarray(variant(make_estimator(name))(rollout(), counted_B=counted))
    whole_BL = np.asarray(variant(make_estimator(name))(rollout()))
    assert not found_BL[3].any()
    np.testing.assert_allclose(found_BL[:2], whole_BL[:2], atol=1e-6)


def test_gspo_has_grpos_advantages_and_a_ratio_of_its_own():
    assert ALGORITHMS["gspo"].sequence_ratio
    assert not ALGORITHMS["grpo"].sequence_ratio
    np.testing.assert_array_equal(make_estimator("gspo")(rollout()), make_estimator("grpo")(rollout()))
