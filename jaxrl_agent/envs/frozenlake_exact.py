"""Exact values of FrozenLake by dynamic programming.

Two families with one backup between them:

- on the host, float64 numpy, any rectangular map: what tables, probes and figures are computed from;
- inside jit, float32, lakes padded to `X` cells and stacked on a leading axis: for logging and planning.

All of them know the whole map. Their actions are the four moves; an action that stays put on purpose, a `LOOK` or an
unusable reply, has the value of the same cell one turn later: `V_{h-1}(s)` with turns counted, `gamma * V(s)` with
discounting. On the foggy lake these are the values of an agent that sees through the fog.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agent.envs.frozenlake import N_MOVES, LakeMap, neighbours
from jaxrl_agent.envs.frozenlake_maps import check_letters
from jaxrl_agent.errors import ArgumentError, MapError

_TIE = 1e-9  # two float64 values closer than this are the same value
_CONVERGED = 1e-15  # largest change of the last sweep of value iteration
_BEFORE, _AFTER = np.array([3, 0, 1, 2]), np.array([1, 2, 3, 0])  # directions a - 1 and a + 1 (mod 4)


class _Lake(NamedTuple):
    """A map in numpy."""

    near_X4: np.ndarray  # int, cell that a direction leads to
    goal_X: np.ndarray  # bool
    alive_X: np.ndarray  # bool, neither hole nor goal
    text: str  # the cells, row by row


# On the host, float64.


def finite_horizon_q(desc: Sequence[str], *, success_rate: float, horizon: int) -> np.ndarray:
    """Compute the best probability of reaching the goal within h turns, for every first move.

    `Q_h(s, a) = sum_s' P(s'|s,a) (1[s' goal] + 1[s' alive] max_b Q_{h-1}(s', b))`, `Q_0 = 0` (backward induction,
    gamma 1). A `LOOK` or an unusable reply in s is worth `V_{h-1}(s) = max_a Q_{h-1}(s, a)`.

    Args:
        desc: rows of the map.
        success_rate: probability of the meant direction, in [0, 1].
        horizon: largest number of turns left.

    Returns:
        float64 [horizon + 1, X, 4]; index h = turns left including this one; zeros at h = 0 and on terminal cells.

    Raises:
        MapError: no map. ArgumentError: `success_rate` outside [0, 1] or a negative horizon.
    """
    if horizon < 0:
        raise ArgumentError("horizon must be at least 0", value=horizon)
    q_TX4 = success_weighted_q(desc, success_rate=success_rate, weights=np.ones(horizon))
    return np.concatenate([np.zeros((1, *q_TX4.shape[1:])), q_TX4[::-1]])


def success_weighted_q(desc: Sequence[str], *, success_rate: float, weights: Sequence[float]) -> np.ndarray:
    """Compute optimal values when success at turn t pays `weights[t - 1]`.

    `Q_t(s, a) = sum_s' P(s'|s,a) (w_t 1[s' goal] + 1[s' alive] max_b Q_{t+1}(s', b))`. With `w_t = P(B >= t)` this is
    the best that one policy can do, on average over budgets B that it is not told ("Interaction budget and
    BudgetMix", the identity); with `w = 1` it is the game of a fixed budget.

    Args:
        desc: rows of the map.
        success_rate: probability of the meant direction, in [0, 1].
        weights: reward of a success at turns 1..T.

    Returns:
        float64 [T, X, 4]; index t - 1 = the t-th turn is to be played.
    """
    lake = _read(desc, success_rate=success_rate)
    q_TX4 = np.zeros((len(weights), len(lake.text), N_MOVES))
    best_X = np.zeros(len(lake.text))
    for turn in reversed(range(len(weights))):
        q_TX4[turn] = _backup(lake, np.where(lake.goal_X, weights[turn], best_X), success_rate)
        best_X = q_TX4[turn].max(axis=1)
    return q_TX4


def discounted_q(desc: Sequence[str], *, success_rate: float, gamma: float) -> np.ndarray:
    """Compute discounted optimal values by value iteration from zero, to convergence.

    `Q(s, a) = sum_s' P(s'|s,a) (1[s' goal] + gamma 1[s' alive] max_b Q(s', b))`. A `LOOK` or an unusable reply in s is
    worth `gamma max_a Q(s, a)`. Each sweep raises the values and none passes 1, so the iteration ends; at gamma 1 it
    gives the probability of ever reaching the goal.

    Args:
        desc: rows of the map.
        success_rate: probability of the meant direction, in [0, 1].
        gamma: discount a turn, in [0, 1].

    Returns:
        float64 [X, 4]; zeros on terminal cells.

    Raises:
        MapError: no map. ArgumentError: `success_rate` or `gamma` outside [0, 1].
    """
    if not 0.0 <= gamma <= 1.0:
        raise ArgumentError("gamma must lie in [0, 1]", value=gamma)
    lake = _read(desc, success_rate=success_rate)
    best_X, change = np.zeros(len(lake.text)), np.inf
    while change > _CONVERGED:
        q_X4 = _backup(lake, np.where(lake.goal_X, 1.0, gamma * best_X), success_rate)
        change = np.abs(q_X4.max(axis=1) - best_X).max()
        best_X = q_X4.max(axis=1)
    return q_X4


def start_value(desc: Sequence[str], *, success_rate: float, budgets: Sequence[int]) -> np.ndarray:
    """Compute V_B(start), the best possible probability of success within B turns, for each budget B.

    Returns:
        float64 [len(budgets)]. Structural headroom is its mean over maps less the policy's success at B.
    """
    budgets = _checked_budgets(budgets)
    q_TX4 = finite_horizon_q(desc, success_rate=success_rate, horizon=int(budgets.max()))
    return q_TX4[budgets, _start(desc)].max(axis=-1)


def first_success(
    desc: Sequence[str],
    policy: np.ndarray,
    *,
    success_rate: float,
    horizon: int | None = None,
    start: int | None = None,
) -> np.ndarray:
    """Compute how likely a given policy first reaches the goal at each turn, by forward propagation.

    Args:
        desc: rows of the map.
        policy: probabilities of the four moves, [X, 4] for a stationary policy or [T, X, 4] for one that depends on
            the turn. Rows may sum to less than 1: the rest is a turn spent standing still (`LOOK`, unusable reply).
        success_rate: probability of the meant direction, in [0, 1].
        horizon: turns; needed for a stationary policy, else T by default.
        start: cell to start from; the map's S by default.

    Returns:
        float64 [horizon], P(first success at turn t) at index t - 1.

    Raises:
        ArgumentError: a policy of another shape, negative or summing to more than 1, or a horizon that it lacks.
    """
    lake = _read(desc, success_rate=success_rate)
    policy_TX4 = _checked_policy(policy, n_cells=len(lake.text), horizon=horizon)
    mass_X = np.zeros(len(lake.text))
    mass_X[_start(desc) if start is None else start] = 1.0
    mass_X *= lake.alive_X
    success_T = np.zeros(len(policy_TX4))
    for turn, policy_X4 in enumerate(policy_TX4):
        meant_X4 = mass_X[:, None] * policy_X4
        stays_X = mass_X - meant_X4.sum(axis=1)
        # Slipping is symmetric in (meant, taken), so the mixing that averages values also spreads mass.
        taken_X4 = _mix_slips(meant_X4, success_rate)
        arrives_X = np.bincount(lake.near_X4.ravel(), weights=taken_X4.ravel(), minlength=len(mass_X))
        success_T[turn] = arrives_X[lake.goal_X].sum()
        mass_X = stays_X + arrives_X * lake.alive_X
    return success_T


def success_within(
    desc: Sequence[str], policy: np.ndarray, *, success_rate: float, budgets: Sequence[int], start: int | None = None
) -> np.ndarray:
    """Compute the probability that a given policy succeeds within B turns, for each budget B.

    Args: as `first_success`; a policy [T, X, 4] must cover the largest budget.

    Returns:
        float64 [len(budgets)].
    """
    budgets = _checked_budgets(budgets)
    success_T = first_success(desc, policy, success_rate=success_rate, horizon=int(budgets.max()), start=start)
    return np.concatenate([[0.0], np.cumsum(success_T)])[budgets]


def greedy_policy(q: np.ndarray) -> np.ndarray:
    """Put all probability on the first move within 1e-9 of the best; float64, shape of `q` [..., X, 4]."""
    best = q >= q.max(axis=-1, keepdims=True) - _TIE
    return np.eye(N_MOVES)[best.argmax(axis=-1)]


def transition_matrix(desc: Sequence[str], *, success_rate: float) -> np.ndarray:
    """Tabulate P(s'|s, a); float64 [X, 4, X]. Terminal cells lead to themselves."""
    lake = _read(desc, success_rate=success_rate)
    one_hot_XX = np.eye(len(lake.text))
    matrix_X4X = _mix_slips(one_hot_XX[lake.near_X4], success_rate)
    return np.where(lake.alive_X[:, None, None], matrix_X4X, one_hot_XX[:, None, :])


def surviving_successors(desc: Sequence[str], *, success_rate: float) -> np.ndarray:
    """Tabulate P(s'|s, a, s' neither hole nor goal).

    Returns:
        float64 [X, 4, X]; zeros where no successor is alive, and on terminal cells.
    """
    lake = _read(desc, success_rate=success_rate)
    alive_X4X = transition_matrix(desc, success_rate=success_rate) * lake.alive_X
    total_X41 = alive_X4X.sum(axis=-1, keepdims=True)
    return np.divide(alive_X4X, total_X41, out=np.zeros_like(alive_X4X), where=total_X41 > 0)


def worst_surviving_action(desc: Sequence[str], q_X4: np.ndarray, *, success_rate: float) -> np.ndarray:
    """Find the worst move among those that can leave the agent alive ("Step quality", error states).

    Args:
        desc: rows of the map.
        q_X4: value of each move.
        success_rate: probability of the meant direction, in [0, 1].

    Returns:
        int [X], the first within 1e-9 of the worst; -1 where no move leaves the agent alive, and on terminal cells.
    """
    alive_X4 = surviving_successors(desc, success_rate=success_rate).any(axis=-1)
    q_X4 = np.where(alive_X4, q_X4, np.inf)
    worst_X = (q_X4 <= q_X4.min(axis=1, keepdims=True) + _TIE).argmax(axis=1)
    return np.where(alive_X4.any(axis=1), worst_X, -1)


# Inside jit, float32.


def q_from_holes(
    hole_X: jax.Array,
    goal: jax.Array,
    size: jax.Array,
    *,
    success_rate: float | jax.Array,
    gamma: float | jax.Array,
    sweeps: int,
) -> jax.Array:
    """Plan on any set of holes, true or believed: discounted Q of one lake after `sweeps` backups from zero.

    With `believed_holes` it is the plan of an agent that takes what it has not seen for ice. Meant for vmap.

    Args:
        hole_X: bool [X].
        goal: int32 scalar, cell; never a hole, whatever `hole_X` says.
        size: int32 scalar, cells along one side.
        success_rate: probability of the meant direction.
        gamma: discount a turn.
        sweeps: static; X of them reach every cell of a deterministic lake, and are then exact.

    Returns:
        float32 [X, 4]; zeros on holes, the goal and padding.
    """
    chex.assert_rank([hole_X, goal, size], [1, 0, 0])
    backup = _device_backup(hole_X, goal, size, success_rate=success_rate)
    zeros_X4 = jnp.zeros((hole_X.shape[0], N_MOVES), jnp.float32)
    return jax.lax.fori_loop(0, sweeps, lambda _, q_X4: backup(gamma * q_X4.max(axis=1)), zeros_X4)


@functools.partial(jax.jit, static_argnames=("sweeps",))
def discounted_q_maps(maps: LakeMap, *, success_rate: float, gamma: float, sweeps: int) -> jax.Array:
    """Compute `discounted_q` of N stacked lakes, after `sweeps` sweeps; float32 [N, X, 4]."""
    plan = functools.partial(q_from_holes, success_rate=success_rate, gamma=gamma, sweeps=sweeps)
    return jax.vmap(plan)(maps.hole_X, maps.goal, maps.size)


@functools.partial(jax.jit, static_argnames=("horizon",))
def finite_horizon_q_maps(maps: LakeMap, *, success_rate: float, horizon: int) -> jax.Array:
    """Compute `finite_horizon_q` of N stacked lakes.

    Returns:
        float32 [N, horizon + 1, X, 4], `16 N (horizon + 1) X` bytes; index h = turns left including this one.
    """
    chex.assert_rank(maps.hole_X, 2)

    def one_lake(lake_map: LakeMap) -> jax.Array:
        backup = _device_backup(lake_map.hole_X, lake_map.goal, lake_map.size, success_rate=success_rate)
        zeros_X4 = jnp.zeros((lake_map.hole_X.shape[0], N_MOVES), jnp.float32)

        def one_more_turn(q_X4: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            return backup(q_X4.max(axis=1)), q_X4

        last_X4, q_TX4 = jax.lax.scan(one_more_turn, zeros_X4, length=horizon)
        return jnp.concatenate([q_TX4, last_X4[None]])

    return jax.vmap(one_lake)(maps)


def step_quality(
    q_TX4: jax.Array, *, turns_left: jax.Array, cell: jax.Array, action: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Look up the value of any action, a `LOOK` or an unusable reply included.

    Args:
        q_TX4: finite-horizon Q of one lake, [horizon + 1, X, 4].
        turns_left: int32 scalar, turns left including this one, at least 1.
        cell: int32 scalar.
        action: int32 scalar; anything outside 0..3 stands still and is worth `V_{h-1}(cell)`.

    Returns:
        quality: scalar, Q of the action.
        best: scalar, V of the cell, so that `quality - best` is the exact advantage.
    """
    is_move = (action >= 0) & (action < N_MOVES)
    now_4, later_4 = q_TX4[turns_left, cell], q_TX4[turns_left - 1, cell]
    return jnp.where(is_move, now_4[action % N_MOVES], later_4.max()), now_4.max()


# Shared pieces.


def _mix_slips(value_X4, success_rate):
    """Average over the direction taken, given values by direction on axis 1; numpy or jax, same formula."""
    slipped_X4 = value_X4[:, _BEFORE] + value_X4[:, _AFTER]
    return success_rate * value_X4 + (1.0 - success_rate) / 2.0 * slipped_X4


def _backup(lake: _Lake, worth_X: np.ndarray, success_rate: float) -> np.ndarray:
    """Value every move by the worth of the cell that it ends in."""
    return _mix_slips(worth_X[lake.near_X4], success_rate) * lake.alive_X[:, None]


def _device_backup(hole_X: jax.Array, goal: jax.Array, size: jax.Array, *, success_rate: float | jax.Array):
    """Build V_X -> Q_X4 for one padded lake."""
    cell_X = jnp.arange(hole_X.shape[0])
    is_goal_X = cell_X == goal
    alive_X = ~hole_X & ~is_goal_X & (cell_X < size**2)
    near_X4 = neighbours(size, cell_X)

    def backup(value_X: jax.Array) -> jax.Array:
        worth_X = jnp.where(is_goal_X, 1.0, value_X)
        return _mix_slips(worth_X[near_X4], success_rate) * alive_X[:, None]

    return backup


def _read(desc: Sequence[str], *, success_rate: float) -> _Lake:
    """Check a map and put it into arrays."""
    check_letters(desc)
    if not 0.0 <= success_rate <= 1.0:
        raise ArgumentError("success_rate must lie in [0, 1]", value=success_rate)
    rows, cols = len(desc), len(desc[0])
    row_X, col_X = np.divmod(np.arange(rows * cols), cols)
    near = [  # left, down, right, up
        row_X * cols + np.maximum(col_X - 1, 0),
        np.minimum(row_X + 1, rows - 1) * cols + col_X,
        row_X * cols + np.minimum(col_X + 1, cols - 1),
        np.maximum(row_X - 1, 0) * cols + col_X,
    ]
    letter_X = np.array(list("".join(desc)))
    goal_X = letter_X == "G"
    return _Lake(np.stack(near, axis=1), goal_X, ~goal_X & (letter_X != "H"), "".join(desc))


def _start(desc: Sequence[str]) -> int:
    """Find the one start of a map."""
    text = "".join(desc)
    if text.count("S") != 1:
        raise MapError("a map must have exactly one S", value=list(desc))
    return text.index("S")


def _checked_budgets(budgets: Sequence[int]) -> np.ndarray:
    budgets = np.asarray(budgets)
    if budgets.ndim != 1 or budgets.size == 0 or budgets.dtype.kind not in "iu" or budgets.min() < 0:
        raise ArgumentError("budgets must be a list of turn counts, 0 or more", value=budgets.tolist())
    return budgets


def _checked_policy(policy: np.ndarray, *, n_cells: int, horizon: int | None) -> np.ndarray:
    """Bring a policy to [horizon, X, 4]."""
    policy = np.asarray(policy, np.float64)
    if policy.ndim not in (2, 3) or policy.shape[-2:] != (n_cells, N_MOVES):
        raise ArgumentError(f"a policy must be [{n_cells}, 4] or [T, {n_cells}, 4]", value=policy.shape)
    if policy.min() < 0.0 or policy.sum(axis=-1).max() > 1.0 + _TIE:
        raise ArgumentError("a policy's rows must be probabilities that sum to at most 1")
    if policy.ndim == 2:
        if horizon is None:
            raise ArgumentError("a stationary policy needs a horizon")
        return np.broadcast_to(policy, (horizon, *policy.shape))
    if horizon is not None and horizon > len(policy):
        raise ArgumentError(f"a policy of {len(policy)} turns must cover the horizon", value=horizon)
    return policy if horizon is None else policy[:horizon]
