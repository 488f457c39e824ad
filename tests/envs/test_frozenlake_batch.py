"""Many lakes at once: the same game as one lake and as gymnasium's table, resets, time limits, random words."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.envs import frozenlake as fl
from jaxrl_agent.envs import frozenlake_batch as many
from jaxrl_agent.envs.frozenlake_exact import success_within
from jaxrl_agent.envs.frozenlake_maps import random_map, stack_maps
from jaxrl_agent.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("strict_rank_promotion")

CLASSIC = ["SFFF", "FHFH", "FFFH", "HFFG"]
CORRIDOR = ["SFG", "HHH", "HHH"]
MIXED = [random_map(seed, size=2 + seed % 4, frozen_prob=0.7, start="random") for seed in range(12)]
KEY = jax.random.key(5)
# Slip to a - 1, straight, and to a + 1 for every rate that has all three.
THREE_WORDS = np.array([0, 2**31, 2**32 - 1], np.uint32)


def full(batch: many.LakeBatch, value, dtype=jnp.int32) -> jax.Array:
    return jnp.full(batch.n_envs, value, dtype)


def every_place(descs: list[list[str]], rate: float):
    """One environment for each lake, cell, action of -1..4 and word of three; and where each of them stands."""
    maps = stack_maps(descs)
    n_lakes, n_cells = maps.hole_X.shape
    cells, actions, words, lakes = np.meshgrid(
        np.arange(n_cells), np.arange(-1, 5), THREE_WORDS, np.arange(n_lakes), indexing="ij"
    )
    cells, actions, words, lakes = (part.ravel() for part in (cells, actions, words, lakes))
    batch = many.make(maps, len(cells), success_rate=rate)
    state = many.reset(batch).replace(row_B=jnp.asarray(cells + n_cells * lakes, jnp.int32))
    return maps, batch, state, lakes, cells, jnp.asarray(actions, jnp.int32), jnp.asarray(words)


@pytest.mark.parametrize("rate", [1 / 3, 0.8, 1.0])
def test_a_turn_leads_where_a_turn_of_one_lake_leads(rate):
    maps, batch, state, lakes, cells, action_B, bits_B = every_place(MIXED, rate)
    _, outcome = jax.jit(many.step)(batch, state, action_B, bits_B)

    @jax.vmap
    def one(lake, cell, action, bits):
        lake_map = jax.tree.map(lambda leaf: leaf[lake], maps)
        before = fl.reset(lake_map).replace(cell=cell)
        after, reward, terminated = fl.step_from_bits(fl.LakeRules(rate), lake_map, before, action, bits)
        return after.cell, reward, terminated, fl.is_terminal(lake_map, cell) | (cell >= lake_map.size**2)

    cell_B, reward_B, terminated_B, over_B = jax.jit(one)(
        jnp.asarray(lakes), jnp.asarray(cells, jnp.int32), action_B, bits_B
    )
    playing = ~np.asarray(over_B)
    assert playing.sum() > 1000
    for ours, theirs in (
        (outcome.final_cell_B, cell_B),
        (outcome.reward_B, reward_B),
        (outcome.terminated_B, terminated_B),
    ):
        np.testing.assert_array_equal(np.asarray(ours)[playing], np.asarray(theirs)[playing])
        assert ours.dtype == theirs.dtype


@pytest.mark.parametrize("rate", [1 / 3, 0.5])
def test_moves_pay_end_and_spread_as_in_gymnasiums_table(rate, gymnasium_table):
    first, last = fl.slip_bounds(rate)
    weights = dict(zip(THREE_WORDS.tolist(), np.diff([0, first, last + 1, 2**32]) / 2**32, strict=True))
    for desc in (CLASSIC, *MIXED[:4]):
        probability_X4X, reward_X4X, terminated_X4X = gymnasium_table(desc, rate)
        _, batch, state, _, cells, action_B, bits_B = every_place([desc], rate)
        _, outcome = many.step(batch, state, action_B, bits_B)
        ours_X4X = np.zeros_like(probability_X4X)
        for cell, action, word, to, pays, ends in zip(
            cells,
            *map(np.asarray, (action_B, bits_B, outcome.final_cell_B, outcome.reward_B, outcome.terminated_B)),
            strict=True,
        ):
            if 0 <= action < 4 and "".join(desc)[cell] not in "HG":
                ours_X4X[cell, action, to] += weights[int(word)]
                assert (pays, ends) == (reward_X4X[cell, action, to], terminated_X4X[cell, action, to])
        playing = [letter not in "HG" for letter in "".join(desc)]
        np.testing.assert_allclose(ours_X4X[playing], probability_X4X[playing], atol=1e-9)


def test_an_episode_that_ends_begins_anew_in_the_same_turn():
    batch = many.make(stack_maps([CORRIDOR]), 3, success_rate=1.0)
    state, outcome = many.step(batch, many.reset(batch), full(batch, fl.RIGHT), full(batch, 0, jnp.uint32))
    assert (outcome.cell_B.tolist(), outcome.reward_B.tolist(), state.turn_B.tolist()) == ([1] * 3, [0] * 3, [1] * 3)
    state, outcome = many.step(batch, state, jnp.array([2, 1, -1]), full(batch, 0, jnp.uint32))  # goal, hole, nothing
    assert outcome.final_cell_B.tolist() == [2, 4, 1]
    assert outcome.reward_B.tolist() == [1.0, 0.0, 0.0]
    assert outcome.terminated_B.tolist() == [True, True, False]
    assert not outcome.truncated_B.any()
    assert outcome.cell_B.tolist() == many.observe(batch, state).tolist() == [0, 0, 1]
    assert state.turn_B.tolist() == [0, 0, 2]


def test_the_time_limit_cuts_after_its_last_turn_and_may_come_with_the_goal():
    batch = many.make(stack_maps([CORRIDOR]), 2, success_rate=1.0, time_limit=2)
    state = many.reset(batch)
    state, first = many.step(batch, state, jnp.array([fl.RIGHT, fl.UP]), full(batch, 0, jnp.uint32))
    state, second = many.step(batch, state, jnp.array([fl.RIGHT, fl.UP]), full(batch, 0, jnp.uint32))
    assert (first.truncated_B.tolist(), second.truncated_B.tolist()) == ([False] * 2, [True] * 2)
    assert second.terminated_B.tolist() == [True, False]
    assert (state.row_B.tolist(), state.turn_B.tolist()) == ([0, 0], [0, 0])


def test_each_environment_keeps_its_own_lake():
    descs = [["SF", "FG"], ["FS", "GF"], CORRIDOR]
    batch = many.make(stack_maps(descs), 7, success_rate=1.0, time_limit=1)
    state = many.reset(batch)
    assert many.observe(batch, state).tolist() == [0, 1, 0, 0, 1, 0, 0]
    state, outcome = many.step(batch, state, full(batch, fl.DOWN), full(batch, 0, jnp.uint32))
    assert outcome.final_cell_B.tolist() == [2, 3, 3, 2, 3, 3, 2]
    assert outcome.terminated_B.tolist() == [False, False, True, False, False, True, False]
    assert outcome.cell_B.tolist() == [0, 1, 0, 0, 1, 0, 0]


def test_random_play_succeeds_as_often_as_the_exact_values_say():
    batch = many.make(stack_maps([CLASSIC]), 4096)
    state, totals = many.play(batch, many.reset(batch), KEY, turns=256)
    exact = success_within(CLASSIC, np.full((16, 4), 0.25), success_rate=1 / 3, budgets=[100])[0]
    assert int(totals.episodes) == pytest.approx(4096 * 256 / 7.7, rel=0.02)
    assert int(totals.returns) / int(totals.episodes) == pytest.approx(exact, abs=0.0013)  # 4 standard errors
    assert int(state.turn_B.max()) < 100


def test_play_counts_what_steps_return_and_any_policy_may_play():
    batch = many.make(stack_maps([CLASSIC]), 64, success_rate=0.8, time_limit=9)
    route_X = jnp.array([1, 2, 1, 0, 1, 0, 1, 0, 2, 1, 1, 0, 0, 2, 2, 0])

    def act(cell_B, bits_B):
        return route_X[cell_B], bits_B

    state, totals = many.play(batch, many.reset(batch), KEY, turns=30, act=act)
    expected, episodes, returns = many.reset(batch), 0, 0.0
    step = jax.jit(many.step)
    for t in range(30):
        bits_B = many.draw_bits(jax.random.fold_in(KEY, t), 64)
        expected, outcome = step(batch, expected, route_X[many.observe(batch, expected)], bits_B)
        episodes += int((outcome.terminated_B | outcome.truncated_B).sum())
        returns += float(outcome.reward_B.sum())
    jax.tree.map(np.testing.assert_array_equal, state, expected)
    assert (int(totals.episodes), int(totals.returns)) == (episodes, returns)
    assert returns > 100


def test_random_moves_are_uniform_and_leave_the_other_bits():
    words = jnp.array([0, 2**30, 2**31 + 5, 3 * 2**30 + 1], jnp.uint32)
    action, rest = many.act_at_random(jnp.zeros(4, jnp.int32), words)
    assert action.tolist() == [0, 1, 2, 3]
    assert rest.tolist() == [0, 0, 20, 4]


@pytest.mark.parametrize("n", [1, 7, 4096])
def test_words_are_those_of_threefry_in_counter_mode(n):
    with jax.threefry_partitionable(False):
        expected = jax.random.bits(KEY, (n,), jnp.uint32)
    np.testing.assert_array_equal(jax.jit(many.draw_bits, static_argnums=1)(KEY, n), expected)
    assert not np.array_equal(many.draw_bits(jax.random.fold_in(KEY, 1), n), expected)


def test_games_can_be_mapped_over_keys():
    batch = many.make(stack_maps([CLASSIC]), 32)
    keys = jax.random.split(KEY, 3)
    _, together = jax.vmap(lambda key: many.play(batch, many.reset(batch), key, turns=20))(keys)
    alone = [many.play(batch, many.reset(batch), key, turns=20)[1] for key in keys]
    assert together.episodes.tolist() == [int(totals.episodes) for totals in alone]


@pytest.mark.parametrize(
    ("n_envs", "options", "words"),
    [
        (0, {}, "n_envs"),
        (2.0, {}, "n_envs"),
        (4, {"time_limit": 0}, "time_limit"),
        (4, {"success_rate": 1.2}, "success_rate"),
    ],
)
def test_settings_out_of_range_are_refused(n_envs, options, words):
    with pytest.raises(ArgumentError, match=words):
        many.make(stack_maps([CLASSIC]), n_envs, **options)


def test_keys_of_other_generators_are_refused():
    with pytest.raises(ArgumentError, match="threefry"):
        many.draw_bits(jax.random.key(0, impl="rbg"), 4)
