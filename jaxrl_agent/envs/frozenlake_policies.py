"""Exact success of known policies on thousands of lakes at once, by dynamic programming in float64 inside jit.

One compiled program values the lakes backwards and then plays all policies forwards on them together; nothing is
sampled. It says the same as the functions of `frozenlake_exact`, one lake at a time, to 1e-12. Near-ties decide which
of two moves an optimum takes, and with it how it fares within a smaller budget, so single precision would not do.

`POLICIES`, all of which know the map and the slip, and break ties (1e-9) by the first move, but for `quick`:

    random    the four moves, equally likely
    epsilon   `full` with probability 1 - epsilon, else random
    softmax   move a with odds exp(Q_h(s, a) / temperature), h = t_max less the turns played
    myopic    always the first move of the best plan for the next `myopic_turns` turns, whatever is left
    full      the optimum for t_max turns, whatever the budget: what training at the full budget rewards
    quick     the quickest such optimum: ties go to the move worth more under w, as any taste for speed would have it
    hidden    the optimum for a budget drawn by the given weights w(t) = P(B >= t) and not told
    told      the optimum for each budget, told in advance: the best possible, V_B(start)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agent.envs.frozenlake import N_MOVES, LakeRules
from jaxrl_agent.envs.frozenlake_maps import check_letters
from jaxrl_agent.errors import ArgumentError, MapError

POLICIES = ("random", "epsilon", "softmax", "myopic", "full", "quick", "hidden", "told")
_WAYS = ((1, -1), (0, 1), (1, 1), (0, -1))  # axis and sign of left, down, right, up
_TIE = 1e-9  # two values closer than this are the same value
_CHUNK = 64  # lakes played at once: what a core's cache holds


@dataclasses.dataclass(frozen=True)
class Styles:
    """Free parameters of the policies that have one.

    Raises:
        ArgumentError: a value out of range.
    """

    epsilon: float = 0.1  # share of random moves of `epsilon`
    temperature: float = 0.05  # of `softmax`, in units of success probability
    myopic_turns: int = 10  # how far `myopic` looks ahead

    def __post_init__(self):
        if not 0.0 <= self.epsilon <= 1.0:
            raise ArgumentError("epsilon must lie in [0, 1]", value=self.epsilon)
        if not self.temperature > 0.0:
            raise ArgumentError("temperature must be above 0", value=self.temperature)
        if self.myopic_turns < 1:
            raise ArgumentError("myopic_turns must be at least 1", value=self.myopic_turns)


class Played(NamedTuple):
    """How every policy fares; P policies, N lakes, B budgets; float64."""

    success_PNB: np.ndarray  # probability of success within the budget
    recovery_PNB: np.ndarray  # the same when the first turn is an error, see `play_all`; nan where none can be made
    best_NB: np.ndarray  # V_B(start): the best possible; 0 = no play can succeed within B


class _Lakes(NamedTuple):
    """Square lakes of one size; `n` of them on the last axis, so that neighbours are shifts of leading ones."""

    goal_RCn: jax.Array  # float64, 1 on the goal
    alive_RCn: jax.Array  # float64, 1 on cells that are neither hole nor goal
    start_RCn: jax.Array  # float64, 1 on the start


def play_all(
    descs: Sequence[Sequence[str]],
    *,
    success_rate: float,
    budgets: Sequence[int],
    t_max: int,
    weights: Sequence[float],
    policies: Sequence[str] = POLICIES,
    styles: Styles | None = None,
) -> Played:
    """Compute success and recovery of every policy on every lake within every budget.

    Recovery ("Step quality", error states): the first turn is not the policy's. It is the worst move at the start among
    those that can leave the agent alive, valued by what `hidden` maximises, which prices lost time as well as death;
    its slip is drawn given that the agent survives. The policy plays on, from its second turn. Recovery is its success
    within the same budget, the lost turn included, and the error is the same for every policy and budget.

    Args:
        descs: N square maps of one size, with one start and one goal; some may be unsolvable.
        success_rate: probability of the meant direction, in [0, 1].
        budgets: B turn counts within 1..t_max.
        t_max: the full budget.
        weights: w(1..t_max), what `hidden` earns for a success at each turn; `rollout.budget.hidden_weight`.
        policies: names out of POLICIES.
        styles: free parameters.

    Raises:
        MapError: no such maps.
        ArgumentError: anything else out of range.
    """
    _check(success_rate, budgets, t_max, weights, policies)
    styles = styles or Styles()
    lakes = _stack(descs)
    n, budgets = len(descs), np.asarray(budgets)
    with jax.enable_x64(True):
        success, recovery, best = _play_chunks(
            jax.tree.map(jnp.asarray, lakes),
            jnp.float64(success_rate),
            jnp.asarray(weights, jnp.float64),
            jnp.asarray(budgets - 1),
            jnp.float64(styles.epsilon),
            jnp.float64(styles.temperature),
            policies=tuple(policies),
            myopic_turns=min(styles.myopic_turns, t_max),
        )
    # [chunk, B, P, n] and [chunk, B, n], with lakes to fill the last chunk
    by_lake = (
        np.asarray(x).transpose(2, 0, 3, 1).reshape(len(policies), -1, len(budgets)) for x in (success, recovery)
    )
    success_PNB, recovery_PNB = (x[:, :n] for x in by_lake)
    best_NB = np.asarray(best).transpose(0, 2, 1).reshape(-1, len(budgets))[:n]
    return Played(success_PNB, recovery_PNB, best_NB)


@functools.partial(jax.jit, static_argnames=("policies", "myopic_turns"))
def _play_chunks(lakes, success_rate, weights_T, last_B, epsilon, temperature, *, policies, myopic_turns):
    """Play chunk after chunk; `last_B` is the index of each budget's last turn."""

    def one_chunk(chunk: _Lakes):
        success, recovery, best = _play(
            chunk, success_rate, weights_T, epsilon, temperature, policies=policies, myopic_turns=myopic_turns
        )
        return success[last_B], recovery[last_B], best[last_B]

    return jax.lax.map(one_chunk, lakes)


def _play(lakes: _Lakes, success_rate, weights_T, epsilon, temperature, *, policies, myopic_turns):
    """Value one chunk, then play it; success and recovery [T, P, n], best [T, n]."""
    mix = functools.partial(_mix_slips, success_rate=success_rate)
    horizon = len(weights_T)

    def backup(value_RCn, paid):
        return mix(_look(jnp.where(lakes.goal_RCn > 0, paid, value_RCn))) * lakes.alive_RCn

    def quickest(plain_4RCn, quick_4RCn):
        return jnp.where(plain_4RCn >= plain_4RCn.max(axis=0) - _TIE, quick_4RCn, -jnp.inf)

    def turn_before(later, paid):
        plain_4RCn, hidden_4RCn, quick_4RCn = (
            backup(x_RCn, p) for x_RCn, p in zip(later, (1.0, paid, paid), strict=True)
        )
        values = (plain_4RCn, hidden_4RCn, quickest(plain_4RCn, quick_4RCn))
        return tuple(value_4RCn.max(axis=0) for value_4RCn in values), later

    zeros_RCn = jnp.zeros_like(lakes.goal_RCn)
    (last_RCn, _, _), later = jax.lax.scan(turn_before, (zeros_RCn,) * 3, weights_T, reverse=True)
    plain_TRCn, hidden_TRCn, _ = later  # entry t: value of what comes after turn t + 1, so t_max - 1 - t turns are left
    best_Tn = jnp.einsum("trcn,rcn->tn", jnp.concatenate([plain_TRCn[-2::-1], last_RCn[None]]), lakes.start_RCn)
    myopic_4RCn = _first_best(backup(plain_TRCn[horizon - myopic_turns], 1.0))
    error_RCn = _after_error(lakes, backup(hidden_TRCn[0], weights_T[0]), mix)

    def probabilities(name: str, plain_4RCn: jax.Array, hidden_4RCn: jax.Array, quick_4RCn: jax.Array) -> jax.Array:
        if name == "random":
            return jnp.full_like(plain_4RCn, 1.0 / N_MOVES)
        if name == "myopic":
            return myopic_4RCn
        if name == "softmax":
            return jax.nn.softmax(plain_4RCn / temperature, axis=0)
        if name == "quick":
            return _first_best(quickest(plain_4RCn, quick_4RCn))
        greedy_4RCn = _first_best(hidden_4RCn if name == "hidden" else plain_4RCn)
        return (1.0 - epsilon) * greedy_4RCn + epsilon / N_MOVES if name == "epsilon" else greedy_4RCn

    played = [name for name in policies if name != "told"] or ["random"]  # `told` is valued, not played

    def turn(mass_P2RCn, inputs):
        (plain_RCn, hidden_RCn, quick_RCn), paid, is_first = inputs
        worth = backup(plain_RCn, 1.0), backup(hidden_RCn, paid), backup(quick_RCn, paid)
        taken_P4RCn = jnp.stack([mix(probabilities(name, *worth)) for name in played])
        moved_P2RCn = jax.vmap(jax.vmap(_arrive))(taken_P4RCn[:, None] * mass_P2RCn[:, :, None])
        arrived_P2RCn = moved_P2RCn * lakes.alive_RCn
        # The error takes the first turn's place.
        arrived_P2RCn = arrived_P2RCn.at[:, 1].add(jnp.where(is_first, error_RCn, 0.0))
        return arrived_P2RCn, (moved_P2RCn * lakes.goal_RCn).sum(axis=(2, 3))

    start_P2RCn = jnp.stack([jnp.stack([lakes.start_RCn, zeros_RCn])] * len(played))
    inputs = (later, weights_T, jnp.arange(horizon) == 0)
    _, paid_TP2n = jax.lax.scan(turn, start_P2RCn, inputs)
    within = dict(zip(played, jnp.cumsum(paid_TP2n, axis=0).swapaxes(0, 1), strict=True))
    told_Tn = jnp.einsum("trcn,rcn->tn", plain_TRCn[::-1], jnp.nan_to_num(error_RCn))
    within["told"] = jnp.stack([best_Tn, told_Tn], axis=1)
    every_TP2n = jnp.stack([within[name] for name in policies], axis=1)
    no_error_n = jnp.isnan(error_RCn).any(axis=(0, 1))
    return every_TP2n[:, :, 0], jnp.where(no_error_n, jnp.nan, every_TP2n[:, :, 1]), best_Tn


def _after_error(lakes: _Lakes, value_4RCn: jax.Array, mix) -> jax.Array:
    """Where the worst survivable move at the start leads, given survival: [R, C, n]; nan where there is none."""
    value_4n, alive_4n = (
        (x_4RCn * lakes.start_RCn).sum(axis=(1, 2)) for x_4RCn in (value_4RCn, mix(_look(lakes.alive_RCn)))
    )
    worst_4n = _first_best(jnp.where(alive_4n > 0, -value_4n, -jnp.inf))
    moved_RCn = _arrive(mix(worst_4n)[:, None, None] * lakes.start_RCn) * lakes.alive_RCn
    return moved_RCn / moved_RCn.sum(axis=(0, 1))


def _first_best(value_4: jax.Array) -> jax.Array:
    """Put 1 on the first of axis 0 within the tie of the best, 0 elsewhere."""
    near_4 = value_4 >= value_4.max(axis=0) - _TIE
    return (near_4 & (jnp.cumsum(near_4, axis=0) == 1)).astype(value_4.dtype)


def _mix_slips(value_4: jax.Array, *, success_rate: jax.Array) -> jax.Array:
    """Average over the direction taken, on axis 0."""
    left, down, right, up = value_4
    slipped_4 = jnp.stack([up + down, left + right, down + up, right + left])
    return success_rate * value_4 + (1.0 - success_rate) / 2.0 * slipped_4


def _look(value_RCn: jax.Array) -> jax.Array:
    """Value of the cell that each direction leads to; [4, R, C, n]."""
    return jnp.stack(
        [
            jnp.where(wall_RC1, value_RCn, _shift(value_RCn, axis, -by))
            for (axis, by), wall_RC1 in zip(_WAYS, _walls(value_RCn.shape), strict=True)
        ]
    )


def _arrive(mass_4RCn: jax.Array) -> jax.Array:
    """Mass in each cell after every direction's share has moved: the transpose of `_look`."""
    return sum(
        jnp.where(wall_RC1, mass_RCn, 0.0) + _shift(mass_RCn, axis, by)
        for mass_RCn, (axis, by), wall_RC1 in zip(mass_4RCn, _WAYS, _walls(mass_4RCn[0].shape), strict=True)
    )


def _shift(x: jax.Array, axis: int, by: int) -> jax.Array:
    """Move along an axis by one; zeros come in, what passes the edge is lost."""
    return jax.lax.pad(x, x.dtype.type(0), [(by, -by, 0) if i == axis else (0, 0, 0) for i in range(x.ndim)])


def _walls(shape: tuple[int, ...]) -> list[jax.Array]:
    """Cells from which each direction runs into a wall; four of bool [R, C, 1]."""
    rows, cols, _ = shape
    row_RC1, col_RC1 = (jax.lax.broadcasted_iota(jnp.int32, (rows, cols, 1), axis) for axis in (0, 1))
    return [col_RC1 == 0, row_RC1 == rows - 1, col_RC1 == cols - 1, row_RC1 == 0]


def _stack(descs: Sequence[Sequence[str]]) -> _Lakes:
    """Lay lakes out as [chunk, R, C, n], the first one repeated to fill the last chunk."""
    if not descs:
        raise MapError("at least one map is needed")
    for desc in descs:
        check_letters(desc)
        text = "".join(desc)
        if len(desc) != len(desc[0]) or text.count("S") != 1 or text.count("G") != 1:
            raise MapError("a map must be square with exactly one S and one G", value=list(desc))
    sides = {len(desc) for desc in descs}
    if len(sides) > 1:
        raise MapError("maps played together must be of one size", value=sorted(sides))
    side, n = len(descs[0]), len(descs)
    width = min(_CHUNK, n)
    letters = np.array([list("".join(desc)) for desc in descs])
    letters = np.concatenate([letters, np.repeat(letters[:1], -n % width, axis=0)])
    letters = letters.reshape(-1, width, side, side).transpose(0, 2, 3, 1)
    return _Lakes(*(x.astype(np.float64) for x in (letters == "G", np.isin(letters, ["S", "F"]), letters == "S")))


def _check(success_rate, budgets, t_max, weights, policies) -> None:
    LakeRules(success_rate)
    if not budgets or not all(1 <= budget <= t_max for budget in budgets):
        raise ArgumentError(f"budgets must lie in 1..t_max ({t_max})", value=list(budgets))
    chex.assert_shape(np.asarray(weights), (t_max,))
    if not policies or not set(policies) <= set(POLICIES) or len(set(policies)) < len(policies):
        raise ArgumentError("policies must be different names out of " + ", ".join(POLICIES), value=list(policies))
