"""Log-probabilities and entropies of chosen tokens, without ever holding `[B, L, V]` logits.

Two savings, in this order: gather the positions that are wanted (a policy writes a part of its row only), then
project them to the vocabulary a chunk at a time and recompute the chunk in the backward pass.

Beside the package's dimension key: `W` positions gathered from a row, `C` of them in a chunk, `Z` chunks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.models.qwen3 import Params, Qwen3Config, hidden_states, output_logits
from jaxrl_agent.parallel.rules import LOGICAL_AXES, constrain

# Float32 logits of a chunk on one device. A CPU is fastest while they stay near its cache (16 MiB: 27 tokens of
# Qwen3's vocabulary); an accelerator needs enough tokens to pay for reading the head (256 MiB: 441 tokens).
_CHUNK_LOGITS_CPU, _CHUNK_LOGITS = 2**22, 2**26


def token_logprobs(
    config: Qwen3Config, params: Params, tokens_BL: jax.Array, lengths_B: jax.Array, *, temperature: float = 1.0
) -> jax.Array:
    """Score every token of right-padded rows under the policy.

    logprobs[b, l] = log softmax(logits[b, l - 1] / temperature)[tokens[b, l]].

    Args:
        config: the model's configuration.
        params: parameters, layers stacked.
        tokens_BL: int32 token ids, right-padded; any id may stand in the padding.
        lengths_B: int32, tokens in use.
        temperature: static; the temperature that the tokens were sampled at.

    Returns:
        [B, L] float32 (nats); 0 at l = 0, which nothing predicts, and in the padding.

    Raises:
        ArgumentError: temperature not above 0, lengths outside 0 .. L, or a token outside the vocabulary (the last
            two only outside jit, where values can be seen).
    """
    tokens_BL, lengths_B = jnp.asarray(tokens_BL, jnp.int32), jnp.asarray(lengths_B, jnp.int32)
    chex.assert_rank([tokens_BL, lengths_B], [2, 1])
    _check_temperature(temperature)
    _check_rows(config, tokens_BL, lengths_B)
    return _token_logprobs(config, params, tokens_BL, lengths_B, temperature=float(temperature))


@functools.partial(jax.jit, static_argnums=0, static_argnames="temperature")
def _token_logprobs(config, params, tokens_BL, lengths_B, *, temperature):
    rows, length = tokens_BL.shape
    hidden_BLD = hidden_states(config, params, tokens_BL, lengths_B)
    positions_BL = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (rows, length))
    valid_BL = positions_BL < lengths_B[:, None]
    return selected_logprobs(config, params, hidden_BLD, tokens_BL, positions_BL, valid_BL, temperature=temperature)[0]


def selected_logprobs(
    config: Qwen3Config,
    params: Params,
    hidden_BLD: jax.Array,
    tokens_BL: jax.Array,
    positions_BW: jax.Array,
    valid_BW: jax.Array,
    *,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Score the tokens at chosen positions, and the distributions they were drawn from; differentiable.

    logprob = log p[token], entropy = -sum_v p[v] log p[v], p = softmax(logits before the token / temperature).

    Args:
        config: the model's configuration.
        params: parameters; the output head alone is read.
        hidden_BLD: [B, L, D] final hidden states, as `hidden_states` returns them.
        tokens_BL: [B, L] int32 token ids.
        positions_BW: [B, W] int32 in 0 .. L-1, positions of the tokens to score, see `positions_from_mask`.
        valid_BW: [B, W] bool, False on filler.
        temperature: static.
        chunk_tokens: static, tokens whose logits exist at one time, over all devices; chosen by size unless given.

    Returns:
        logprobs_BW and entropy_BW, [B, W] float32 (nats); 0 where `valid_BW` is False or the position is 0.

    Raises:
        ArgumentError: temperature not above 0, chunk_tokens below 1.
    """
    chex.assert_rank([hidden_BLD, tokens_BL, positions_BW], [3, 2, 2])
    chex.assert_equal_shape([positions_BW, valid_BW])
    _check_temperature(temperature)
    rows, width = positions_BW.shape
    columns = _chunk_columns(config.vocab_size, rows, width, chunk_tokens)
    hidden_BWD = jnp.take_along_axis(hidden_BLD, jnp.maximum(positions_BW - 1, 0)[..., None], axis=1, mode="clip")
    hidden_BWD = constrain(hidden_BWD, ("batch", None, None))
    targets_BW = jnp.take_along_axis(tokens_BL, positions_BW, axis=1, mode="clip")
    score = functools.partial(_score, config, _whole_head(config, params), temperature)
    if columns >= width:
        scores_BW = score((hidden_BWD, targets_BW))
    else:
        chunks = (_to_chunks(hidden_BWD, columns), _to_chunks(targets_BW, columns))
        # Without the checkpoint every chunk would leave its logits behind for the backward pass.
        scores_ZBC = jax.lax.map(jax.checkpoint(score, prevent_cse=False), chunks)
        scores_BW = jax.tree.map(lambda values_ZBC: _from_chunks(values_ZBC, width), scores_ZBC)
    wanted_BW = valid_BW & (positions_BW > 0)
    return jax.tree.map(lambda values_BW: jnp.where(wanted_BW, values_BW, 0.0), scores_BW)


def positions_from_mask(loss_mask_BL: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
    """List the positions of the True entries of every row, in order.

    Rows are handled apart, so the batch axis stays split over devices.

    Args:
        loss_mask_BL: [B, L] bool.
        width: static, W; at least the largest number of True entries of a row (see `selection_width`), or the
            last ones are left out.

    Returns:
        positions_BW: [B, W] int32, filler somewhere in the row.
        valid_BW: [B, W] bool, False on filler.

    Raises:
        ArgumentError: width outside 1 .. L.
    """
    chex.assert_rank(loss_mask_BL, 2)
    length = loss_mask_BL.shape[1]
    if not 1 <= width <= length:
        raise ArgumentError(f"width must lie in 1 .. {length}, the length of a row", value=width)
    positions_BL = jnp.argsort(~loss_mask_BL.astype(bool), axis=1, stable=True).astype(jnp.int32)
    counts_B = jnp.sum(loss_mask_BL, axis=1, dtype=jnp.int32)
    return positions_BL[:, :width], jnp.arange(width) < counts_B[:, None]


def selection_width(loss_mask_BL: np.ndarray, *, multiple: int = 32) -> int:
    """Choose the static width for `positions_from_mask`: the fullest row's count, rounded up.

    Args:
        loss_mask_BL: [B, L] bool, on the host.
        multiple: the width is a multiple of it (or L), so that few widths are ever compiled.

    Returns:
        A width in 1 .. L that leaves no True entry out.
    """
    mask_BL = np.asarray(loss_mask_BL, bool)
    fullest = int(mask_BL.sum(axis=1).max(initial=1))
    return min(math.ceil(max(fullest, 1) / multiple) * multiple, mask_BL.shape[1])


def _score(
    config: Qwen3Config, head: Params, temperature: float, chunk: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of the targets and entropy of their distributions, for one chunk."""
    hidden_BCD, targets_BC = chunk
    scaled_BCV = constrain(output_logits(config, head, hidden_BCD) / temperature, ("batch", None, "vocab"))
    shifted_BCV = scaled_BCV - jax.lax.stop_gradient(jnp.max(scaled_BCV, axis=-1, keepdims=True))
    weights_BCV = jnp.exp(shifted_BCV)
    mass_BC = jnp.sum(weights_BCV, axis=-1)
    log_mass_BC = jnp.log(mass_BC)
    # A masked sum instead of a gather: its transpose is no scatter, and a split vocabulary stays split.
    is_target_BCV = jnp.arange(config.vocab_size, dtype=jnp.int32) == targets_BC[..., None]
    target_BC = jnp.sum(jnp.where(is_target_BCV, shifted_BCV, 0.0), axis=-1)
    mean_BC = jnp.sum(weights_BCV * shifted_BCV, axis=-1) / mass_BC
    return target_BC - log_mass_BC, log_mass_BC - mean_BC


def _whole_head(config: Qwen3Config, params: Mapping[str, Any]) -> Params:
    """The output head, gathered over `fsdp` once here rather than once a chunk."""
    if config.tie_word_embeddings:
        return {"embed_tokens": {"embedding": constrain(params["embed_tokens"]["embedding"], ("vocab", None))}}
    return {"lm_head": {"kernel": constrain(params["lm_head"]["kernel"], (None, "vocab"))}}


def _chunk_columns(vocabulary: int, rows: int, width: int, chunk_tokens: int | None) -> int:
    """Columns of `[B, W]` that one chunk holds; cutting columns, not rows, keeps the batch axis split."""
    if chunk_tokens is None:
        mesh = jax.sharding.get_abstract_mesh()
        shards = math.prod(mesh.shape.get(axis, 1) for axis in LOGICAL_AXES["batch"])
        logits = _CHUNK_LOGITS_CPU if jax.default_backend() == "cpu" else _CHUNK_LOGITS
        chunk_tokens = max(1, shards * logits // vocabulary)
    if chunk_tokens < 1:
        raise ArgumentError("chunk_tokens must be at least 1", value=chunk_tokens)
    chunks = math.ceil(width / max(1, chunk_tokens // rows))
    return math.ceil(width / chunks)


def _to_chunks(values_BWx: jax.Array, columns: int) -> jax.Array:
    rows, width, *rest = values_BWx.shape
    padding = ((0, 0), (0, -width % columns)) + ((0, 0),) * len(rest)
    return jnp.moveaxis(jnp.pad(values_BWx, padding).reshape(rows, -1, columns, *rest), 1, 0)


def _from_chunks(chunks_ZBC: jax.Array, width: int) -> jax.Array:
    return jnp.moveaxis(chunks_ZBC, 0, 1).reshape(chunks_ZBC.shape[1], -1)[:, :width]


def _check_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise ArgumentError(
            "temperature must be a finite number above 0",
            value=temperature,
            remedy="Score at the temperature that the tokens were sampled at; greedy rows are scored at 1.",
        )


def _check_rows(config: Qwen3Config, tokens_BL: jax.Array, lengths_B: jax.Array) -> None:
    if isinstance(tokens_BL, jax.core.Tracer) or isinstance(lengths_B, jax.core.Tracer):
        return
    tokens_BL, lengths_B = np.asarray(tokens_BL), np.asarray(lengths_B)
    if ((lengths_B < 0) | (lengths_B > tokens_BL.shape[1])).any():
        raise ArgumentError(f"lengths must lie in 0 .. {tokens_BL.shape[1]}", value=lengths_B.tolist())
    used_BL = np.arange(tokens_BL.shape[1]) < lengths_B[:, None]
    outside = tokens_BL[used_BL & ((tokens_BL < 0) | (tokens_BL >= config.vocab_size))]
    if outside.size:
        raise ArgumentError(
            f"token ids must lie in 0 .. {config.vocab_size - 1}",
            value=sorted(set(outside.tolist()))[:5],
            remedy="Encode the text with the tokenizer that belongs to this model.",
        )
