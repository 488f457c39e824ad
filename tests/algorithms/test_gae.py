from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from jaxrl_agent.algorithms import gae

REWARDS_L = np.array([0.0, 0, 0, 0, 0, 1])
VALUES_L = np.array([0.2, 0.3, 0.9, 0.8, 0.5, 0.6])
MASK_L = np.array([1, 1, 0, 0, 1, 1])
# gamma, lambda, advantages, returns, advantages whitened over the mask.
TOKEN_CASES = [
    (1, 1, [0.8, 0.7, 0.5, 0.5, 0.5, 0.4], [1, 1, 1.4, 1.3, 1, 1], [1.09544495, 0.54772248, -0.54772248, -1.09544495]),
    (
        1,
        0.95,
        [0.7232, 0.656, 0.48, 0.48, 0.48, 0.4],
        [0.9232, 0.956, 1.38, 1.28, 0.98, 1.0],
        [1.05398678, 0.60684087, -0.56425555, -1.0965721],
    ),
    (
        0.99,
        0.95,
        [0.69630833, 0.6372231, 0.4702, 0.4702, 0.4702, 0.4],
        [0.89630833, 0.9372231, 1.3702, 1.2702, 0.9702, 1.0],
        [1.0466291, 0.62124567, -0.58123532, -1.08663945],
    ),
    (
        0.95,
        0.9,
        [0.5358073, 0.52726, 0.412, 0.412, 0.412, 0.4],
        [0.7358073, 0.82726, 1.312, 1.212, 0.912, 1.0],
        [0.92182144, 0.80429416, -0.78055646, -0.94555913],
    ),
]


@pytest.mark.parametrize(("gamma", "lam", "advantages", "returns", "whitened"), TOKEN_CASES)
def test_token_gae_skips_observations(variant, gamma, lam, advantages, returns, whitened):
    function = variant(functools.partial(gae.token_gae, gamma=gamma, lam=lam))
    advantages_L, returns_L = function(REWARDS_L, VALUES_L, MASK_L)
    np.testing.assert_allclose(advantages_L, advantages, atol=1e-6)
    np.testing.assert_allclose(returns_L, returns, atol=1e-6)
    whitened_L = np.asarray(variant(gae.whiten)(advantages_L, MASK_L))
    np.testing.assert_allclose(whitened_L[MASK_L > 0], whitened, atol=2e-6)
    assert not whitened_L[MASK_L == 0].any()


def plain_gae(rewards, values, gamma, lam, bootstrap):
    """Textbook GAE over the sampled tokens alone."""
    advantages, next_value, running = [], bootstrap, 0.0
    for reward, value in zip(rewards[::-1], values[::-1], strict=True):
        running = reward + gamma * next_value - value + gamma * lam * running
        next_value = value
        advantages.append(running)
    return advantages[::-1]


def test_masked_token_gae_equals_plain_gae_on_the_sampled_tokens(variant):
    rng = np.random.default_rng(0)
    mask_L = rng.random(40) < 0.6
    rewards_L, values_L = rng.normal(size=(2, 40)) * [mask_L, np.ones(40)]
    function = variant(functools.partial(gae.token_gae, gamma=0.97, lam=0.9))
    advantages_L, _ = function(rewards_L, values_L, mask_L, bootstrap=0.5)
    expected = plain_gae(rewards_L[mask_L], values_L[mask_L], 0.97, 0.9, 0.5)
    np.testing.assert_allclose(np.asarray(advantages_L)[mask_L], expected, atol=1e-5)


def test_a_reward_on_an_observation_reaches_the_action_before_it(variant):
    """The row ends in an observation that holds the last reward, and one stands between the actions."""
    mask_L = np.array([1, 0, 0, 1, 0, 0])
    function = variant(functools.partial(gae.token_gae, gamma=0.5, lam=1.0))
    _, returns_L = function(np.array([0, 0.25, 0, 0, 0, 1.0]), np.zeros(6), mask_L)
    np.testing.assert_allclose(returns_L[np.array([0, 3])], [0.25 + 0.5, 1.0])


def test_padding_after_the_row_changes_nothing(variant):
    function = variant(functools.partial(gae.token_gae, gamma=0.99, lam=0.95))
    plain_L, _ = function(REWARDS_L, VALUES_L, MASK_L, bootstrap=0.3)
    padded_L, _ = function(*(np.append(x_L, [0, 0]) for x_L in (REWARDS_L, VALUES_L, MASK_L)), bootstrap=0.3)
    np.testing.assert_allclose(padded_L[:6], plain_L, rtol=1e-6)
    assert not np.asarray(padded_L[6:]).any()


def test_rows_are_batched_by_vmap():
    function = jax.vmap(functools.partial(gae.token_gae, gamma=1.0, lam=0.95))
    advantages_BL, _ = function(*(np.stack([x_L, 0 * x_L]) for x_L in (REWARDS_L, VALUES_L, MASK_L)))
    np.testing.assert_allclose(advantages_BL[0], TOKEN_CASES[1][2], atol=1e-6)
    assert not np.asarray(advantages_BL[1]).any()


@pytest.mark.parametrize(
    ("gamma", "lam", "bootstrap", "expected"),
    [
        (1, 1, 0.0, [0.6, 0.5, 0.65, 0.3]),
        (0.95, 0.95, 0.0, [0.40592829, 0.36113937, 0.58575, 0.3]),
        (0.99, 0.95, 0.0, [0.50460359, 0.43445357, 0.62515, 0.3]),
        (0.99, 0.95, 0.5, [0.91639909, 0.872301, 1.0906975, 0.795]),
    ],
)
def test_turn_gae_equals_the_hand_computed_one(variant, gamma, lam, bootstrap, expected):
    rewards_T, values_T = np.array([0.0, -0.1, 0.0, 1.0]), np.array([0.3, 0.4, 0.35, 0.7])
    function = variant(functools.partial(gae.turn_gae, gamma=gamma, lam=lam, bootstrap=bootstrap))
    advantages_T, returns_T = function(rewards_T, values_T)
    np.testing.assert_allclose(advantages_T, expected, atol=1e-6)
    np.testing.assert_allclose(returns_T, np.array(expected) + values_T, atol=1e-6)
    padded_T, _ = function(
        np.append(rewards_T, 9.0) * [1, 1, 1, 1, 0], np.append(values_T, 9.0), mask_T=np.arange(5) < 4
    )
    np.testing.assert_allclose(padded_T[:4], expected, atol=1e-6)


BILEVEL_VALUES_L = np.arange(1, 11) / 10


@pytest.mark.parametrize(
    ("first_reward", "ends", "advantages", "returns"),
    [
        (1.0, [4, 9], [1.85, 1.75, 1.65, 1.55, 1.45, 0.4, 0.3, 0.2, 0.1, 0.0], [1.95] * 5 + [1.0] * 5),
        (0.0, [4, 9], [0.85, 0.75, 0.65, 0.55, 0.45, 0.4, 0.3, 0.2, 0.1, 0.0], [0.95] * 5 + [1.0] * 5),
        # Turn ends inferred from non-zero rewards would be these: the turn discount is gone.
        (0.0, [9], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0], [1.0] * 10),
    ],
)
def test_bilevel_gae_equals_the_hand_computed_one(variant, first_reward, ends, advantages, returns):
    rewards_L, ends_L = np.zeros(10), np.isin(np.arange(10), ends)
    rewards_L[[4, 9]] = first_reward, 1.0
    function = variant(functools.partial(gae.bilevel_gae, gamma=1.0, lam=1.0, gamma_turn=0.95))
    advantages_L, returns_L = function(rewards_L, BILEVEL_VALUES_L, np.ones(10), ends_L)
    np.testing.assert_allclose(advantages_L, advantages, atol=1e-6)
    np.testing.assert_allclose(returns_L, returns, atol=1e-6)


def test_bilevel_gae_is_whitened_over_the_row(variant):
    whitened_L = variant(gae.whiten)(np.array([1.85, 1.75, 1.65, 1.55, 1.45, 0.4, 0.3, 0.2, 0.1, 0.0]), np.ones(10))
    expected = [1.18799839, 1.05956613, 0.93113388, 0.80270162, 0.67426936]
    np.testing.assert_allclose(whitened_L, expected + [-x for x in expected[::-1]], atol=2e-6)


def test_bilevel_gae_loses_no_reward_wherever_it_stands(variant):
    """Undiscounted, with a critic of zero, every position's return is the sum of all rewards from there on."""
    mask_L = np.array([1, 1, 0, 0, 1, 1, 0, 1, 0], bool)
    ends_L = np.isin(np.arange(9), [1, 5, 7])
    rewards_L = np.array([1.0, 2, 4, 8, 16, 32, 64, 128, 256])
    function = variant(functools.partial(gae.bilevel_gae, gamma=1.0, lam=1.0, gamma_turn=1.0))
    advantages_L, _ = function(rewards_L, np.zeros(9), mask_L, ends_L)
    np.testing.assert_allclose(np.asarray(advantages_L)[mask_L], np.cumsum(rewards_L[::-1])[::-1][mask_L])


def test_value_loss_is_the_larger_of_plain_and_clipped(variant):
    values, old, returns = np.array([0.9, 0.1, 0.5]), np.array([0.2, 0.4, 0.5]), np.array([1.0, 0.0, 0.0])
    clipped = variant(functools.partial(gae.value_token_losses, clip=0.5))(values, old, returns)
    np.testing.assert_allclose(clipped, [0.045, 0.005, 0.125], atol=1e-7)
    np.testing.assert_allclose(clipped.mean(), 0.05833333, atol=1e-7)
    np.testing.assert_allclose(variant(gae.value_token_losses)(values, old, returns).mean(), 0.045, atol=1e-7)


def test_whitening_equal_values_gives_exactly_zero(variant):
    # The float mean of a hundred times 0.95 is not 0.95.
    values = np.where(np.arange(101) < 100, 0.95, 7.0).astype(np.float32)
    assert not np.asarray(variant(gae.whiten)(values, np.arange(101) < 100)).any()


def test_whitening_nothing_gives_zeros(variant):
    assert not np.asarray(variant(gae.whiten)(np.array([3.0, 4.0]), np.zeros(2))).any()
    assert not np.asarray(variant(gae.whiten)(np.array([3.0, 4.0]), np.array([0, 1]))).any()
