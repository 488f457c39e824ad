"""The lake's dynamics against gymnasium's table and against the rules of the foggy game."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.envs import frozenlake as fl
from jaxrl_agent.envs.frozenlake import DOWN, LEFT, LOOK, RIGHT, UNUSABLE, UP, LakeRules
from jaxrl_agent.envs.frozenlake_maps import random_map, stack_maps
from jaxrl_agent.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("strict_rank_promotion")

STOCK, FOGGY = LakeRules(), LakeRules(foggy=True)
CLASSIC = ["SFFF", "FHFH", "FFFH", "HFFG"]
KEY = jax.random.key(0)


def lake(desc: list[str], max_size: int | None = None) -> fl.LakeMap:
    return jax.tree.map(lambda leaf: leaf[0], stack_maps([desc], max_size))


def at(lake_map: fl.LakeMap, cell: int) -> fl.LakeState:
    return fl.reset(lake_map).replace(cell=jnp.int32(cell))


def play(rules: LakeRules, lake_map: fl.LakeMap, actions: list[int], state: fl.LakeState | None = None):
    """Play actions one by one; returns the last state, all rewards and all terminations."""
    state = fl.reset(lake_map) if state is None else state
    rewards, terminations = [], []
    for action in actions:
        state, reward, terminated = fl.step(rules, lake_map, state, jnp.int32(action), KEY)
        rewards.append(float(reward))
        terminations.append(bool(terminated))
    return state, rewards, terminations


@functools.partial(jax.jit, static_argnames="rules")
def every_outcome(rules: LakeRules, lake_map: fl.LakeMap, bits_3: jax.Array):
    """Step from every cell with every move and the three given words; leaves [X, 4, 3]."""

    def one(cell, action, bits):
        state = fl.reset(lake_map).replace(cell=cell)
        state, reward, terminated = fl.step_from_bits(rules, lake_map, state, action, bits)
        return state.cell, reward, terminated

    by_bits = jax.vmap(one, in_axes=(None, None, 0))
    by_action = jax.vmap(by_bits, in_axes=(None, 0, None))
    return jax.vmap(by_action, in_axes=(0, None, None))(jnp.arange(lake_map.hole_X.shape[0]), jnp.arange(4), bits_3)


# Words that slip to a - 1, go straight, and slip to a + 1 for every rate that has all three outcomes.
THREE_WORDS = np.array([0, 2**31, 2**32 - 1], np.uint32)


def test_reset_stands_on_the_start_with_nothing_seen():
    state = fl.reset(lake(["FSF", "FFF", "FFG"]))
    assert state.cell == 1
    assert not state.seen_X.any()
    assert state.last_look == -1


def test_transition_table_equals_gymnasiums_on_200_maps(mixed_lakes, gymnasium_table):
    tabulate = jax.jit(fl.transition_table)
    for desc, rate in mixed_lakes:
        n_cells = len(desc) ** 2
        next_X43, probability_3 = jax.tree.map(np.asarray, tabulate(lake(desc, max_size=10), rate))
        ours_X4X = np.zeros((n_cells, 4, n_cells))
        cell_X, action_4 = np.ix_(range(n_cells), range(4))
        for slip in range(3):
            np.add.at(ours_X4X, (cell_X, action_4, next_X43[:n_cells, :, slip]), probability_3[slip])
        np.testing.assert_allclose(ours_X4X, gymnasium_table(desc, rate)[0], atol=1e-7, err_msg=str(desc))


def test_env_step_follows_the_table_and_pays_as_gymnasium(mixed_lakes, gymnasium_table):
    rules = LakeRules(success_rate=0.5)
    for desc, _ in mixed_lakes[::2]:
        n_cells = len(desc) ** 2
        lake_map = lake(desc, max_size=10)
        next_X43, reward_X43, terminated_X43 = (
            np.asarray(leaf)[:n_cells] for leaf in every_outcome(rules, lake_map, THREE_WORDS)
        )
        np.testing.assert_array_equal(next_X43, fl.transition_table(lake_map, 0.5)[0][:n_cells])
        _, pays_X4X, ends_X4X = gymnasium_table(desc, 0.5)
        cell_X, action_4, _ = np.ix_(range(n_cells), range(4), range(3))
        np.testing.assert_array_equal(reward_X43, pays_X4X[cell_X, action_4, next_X43])
        np.testing.assert_array_equal(terminated_X43, ends_X4X[cell_X, action_4, next_X43])


@pytest.mark.parametrize("rate", [1 / 3, 0.8, 0.0])
def test_slips_come_as_often_as_the_rules_say(rate):
    open_lake = lake(["FFF", "FSF", "FFG"])
    keys = jax.random.split(jax.random.key(7), 40_000)
    step = functools.partial(fl.step, LakeRules(rate), open_lake, fl.reset(open_lake), jnp.int32(UP))
    cells = np.asarray(jax.jit(jax.vmap(lambda key: step(key)[0].cell))(keys))
    shares = [(cells == fl.neighbour(jnp.int32(3), jnp.int32(4), d)).mean() for d in (RIGHT, UP, LEFT)]
    np.testing.assert_allclose(shares, [(1 - rate) / 2, rate, (1 - rate) / 2], atol=0.01)  # 4 standard errors


def test_slip_thresholds_split_the_words_exactly():
    quarter = 2**30
    words = jnp.array([0, quarter - 1, quarter, 3 * quarter - 1, 3 * quarter, 2**32 - 1], jnp.uint32)
    open_lake = lake(["FFF", "FSF", "FFG"])
    cells = [
        int(fl.step_from_bits(LakeRules(0.5), open_lake, fl.reset(open_lake), jnp.int32(UP), word)[0].cell)
        for word in words
    ]
    assert cells == [5, 5, 1, 1, 3, 3]  # up slips to right (a - 1) first, to left (a + 1) last


def test_the_deterministic_lake_goes_where_it_is_told_whatever_the_word():
    outcomes_X43 = every_outcome(STOCK, lake(CLASSIC), THREE_WORDS)[0]
    assert (outcomes_X43 == outcomes_X43[..., :1]).all()


def test_walls_keep_the_agent_in_place_and_lakes_keep_their_own_width():
    size = jnp.int32(3)
    near_X4 = fl.neighbours(size, jnp.arange(9))
    expected = [[0, 3, 1, 0], [0, 4, 2, 1], [1, 5, 2, 2], [3, 6, 4, 0], [3, 7, 5, 1], [4, 8, 5, 2]]
    assert near_X4[:6].tolist() == expected
    assert near_X4[8].tolist() == [7, 8, 8, 5]


def test_neighbours_are_exact_on_a_large_lake():
    size = 1000
    cell = np.arange(size**2)
    near_X4 = np.asarray(fl.neighbours(jnp.int32(size), jnp.asarray(cell)))
    row, col = np.divmod(cell, size)
    np.testing.assert_array_equal(near_X4[:, LEFT], row * size + np.maximum(col - 1, 0))
    np.testing.assert_array_equal(near_X4[:, DOWN], np.minimum(row + 1, size - 1) * size + col)


def test_the_goal_pays_once_and_absorbs():
    state, rewards, terminations = play(STOCK, lake(["SG", "FF"]), [RIGHT, RIGHT, LEFT])
    assert rewards == [1.0, 0.0, 0.0]
    assert terminations == [True, True, True]
    assert state.cell == 1


def test_a_hole_ends_the_episode_without_pay():
    state, rewards, terminations = play(STOCK, lake(["SH", "FG"]), [RIGHT, DOWN])
    assert (rewards, terminations, int(state.cell)) == ([0.0, 0.0], [True, True], 1)


def test_a_budget_equal_to_the_shortest_path_succeeds():
    _, rewards, terminations = play(STOCK, lake(CLASSIC), [DOWN, DOWN, RIGHT, DOWN, RIGHT, RIGHT])
    assert rewards == [0, 0, 0, 0, 0, 1.0]
    assert terminations == [False] * 5 + [True]


@pytest.mark.parametrize("action", [UNUSABLE, LOOK, 5, -7])
@pytest.mark.parametrize("rate", [1.0, 1 / 3])
def test_an_action_the_stock_game_lacks_stays_put_and_ends_nothing(action, rate):
    lake_map = lake(CLASSIC)
    state, rewards, terminations = play(LakeRules(rate), lake_map, [action] * 5, at(lake_map, 6))
    assert (rewards, terminations, int(state.cell)) == ([0.0] * 5, [False] * 5, 6)
    assert not state.seen_X.any()
    assert state.last_look == -1


def test_a_look_names_the_holes_next_to_the_agent_and_walls_are_none():
    lake_map = lake(CLASSIC)
    assert play(FOGGY, lake_map, [LOOK], at(lake_map, 6))[0].last_look == (1 << LEFT) | (1 << RIGHT)
    assert play(FOGGY, lake_map, [LOOK], at(lake_map, 0))[0].last_look == 0
    assert play(FOGGY, lake_map, [LOOK], at(lake_map, 8))[0].last_look == 1 << DOWN
    assert play(FOGGY, lake_map, [LOOK], at(lake_map, 1))[0].last_look == 1 << DOWN


def test_a_look_costs_a_turn_pays_nothing_and_moves_nobody():
    lake_map = lake(CLASSIC)
    state, rewards, terminations = play(LakeRules(1 / 3, foggy=True), lake_map, [LOOK] * 3, at(lake_map, 6))
    assert (rewards, terminations, int(state.cell)) == ([0.0] * 3, [False] * 3, 6)


def test_seen_cells_add_up_over_looks_and_hold_the_neighbours_alone():
    lake_map = lake(CLASSIC)
    state, *_ = play(FOGGY, lake_map, [LOOK])
    assert np.flatnonzero(state.seen_X).tolist() == [1, 4]
    state, *_ = play(FOGGY, lake_map, [RIGHT, LOOK], state)
    assert np.flatnonzero(state.seen_X).tolist() == [0, 1, 2, 4, 5]
    assert np.flatnonzero(fl.believed_holes(lake_map, state)).tolist() == [5]


@pytest.mark.parametrize("action", [RIGHT, UP, UNUSABLE])
def test_the_next_turn_forgets_the_last_look_but_not_what_was_seen(action):
    lake_map = lake(CLASSIC)
    looked, *_ = play(FOGGY, lake_map, [LOOK], at(lake_map, 1))
    state, *_ = play(FOGGY, lake_map, [action], looked)
    assert state.last_look == -1
    np.testing.assert_array_equal(state.seen_X, looked.seen_X)


def test_a_look_after_the_end_tells_nothing():
    state, _, terminations = play(FOGGY, lake(["SH", "FG"]), [RIGHT, LOOK])
    assert terminations == [True, True]
    assert state.last_look == -1
    assert not state.seen_X.any()


def test_fog_leaves_the_moves_as_they_are():
    lake_map = lake(CLASSIC)
    for rate in (1.0, 1 / 3):
        clear = every_outcome(LakeRules(rate), lake_map, THREE_WORDS)
        fog = every_outcome(LakeRules(rate, foggy=True), lake_map, THREE_WORDS)
        jax.tree.map(np.testing.assert_array_equal, clear, fog)


def _rollout(rules, lake_map, actions_T, key):
    def turn(state, inputs):
        action, turn_key = inputs
        state, reward, terminated = fl.step(rules, lake_map, state, action, turn_key)
        return state, (state, reward, terminated)

    return jax.lax.scan(turn, fl.reset(lake_map), (actions_T, jax.random.split(key, len(actions_T))))[1]


def _random_actions(n_lakes: int, turns: int) -> jax.Array:
    return jax.random.randint(jax.random.key(3), (n_lakes, turns), -1, 5)


@pytest.mark.parametrize("rules", [LakeRules(1 / 3), LakeRules(0.8, foggy=True)])
def test_padding_changes_nothing(rules):
    descs = [random_map(seed, size=5, frozen_prob=0.8, start="random") for seed in range(32)]
    actions, keys = _random_actions(32, 20), jax.random.split(KEY, 32)
    run = jax.jit(jax.vmap(functools.partial(_rollout, rules)))
    tight, padded = run(stack_maps(descs), actions, keys), run(stack_maps(descs, max_size=9), actions, keys)
    assert not padded[0].seen_X[..., 25:].any()
    unpadded = (padded[0].replace(seen_X=padded[0].seen_X[..., :25]), *padded[1:])
    jax.tree.map(np.testing.assert_array_equal, tight, unpadded)
    assert len(np.unique(tight[0].cell)) > 10


@pytest.mark.parametrize("rules", [LakeRules(1 / 3), LakeRules(1.0, foggy=True)])
def test_jit_vmap_and_plain_calls_agree(rules):
    maps = stack_maps([random_map(seed, size=2 + seed % 5, frozen_prob=0.8) for seed in range(6)])
    actions, keys = _random_actions(6, 8), jax.random.split(KEY, 6)
    batched = jax.jit(jax.vmap(_rollout, in_axes=(None, 0, 0, 0)))(rules, maps, actions, keys)
    for row in range(6):
        lake_map = jax.tree.map(lambda leaf, row=row: leaf[row], maps)
        state = fl.reset(lake_map)
        for turn, key in enumerate(jax.random.split(keys[row], 8)):
            state, reward, terminated = fl.step(rules, lake_map, state, actions[row, turn], key)
            expected = jax.tree.map(lambda leaf, row=row, turn=turn: leaf[row, turn], batched)
            jax.tree.map(np.testing.assert_array_equal, (state, reward, terminated), expected)


def test_states_keep_their_types_so_that_they_can_be_scanned():
    state = fl.reset(lake(CLASSIC))
    following, reward, terminated = fl.step(FOGGY, lake(CLASSIC), state, jnp.int32(LOOK), KEY)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), state) == jax.tree.map(lambda a: (a.shape, a.dtype), following)
    assert (reward.dtype, terminated.dtype) == (jnp.float32, jnp.bool_)


def test_rules_are_checked_and_know_their_actions():
    assert (STOCK.n_actions, FOGGY.n_actions) == (4, 5)
    for rate in (-0.1, 1.1, float("nan")):
        with pytest.raises(ArgumentError, match="success_rate"):
            LakeRules(success_rate=rate)
