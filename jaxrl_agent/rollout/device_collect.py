"""Many-turn rollouts inside one jitted program: environment, text, decoding and budgets, no host in the loop.

One turn of all rows, in lock step:

    chunk   the last sampled token and the new observation enter the cache in one `extend`
    reply   tokens are drawn until the grammar says that the reply is over; finished rows are frozen
    play    the action is read off the grammar's state and the environment moves

The key/value cache lives across turns, groups fork one prefilled prompt, and a row's random numbers hang on its own
key alone.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agent.errors import ArgumentError, ConfigError
from jaxrl_agent.models.kv_cache import KVCache, gather_rows
from jaxrl_agent.models.qwen3 import Qwen3Config, extend, output_logits
from jaxrl_agent.parallel.rules import constrain
from jaxrl_agent.rollout import sampling
from jaxrl_agent.rollout.decoding import decode_params, empty_cache
from jaxrl_agent.rollout.starts import Starts, aligned, prompt_starts, row_streams, write_turn
from jaxrl_agent.rollout.token_rows import TokenRows, append, append_sampled, to_batch
from jaxrl_agent.tasks.reply import ReplyAutomaton
from jaxrl_agent.types import Rollout, StopReason, TurnRecord


class DeviceTask(Protocol):
    """What a task must offer, as pure functions of one trajectory, to be played inside jit; hashable."""

    t_max: int
    max_tokens: int

    def prompt_width(self, data: Any) -> int: ...
    def observation_width(self, data: Any) -> int: ...
    def context_width(self, data: Any) -> int: ...
    def grammar(self, data: Any) -> ReplyAutomaton: ...
    def reset(self, data: Any, instance: jax.Array) -> Any: ...
    def prompt(self, data: Any, instance: jax.Array, budget: jax.Array) -> tuple[jax.Array, jax.Array]: ...
    def observe(self, data, instance, state, turn, budget) -> tuple[jax.Array, jax.Array]: ...
    def step(self, data, instance, state, action, key) -> tuple[Any, jax.Array, jax.Array]: ...
    def quality(self, data, instance, state, action) -> tuple[jax.Array, jax.Array]: ...
    def process(self, data, instance, state, action, turns_left) -> jax.Array: ...
    def state_code(self, state: Any) -> jax.Array: ...
    def state_key(self, state: Any) -> jax.Array: ...


@dataclasses.dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


@struct.dataclass
class _Loop:
    """What one turn hands to the next."""

    played: jax.Array  # int32, turns since the start
    turn_B: jax.Array  # int32, turn of the trajectory, from 0
    alive_B: jax.Array  # bool
    cache: KVCache  # all tokens but the last one of each row
    last_B: jax.Array  # int32, that last token
    rows: TokenRows
    state: Any  # the task's state, leading axis B
    record: TurnRecord
    n_turns_B: jax.Array
    stop_B: jax.Array
    success_B: jax.Array


@struct.dataclass
class _Inputs:
    """What stays the same over all turns."""

    params: Any
    data: Any
    instance_B: jax.Array
    budget_B: jax.Array
    token_keys_B: jax.Array
    world_keys_B: jax.Array


@dataclasses.dataclass(frozen=True)
class _Static:
    config: Qwen3Config
    task: DeviceTask
    sampling: SamplingSettings


def collect(
    config: Qwen3Config,
    task: DeviceTask,
    settings: SamplingSettings,
    params: Any,
    data: Any,
    *,
    instances_P: jax.Array,
    budgets_P: jax.Array,
    row_ids_B: jax.Array,
    key: jax.Array,
) -> Rollout:
    """Play G trajectories of each of P instances.

    Args:
        config: the model (static).
        task: the game (static).
        settings: sampling (static).
        params: model parameters.
        data: the task's device data.
        instances_P: int32, instance of each group.
        budgets_P: int32, turns allowed to each group, at most `task.t_max`.
        row_ids_B: uint32 [P * G], what a trajectory's randomness hangs on beside `key`; group by group.
        key: consumed: every row folds its identity in.

    Returns:
        Rollout of P * G rows, group by group, rows of `row_width` tokens.

    Raises:
        ArgumentError: the rows are no whole number of groups.
        ConfigError: the model has no room for one turn.
    """
    _check_inputs(config, task, data, instances_P, budgets_P, row_ids_B)
    starts = prompt_starts(task, data, instances_P, budgets_P, width=row_width(config, task, data))
    written = task.prompt_width(data)
    return resume(config, task, settings, params, data, starts=starts, row_ids_B=row_ids_B, key=key, written=written)


def resume(
    config: Qwen3Config,
    task: DeviceTask,
    settings: SamplingSettings,
    params: Any,
    data: Any,
    *,
    starts: Starts,
    row_ids_B: jax.Array,
    key: jax.Array,
    written: int | None = None,
    turns: int | None = None,
    fresh: tuple[Any, jax.Array] | None = None,
) -> Rollout:
    """Go on from each of P starts, G times.

    Args:
        config, task, settings, params, data: as `collect`.
        starts: with rows of `row_width` tokens; one without a turn left comes back as it is.
        row_ids_B: uint32 [P * G], as `collect`.
        key: consumed.
        written: tokens of the longest start (static); the whole row by default.
        turns: turns to play at most (static); to the end of the budget by default. A trajectory that this ends has
            stop reason `budget`.
        fresh: (states, alive_B) in place of the starts' own, leading axis P * G, for worlds that differ within a
            group; rows that are not alive come back as they are.

    Returns:
        Rollout of P * G whole trajectories, group by group: what was played before the start is part of them.
    """
    static = _Static(config, task, settings)
    group = row_ids_B.shape[0] // starts.instance_S.shape[0]
    repeat = functools.partial(jnp.repeat, repeats=group, total_repeat_length=row_ids_B.shape[0])
    token_keys_B, world_keys_B = row_streams(key, row_ids_B)
    inputs = _Inputs(
        params=decode_params(config, params),
        data=data,
        instance_B=constrain(repeat(starts.instance_S), ("batch",)),
        budget_B=constrain(repeat(starts.budget_S), ("batch",)),
        token_keys_B=token_keys_B,
        world_keys_B=world_keys_B,
    )
    loop = _start(static, inputs, starts, repeat, written=written, fresh=fresh)
    limit = task.t_max if turns is None else turns
    loop = jax.lax.while_loop(
        lambda loop: (loop.played < limit) & loop.alive_B.any(), functools.partial(_play_turn, static, inputs), loop
    )
    return _finish(loop, inputs, group, prompt_lengths_B=repeat(starts.prompt_lengths_S))


def row_width(config: Qwen3Config, task: DeviceTask, data: Any) -> int:
    """Tokens of a row: those of the longest trajectory, or the positions that the model has."""
    return min(task.context_width(data), config.max_position_embeddings)


def _check_inputs(config: Qwen3Config, task: DeviceTask, data: Any, instances_P, budgets_P, row_ids_B) -> None:
    rows, groups = row_ids_B.shape[0], instances_P.shape[0]
    if rows % groups or budgets_P.shape != instances_P.shape:
        raise ArgumentError(
            "row_ids_B must hold the same number of rows for every entry of instances_P, and budgets_P one entry each",
            value={"row_ids_B": rows, "instances_P": groups, "budgets_P": budgets_P.shape},
        )
    needed = task.prompt_width(data) + task.observation_width(data) + task.max_tokens
    if needed > config.max_position_embeddings:
        raise ConfigError(
            f"the model must have positions for a prompt and one turn ({needed} tokens)",
            value=config.max_position_embeddings,
            remedy="Lower config.task.max_tokens, or take a model with a longer context.",
        )


def _start(static: _Static, inputs: _Inputs, starts: Starts, repeat, *, written: int | None, fresh) -> _Loop:
    """Read what is written, all but the last token, and fork each start to its group."""
    config, task = static.config, static.task
    width = starts.rows.tokens_BL.shape[1]
    chunk = 1 + task.observation_width(inputs.data)
    # A whole chunk fits behind the last token, so that no write ever needs clamping.
    cache = empty_cache(config, len(starts.instance_S), width + chunk)
    known_SL = starts.rows.tokens_BL[:, :written]
    _, cache = extend(config, inputs.params, cache, known_SL, starts.rows.lengths_B - 1)
    start_of_B = repeat(jnp.arange(len(starts.instance_S)))
    rows, record, state, turn_B = jax.tree.map(
        lambda leaf: leaf[start_of_B], (starts.rows, starts.record, starts.state, starts.turn_S)
    )
    state, alive_B = (state, True) if fresh is None else fresh
    return _Loop(
        played=jnp.int32(0),
        turn_B=turn_B,
        alive_B=constrain(alive_B & (turn_B < inputs.budget_B), ("batch",)),
        cache=gather_rows(cache, start_of_B),
        last_B=jnp.take_along_axis(rows.tokens_BL, rows.lengths_B[:, None] - 1, axis=1)[:, 0],
        rows=rows,
        state=state,
        record=record,
        n_turns_B=turn_B,
        stop_B=jnp.full(len(turn_B), StopReason.BUDGET.code, jnp.int32),
        success_B=jnp.zeros(len(turn_B), bool),
    )


def _play_turn(static: _Static, inputs: _Inputs, loop: _Loop) -> _Loop:
    """Observe, reply, play: one turn of every row that is still alive."""
    task = static.task
    grammar = task.grammar(inputs.data)
    observation_BO, width_B = jax.vmap(task.observe, in_axes=(None, 0, 0, 0, 0))(
        inputs.data, inputs.instance_B, loop.state, loop.turn_B, inputs.budget_B
    )
    room_B = loop.rows.lengths_B + width_B + task.max_tokens <= loop.rows.tokens_BL.shape[1]
    full_B = loop.alive_B & ~room_B
    alive_B = loop.alive_B & room_B
    rows = append(loop.rows, observation_BO, jnp.where(alive_B, width_B, 0))
    chunk_BC = jnp.concatenate([loop.last_B[:, None], observation_BO], axis=1)
    rows, cache, last_B, grammar_B = _reply(
        static, inputs, loop, rows, chunk_BC, counts_B=jnp.where(alive_B, 1 + width_B, 0)
    )
    over_B = grammar.final_Q[grammar_B]
    played_B = alive_B & over_B
    played = _play(static, inputs, loop, grammar.action_Q[grammar_B], replied_B=alive_B, played_B=played_B)
    out_of_budget_B = loop.turn_B + 1 >= inputs.budget_B
    stop_B = jnp.where(full_B, StopReason.CONTEXT_LIMIT.code, played.stop_B)
    stop_B = jnp.where(alive_B & ~over_B, StopReason.TOKEN_LIMIT.code, stop_B)
    return played.replace(
        played=loop.played + 1,
        turn_B=loop.turn_B + 1,
        alive_B=played_B & played.alive_B & ~out_of_budget_B,
        cache=cache,
        last_B=last_B,
        rows=rows,
        n_turns_B=loop.n_turns_B + alive_B,
        stop_B=stop_B,
    )


def _reply(static: _Static, inputs: _Inputs, loop: _Loop, rows: TokenRows, chunk_BC, *, counts_B):
    """Read the chunk, then sample until the grammar of each row is final or its tokens are used up.

    Returns:
        The rows, the cache (without each row's last token), that last token, and the grammar's state.
    """
    config = static.config
    grammar = static.task.grammar(inputs.data)
    hidden_BCD, cache = extend(config, inputs.params, loop.cache, chunk_BC, counts_B)
    hidden_BD = jnp.take_along_axis(hidden_BCD, jnp.maximum(counts_B - 1, 0)[:, None, None], axis=1)[:, 0]

    def draw(rows: TokenRows, hidden_BD, grammar_B, writing_B):
        token_B, logprob_B = sampling.sample_tokens(
            output_logits(config, inputs.params, hidden_BD),
            sampling.uniforms(inputs.token_keys_B, rows.lengths_B),
            temperature=static.sampling.temperature,
            top_k=static.sampling.top_k,
            top_p=static.sampling.top_p,
        )
        rows = append_sampled(rows, token_B, logprob_B, loop.turn_B, writing_B)
        grammar_B = jnp.where(writing_B, grammar.next_QV[grammar_B, token_B].astype(jnp.int32), grammar_B)
        return rows, token_B, grammar_B, writing_B & ~grammar.final_Q[grammar_B]

    def more(carry):
        drawn, writing_B = carry[0], carry[5]
        return (drawn < static.task.max_tokens) & writing_B.any()

    def decode(carry):
        drawn, rows, cache, last_B, grammar_B, writing_B = carry
        hidden_B1D, cache = extend(config, inputs.params, cache, last_B[:, None], writing_B.astype(jnp.int32))
        rows, token_B, grammar_B, still_B = draw(rows, hidden_B1D[:, 0], grammar_B, writing_B)
        return drawn + 1, rows, cache, jnp.where(writing_B, token_B, last_B), grammar_B, still_B

    started_B = counts_B > 0
    start_B = jnp.broadcast_to(grammar.start, started_B.shape)
    rows, token_B, grammar_B, writing_B = draw(rows, hidden_BD, start_B, started_B)
    last_B = jnp.where(started_B, token_B, loop.last_B)
    carry = (jnp.int32(1), rows, cache, last_B, grammar_B, writing_B)
    _, rows, cache, last_B, grammar_B, _ = jax.lax.while_loop(more, decode, carry)
    return rows, cache, last_B, grammar_B


def _play(static: _Static, inputs: _Inputs, loop: _Loop, action_B, *, replied_B, played_B) -> _Loop:
    """Move the environment of the rows that gave a whole reply, and keep the record; a cut reply is an unusable one."""
    task = static.task
    keys_B = jax.vmap(jax.random.fold_in)(inputs.world_keys_B, loop.turn_B)
    state, reward_B, terminated_B = jax.vmap(task.step, in_axes=(None, 0, 0, 0, 0))(
        inputs.data, inputs.instance_B, loop.state, action_B, keys_B
    )
    reward_B = jnp.where(played_B, reward_B, 0)
    # A row that is not playing has nothing to enter, and must not lose its last turn either.
    record = write_turn(
        task,
        inputs.data,
        loop.record,
        jnp.where(replied_B, loop.turn_B, -1),
        instance_B=inputs.instance_B,
        budget_B=inputs.budget_B,
        state=loop.state,
        action_B=action_B,
        reward_B=reward_B,
    )
    ended = jnp.where(reward_B > 0, StopReason.SUCCESS.code, StopReason.FAILURE.code)
    return loop.replace(
        alive_B=~terminated_B,
        state=jax.tree.map(lambda new, old: jnp.where(aligned(played_B, new), new, old), state, loop.state),
        record=record,
        stop_B=jnp.where(played_B & terminated_B, ended, loop.stop_B),
        success_B=loop.success_B | (played_B & terminated_B & (reward_B > 0)),
    )


def _finish(loop: _Loop, inputs: _Inputs, group: int, *, prompt_lengths_B: jax.Array) -> Rollout:
    rollout = Rollout(
        batch=to_batch(loop.rows),
        turns=loop.record,
        instance_B=inputs.instance_B,
        group_B=jnp.arange(len(inputs.instance_B)) // group,
        budget_B=inputs.budget_B,
        n_turns_B=loop.n_turns_B,
        prompt_lengths_B=prompt_lengths_B,
        stop_B=loop.stop_B,
        return_B=loop.record.reward_BT.sum(axis=1),
        success_B=loop.success_B,
    )
    return jax.tree.map(lambda leaf: constrain(leaf, ("batch", *(None,) * (leaf.ndim - 1))), rollout)
