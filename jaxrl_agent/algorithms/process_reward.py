"""Process rewards: what a task says of each turn, added to the advantage of the whole trajectory."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_agent.algorithms import grpo
from jaxrl_agent.algorithms.common import played_turns, turn_advantages_to_tokens
from jaxrl_agent.algorithms.groups import EQUAL_SPREAD, Keys, dense_ids, group_moments
from jaxrl_agent.types import Rollout

EPSILON = 1e-6


def advantages(
    rewards_B: jax.Array,
    process_BT: jax.Array,
    group_ids_B: Keys,
    played_BT: jax.Array,
    *,
    omega: float = 1.0,
    scale: str = "group",
    divide: bool = False,
    mask_B: jax.Array | None = None,
) -> jax.Array:
    """Compute A_t = A_episode + omega * process_t, one for each turn.

    A_episode is GRPO's. On FrozenLake process_t = Q_h(s_t, a_t) - V_h(s_t) with h turns left, an exact advantage, never
    above 0: raw Q as a reward would pay for dawdling. On tasks with a pass fraction it is p_t - p_{t-1}, which
    telescopes to the last one. Source: "Exact process rewards".

    Args:
        rewards_B: [B], return of each trajectory.
        process_BT: [B, T], process reward of each turn.
        group_ids_B: [B], the instance.
        played_BT: bool [B, T], turns that took place.
        omega: weight of the process reward.
        scale: of A_episode, as `grpo.advantages`.
        divide: divide the process rewards by their standard deviation (ddof 1) over the turns of the group.
        mask_B: bool [B]; rows that are False enter nothing and get 0.

    Returns:
        float32 [B, T], 0 on turns that did not take place.
    """
    episode_B = grpo.advantages(rewards_B, group_ids_B, scale=scale, mask_B=mask_B)
    counted_BT = played_BT if mask_B is None else played_BT & mask_B[:, None]
    process_BT = jnp.where(counted_BT, jnp.asarray(process_BT, jnp.float32), 0.0)
    if divide:
        group_BT = jnp.broadcast_to(dense_ids(group_ids_B)[:, None], process_BT.shape)
        moments = group_moments(process_BT.ravel(), group_BT.ravel(), counted_BT.ravel())
        scaled_N = jnp.where(moments.spread_N >= EQUAL_SPREAD, process_BT.ravel() / (moments.std_N + EPSILON), 0.0)
        process_BT = jnp.where(counted_BT, scaled_N.reshape(process_BT.shape), 0.0)
    return jnp.where(counted_BT, episode_B[:, None] + omega * process_BT, 0.0)


def estimate(
    rollout: Rollout,
    *,
    counted_B: jax.Array | None = None,
    scale: str = "group",
    omega: float = 1.0,
    divide: bool = False,
) -> jax.Array:
    """Estimate token advantages of a rollout by `advantages`; see `ALGORITHMS`."""
    per_turn_BT = advantages(
        rollout.return_B,
        rollout.turns.process_BT,
        rollout.group_B,
        played_turns(rollout.n_turns_B, rollout.turns.process_BT.shape[1]),
        omega=omega,
        scale=scale,
        divide=divide,
        mask_B=counted_B,
    )
    return turn_advantages_to_tokens(per_turn_BT, rollout.batch.turn_BL, rollout.batch.loss_mask_BL)
