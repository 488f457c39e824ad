"""Many stock FrozenLakes at once, for whoever samples millions of turns: benchmarks, tabular learners, sweeps.

The game of `frozenlake` with `foggy` off, one array operation a turn for the whole batch. All that a move can lead to
is packed into one table of integers, so a turn is one look-up, and an episode that ends begins anew in the same turn.

    batch = make(stack_maps([desc]), 65_536, success_rate=1 / 3, time_limit=100)
    state, totals = play(batch, reset(batch), jax.random.key(0), turns=256)   # jitted; random moves

Or by hand, inside jit, scan or vmap:

    state, outcome = step(batch, state, action_B, draw_bits(key, batch.n_envs))

Conventions are gymnasium's, but for resets: its vectors spend a call of their own on each (NEXT_STEP); here the last
turn of an episode itself returns the first observation of the next one (its SAME_STEP mode), and
`Outcome.final_cell_B` tells where the old one ended. `B` is the number of environments, `M` that of lakes, `X` that of
cells of a lake.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from flax import struct
from jax.extend.random import threefry_2x32

from jaxrl_agent.envs import frozenlake
from jaxrl_agent.envs.frozenlake import N_MOVES, LakeMap, LakeRules, slip_bounds, slipped
from jaxrl_agent.errors import ArgumentError

_MAX_ROWS = 2**29  # a packed outcome is row << 2 in an int32
_BITS_PER_MOVE = 2


@struct.dataclass
class LakeBatch:
    """What stays as it is while B environments are played; made by `make`."""

    table: jax.Array  # int32 [M * X * 4], entry 4 * row + direction taken = next row << 2 | reward << 1 | terminated
    start_B: jax.Array  # int32 [B], or [] if all share one lake; row of the start
    base_B: jax.Array  # int32, shape of start_B; row of the lake's cell 0
    first_straight: jax.Array  # uint32 [], `slip_bounds`
    last_straight: jax.Array  # uint32 []
    time_limit: jax.Array  # int32 [], turns of an episode at most
    n_envs: int = struct.field(pytree_node=False)


@struct.dataclass
class BatchState:
    """Where B agents stand, and how long their episodes have lasted."""

    row_B: jax.Array  # int32 [B], row of the table: lake and cell
    turn_B: jax.Array  # int32 [B], turns played of this episode


@struct.dataclass
class Outcome:
    """What a turn led to."""

    cell_B: jax.Array  # int32 [B], observation; the start if the episode ended
    reward_B: jax.Array  # float32 [B], 1 on entering the goal
    terminated_B: jax.Array  # bool [B], in a hole or on the goal
    truncated_B: jax.Array  # bool [B], the time limit is reached; as in gymnasium, both may be True
    final_cell_B: jax.Array  # int32 [B], where the move led


@struct.dataclass
class Totals:
    """Sums over all turns of a game."""

    episodes: jax.Array  # int32 [], episodes that ended
    returns: jax.Array  # int32 [], sum of rewards = episodes that reached the goal


Act = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def make(maps: LakeMap, n_envs: int, *, success_rate: float = 1 / 3, time_limit: int = 100) -> LakeBatch:
    """Set up `n_envs` environments on M lakes; environment b plays lake b mod M, always.

    Args:
        maps: M stacked lakes, from `stack_maps`.
        n_envs: B.
        success_rate: probability of the meant direction, in [0, 1]; the default is gymnasium's.
        time_limit: turns after which an episode is cut; gymnasium takes 100 for 4x4 and 200 for 8x8.

    Raises:
        ArgumentError: a rate or a count out of range, or more cells in all than 2**29.
    """
    chex.assert_rank(maps.hole_X, 2)
    n_envs, time_limit = _positive("n_envs", n_envs), _positive("time_limit", time_limit)
    n_lakes, n_cells = maps.hole_X.shape
    if n_lakes * n_cells > _MAX_ROWS:
        raise ArgumentError(f"all lakes together must have {_MAX_ROWS} cells at most", value=n_lakes * n_cells)
    first, last = slip_bounds(LakeRules(success_rate).success_rate)
    lake_B = jnp.arange(n_envs) % n_lakes if n_lakes > 1 else jnp.int32(0)
    return LakeBatch(
        table=_pack(maps).ravel(),
        start_B=lake_B * n_cells + maps.start[lake_B],
        base_B=lake_B * n_cells,
        first_straight=jnp.uint32(first),
        last_straight=jnp.uint32(last),
        time_limit=jnp.int32(time_limit),
        n_envs=n_envs,
    )


def reset(batch: LakeBatch) -> BatchState:
    """Stand on the start everywhere."""
    shape = (batch.n_envs,)
    return BatchState(row_B=jnp.broadcast_to(batch.start_B, shape), turn_B=jnp.zeros(shape, jnp.int32))


def observe(batch: LakeBatch, state: BatchState) -> jax.Array:
    """Return the cell of every agent; int32 [B]."""
    return state.row_B - batch.base_B


def step(batch: LakeBatch, state: BatchState, action_B: jax.Array, bits_B: jax.Array) -> tuple[BatchState, Outcome]:
    """Play one turn everywhere; episodes that end begin anew.

    The same word and move lead where `frozenlake.step_from_bits` leads. An action outside 0..3 stays put.

    Args:
        batch: the environments.
        state: before the turn.
        action_B: int32 [B], 0 left, 1 down, 2 right, 3 up.
        bits_B: uint32 [B], uniform; decides on slips alone.
    """
    chex.assert_shape([state.row_B, action_B, bits_B], (batch.n_envs,))
    direction_B = slipped(action_B, bits_B, batch.first_straight, batch.last_straight)
    packed_B = batch.table.at[state.row_B * N_MOVES + direction_B].get(mode="promise_in_bounds")
    packed_B = jnp.where(action_B.astype(jnp.uint32) < N_MOVES, packed_B, state.row_B << 2)
    turn_B = state.turn_B + 1
    terminated_B, truncated_B = (packed_B & 1) == 1, turn_B >= batch.time_limit
    ended_B, final_B = terminated_B | truncated_B, packed_B >> 2
    after = BatchState(
        row_B=jnp.where(ended_B, batch.start_B, final_B),
        turn_B=jnp.where(ended_B, 0, turn_B),
    )
    reward_B = ((packed_B >> 1) & 1).astype(jnp.float32)
    return after, Outcome(observe(batch, after), reward_B, terminated_B, truncated_B, final_B - batch.base_B)


def draw_bits(key: jax.Array, n: int) -> jax.Array:
    """Draw uniform words, uint32 [n], at half the price of `jax.random.bits`.

    A threefry block makes two words. `jax.random.bits` folds them into one, so that every shard of an array can draw
    its own part; here both are used. For keys of other generators, and for an array that is to be sharded, take
    `jax.random.bits`: it serves `step` as well.

    Args:
        key: random key, consumed.
        n: number of words.

    Raises:
        ArgumentError: no threefry key.
    """
    if str(jax.random.key_impl(key)) != "threefry2x32":
        raise ArgumentError("draw_bits needs a threefry key", value=str(jax.random.key_impl(key)))
    return threefry_2x32(jax.random.key_data(key), jax.lax.iota(jnp.uint32, n))


def act_at_random(cell_B: jax.Array, bits_B: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Take a uniform move from the top two bits of each word, and leave the other thirty for the slip.

    Returns:
        int32 [B] moves, and uint32 [B] words for `step`, exact to 2**-30.
    """
    del cell_B
    return (bits_B >> (32 - _BITS_PER_MOVE)).astype(jnp.int32), bits_B << _BITS_PER_MOVE


@functools.partial(jax.jit, static_argnames=("turns", "act"))
def play(
    batch: LakeBatch, state: BatchState, key: jax.Array, *, turns: int, act: Act = act_at_random
) -> tuple[BatchState, Totals]:
    """Play many turns everywhere, and count.

    Args:
        batch: the environments.
        state: before the first turn.
        key: threefry key, consumed; turn t draws from `fold_in(key, t)`.
        turns: static; how many to play.
        act: static; cells and words [B] to moves and to the words that decide on slips. A move that needs no chance
            passes the words on; one that does must leave bits that it has not used at the top of the word.

    Returns:
        state after the last turn, and Totals of these turns.
    """

    def turn(carry: tuple[BatchState, Totals], t: jax.Array) -> tuple[tuple[BatchState, Totals], None]:
        state, totals = carry
        action_B, bits_B = act(observe(batch, state), draw_bits(jax.random.fold_in(key, t), batch.n_envs))
        state, outcome = step(batch, state, action_B, bits_B)
        ended_B = outcome.terminated_B | outcome.truncated_B
        # A float32 sum of ones is exact up to 2**24 environments.
        paid = outcome.reward_B.sum().astype(jnp.int32)
        return (state, Totals(totals.episodes + ended_B.sum(dtype=jnp.int32), totals.returns + paid)), None

    return jax.lax.scan(turn, (state, Totals(jnp.int32(0), jnp.int32(0))), jnp.arange(turns))[0]


def _pack(maps: LakeMap) -> jax.Array:
    """Pack what each direction leads to; int32 [M, X, 4]. Holes, the goal and padding lead to themselves, unpaid."""
    n_lakes, n_cells = maps.hole_X.shape

    def one_lake(lake_map: LakeMap, base: jax.Array) -> jax.Array:
        cell_X = jnp.arange(n_cells)
        next_X4 = frozenlake.transition_table(lake_map, 1.0)[0][:, :, 1]  # as meant
        terminated_X4 = frozenlake.is_terminal(lake_map, next_X4)
        reward_X4 = (next_X4 == lake_map.goal) & (cell_X != lake_map.goal)[:, None]
        return (base + next_X4) << 2 | reward_X4 << 1 | terminated_X4

    return jax.vmap(one_lake)(maps, jnp.arange(n_lakes) * n_cells)


def _positive(name: str, number: int) -> int:
    try:
        positive = operator.index(number) >= 1
    except TypeError:
        positive = False
    if not positive:
        raise ArgumentError(f"{name} must be an integer of 1 or more", value=number)
    return int(number)
