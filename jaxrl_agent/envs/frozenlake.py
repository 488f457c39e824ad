"""FrozenLake as pure functions of one lake: made to be vmapped, scanned and jitted; it knows no tokens.

One environment, two games, told apart by `LakeRules.foggy`:

- the stock game: the map is seen, four moves;
- the foggy lake: holes are hidden, and a fifth action, `LOOK`, spends a turn to learn which of the four
  neighbours are holes.

Conventions are gymnasium's: 0 left, 1 down, 2 right, 3 up; cells count row by row; a move against a wall stays;
entering the goal pays 1; holes and the goal end the episode and absorb. Lakes are square. `X` is the number of
cells after padding, so lakes of different sizes share one batch; cell `row * size + col` uses the lake's own size.
"""

from __future__ import annotations

import dataclasses

import chex
import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agent.errors import ArgumentError

LEFT, DOWN, RIGHT, UP, LOOK = range(5)
N_MOVES = 4
UNUSABLE = -1  # a reply that names no action
NOT_LOOKED = -1  # `LakeState.last_look` when the previous action was no look
_TWO_32 = 2**32


@struct.dataclass
class LakeMap:
    """A lake. Stacked lakes carry a leading axis on every field."""

    hole_X: jax.Array  # bool [X], True on holes; False on padding, which no move reaches
    start: jax.Array  # int32 [], cell
    goal: jax.Array  # int32 [], cell
    size: jax.Array  # int32 [], cells along one side; size * size <= X


@struct.dataclass
class LakeState:
    """Where the agent stands and what its looks have told it.

    Whether the episode is over follows from the cell alone (`is_terminal`), so it is not stored.
    """

    cell: jax.Array  # int32 [], cell
    seen_X: jax.Array  # bool [X], cells whose nature a look has told; stays False in the stock game
    last_look: jax.Array  # int32 [], bit a set = a hole lies in direction a; -1 if the last action was no look


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class LakeRules:
    """What is fixed for a whole run; hashable, and static under jit.

    Args:
        success_rate: probability that a move goes where it was meant to, in [0, 1]. Each of the two
            perpendicular directions takes half of the rest; 1 is the deterministic lake, 1/3 gymnasium's default.
        foggy: holes are hidden and `LOOK` is an action.

    Raises:
        ArgumentError: `success_rate` outside [0, 1].
    """

    success_rate: float = 1.0
    foggy: bool = False

    def __post_init__(self):
        if not 0.0 <= self.success_rate <= 1.0:
            raise ArgumentError("success_rate must lie in [0, 1]", value=self.success_rate)

    @property
    def n_actions(self) -> int:
        """Number of usable actions: four moves, and `LOOK` on the foggy lake."""
        return N_MOVES + self.foggy


def reset(lake_map: LakeMap) -> LakeState:
    """Stand on the start with nothing seen."""
    chex.assert_rank(lake_map.hole_X, 1)
    return LakeState(
        cell=jnp.asarray(lake_map.start, jnp.int32),
        seen_X=jnp.zeros_like(lake_map.hole_X, bool),
        last_look=jnp.int32(NOT_LOOKED),
    )


def step(
    rules: LakeRules, lake_map: LakeMap, state: LakeState, action: jax.Array, key: jax.Array
) -> tuple[LakeState, jax.Array, jax.Array]:
    """Play one turn.

    An action that the game does not have (-1 for an unusable reply, `LOOK` on the stock lake) stays put and ends
    nothing. A finished episode absorbs: it stays, pays 0 and remains terminated.

    Args:
        rules: the game.
        lake_map: one lake.
        state: state before the action.
        action: int32 scalar, 0..3 a move, 4 `LOOK`.
        key: consumed by the slip of a move, one 32-bit word; untouched on the deterministic lake.

    Returns:
        state: state after the action.
        reward: float32 scalar, 1 on entering the goal.
        terminated: bool scalar, True in a hole or on the goal.
    """
    bits = jax.random.bits(key, dtype=jnp.uint32) if rules.success_rate < 1.0 else jnp.uint32(0)
    return step_from_bits(rules, lake_map, state, action, bits)


def step_from_bits(
    rules: LakeRules, lake_map: LakeMap, state: LakeState, action: jax.Array, bits: jax.Array
) -> tuple[LakeState, jax.Array, jax.Array]:
    """Play one turn with the randomness given as one uniform uint32 word (drawn for a whole batch at once, say)."""
    chex.assert_rank([lake_map.hole_X, state.cell, action], [1, 0, 0])
    was_terminal = is_terminal(lake_map, state.cell)
    moves = (action >= LEFT) & (action <= UP) & ~was_terminal
    direction = slipped(action, bits, *map(jnp.uint32, slip_bounds(rules.success_rate)))
    target = neighbour(lake_map.size, state.cell, direction)
    cell = jnp.where(moves, target, state.cell)
    reward = ((cell == lake_map.goal) & ~was_terminal).astype(jnp.float32)
    if rules.foggy:
        state = _look(lake_map, state, looks=(action == LOOK) & ~was_terminal)
    return state.replace(cell=cell), reward, is_terminal(lake_map, cell)


def is_terminal(lake_map: LakeMap, cell: jax.Array) -> jax.Array:
    """Tell whether `cell` is a hole or the goal; bool, shape of `cell`."""
    return lake_map.hole_X[cell] | (cell == lake_map.goal)


def neighbour(size: jax.Array, cell: jax.Array, direction: jax.Array) -> jax.Array:
    """Find the cell one move away, or `cell` itself at a wall; int32, arguments broadcast.

    Args:
        size: cells along one side.
        cell: int32 cell.
        direction: int32 in 0..3.
    """
    # A float quotient vectorises where an integer division does not, and is exact up to 1000 cells a side.
    row = ((cell + 0.5) / size).astype(jnp.int32)
    col = cell - row * size
    row = jnp.clip(row + (direction == DOWN) - (direction == UP), 0, size - 1)
    col = jnp.clip(col + (direction == RIGHT) - (direction == LEFT), 0, size - 1)
    return row * size + col


def neighbours(size: jax.Array, cell: jax.Array) -> jax.Array:
    """Find the four cells one move away, in order of action; int32, shape of `cell` plus [4]."""
    cell = jnp.asarray(cell)
    direction = jnp.expand_dims(jnp.arange(N_MOVES), range(cell.ndim))
    return neighbour(size, cell[..., None], direction)


def hole_mask(lake_map: LakeMap, cell: jax.Array) -> jax.Array:
    """Encode which neighbours of `cell` are holes: bit a = the cell in direction a; int32. Walls count as no hole."""
    near_4 = neighbours(lake_map.size, cell)
    hole_4 = lake_map.hole_X[near_4] & (near_4 != cell)
    return (hole_4 << jnp.arange(N_MOVES)).sum(dtype=jnp.int32)


def believed_holes(lake_map: LakeMap, state: LakeState) -> jax.Array:
    """Return the holes that looks have found; what was never seen counts as ice. Bool [X]."""
    return lake_map.hole_X & state.seen_X


def transition_table(lake_map: LakeMap, success_rate: float | jax.Array) -> tuple[jax.Array, jax.Array]:
    """Tabulate the moves of one lake.

    `P(next_cell[s, a, i] | s, a) += probability[i]`, i = slipped to a - 1, as meant, slipped to a + 1 (mod 4).
    Holes, the goal and padding lead to themselves.

    Args:
        lake_map: one lake.
        success_rate: probability of the meant direction.

    Returns:
        next_cell: int32 [X, 4, 3].
        probability: float32 [3].
    """
    cell_X = jnp.arange(lake_map.hole_X.shape[0])
    stuck_X = is_terminal(lake_map, cell_X) | (cell_X >= lake_map.size**2)
    near_X4 = jnp.where(stuck_X[:, None], cell_X[:, None], neighbours(lake_map.size, cell_X))
    next_X43 = jnp.stack([jnp.roll(near_X4, 1, axis=1), near_X4, jnp.roll(near_X4, -1, axis=1)], axis=-1)
    slip = (1.0 - success_rate) / 2.0
    return next_X43, jnp.stack([slip, success_rate, slip]).astype(jnp.float32)


def slip_bounds(success_rate: float) -> tuple[int, int]:
    """Compute the words of 32 bits, first and last, with which a move goes where it was meant to; exact to 2**-32.

    Smaller words slip to direction a - 1, larger ones to a + 1 (mod 4).
    """
    return round((1.0 - success_rate) / 2.0 * _TWO_32), round((1.0 + success_rate) / 2.0 * _TWO_32) - 1


def slipped(action: jax.Array, bits: jax.Array, first: jax.Array, last: jax.Array) -> jax.Array:
    """Turn a meant direction into the one taken, int32: a - 1, a or a + 1 (mod 4).

    Args:
        action: int32 in 0..3.
        bits: uniform uint32.
        first, last: uint32, from `slip_bounds`.
    """
    turn = (bits >= first).astype(jnp.int32) + (bits > last).astype(jnp.int32)
    return (action + 3 + turn) & 3


def _look(lake_map: LakeMap, state: LakeState, *, looks: jax.Array) -> LakeState:
    """Record what a look tells, if `looks`; forget the previous look otherwise."""
    near_4 = neighbours(lake_map.size, state.cell)
    near_4X = jnp.arange(lake_map.hole_X.shape[0])[None] == near_4[:, None]
    told_X = (near_4X & (near_4 != state.cell)[:, None]).any(axis=0)
    return state.replace(
        seen_X=state.seen_X | (told_X & looks),
        last_look=jnp.where(looks, hole_mask(lake_map, state.cell), NOT_LOOKED),
    )
