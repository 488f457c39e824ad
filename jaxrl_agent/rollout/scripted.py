"""Rows of a scripted actor: the same text as a rollout, with actions that come from a function instead of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_agent.rollout.device_collect import DeviceTask
from jaxrl_agent.rollout.token_rows import append, start_rows, to_batch
from jaxrl_agent.types import TokenBatch

# (data, instance, state, memory, budget, key) -> (action int32, memory); memory is an int32 scalar, 0 at the start.
Actor = Callable[..., tuple[jax.Array, jax.Array]]


def play_script(
    task: DeviceTask,
    data: Any,
    actor: Actor,
    *,
    instances_B: jax.Array,
    budgets_B: jax.Array,
    key: jax.Array,
    turns: int,
) -> tuple[TokenBatch, jax.Array]:
    """Let `actor` play one trajectory of each instance and write it down as the policy would have.

    The budget is what the text tells; it does not cut the trajectory, so that every told budget has long examples.

    Args:
        task: the game (static).
        data: its device data.
        actor: chooses actions (static).
        instances_B: int32.
        budgets_B: int32, the budgets that the text tells.
        key: consumed.
        turns: most turns of a trajectory (static).

    Returns:
        TokenBatch whose loss mask marks the actor's replies, and success_B (bool).
    """
    row_keys_BT = jax.vmap(lambda row_key: jax.random.split(row_key, (turns, 2)))(
        jax.random.split(key, len(instances_B))
    )
    prompts_BW, lengths_B = jax.vmap(task.prompt, in_axes=(None, 0, 0))(data, instances_B, budgets_B)
    replies = data.text.replies
    per_turn = task.observation_width(data) + replies.width
    rows = start_rows(prompts_BW, lengths_B, prompts_BW.shape[1] + turns * per_turn)
    batch = len(instances_B)

    def play_turn(carry, turn_and_keys):
        rows, state, memory_B, alive_B, success_B = carry
        turn, keys_B2 = turn_and_keys
        observation_BO, width_B = jax.vmap(task.observe, in_axes=(None, 0, 0, None, 0))(
            data, instances_B, state, turn, budgets_B
        )
        rows = append(rows, observation_BO, jnp.where(alive_B, width_B, 0))
        action_B, memory_B = jax.vmap(actor, in_axes=(None, 0, 0, 0, 0, 0))(
            data, instances_B, state, memory_B, budgets_B, keys_B2[:, 0]
        )
        reply_B = jnp.where(alive_B, replies.lengths_R[action_B], 0)
        rows = append(rows, replies.tokens_RW[action_B], reply_B, turn=turn)
        state, reward_B, terminated_B = jax.vmap(task.step, in_axes=(None, 0, 0, 0, 0))(
            data, instances_B, state, action_B, keys_B2[:, 1]
        )
        success_B = success_B | (alive_B & (reward_B > 0))
        return (rows, state, memory_B, alive_B & ~terminated_B, success_B), None

    state = jax.vmap(task.reset, in_axes=(None, 0))(data, instances_B)
    carry = (rows, state, jnp.zeros(batch, jnp.int32), jnp.ones(batch, bool), jnp.zeros(batch, bool))
    carry, _ = jax.lax.scan(play_turn, carry, (jnp.arange(turns), row_keys_BT.swapaxes(0, 1)))
    return to_batch(carry[0]), carry[4]
