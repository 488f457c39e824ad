"""Where trajectories begin or go on: at a prompt, amid an earlier episode, behind a reply put in place of the agent's.

A start holds everything that was written and played so far, so that what goes on from it is a whole trajectory.
Letters: `S` starts here, not cache slots; `B` rows that go on from them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agent.rollout import sampling
from jaxrl_agent.rollout.token_rows import TokenRows, append, start_rows
from jaxrl_agent.types import Rollout, TurnRecord


@struct.dataclass
class Starts:
    """S places from which trajectories go on; the observation of `turn_S` is not written yet."""

    instance_S: jax.Array  # int32
    budget_S: jax.Array  # int32, turns allowed to the whole trajectory
    turn_S: jax.Array  # int32, the turn to be played next, from 0
    prompt_lengths_S: jax.Array  # int32, tokens
    rows: TokenRows  # what the policy has read and written
    record: TurnRecord  # the turns played
    state: Any  # the task's state, leading axis S


def prompt_starts(task: Any, data: Any, instances_S: jax.Array, budgets_S: jax.Array, *, width: int) -> Starts:
    """Begin at the prompts, in rows of `width` tokens."""
    prompts_SW, lengths_S = jax.vmap(task.prompt, in_axes=(None, 0, 0))(data, instances_S, budgets_S)
    state = jax.vmap(task.reset, in_axes=(None, 0))(data, instances_S)
    one = jax.tree.map(lambda leaf: leaf[0], state)
    return Starts(
        instance_S=instances_S,
        budget_S=budgets_S,
        turn_S=jnp.zeros_like(instances_S),
        prompt_lengths_S=lengths_S,
        rows=start_rows(prompts_SW, lengths_S, width),
        record=empty_record(len(instances_S), task.t_max, key_columns=jax.eval_shape(task.state_key, one).shape[0]),
        state=state,
    )


def empty_record(rows: int, t_max: int, *, key_columns: int = 1) -> TurnRecord:
    """No turn played."""
    zeros_BT = jnp.zeros((rows, t_max))
    whole_BT = zeros_BT.astype(jnp.int32)
    return TurnRecord(
        state_BT=whole_BT,
        action_BT=whole_BT,
        reward_BT=zeros_BT,
        step_quality_BT=zeros_BT,
        best_quality_BT=zeros_BT,
        process_BT=zeros_BT,
        key_BTK=jnp.zeros((rows, t_max, key_columns), jnp.int32),
    )


def row_streams(key: jax.Array, row_ids_B: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys of each row's tokens and of its world's chance, two typed [B]; they depend on its identity alone.

    Turn t (from 0) of the world draws from `fold_in(world_key, t)`.
    """
    keys_B2 = jax.vmap(jax.random.split)(sampling.row_keys(key, row_ids_B))
    return keys_B2[:, 0], keys_B2[:, 1]


def trace_states(task: Any, data: Any, rollout: Rollout, *, row_ids_B: jax.Array, key: jax.Array) -> Any:
    """Follow a rollout's actions and find the task's state before each turn.

    Args:
        task: the game (static).
        data: its device data.
        rollout: what `collect` returned.
        row_ids_B: as given to `collect`.
        key: as given to `collect`.

    Returns:
        The task's state with leading axes [B, T]; at and behind `n_turns` it is of no use.
    """
    world_keys_B = row_streams(key, row_ids_B)[1]
    move = jax.vmap(task.step, in_axes=(None, 0, 0, 0, 0))

    def play_turn(state, turn_and_action):
        turn, action_B = turn_and_action
        keys_B = jax.vmap(jax.random.fold_in, in_axes=(0, None))(world_keys_B, turn)
        return move(data, rollout.instance_B, state, action_B, keys_B)[0], state

    first = jax.vmap(task.reset, in_axes=(None, 0))(data, rollout.instance_B)
    turns = jnp.arange(rollout.turns.action_BT.shape[1])
    _, states_TB = jax.lax.scan(play_turn, first, (turns, rollout.turns.action_BT.T))
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), states_TB)


def cut(rollout: Rollout, states_BT: Any, *, rows_S: jax.Array, turns_S: jax.Array) -> Starts:
    """Take trajectories up again before one of their turns.

    Args:
        rollout: finished trajectories.
        states_BT: from `trace_states`.
        rows_S: int32, which trajectory.
        turns_S: int32, the turn to be played anew, below the number of its turns.
    """
    batch, record = jax.tree.map(lambda leaf: leaf[rows_S], (rollout.batch, rollout.turns))
    column_L = jnp.arange(batch.tokens_BL.shape[1])
    # The row is kept up to the last token of the turn before, or to the end of the prompt.
    ends_S = jnp.where(batch.turn_BL == turns_S[:, None] - 1, column_L + 1, 0).max(axis=1)
    prompt_lengths_S = rollout.prompt_lengths_B[rows_S]
    lengths_S = jnp.where(turns_S > 0, ends_S, prompt_lengths_S)
    kept_SL = column_L < lengths_S[:, None]
    played_ST = jnp.arange(record.action_BT.shape[1]) < turns_S[:, None]
    return Starts(
        instance_S=rollout.instance_B[rows_S],
        budget_S=rollout.budget_B[rows_S],
        turn_S=turns_S,
        prompt_lengths_S=prompt_lengths_S,
        rows=TokenRows(
            tokens_BL=jnp.where(kept_SL, batch.tokens_BL, 0),
            logprobs_BL=jnp.where(kept_SL, batch.sampler_logprobs_BL, 0.0),
            sampled_BL=kept_SL & batch.loss_mask_BL,
            turn_BL=jnp.where(kept_SL, batch.turn_BL, -1),
            lengths_B=lengths_S,
        ),
        record=jax.tree.map(lambda column_ST: jnp.where(aligned(played_ST, column_ST), column_ST, 0), record),
        state=jax.tree.map(lambda leaf: leaf[rows_S, turns_S], states_BT),
    )


def with_reply(
    task: Any, data: Any, starts: Starts, *, reply_SC: jax.Array, counts_S: jax.Array, action_S: jax.Array, after: Any
) -> Starts:
    """Write the next observation and a given reply, which stands in the history as the agent's own.

    The reply is not marked as sampled: nothing is ever trained on it, and nobody is scored by it.

    Args:
        task: the game (static).
        data: its device data.
        starts: places with a turn left to play.
        reply_SC: int32, ids of the reply, right-padded.
        counts_S: int32, ids in use.
        action_S: int32, the action that it means, -1 for none.
        after: the task's state after it, leading axis S; the game must go on there.
    """
    seen_SO, width_S = jax.vmap(task.observe, in_axes=(None, 0, 0, 0, 0))(
        data, starts.instance_S, starts.state, starts.turn_S, starts.budget_S
    )
    observed = append(starts.rows, seen_SO, width_S)
    rows = append(observed, reply_SC, counts_S)
    column_L = jnp.arange(rows.tokens_BL.shape[1])
    reply_SL = (column_L >= observed.lengths_B[:, None]) & (column_L < rows.lengths_B[:, None])
    record = write_turn(
        task,
        data,
        starts.record,
        starts.turn_S,
        instance_B=starts.instance_S,
        budget_B=starts.budget_S,
        state=starts.state,
        action_B=action_S,
        reward_B=jnp.zeros(len(action_S)),
    )
    return starts.replace(
        turn_S=starts.turn_S + 1,
        rows=rows.replace(turn_BL=jnp.where(reply_SL, starts.turn_S[:, None], rows.turn_BL)),
        record=record,
        state=after,
    )


def write_turn(
    task: Any,
    data: Any,
    record: TurnRecord,
    turn_B: jax.Array,
    *,
    instance_B: jax.Array,
    budget_B: jax.Array,
    state: Any,
    action_B: jax.Array,
    reward_B: jax.Array,
) -> TurnRecord:
    """Enter what happened in turn `turn_B` of every row; a turn of -1 enters nothing.

    Args:
        task: the game (static).
        data: its device data.
        record: the turns so far.
        turn_B: int32, from 0.
        instance_B: int32.
        budget_B: int32, turns allowed to the trajectory.
        state: the task's state before the action, leading axis B.
        action_B: int32, -1 for an unusable reply.
        reward_B: float32.
    """
    at_BT = jnp.arange(record.action_BT.shape[1]) == turn_B[:, None]
    quality_B, best_B = jax.vmap(task.quality, in_axes=(None, 0, 0, 0))(data, instance_B, state, action_B)
    process_B = jax.vmap(task.process, in_axes=(None, 0, 0, 0, 0))(data, instance_B, state, action_B, budget_B - turn_B)
    values = TurnRecord(
        state_BT=jax.vmap(task.state_code)(state),
        action_BT=action_B,
        reward_BT=reward_B,
        step_quality_BT=quality_B,
        best_quality_BT=best_B,
        process_BT=process_B,
        key_BTK=jax.vmap(task.state_key)(state),
    )

    def enter(column_BT, value_B):
        return jnp.where(aligned(at_BT, column_BT), value_B[:, None].astype(column_BT.dtype), column_BT)

    return jax.tree.map(enter, record, values)


def aligned(mask: jax.Array, like: jax.Array) -> jax.Array:
    """A mask of the leading axes with an axis of 1 for each further one."""
    return mask.reshape(mask.shape + (1,) * (like.ndim - mask.ndim))
