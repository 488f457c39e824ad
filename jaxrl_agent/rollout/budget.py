"""Interaction budgets: how many turns each group of trajectories may use.

A budget belongs to a group, never to a single trajectory: the group mean is the baseline for the expected return
given the instance *and* the budget, so mixing budgets inside a group would give equal behaviour opposite advantages.

A schedule is a function `(t_max, n_groups, key, update) -> (budgets, fractions)` with
    budgets    int32 [n_groups], turns that a trajectory of the group may use;
    fractions  int32 [n_groups], 0..9: budget level k = fractions + 1, the row of the per-fraction metrics.
`t_max` and `n_groups` are Python integers, `key` and `update` may be traced.
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
BudgetSchedule = Callable[[int, int, jax.Array, jax.Array | int], tuple[jax.Array, jax.Array]]


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


def _budget_mix(t_max: int, n_groups: int, key: jax.Array, update: jax.Array | int):
    """Schedule `budget_mix`: see `budget_mix`; the same at every update."""
    del update
    fractions = stratified_fractions(n_groups, key)
    return budget_levels(t_max)[fractions], fractions


def fixed(t_max: int, n_groups: int, key: jax.Array | None = None, update: jax.Array | int = 0):
    """Give every group the whole budget `t_max`; key and update are not used."""
    del key, update
    _check_positive("n_groups", n_groups)
    fractions = jnp.full((n_groups,), N_LEVELS - 1, jnp.int32)
    return budget_levels(t_max)[fractions], fractions


def curriculum(
    t_max: int, n_groups: int, key: jax.Array | None, update: jax.Array | int, *, caps: Sequence[int], every: int
) -> tuple[jax.Array, jax.Array]:
    """Give every group the cap of the current stage; stage = min(update // every, last).

    Source: ScalingInter-RL (AgentGym-RL, arXiv 2509.08755).

    Args:
        t_max: largest budget in turns.
        n_groups: number of groups in the batch.
        key: not used; the schedule is deterministic.
        update: index of the update, from 0.
        caps: turns allowed in each stage, each 1..t_max.
        every: updates that a stage lasts.

    Returns:
        budgets int32 [n_groups], and the smallest fraction index whose level reaches the cap, int32 [n_groups].

    Raises:
        ConfigError: `caps` is empty or holds a cap outside 1..t_max, or `every` is below 1.
    """
    del key
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


# `budget_mix_marginal` runs every trajectory to t_max and pays `hidden_weight` instead of 1 for a success.
BUDGET_SCHEDULES: dict[str, Callable] = {
    "fixed": fixed,
    "budget_mix": _budget_mix,
    "budget_mix_marginal": fixed,
    "curriculum": curriculum,
}


def make_schedule(name: str, **options) -> BudgetSchedule:
    """Look a budget schedule up and bind its options.

    Args:
        name: a key of `BUDGET_SCHEDULES`.
        **options: keyword-only arguments of that schedule (`caps`, `every` of `curriculum`).

    Returns:
        A function `(t_max, n_groups, key, update) -> (budgets, fractions)`.

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
