from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.config import WarmStartConfig
from jaxrl_agent.envs import frozenlake
from jaxrl_agent.envs.frozenlake_maps import random_map, shortest_path
from jaxrl_agent.rollout.scripted import play_script
from jaxrl_agent.tasks.frozenlake_demos import Demonstrator
from jaxrl_agent.testing.lakes import CHAT, lake_game

FLAWLESS = {"random_move": 0.0, "repeat_mistake": 0.0, "look_base": 0.0, "look_slope": 0.0}
DRAWS = 4000
T_MAX = 10
LAKES = [random_map(seed, size=4, frozen_prob=0.7, start="random", min_path=2, min_holes=1) for seed in range(24)]


def demonstrator(game, **settings) -> Demonstrator:
    return Demonstrator.of(game.task, WarmStartConfig(**FLAWLESS | settings))


@pytest.fixture(scope="module")
def foggy():
    return lake_game(LAKES, t_max=T_MAX)


@pytest.fixture(scope="module")
def stock():
    return lake_game(LAKES, t_max=T_MAX, lake={"foggy": False})


def act(game, actor, instances_B, cells_B, seen_BX, *, memory: int = 0, budget: int = T_MAX, seed: int = 0):
    """Ask the actor for one action in each of B states."""
    state_B = frozenlake.LakeState(
        cell=jnp.asarray(cells_B, jnp.int32),
        seen_X=jnp.asarray(seen_BX),
        last_look=jnp.full(len(cells_B), -1, jnp.int32),
    )

    def one(instance, state, key):
        return actor(game.data, instance, state, jnp.int32(memory), jnp.int32(budget), key)

    keys_B = jax.random.split(jax.random.key(seed), len(cells_B))
    return map(np.asarray, jax.jit(jax.vmap(one))(jnp.asarray(instances_B), state_B, keys_B))


def repeated(instance: int, cell: int, seen=()) -> tuple:
    """The same state many times, for frequencies."""
    seen_BX = np.zeros((DRAWS, 16), bool)
    seen_BX[:, list(seen)] = True
    return np.full(DRAWS, instance), np.full(DRAWS, cell), seen_BX


def assert_frequency(hits_B: np.ndarray, probability: float) -> None:
    spread = max(np.sqrt(probability * (1 - probability) / len(hits_B)), 1e-9)
    assert abs(hits_B.mean() - probability) <= 4 * spread


def distances(desc, holes) -> dict[int, int]:
    """Moves from each cell to the goal around `holes`, cells without a way left out."""
    size, letters = len(desc), "".join(desc)
    found, edge = {letters.index("G"): 0}, [letters.index("G")]
    while edge:
        edge = [
            near
            for cell in edge
            for near in _near(size, cell)
            if near not in holes and near not in found and not found.update({near: found[cell] + 1})
        ]
    return found


def _near(size: int, cell: int) -> list[int]:
    """Cells left of, below, right of and above a cell; the cell itself at a wall."""
    row, col = divmod(cell, size)
    targets = ((row, col - 1), (row + 1, col), (row, col + 1), (row - 1, col))
    return [r * size + c if 0 <= r < size and 0 <= c < size else cell for r, c in targets]


# ---- planning


def test_on_the_stock_lake_a_flawless_demonstration_is_a_shortest_path(stock):
    actor, count = demonstrator(stock), len(LAKES)
    longest = max(map(shortest_path, LAKES))
    batch, success_B = jax.jit(functools.partial(play_script, stock.task, actor=actor, turns=longest))(
        data=stock.data,
        instances_B=jnp.arange(count),
        budgets_B=jnp.full(count, T_MAX),
        key=jax.random.key(0),
    )
    assert success_B.all()
    turns_B = np.asarray(batch.turn_BL).max(axis=1) + 1
    assert turns_B.tolist() == [shortest_path(desc) for desc in LAKES]


@pytest.mark.parametrize("kind", ["foggy", "stock"])
def test_planned_moves_shorten_the_way_around_the_holes_that_are_known(kind, request):
    """From every cell and after any looks; an unknown hole is ice to the demonstrator, a known one is never entered."""
    game = request.getfixturevalue(kind)
    rng = np.random.default_rng(0)
    cases = []
    for instance, desc in enumerate(LAKES):
        holes = {cell for cell, letter in enumerate("".join(desc)) if letter == "H"}
        for cell in range(16):
            seen = rng.random(16) < 0.5
            known = holes if kind == "stock" else {hole for hole in holes if seen[hole]}
            ways = distances(desc, known)
            if cell not in holes and ways.get(cell, 0) > 0:
                cases.append((instance, cell, seen, known, ways))
    instances_B, cells_B, seen_BX = map(np.array, list(zip(*cases, strict=True))[:3])
    action_B, memory_B = act(game, demonstrator(game), instances_B, cells_B, seen_BX)
    assert not memory_B.any()
    for action, (_, cell, _, known, ways) in zip(action_B, cases, strict=True):
        target = _near(4, cell)[action]
        assert target not in known
        assert ways[target] == ways[cell] - 1
    assert len(cases) > 200


def test_ties_between_equally_good_moves_are_broken_at_random(stock):
    game = lake_game([["SFF", "FFF", "FFG"]], t_max=T_MAX, lake={"foggy": False})
    action_B, _ = act(game, demonstrator(game), np.zeros(DRAWS, int), np.zeros(DRAWS), np.zeros((DRAWS, 9), bool))
    assert set(action_B.tolist()) == {frozenlake.DOWN, frozenlake.RIGHT}
    assert_frequency(action_B == frozenlake.DOWN, 0.5)


# ---- errors


STATE = (LAKES.index(LAKES[0]), "".join(LAKES[0]).index("S"))


@pytest.mark.parametrize(("memory", "rate"), [(0, 0.2), (1, 0.6)])
def test_moves_are_random_as_often_as_set_and_more_often_after_a_mistake(stock, memory, rate):
    actor = demonstrator(stock, random_move=0.2, repeat_mistake=0.6)
    action_B, memory_B = act(stock, actor, *repeated(*STATE), memory=memory)
    holes = {cell for cell, letter in enumerate("".join(LAKES[0])) if letter == "H"}
    ways = distances(LAKES[0], holes)
    best = [a for a, near in enumerate(_near(4, STATE[1])) if ways.get(near, 99) < ways[STATE[1]]]
    np.testing.assert_array_equal(memory_B, ~np.isin(action_B, best))
    assert_frequency(memory_B, rate * (1 - len(best) / 4))
    worse = [action for action in range(4) if action not in best]
    for action in worse:
        assert_frequency(action_B == action, rate / 4)


# ---- looking


@pytest.mark.parametrize("budget", [1, 5, 10])
def test_looks_are_as_frequent_as_the_told_budget_makes_them(foggy, budget):
    actor = demonstrator(foggy, look_base=0.05, look_slope=0.5)
    action_B, memory_B = act(foggy, actor, *repeated(*STATE), budget=budget)
    assert_frequency(action_B == frozenlake.LOOK, 0.05 + 0.5 * budget / T_MAX)
    assert not memory_B.any()


def test_where_a_look_could_tell_nothing_new_none_is_taken(foggy):
    actor = demonstrator(foggy, look_base=1.0)
    near = set(_near(4, STATE[1])) - {STATE[1]}
    action_B, _ = act(foggy, actor, *repeated(*STATE, seen=near))
    assert (action_B != frozenlake.LOOK).all()
    action_B, _ = act(foggy, actor, *repeated(*STATE, seen=set(list(near)[1:])))
    assert (action_B == frozenlake.LOOK).all()


def test_a_look_neither_makes_nor_forgets_a_mistake(foggy):
    actor = demonstrator(foggy, random_move=1.0, repeat_mistake=1.0, look_base=0.5)
    for memory in (0, 1):
        action_B, memory_B = act(foggy, actor, *repeated(*STATE), memory=memory)
        looks_B = action_B == frozenlake.LOOK
        assert_frequency(looks_B, 0.5)
        assert (memory_B[looks_B] == memory).all()
        assert set(memory_B[~looks_B].tolist()) == {0, 1}


def test_nobody_looks_on_the_stock_lake(stock):
    actor = demonstrator(stock, look_base=1.0, look_slope=1.0)
    action_B, _ = act(stock, actor, *repeated(*STATE))
    assert (action_B < frozenlake.N_MOVES).all()


def test_a_cautious_demonstrator_survives_the_fog():
    """Looking before every step, it sees each hole before it could step into one."""
    game = lake_game(LAKES, t_max=16)
    actor = demonstrator(game, look_base=1.0)
    count = len(LAKES)
    batch, success_B = jax.jit(functools.partial(play_script, game.task, actor=actor, turns=40))(
        data=game.data,
        instances_B=jnp.arange(count),
        budgets_B=jnp.full(count, 16),
        key=jax.random.key(1),
    )
    assert success_B.all()
    rows = zip(np.asarray(batch.tokens_BL).tolist(), np.asarray(batch.lengths_B).tolist(), strict=True)
    assert all("look ." in game.tokenizer.decode(tokens[:length]) for tokens, length in rows)


def test_a_demonstrator_is_hashable_and_equal_to_one_of_the_same_settings(stock):
    """It is a static argument of jitted programs."""
    assert hash(demonstrator(stock)) == hash(demonstrator(stock))
    assert demonstrator(stock) == demonstrator(stock)
    assert demonstrator(stock) != dataclasses.replace(demonstrator(stock), random_move=0.5)


def test_demonstrations_in_chat_end_every_reply_with_its_end_token():
    game = lake_game(LAKES[:4], t_max=T_MAX, **CHAT)
    batch, _ = jax.jit(functools.partial(play_script, game.task, actor=demonstrator(game, look_base=0.5), turns=4))(
        data=game.data, instances_B=jnp.arange(4), budgets_B=jnp.full(4, T_MAX), key=jax.random.key(0)
    )
    tokens_BL, mask_BL, turn_BL = map(np.asarray, (batch.tokens_BL, batch.loss_mask_BL, batch.turn_BL))
    end = game.tokenizer.control_id("<|im_end|>")
    for row in range(4):
        for turn in range(turn_BL[row].max() + 1):
            reply = tokens_BL[row][turn_BL[row] == turn].tolist()
            assert reply[-1] == end
            assert reply.count(end) == 1
        assert game.tokenizer.decode(tokens_BL[row][mask_BL[row]].tolist()).startswith("<action>")
