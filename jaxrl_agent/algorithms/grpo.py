"""Advantages from the rewards of a group: GRPO, Dr.GRPO and RLOO."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from jaxrl_agent.algorithms.common import trajectory_advantages_to_tokens
from jaxrl_agent.algorithms.groups import EQUAL_SPREAD, GroupMoments, Keys, dense_ids, group_moments
from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.types import Rollout

SCALES = ("group", "batch", "none")
EPSILON = 1e-6


def advantages(
    rewards_B: jax.Array,
    group_ids_B: Keys,
    *,
    scale: str = "group",
    mask_B: jax.Array | None = None,
) -> jax.Array:
    """Compute group-relative advantages, one for each trajectory.

    A_j = (R_j - mean_group) / (std + 1e-6), std with ddof 1. A group whose rewards spread by less than 1e-6, and a
    group with one counting row, gets exactly 0. Source: "GRPO family"; GRPO is arXiv 2402.03300, Dr.GRPO 2503.20783.

    Deviations: 1. equality is decided on max - min, because a float residue of std survives the division.

    Args:
        rewards_B: [B], return of each trajectory; each counts once, however many turns it has.
        group_ids_B: [B], the instance that a trajectory belongs to; position plays no part.
        scale: `group` divides by the group's std; `batch` by the std of the group-centred rewards of all counting
            rows; `none` does not divide (Dr.GRPO).
        mask_B: bool [B]; rows that are False (padding, could not be checked) enter no mean and no std and get 0.

    Returns:
        float32 [B].

    Raises:
        ArgumentError: unknown `scale`.
    """
    if scale not in SCALES:
        raise ArgumentError(f"scale must be one of {', '.join(SCALES)}", value=scale)
    rewards_B, mask_B, moments = _prepare(rewards_B, group_ids_B, mask_B)
    centred_B = rewards_B - moments.mean_N
    if scale == "group":
        centred_B /= moments.std_N + EPSILON
    elif scale == "batch":
        centred_B /= _masked_std(centred_B, mask_B) + EPSILON
    return jnp.where(_informative(moments, mask_B), centred_B, 0.0)


def rloo_advantages(rewards_B: jax.Array, group_ids_B: Keys, *, mask_B: jax.Array | None = None) -> jax.Array:
    """Compute leave-one-out advantages, one for each trajectory.

    A_j = R_j - mean of the others = (R_j - mean_group) * n / (n - 1); exactly 0 for equal rewards and for a group of
    one. Source: "GRPO family"; arXiv 2402.14740.

    Args:
        rewards_B: [B], return of each trajectory.
        group_ids_B: [B], the instance that a trajectory belongs to.
        mask_B: bool [B]; rows that are False enter no mean and get 0.

    Returns:
        float32 [B].
    """
    rewards_B, mask_B, moments = _prepare(rewards_B, group_ids_B, mask_B)
    correction_B = moments.count_N / jnp.maximum(moments.count_N - 1.0, 1.0)
    return jnp.where(_informative(moments, mask_B), (rewards_B - moments.mean_N) * correction_B, 0.0)


def informative_rows(rewards_B: jax.Array, group_ids_B: Keys, *, mask_B: jax.Array | None = None) -> jax.Array:
    """Mark the rows of groups whose rewards differ: the only ones with a gradient.

    Together with `groups.first_rows` it counts effective and zero-variance groups, and it is the filter of dynamic
    sampling (DAPO, arXiv 2503.14476).

    Args:
        rewards_B: [B], return of each trajectory.
        group_ids_B: [B], the instance that a trajectory belongs to.
        mask_B: bool [B]; rows that are False count as absent.

    Returns:
        bool [B].
    """
    _, mask_B, moments = _prepare(rewards_B, group_ids_B, mask_B)
    return _informative(moments, mask_B)


def estimate_grpo(rollout: Rollout, *, counted_B: jax.Array | None = None, scale: str = "group") -> jax.Array:
    """Estimate token advantages of a rollout by `advantages`; see `ALGORITHMS`."""
    per_trajectory_B = advantages(rollout.return_B, rollout.group_B, scale=scale, mask_B=counted_B)
    return trajectory_advantages_to_tokens(per_trajectory_B, rollout.batch.loss_mask_BL)


def estimate_rloo(rollout: Rollout, *, counted_B: jax.Array | None = None) -> jax.Array:
    """Estimate token advantages of a rollout by `rloo_advantages`; see `ALGORITHMS`."""
    per_trajectory_B = rloo_advantages(rollout.return_B, rollout.group_B, mask_B=counted_B)
    return trajectory_advantages_to_tokens(per_trajectory_B, rollout.batch.loss_mask_BL)


def _prepare(rewards_B: jax.Array, group_ids_B: Keys, mask_B: jax.Array | None):
    """Return float32 rewards (0 where masked), a boolean mask and the moments of each row's group."""
    rewards_B = jnp.asarray(rewards_B, jnp.float32)
    chex.assert_rank(rewards_B, 1)
    mask_B = jnp.ones(rewards_B.shape, bool) if mask_B is None else jnp.asarray(mask_B, bool)
    rewards_B = jnp.where(mask_B, rewards_B, 0.0)
    return rewards_B, mask_B, group_moments(rewards_B, dense_ids(group_ids_B), mask_B)


def _informative(moments: GroupMoments, mask_B: jax.Array) -> jax.Array:
    return mask_B & (moments.spread_N >= EQUAL_SPREAD)


def _masked_std(values_B: jax.Array, mask_B: jax.Array) -> jax.Array:
    """Standard deviation (ddof 1) of the rows that count."""
    count = jnp.sum(mask_B)
    mean = jnp.sum(jnp.where(mask_B, values_B, 0.0)) / jnp.maximum(count, 1)
    squares = jnp.sum(jnp.where(mask_B, (values_B - mean) ** 2, 0.0))
    return jnp.sqrt(squares / jnp.maximum(count - 1, 1))
