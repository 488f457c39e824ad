"""From finished trajectories to what one update trains on: sampled tokens alone, gathered into a static width."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agent.learner.logprobs import positions_from_mask, selected_logprobs
from jaxrl_agent.models.qwen3 import Qwen3Config, hidden_states
from jaxrl_agent.types import Rollout, StopReason

LIMITS = (StopReason.TOKEN_LIMIT, StopReason.CONTEXT_LIMIT)
MACHINERY = (StopReason.ENVIRONMENT_ERROR, StopReason.TIME_LIMIT, StopReason.COULD_NOT_CHECK)


@struct.dataclass
class TrainingRows:
    """Token rows with everything that belongs to their sampled tokens, W of them a row at most.

    Only those positions need log-probabilities, so that nothing of size [B, L, V] is ever made.
    """

    tokens_BL: jax.Array  # int32
    lengths_B: jax.Array  # int32
    positions_BW: jax.Array  # int32, columns of the sampled tokens; anything where there is none
    mask_BW: jax.Array  # bool, tokens in the loss
    advantages_BW: jax.Array  # float32
    sampler_logprobs_BW: jax.Array  # float32, as the sampler computed them
    old_logprobs_BW: jax.Array  # float32, of the same policy; the trainer's own where importance weights are on
    ref_logprobs_BW: jax.Array  # float32, under the reference policy; 0 without one
    turns_left_BW: jax.Array  # int32, turns left at each token, its own included
    old_values_BW: jax.Array  # float32, the critic's at the start of the update; 0 without one
    returns_BW: jax.Array  # float32, what it should have said
    value_mask_BW: jax.Array  # bool, tokens in front of which it is asked


def trained_rows(rollout: Rollout, *, train_on_cut_replies: bool) -> jax.Array:
    """Mark the trajectories that count: bool [B].

    A trajectory that used its budget up counts; its budget is part of the task. One that the token or the context limit
    cut tells nothing about the task, and one that the machinery failed (an environment error, a time limit, a reply
    that could not be checked) nothing about the policy.
    """
    left_out = MACHINERY if train_on_cut_replies else MACHINERY + LIMITS
    return ~jnp.isin(rollout.stop_B, jnp.asarray([reason.code for reason in left_out]))


def pack_rows(rollout: Rollout, advantages_BL: jax.Array, counted_B: jax.Array, width: int) -> TrainingRows:
    """Gather the sampled tokens of each row into its first `width` places.

    Args:
        rollout: finished trajectories.
        advantages_BL: float32, 0 outside the loss mask.
        counted_B: bool, rows that may enter the loss.
        width: most sampled tokens that a row can have (static).
    """
    batch = rollout.batch
    positions_BW, sampled_BW = positions_from_mask(batch.loss_mask_BL, min(width, batch.loss_mask_BL.shape[1]))
    mask_BW = sampled_BW & counted_B[:, None]

    def pick(values_BL):
        return jnp.where(sampled_BW, jnp.take_along_axis(values_BL, positions_BW, axis=1), 0)

    sampler_logprobs_BW = pick(batch.sampler_logprobs_BL)
    blank_BW = jnp.zeros(mask_BW.shape)
    return TrainingRows(
        tokens_BL=batch.tokens_BL,
        lengths_B=batch.lengths_B,
        positions_BW=positions_BW,
        mask_BW=mask_BW,
        advantages_BW=pick(advantages_BL),
        sampler_logprobs_BW=sampler_logprobs_BW,
        old_logprobs_BW=sampler_logprobs_BW,
        ref_logprobs_BW=blank_BW,
        turns_left_BW=pick(rollout.budget_B[:, None] - batch.turn_BL),
        old_values_BW=blank_BW,
        returns_BW=blank_BW,
        value_mask_BW=jnp.zeros(mask_BW.shape, bool),
    )


def gather_tokens(rows: TrainingRows, values_BL: jax.Array) -> jax.Array:
    """Values at the sampled tokens, in the rows' own places: [B, L] -> [B, W]; anything where there is none."""
    return jnp.take_along_axis(values_BL, rows.positions_BW, axis=1)


def scatter_tokens(rows: TrainingRows, rollout: Rollout, values_BW: jax.Array) -> jax.Array:
    """The reverse of `gather_tokens`: [B, W] -> [B, L], 0 where no token was sampled."""
    length = rows.tokens_BL.shape[1]
    counts_B = rollout.batch.loss_mask_BL.sum(axis=1)
    real_BW = jnp.arange(values_BW.shape[1]) < counts_B[:, None]
    place_BW = jnp.where(real_BW, rows.positions_BW, length)
    return jax.vmap(lambda place_W, value_W: jnp.zeros(length).at[place_W].set(value_W, mode="drop"))(
        place_BW, values_BW
    )


def score_rows(
    config: Qwen3Config, params: Any, rows: TrainingRows, *, temperature: float
) -> tuple[jax.Array, jax.Array]:
    """Log-probability and entropy of every token in the loss under `params`: two float32 [B, W], 0 outside the mask."""
    hidden_BLD = hidden_states(config, params, rows.tokens_BL, rows.lengths_B)
    return score_hidden(config, params, rows, hidden_BLD, temperature=temperature)


def score_hidden(
    config: Qwen3Config, params: Any, rows: TrainingRows, hidden_BLD: jax.Array, *, temperature: float
) -> tuple[jax.Array, jax.Array]:
    """`score_rows` with the hidden states at hand."""
    return selected_logprobs(
        config, params, hidden_BLD, rows.tokens_BL, rows.positions_BW, rows.mask_BW, temperature=temperature
    )
