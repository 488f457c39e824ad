"""Log-probabilities of sampled turns under any policy, one compiled program a model shape."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agent.assemble import Policy
from jaxrl_agent.evaluation.arena import Scores
from jaxrl_agent.learner.logprobs import positions_from_mask, selected_logprobs
from jaxrl_agent.models.qwen3 import Qwen3Config, hidden_states
from jaxrl_agent.parallel.distributed import to_host
from jaxrl_agent.types import TokenBatch


def score_turns(
    policy: Policy,
    batch: TokenBatch,
    *,
    n_turns: int,
    width: int,
    temperature: float,
    think_ids: tuple[int, int] | None = None,
) -> Scores:
    """Score the tokens in the loss mask of every row under a policy, and sum them turn by turn.

    log pi(token | everything before it) of the distribution at `temperature`, before any top-k or top-p. The same rows
    scored by equal weights give equal bits, so that a difference of the two is exactly 0. Source: "Likelihood
    analysis".

    Args:
        policy: who scores; it need not be who sampled.
        batch: rows, right-padded.
        n_turns: turns that the result has room for.
        width: most sampled tokens of a row.
        temperature: that the tokens were sampled at, above 0.
        think_ids: opening and closing token of reasoning; what they enclose is no part of an action.

    Returns:
        Scores of all rows, in float64.
    """
    program = _program(policy.model, min(width, batch.tokens_BL.shape[1]), float(temperature), think_ids)
    logprobs_BW, turn_BW, action_BW, valid_BW = to_host(program(policy.params, batch))
    row_BW = np.broadcast_to(np.arange(len(valid_BW))[:, None], valid_BW.shape)

    def by_turn(values_BW: np.ndarray, where_BW: np.ndarray) -> np.ndarray:
        sums_BT = np.zeros((len(valid_BW), n_turns), values_BW.dtype)
        np.add.at(sums_BT, (row_BW[where_BW], turn_BW[where_BW]), values_BW[where_BW])
        return sums_BT

    logprobs_BW = logprobs_BW.astype(np.float64)
    return Scores(
        turn_BT=by_turn(logprobs_BW, valid_BW),
        action_BT=by_turn(logprobs_BW, valid_BW & action_BW),
        tokens_BT=by_turn(valid_BW.astype(int), valid_BW),
    )


@functools.cache
def _program(model: Qwen3Config, width: int, temperature: float, think_ids: tuple[int, int] | None):
    return jax.jit(functools.partial(_score, model, width=width, temperature=temperature, think_ids=think_ids))


def _score(model: Qwen3Config, params: Any, batch: TokenBatch, *, width: int, temperature: float, think_ids):
    positions_BW, valid_BW = positions_from_mask(batch.loss_mask_BL, width)
    hidden_BLD = hidden_states(model, params, batch.tokens_BL, batch.lengths_B)
    logprobs_BW, _ = selected_logprobs(
        model, params, hidden_BLD, batch.tokens_BL, positions_BW, valid_BW, temperature=temperature
    )
    action_BL = ~reasoning_mask(batch.tokens_BL, batch.turn_BL, think_ids)
    pick = functools.partial(jnp.take_along_axis, indices=positions_BW, axis=1)
    return logprobs_BW, pick(batch.turn_BL), pick(action_BL), valid_BW


def reasoning_mask(tokens_BL: jax.Array, turn_BL: jax.Array, think_ids: tuple[int, int] | None) -> jax.Array:
    """Mark reasoning: everything from an opening token to the next closing one, both included; bool [B, L].

    Reasoning that a reply leaves open ends with the reply, as for the task that reads it.
    """
    if think_ids is None:
        return jnp.zeros(tokens_BL.shape, bool)
    column_L = jnp.arange(tokens_BL.shape[1])
    opened_BL, closed_BL = (jax.lax.cummax(jnp.where(tokens_BL == token, column_L, -1), axis=1) for token in think_ids)
    closed_before_BL = jnp.pad(closed_BL, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    begins_BL = jnp.diff(turn_BL, axis=1, prepend=turn_BL[:, :1]) != 0
    piece_BL = jax.lax.cummax(jnp.where(begins_BL, column_L, 0), axis=1)  # where the reply or observation began
    return (opened_BL > closed_before_BL) & (opened_BL >= piece_BL)
