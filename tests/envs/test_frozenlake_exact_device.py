"""Exact values inside jit, float32: padded tables, planning on believed holes, the quality of a step."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.envs import frozenlake as fl
from jaxrl_agent.envs.frozenlake_exact import (
    discounted_q,
    discounted_q_maps,
    finite_horizon_q,
    finite_horizon_q_maps,
    q_from_holes,
    step_quality,
)
from jaxrl_agent.envs.frozenlake_maps import random_map, stack_maps

pytestmark = pytest.mark.usefixtures("strict_rank_promotion")

CLASSIC = ["SFFF", "FHFH", "FFFH", "HFFG"]


@pytest.mark.parametrize("rate", [1 / 3, 0.8, 1.0])
def test_padded_float32_tables_equal_the_float64_ones(rate):
    descs = [random_map(seed, size=2 + seed % 9, frozen_prob=0.75, start="random") for seed in range(18)]
    maps = stack_maps(descs)
    finite_NTX4 = finite_horizon_q_maps(maps, success_rate=rate, horizon=25)
    discounted_NX4 = discounted_q_maps(maps, success_rate=rate, gamma=0.9, sweeps=200)
    assert finite_NTX4.shape == (18, 26, 100, 4)
    assert finite_NTX4.dtype == discounted_NX4.dtype == jnp.float32
    for desc, finite_TX4, discounted_X4 in zip(descs, finite_NTX4, discounted_NX4, strict=True):
        n_cells = len(desc) ** 2
        exact_TX4 = finite_horizon_q(desc, success_rate=rate, horizon=25)
        np.testing.assert_allclose(finite_TX4[:, :n_cells], exact_TX4, atol=2e-6)
        exact_X4 = discounted_q(desc, success_rate=rate, gamma=0.9)
        np.testing.assert_allclose(discounted_X4[:n_cells], exact_X4, atol=2e-6)
        assert not finite_TX4[:, n_cells:].any()
        assert not discounted_X4[n_cells:].any()


def test_x_sweeps_are_exact_on_a_deterministic_lake():
    serpentine = ["SFFF", "HHHF", "FFFF", "FHHG"]
    maps = stack_maps([serpentine])
    q_X4 = discounted_q_maps(maps, success_rate=1.0, gamma=0.9, sweeps=16)[0]
    np.testing.assert_allclose(q_X4, discounted_q(serpentine, success_rate=1.0, gamma=0.9), atol=1e-6)


def test_tables_are_the_same_with_and_without_jit():
    maps = stack_maps([random_map(seed, size=3 + seed, frozen_prob=0.8) for seed in range(3)])
    finite = functools.partial(finite_horizon_q_maps, maps, success_rate=0.7, horizon=6)
    discounted = functools.partial(discounted_q_maps, maps, success_rate=0.7, gamma=0.95, sweeps=9)
    jitted = finite(), discounted()
    with jax.disable_jit():
        plain = finite(), discounted()
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), jitted, plain)


def plan(hole_X, lake_map):
    return q_from_holes(hole_X, lake_map.goal, lake_map.size, success_rate=1.0, gamma=0.9, sweeps=25)


def test_planning_with_all_holes_known_is_the_discounted_q():
    maps = stack_maps([random_map(seed, size=4, frozen_prob=0.8, start="random") for seed in range(8)], max_size=5)
    planned_NX4 = jax.jit(jax.vmap(plan))(maps.hole_X, maps)
    expected_NX4 = discounted_q_maps(maps, success_rate=1.0, gamma=0.9, sweeps=25)
    np.testing.assert_allclose(planned_NX4, expected_NX4, atol=1e-6)
    single_X4 = plan(maps.hole_X[0], jax.tree.map(lambda leaf: leaf[0], maps))
    np.testing.assert_allclose(single_X4, planned_NX4[0], atol=1e-6)


def test_planning_blind_walks_straight_through_what_was_not_seen():
    lake_map = jax.tree.map(lambda leaf: leaf[0], stack_maps([["SHG", "FHF", "FFF"]]))
    rules, state = fl.LakeRules(foggy=True), fl.reset(lake_map)
    blind_X4 = plan(fl.believed_holes(lake_map, state), lake_map)
    np.testing.assert_allclose(blind_X4[0], [0.81, 0.729, 0.9, 0.81], atol=1e-6)  # two moves away, as the crow flies
    state, *_ = fl.step(rules, lake_map, state, jnp.int32(fl.LOOK), jax.random.key(0))
    wiser_X4 = plan(fl.believed_holes(lake_map, state), lake_map)
    np.testing.assert_allclose(wiser_X4[0], [0.9**4, 0.9**3, 0.0, 0.9**4], atol=1e-6)  # through the unseen hole
    seeing_X4 = plan(lake_map.hole_X, lake_map)
    np.testing.assert_allclose(seeing_X4[0], [0.9**6, 0.9**5, 0.0, 0.9**6], atol=1e-6)


def test_step_quality_of_a_move_is_q_and_of_anything_else_the_value_one_turn_later():
    q_TX4 = jnp.asarray(finite_horizon_q(CLASSIC, success_rate=1 / 3, horizon=20), jnp.float32)
    look_up = jax.jit(step_quality)
    for action in range(-2, 7):
        quality, best = look_up(q_TX4, turns_left=jnp.int32(20), cell=jnp.int32(9), action=jnp.int32(action))
        expected = q_TX4[20, 9, action] if 0 <= action < 4 else q_TX4[19, 9].max()
        assert (quality, best) == (expected, q_TX4[20, 9].max())


def test_standing_still_on_the_last_turn_is_worth_nothing():
    q_TX4 = finite_horizon_q_maps(stack_maps([["SG", "FF"]]), success_rate=1.0, horizon=3)[0]
    for action, worth in ((fl.LOOK, 0.0), (fl.UNUSABLE, 0.0), (fl.RIGHT, 1.0)):
        quality, best = step_quality(q_TX4, turns_left=jnp.int32(1), cell=jnp.int32(0), action=jnp.int32(action))
        assert (quality, best) == (worth, 1.0)


def test_the_exact_advantage_of_wasting_a_turn_is_never_positive():
    q_NTX4 = finite_horizon_q_maps(
        stack_maps([random_map(seed, size=5, frozen_prob=0.8) for seed in range(20)]), success_rate=0.8, horizon=15
    )
    value_NTX = q_NTX4.max(axis=-1)
    assert (value_NTX[:, :-1] <= value_NTX[:, 1:] + 1e-6).all()
