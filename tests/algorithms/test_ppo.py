"""Advantages from a critic's values, laid over tokens."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.algorithms.gae import bilevel_gae, token_gae, turn_gae
from jaxrl_agent.algorithms.ppo import estimate_ppo, turn_edges
from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.rollout.starts import empty_record
from jaxrl_agent.types import Rollout, TokenBatch

# Two turns of two tokens with an observation between, then one turn of one token.
TURN_BL = np.array([[-1, 0, 0, -1, 1, 1], [-1, -1, 0, -1, -1, -1]])
VALUES_BL = np.array([[9, 0.2, 0.3, 9, 0.5, 0.6], [9, 9, 0.4, 9, 9, 9]])
REWARDS_BT = np.array([[0.1, 1.0], [0.25, 0.0]])


def rollout(returns=(1.1, 0.25)) -> Rollout:
    mask_BL = TURN_BL >= 0
    count_B = jnp.array([2, 1])
    return Rollout(
        batch=TokenBatch(
            tokens_BL=jnp.ones(TURN_BL.shape, jnp.int32),
            lengths_B=jnp.array([6, 3]),
            loss_mask_BL=jnp.asarray(mask_BL),
            sampler_logprobs_BL=jnp.zeros(TURN_BL.shape),
            turn_BL=jnp.asarray(TURN_BL),
        ),
        turns=empty_record(2, 2).replace(reward_BT=jnp.asarray(REWARDS_BT)),
        instance_B=count_B,
        group_B=count_B,
        budget_B=count_B,
        n_turns_B=count_B,
        prompt_lengths_B=count_B,
        stop_B=count_B,
        return_B=jnp.array(returns),
        success_B=jnp.array([True, False]),
    )


def estimate(variant, **options):
    function = functools.partial(estimate_ppo, whitening=False, **options)
    return variant(lambda played, values_BL: function(played, values_BL=values_BL))(rollout(), jnp.asarray(VALUES_BL))


def test_token_level_steps_from_token_to_token_over_observations(variant):
    found = estimate(variant, level="token", gamma=0.9, lam=0.8)
    rewards_L, values_L, mask_L = np.array([0, 0, 0.1, 0, 0, 1.0]), VALUES_BL[0], TURN_BL[0] >= 0
    advantages_L, returns_L = token_gae(rewards_L, values_L, mask_L, gamma=0.9, lam=0.8)
    np.testing.assert_allclose(found.advantages_BL[0], np.where(mask_L, advantages_L, 0), atol=1e-6)
    np.testing.assert_allclose(found.returns_BL[0], np.where(mask_L, returns_L, 0), atol=1e-6)
    np.testing.assert_allclose(found.advantages_BL[1], [0, 0, 0.25 - 0.4, 0, 0, 0], atol=1e-6)
    np.testing.assert_array_equal(found.value_mask_BL, TURN_BL >= 0)


def test_turn_level_gives_a_turn_one_advantage_and_asks_the_critic_once(variant):
    found = estimate(variant, level="turn", gamma_turn=0.9, lam_turn=0.8)
    advantages_T, returns_T = turn_gae(REWARDS_BT[0], np.array([0.2, 0.5]), gamma=0.9, lam=0.8)
    a, b = np.asarray(advantages_T)
    np.testing.assert_allclose(found.advantages_BL, [[0, a, a, 0, b, b], [0, 0, 0.25 - 0.4, 0, 0, 0]], atol=1e-6)
    r, s = np.asarray(returns_T)
    np.testing.assert_allclose(found.returns_BL, [[0, r, 0, 0, s, 0], [0, 0, 0.25, 0, 0, 0]], atol=1e-6)
    np.testing.assert_array_equal(found.value_mask_BL, [[0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0]])


def test_both_levels_meet_at_the_turns_last_tokens(variant):
    options = {"gamma": 0.99, "lam": 0.9, "gamma_turn": 0.95, "lam_turn": 0.8}
    found = estimate(variant, level="bilevel", **options)
    rewards_L, mask_L = np.array([0, 0, 0.1, 0, 0, 1.0]), TURN_BL[0] >= 0
    ends_L = np.array([0, 0, 1, 0, 0, 1])
    advantages_L, _ = bilevel_gae(rewards_L, VALUES_BL[0], mask_L, ends_L, **options)
    np.testing.assert_allclose(found.advantages_BL[0], np.where(mask_L, advantages_L, 0), atol=1e-6)


def test_with_a_silent_critic_and_no_discount_every_advantage_is_what_is_still_to_come(variant):
    function = functools.partial(estimate_ppo, level="turn", lam_turn=1.0, whitening=False)
    found = variant(lambda played, values_BL: function(played, values_BL=values_BL))(
        rollout(), jnp.zeros(VALUES_BL.shape)
    )
    np.testing.assert_allclose(found.advantages_BL[0], [0, 1.1, 1.1, 0, 1.0, 1.0], atol=1e-6)


def test_returns_are_taken_before_whitening_and_rows_that_do_not_count_move_nothing(variant):
    plain = estimate(variant, level="token")
    counted = jnp.array([True, False])
    function = functools.partial(estimate_ppo, level="token", whitening=True)
    found = variant(lambda played, values_BL: function(played, values_BL=values_BL, counted_B=counted))(
        rollout(), jnp.asarray(VALUES_BL)
    )
    np.testing.assert_allclose(found.returns_BL[0], plain.returns_BL[0], atol=1e-6)
    white = np.asarray(found.advantages_BL[0])[TURN_BL[0] >= 0]
    assert abs(white.mean()) < 1e-6
    assert white.std(ddof=1) == pytest.approx(1, abs=1e-5)
    for column in found:
        assert not np.asarray(column[1]).any()


def test_edges_of_turns_are_their_first_and_last_sampled_tokens(variant):
    first_BL, last_BL = variant(turn_edges)(jnp.asarray(TURN_BL), jnp.asarray(TURN_BL >= 0))
    np.testing.assert_array_equal(first_BL, [[0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0]])
    np.testing.assert_array_equal(last_BL, [[0, 0, 1, 0, 0, 1], [0, 0, 1, 0, 0, 0]])


def test_an_unknown_level_is_refused():
    with pytest.raises(ArgumentError, match="token, turn, bilevel"):
        estimate_ppo(rollout(), values_BL=jnp.asarray(VALUES_BL), level="episode")
