"""Token rows while they are being written: right-padded, contiguous, each with its own length."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agent.types import TokenBatch


@struct.dataclass
class TokenRows:
    """B rows of up to L tokens."""

    tokens_BL: jax.Array  # int32, 0 behind the length
    logprobs_BL: jax.Array  # float32, of sampled tokens; 0 elsewhere
    sampled_BL: jax.Array  # bool, written by the policy
    turn_BL: jax.Array  # int32, turn of a sampled token; -1 elsewhere
    lengths_B: jax.Array  # int32, tokens in use


def start_rows(prompts_BW: jax.Array, lengths_B: jax.Array, width: int) -> TokenRows:
    """Begin rows of `width` tokens with right-padded prompts, which must fit."""
    batch, prompt_width = prompts_BW.shape
    tokens_BL = jnp.pad(prompts_BW[:, :width], ((0, 0), (0, max(0, width - prompt_width))))
    return TokenRows(
        tokens_BL=jnp.where(jnp.arange(width) < lengths_B[:, None], tokens_BL, 0),
        logprobs_BL=jnp.zeros((batch, width)),
        sampled_BL=jnp.zeros((batch, width), bool),
        turn_BL=jnp.full((batch, width), -1, jnp.int32),
        lengths_B=lengths_B,
    )


def append(rows: TokenRows, tokens_BO: jax.Array, counts_B: jax.Array, *, turn: jax.Array | None = None) -> TokenRows:
    """Append the first `counts_B` tokens of each row of `tokens_BO`.

    Args:
        rows: rows with room for them.
        tokens_BO: int32, right-padded.
        counts_B: int32; 0 leaves a row as it is.
        turn: None for text that the policy did not write; else the turn of the policy's words (a demonstration).
    """
    offset_O = jnp.arange(tokens_BO.shape[1])
    width = rows.tokens_BL.shape[1]
    target_BO = jnp.where(offset_O < counts_B[:, None], rows.lengths_B[:, None] + offset_O, width)

    def write(row_L, target_O, new_O):
        return row_L.at[target_O].set(new_O, mode="drop")

    rows = rows.replace(
        tokens_BL=jax.vmap(write)(rows.tokens_BL, target_BO, tokens_BO), lengths_B=rows.lengths_B + counts_B
    )
    if turn is None:
        return rows
    mark = jax.vmap(write, in_axes=(0, 0, None))
    return rows.replace(sampled_BL=mark(rows.sampled_BL, target_BO, True), turn_BL=mark(rows.turn_BL, target_BO, turn))


def append_sampled(
    rows: TokenRows, token_B: jax.Array, logprob_B: jax.Array, turn: jax.Array, writing_B: jax.Array
) -> TokenRows:
    """Append one sampled token to the rows marked in `writing_B`; `turn` is one for all or one a row."""
    at_BL = (jnp.arange(rows.tokens_BL.shape[1]) == rows.lengths_B[:, None]) & writing_B[:, None]
    return TokenRows(
        tokens_BL=jnp.where(at_BL, token_B[:, None], rows.tokens_BL),
        logprobs_BL=jnp.where(at_BL, logprob_B[:, None], rows.logprobs_BL),
        sampled_BL=rows.sampled_BL | at_BL,
        turn_BL=jnp.where(at_BL, jnp.reshape(turn, (-1, 1)), rows.turn_BL),
        lengths_B=rows.lengths_B + writing_B,
    )


def to_batch(rows: TokenRows) -> TokenBatch:
    """The finished rows as the learner takes them."""
    return TokenBatch(
        tokens_BL=rows.tokens_BL,
        lengths_B=rows.lengths_B,
        loss_mask_BL=rows.sampled_BL,
        sampler_logprobs_BL=rows.logprobs_BL,
        turn_BL=rows.turn_BL,
    )
