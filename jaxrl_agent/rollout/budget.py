"""Interaction budgets: how many turns each group of trajectories may use.

A budget belongs to a group, never to a single trajectory: the group mean is the baseline for the expected return
given the instance *and* the budget, so mixing budgets inside a group would give equal behaviour opposite advantages.

A schedule is a function `(t_max, n_groups, key, update, headroom_F) -> (budgets, fractions)` with
    budgets    int32 [n_groups], turns that a trajectory of the group may use;
    fractions  int32 [n_groups], 0..9: budget level k = fractions + 1, the row of the per-fraction metrics.
`t_max` and `n_groups` are Python integers, the others may be traced. `headroom_F` is what is left to gain at each
level, which most schedules do not look at.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jaxrl_agent.errors import ArgumentError, ConfigError

N_LEVELS = 10
BudgetSchedule = Callable[..., tuple[jax.Array, jax.Array]]
_MEMORY = 0.9  # share of the old estimate that an update of the headroom keeps


def budget_levels(t_max: int) -> jax.Array:
    """Compute the ten budgets that BudgetMix draws from.

    B_k = max(1, (k * t_max + 9) // 10), k = 1..10. Integer arithmetic, because ceil(0.3 * 50) is 16 in float32.
    Source: "Interaction budget and BudgetMix"; the paper leaves the rounding open, rounding up is our choice.

    Args:
        t_max: largest budget in turns, 1 or more. Below 10 some levels coincide and are kept, because the fraction
            is the uniform variable; 10 or more is advised.

    Returns:
        int32 [10], turns, non-decreasing; the last one is `t_max`.

    Raises:
        ArgumentError: `t_max` is a concrete number and not an integer of 1 or more.
    """
    _check_positive("t_max", t_max)
    return jnp.maximum(1, (jnp.arange(1, N_LEVELS + 1, dtype=jnp.int32) * t_max + 9) // 10)


def hidden_weight(t_max: int) -> jax.Array:
    """Compute the success reward that makes T_max training equal to hidden BudgetMix.

    w(t) = P(B >= t), so that E_B[success within B] = sum_t w(t) P(first success at turn t). The identity holds for
    the objective, not for std-normalised gradients, and only while the policy cannot see its budget.
    Source: "Interaction budget and BudgetMix".

    Args:
        t_max: largest budget in turns.

    Returns:
        float32 [t_max]; entry t - 1 is w(t), the reward of a first success at turn t.

    Raises:
        ArgumentError: `t_max` is not an integer of 1 or more.
    """
    levels = budget_levels(t_max)
    reached_TK = levels[None, :] >= jnp.arange(1, t_max + 1)[:, None]
    return reached_TK.sum(axis=1) / jnp.float32(N_LEVELS)


def stratified_fractions(n_groups: int, key: jax.Array) -> jax.Array:
    """Draw budget fractions so that each occurs equally often, in random order.

    Every fraction gets n_groups // 10 groups; the remainder is drawn without replacement, so that each fraction is
    uniform for each group and counts differ by at most one.

    Args:
        n_groups: number of groups, 1 or more.
        key: random key, consumed.

    Returns:
        int32 [n_groups], 0..9.

    Raises:
        ArgumentError: `n_groups` is not an integer of 1 or more.
    """
    _check_positive("n_groups", n_groups)
    remainder_key, order_key = jax.random.split(key)
    every = jnp.tile(jnp.arange(N_LEVELS, dtype=jnp.int32), n_groups // N_LEVELS)
    remainder = jax.random.permutation(remainder_key, N_LEVELS)[: n_groups % N_LEVELS].astype(jnp.int32)
    return jax.random.permutation(order_key, jnp.concatenate([every, remainder]))


def budget_mix(t_max: int, n_groups: int, key: jax.Array) -> jax.Array:
    """Draw one BudgetMix budget for each group, stratified over the ten fractions.

    Source: "Interaction budget and BudgetMix". Nothing is redrawn when a budget turns out infeasible.

    Args:
        t_max: largest budget in turns.
        n_groups: number of groups in the batch.
        key: random key, consumed.

    Returns:
        int32 [n_groups], turns.

    Raises:
        ArgumentError: `t_max` or `n_groups` is not an integer of 1 or more.
    """
    return budget_levels(t_max)[stratified_fractions(n_groups, key)]


def _budget_mix(t_max: int, n_groups: int, key: jax.Array, update: jax.Array | int, headroom_F=None):
    """Schedule `budget_mix`: see `budget_mix`; the same at every update."""
    del update, headroom_F
    fractions = stratified_fractions(n_groups, key)
    return budget_levels(t_max)[fractions], fractions


def fixed(t_max: int, n_groups: int, key: jax.Array | None = None, update: jax.Array | int = 0, headroom_F=None):
    """Give every group the whole budget `t_max`; key, update and headroom are not used."""
    del key, update, headroom_F
    _check_positive("n_groups", n_groups)
    fractions = jnp.full((n_groups,), N_LEVELS - 1, jnp.int32)
    return budget_levels(t_max)[fractions], fractions


def curriculum(
    t_max: int,
    n_groups: int,
    key: jax.Array | None,
    update: jax.Array | int,
    headroom_F: jax.Array | None = None,
    *,
    caps: Sequence[int],
    every: int,
) -> tuple[jax.Array, jax.Array]:
    """Give every group the cap of the current stage; stage = min(update // every, last).

    Source: ScalingInter-RL (AgentGym-RL, arXiv 2509.08755).

    Args:
        t_max: largest budget in turns.
        n_groups: number of groups in the batch.
        key: not used; the schedule is deterministic.
        update: index of the update, from 0.
        headroom_F: not used.
        caps: turns allowed in each stage, each 1..t_max.
        every: updates that a stage lasts.

    Returns:
        budgets int32 [n_groups], and the smallest fraction index whose level reaches the cap, int32 [n_groups].

    Raises:
        ConfigError: `caps` is empty or holds a cap outside 1..t_max, or `every` is below 1.
    """
    del key, headroom_F
    if not caps or not all(1 <= cap <= t_max for cap in caps) or every < 1:
        raise ConfigError(
            f"a curriculum needs caps within 1..{t_max} and a stage of one update or more",
            value={"caps": list(caps), "every": every},
            remedy="Set the schedule's options caps and every.",
        )
    stage = jnp.minimum(update // every, len(caps) - 1)
    cap = jnp.asarray(caps, jnp.int32)[stage]
    fraction = jnp.sum(budget_levels(t_max) < cap).astype(jnp.int32)
    return jnp.full((n_groups,), cap), jnp.full((n_groups,), fraction)


def headroom(
    t_max: int, n_groups: int, key: jax.Array, update: jax.Array | int, headroom_F: jax.Array, *, uniform_share: float
) -> tuple[jax.Array, jax.Array]:
    """Draw budgets in proportion to what is left to gain there; BudgetMix where that is the same everywhere.

    p_f = u / 10 + (1 - u) h_f / sum(h), systematic draws: each level comes floor or ceil of n_groups * p_f times, and
    equally often where the headroom is flat. Motivation: a level that is solved, or that nobody can solve, teaches
    nothing; the regret of the others says where practice pays.

    Args:
        t_max: largest budget in turns.
        n_groups: number of groups in the batch.
        key: random key, consumed.
        update: not used.
        headroom_F: float32 [10], 0 or more, see `track_headroom`.
        uniform_share: u, in (0, 1].

    Returns:
        budgets and fractions, int32 [n_groups] each.
    """
    del update
    _check_positive("n_groups", n_groups)
    key_offset, key_levels, key_order = jax.random.split(key, 3)
    open_F = jnp.maximum(jnp.asarray(headroom_F, jnp.float32), 0.0)
    total = open_F.sum()
    share_F = jnp.where(total > 0, open_F / jnp.where(total > 0, total, 1.0), 1.0 / N_LEVELS)
    odds_F = uniform_share / N_LEVELS + (1 - uniform_share) * share_F
    # The levels stand in random order on the line that is cut into equal steps: neighbours do not share their luck.
    level_F = jax.random.permutation(key_levels, N_LEVELS).astype(jnp.int32)
    edges_F = jnp.cumsum(odds_F[level_F])
    marks = (jnp.arange(n_groups) + jax.random.uniform(key_offset)) / n_groups * edges_F[-1]
    place = jnp.minimum(jnp.searchsorted(edges_F, marks, side="right"), N_LEVELS - 1)
    fractions = jax.random.permutation(key_order, level_F[place])
    return budget_levels(t_max)[fractions], fractions


def track_headroom(headroom_F: jax.Array, fraction_P: jax.Array, gap_P: jax.Array) -> jax.Array:
    """Move the estimate of what is left to gain at each budget level towards the latest groups.

    Args:
        headroom_F: float32 [10], the estimate so far.
        fraction_P: int32, level of each group.
        gap_P: float32, best possible success within the group's budget minus its success.

    Returns:
        float32 [10]; levels without a group keep their estimate.
    """
    sums_F = jnp.zeros(N_LEVELS).at[fraction_P].add(gap_P)
    counts_F = jnp.zeros(N_LEVELS).at[fraction_P].add(1.0)
    latest_F = jnp.maximum(sums_F / jnp.maximum(counts_F, 1.0), 0.0)
    return jnp.where(counts_F > 0, _MEMORY * headroom_F + (1 - _MEMORY) * latest_F, headroom_F)


# `budget_mix_marginal` runs every trajectory to t_max and pays `hidden_weight` instead of 1 for a success.
BUDGET_SCHEDULES: dict[str, Callable] = {
    "fixed": fixed,
    "budget_mix": _budget_mix,
    "budget_mix_marginal": fixed,
    "curriculum": curriculum,
    "headroom": headroom,
}


def make_schedule(name: str, **options) -> BudgetSchedule:
    """Look a budget schedule up and bind its options.

    Args:
        name: a key of `BUDGET_SCHEDULES`.
        **options: keyword-only arguments of that schedule (`caps`, `every` of `curriculum`).

    Returns:
        A function `(t_max, n_groups, key, update, headroom_F) -> (budgets, fractions)`.

    Raises:
        ConfigError: unknown name, or options that differ from what the schedule takes.
    """
    if name not in BUDGET_SCHEDULES:
        raise ConfigError(
            "a budget schedule must have a known name",
            value=name,
            remedy=f"Choose one of {', '.join(BUDGET_SCHEDULES)}.",
        )
    schedule = BUDGET_SCHEDULES[name]
    parameters = inspect.signature(schedule).parameters.values()
    expected = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    if set(options) != expected:
        raise ConfigError(
            f"budget schedule {name} takes exactly the options {sorted(expected)}",
            value=sorted(options),
            remedy="Correct the schedule's options.",
        )
    return functools.partial(schedule, **options)


def _check_positive(name: str, number: int) -> None:
    """Refuse a concrete `number` below 1 or not an integer; let tracers pass."""
    if isinstance(number, jax.core.Tracer):
        return
    try:
        positive = operator.index(number) >= 1
    except TypeError:
        positive = False
    if not positive:
        raise ArgumentError(f"{name} must be an integer of 1 or more", value=number, remedy=f"Pass a positive {name}.")
