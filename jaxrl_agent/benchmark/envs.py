"""Environment turns a second: FrozenLake 4x4, slippery, time limit 100, random moves, episodes begun anew.

    frozenlake_batch     `envs.frozenlake_batch.play`, all environments on one lake
    frozenlake_batch_8x8 the same on 256 lakes of 8x8
    frozenlake_step      `envs.frozenlake.step` vmapped, what rollouts play, with `jax.random.bits`
    bare                 the yardstick: the game of one lake written down as one loop of constants, `jax.random.bits`
    gymnasium            peer: FrozenLake-v1 by `make_vec(vectorization_mode="sync")`, the fastest it has; moves drawn
                         beforehand; its resets cost turns of their own and count as turns

All of them add up rewards and ended episodes, so nothing can be left out. A turn is one move of one environment.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agent.benchmark.timing import Contestant
from jaxrl_agent.envs import frozenlake, frozenlake_batch
from jaxrl_agent.envs.frozenlake_maps import random_map, stack_maps

UNIT = "environment turns"
CLASSIC = ("SFFF", "FHFH", "FFFH", "HFFG")
TIME_LIMIT = 100
_TURNS = 2**24  # of all environments together in one run, at most
_N_LAKES = 256
_PEER_TURNS = 20_000


def contestants(n_envs: tuple[int, ...] = (1024, 65_536), *, peers: bool = False) -> dict[str, Contestant]:
    """Build everything that is timed.

    Args:
        n_envs: sizes of a batch.
        peers: also gymnasium, at the sizes where it is fastest.

    Raises:
        ModuleNotFoundError: `peers` without gymnasium.
    """
    built = {}
    eight = [random_map(seed, size=8, frozen_prob=0.8) for seed in range(_N_LAKES)]
    for n in n_envs:
        turns = max(16, min(4096, _TURNS // n))
        work = {
            "frozenlake_batch": _batch([CLASSIC], n, turns),
            "frozenlake_batch_8x8": _batch(eight, n, turns),
            "frozenlake_step": _one_by_one(n, turns),
            "bare": _bare(n, turns),
        }
        built |= {f"{name}/{n}": Contestant(_next_key(play), n * turns) for name, play in work.items()}
    if peers:
        built |= {f"gymnasium/{n}": _gymnasium(n) for n in (16, 64, 256)}
    return built


def _next_key(play: Callable[[jax.Array], object]) -> Callable[[], object]:
    """Play with a fresh key each time, to the end."""
    keys = map(jax.random.key, range(2**31))
    return lambda: jax.block_until_ready(play(next(keys)))


def _batch(descs, n_envs: int, turns: int) -> Callable[[jax.Array], object]:
    batch = frozenlake_batch.make(stack_maps(descs), n_envs, time_limit=TIME_LIMIT)
    state = frozenlake_batch.reset(batch)
    return lambda key: frozenlake_batch.play(batch, state, key, turns=turns)


def _one_by_one(n_envs: int, turns: int) -> Callable[[jax.Array], object]:
    """The dynamics of rollouts, one lake vmapped, with the same resets and sums around them."""
    rules = frozenlake.LakeRules(success_rate=1 / 3)
    lake_map = jax.tree.map(lambda leaf: leaf[0], stack_maps([CLASSIC]))

    def step(state: frozenlake.LakeState, turn, bits):
        state, reward, terminated = frozenlake.step_from_bits(
            rules, lake_map, state, (bits >> 30).astype(jnp.int32), bits << 2
        )
        ended = terminated | (turn + 1 >= TIME_LIMIT)
        cell = jnp.where(ended, lake_map.start, state.cell)
        return state.replace(cell=cell), jnp.where(ended, 0, turn + 1), reward, ended

    def one_turn(carry, key):
        state_B, turn_B, episodes, returns = carry
        state_B, turn_B, reward_B, ended_B = jax.vmap(step)(
            state_B, turn_B, jax.random.bits(key, (n_envs,), jnp.uint32)
        )
        paid = reward_B.sum().astype(jnp.int32)
        return (state_B, turn_B, episodes + ended_B.sum(dtype=jnp.int32), returns + paid), None

    @jax.jit
    def play(key):
        state = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n_envs, *leaf.shape)), frozenlake.reset(lake_map))
        zero = jnp.int32(0)
        carry = (state, jnp.zeros(n_envs, jnp.int32), zero, zero)
        return jax.lax.scan(one_turn, carry, jax.random.split(key, turns))[0][2:]

    return play


def _bare(n_envs: int, turns: int) -> Callable[[jax.Array], object]:
    """One lake as constants: cell, direction -> cell | ends << 8 | pays << 9, worked out on the host."""
    letters = "".join(CLASSIC)
    near_X4 = np.asarray(frozenlake.neighbours(jnp.int32(4), jnp.arange(16)))
    ends_X, pays_X = np.array([c in "HG" for c in letters]), np.array([c == "G" for c in letters])
    table = jnp.asarray((near_X4 | ends_X[near_X4] << 8 | pays_X[near_X4] << 9).ravel(), jnp.int32)

    def one_turn(key, carry, t):
        cell_B, turn_B, episodes, returns = carry
        bits_B = jax.random.bits(jax.random.fold_in(key, t), (n_envs,), jnp.uint32)
        slip_B = ((bits_B & 0xFFFF) * jnp.uint32(3)) >> 16
        direction_B = ((bits_B >> 30) + slip_B + 3).astype(jnp.int32) & 3
        entry_B = table[cell_B * 4 + direction_B]
        ended_B = ((entry_B >> 8) & 1 == 1) | (turn_B + 1 >= TIME_LIMIT)
        episodes, returns = episodes + ended_B.sum(dtype=jnp.int32), returns + (entry_B >> 9).sum(dtype=jnp.int32)
        return (jnp.where(ended_B, 0, entry_B & 255), jnp.where(ended_B, 0, turn_B + 1), episodes, returns), None

    @jax.jit
    def play(key):
        zeros_B = jnp.zeros(n_envs, jnp.int32)
        carry = (zeros_B, zeros_B, jnp.int32(0), jnp.int32(0))
        return jax.lax.scan(functools.partial(one_turn, key), carry, jnp.arange(turns))[0][2:]

    return play


def _gymnasium(n_envs: int) -> Contestant:
    import gymnasium  # a peer, not a dependency

    vector = gymnasium.make_vec("FrozenLake-v1", num_envs=n_envs, vectorization_mode="sync", map_name="4x4")
    actions_TB = np.random.default_rng(0).integers(0, 4, (max(16, _PEER_TURNS // n_envs), n_envs))
    vector.reset(seed=0)

    def run() -> tuple[int, float]:
        episodes, returns = 0, 0.0
        for action_B in actions_TB:
            _, reward_B, terminated_B, truncated_B, _ = vector.step(action_B)
            episodes, returns = episodes + int((terminated_B | truncated_B).sum()), returns + float(reward_B.sum())
        return episodes, returns

    return Contestant(run, actions_TB.size)
