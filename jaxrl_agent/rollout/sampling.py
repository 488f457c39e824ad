"""Choose tokens from logits with one uniform number a row.

Everything works in two levels: the vocabulary is cut into `I` blocks of `J` entries (`V <= I * J`, the rest holds
-inf), a block is chosen from one number a block, then an entry within it. On CPU this makes argmax and sampling
ten times faster than a flat pass.
"""

from __future__ import annotations

import math

import chex
import jax
import jax.numpy as jnp

from jaxrl_agent.errors import ArgumentError

_BLOCK = 128  # entries of a block; Qwen3's 151,936 entries are 1,187 blocks without padding
_COLDEST = 1e-6  # smaller temperatures are greedy decoding in float32; below 1e-38 they would divide by 0


def row_keys(base_key: jax.Array, row_ids_B: jax.Array) -> jax.Array:
    """Make one random key a row out of the row's identity alone.

    key_b = fold_in(base_key, row_ids_B[b]), so a row draws the same numbers alone and in any batch.

    Args:
        base_key: typed key of the whole call.
        row_ids_B: [B] integers in 0 .. 2**32 - 1, equal ids give equal keys.

    Returns:
        [B] typed keys.
    """
    chex.assert_rank(row_ids_B, 1)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(base_key, row_ids_B)


def uniforms(row_keys_B: jax.Array, positions_B: jax.Array) -> jax.Array:
    """Draw the number that decides the token at each row's position.

    u_b = uniform(fold_in(row_keys_B[b], positions_B[b])): how a reply is cut into calls, windows or turns
    does not matter.

    Args:
        row_keys_B: [B] typed keys from `row_keys`; not consumed, every position folds its own number in.
        positions_B: [B] int32, index in the row of the token to be drawn.

    Returns:
        [B] float32 in [0, 1), a multiple of 2**-23.
    """
    chex.assert_equal_shape([row_keys_B, positions_B])
    return jax.vmap(lambda key, position: jax.random.uniform(jax.random.fold_in(key, position)))(
        row_keys_B, positions_B
    )


def check_sampling(temperature: float, top_k: int = 0, top_p: float = 1.0) -> None:
    """Refuse sampling settings that have no meaning.

    Raises:
        ArgumentError: temperature negative, tiny or not finite, top_k negative, top_p outside (0, 1].
    """
    if not (temperature == 0 or _COLDEST <= temperature < math.inf):
        raise ArgumentError(
            f"temperature must be 0 or a finite number of at least {_COLDEST}",
            value=temperature,
            remedy="Use 0 for greedy decoding.",
        )
    if top_k < 0 or top_k != int(top_k):
        raise ArgumentError("top_k must be a whole number of at least 0", value=top_k, remedy="Use 0 to switch it off.")
    if not 0 < top_p <= 1:
        raise ArgumentError("top_p must lie in (0, 1]", value=top_p, remedy="Use 1.0 to switch it off.")


def sample_tokens(
    logits_BV: jax.Array, uniforms_B: jax.Array, *, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    """Draw one token a row by inverting the cumulative distribution.

    token = min {v : sum_{w <= v} p_w > u}, p = softmax(logits / temperature) restricted to the top k entries and
    then to the smallest set of those that holds a share `top_p` of their mass (nucleus sampling, Holtzman et al.
    2020, section 3.1). Entries of equal value rank by index, so `top_k=1` is greedy decoding. Without top-k and
    top-p nothing is sorted. An entry of probability 0 is never drawn, whatever rounding does.

    Args:
        logits_BV: [B, V] float32; -inf forbids an entry.
        uniforms_B: [B] float32 in [0, 1].
        temperature: static; 0 takes the first maximum.
        top_k: static, number of entries kept; 0 keeps all.
        top_p: static, share of mass kept, in (0, 1].

    Returns:
        tokens_B: [B] int32.
        logprobs_B: [B] float32, log-probability (nats) of the token under the temperature-scaled distribution
            before top-k and top-p; at temperature 0 under the distribution of temperature 1. NaN exactly where
            a row of logits holds NaN, +inf, or nothing but -inf.

    Raises:
        ArgumentError: settings that `check_sampling` refuses.
    """
    check_sampling(temperature, top_k, top_p)
    chex.assert_rank([logits_BV, uniforms_B], [2, 1])
    chex.assert_type(logits_BV, jnp.float32)
    blocks_BIJ = _blocks(logits_BV)
    peak_BI = jnp.max(blocks_BIJ, axis=-1)
    peak_B = jnp.max(peak_BI, axis=-1)
    # Dividing after the subtraction keeps the largest entry at 0 however small the temperature is.
    scaled_BIJ = (blocks_BIJ - peak_B[:, None, None]) / (temperature or 1.0)
    mass_BI = jnp.sum(jnp.exp(scaled_BIJ), axis=-1)
    total_B = jnp.sum(mass_BI, axis=-1)
    if temperature == 0:
        block_B = _first(peak_BI == peak_B[:, None])
        entry_B = _first(_take(blocks_BIJ, block_B) == peak_B[:, None])
    elif top_k or top_p < 1:
        kept_BIJ = _keep(scaled_BIJ, top_k, top_p)
        block_B, entry_B = _invert(kept_BIJ, jnp.sum(jnp.exp(kept_BIJ), axis=-1), uniforms_B)
    else:
        block_B, entry_B = _invert(scaled_BIJ, mass_BI, uniforms_B)
    chosen_B = _take(_take(scaled_BIJ, block_B), entry_B)
    tokens_B = jnp.minimum(block_B * blocks_BIJ.shape[-1] + entry_B, logits_BV.shape[-1] - 1)  # NaN finds no entry
    return tokens_B, chosen_B - jnp.log(total_B)


def _blocks(logits_BV: jax.Array) -> jax.Array:
    rows, vocabulary = logits_BV.shape
    size = min(vocabulary, _BLOCK)
    padding = -vocabulary % size
    padded_BV = jnp.pad(logits_BV, ((0, 0), (0, padding)), constant_values=-jnp.inf) if padding else logits_BV
    return padded_BV.reshape(rows, -1, size)


def _take(values_BN: jax.Array, index_B: jax.Array) -> jax.Array:
    """Entry `index_B[b]` of row b along axis 1, whatever axes follow."""
    shape = (-1,) + (1,) * (values_BN.ndim - 1)
    return jnp.take_along_axis(values_BN, index_B.reshape(shape), axis=1, mode="clip").squeeze(1)


def _first(hit_BN: jax.Array) -> jax.Array:
    """Index of the first True; the last index where there is none."""
    last = hit_BN.shape[-1] - 1
    return jnp.min(jnp.where(hit_BN, jnp.arange(last + 1, dtype=jnp.int32), last), axis=-1)


def _invert(scaled_BIJ: jax.Array, mass_BI: jax.Array, uniforms_B: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return block and entry that each uniform falls on, where `mass_BI` sums the weights exp(scaled)."""
    block_B, rest_B = _locate(mass_BI, uniforms_B * jnp.sum(mass_BI, axis=-1))
    entry_B, _ = _locate(jnp.exp(_take(scaled_BIJ, block_B)), rest_B)
    return block_B, entry_B


def _locate(weights_BN: jax.Array, target_B: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Find the entry whose stretch of the cumulative sum holds the target, and how far into it that is.

    Rounding may make the cumulative sum dip, rise over an entry of weight 0, or end at or below the target; hence
    only entries of positive weight count, and the last of them takes whatever lies beyond.
    """
    cumulative_BN = jnp.cumsum(weights_BN, axis=-1)
    positive_BN = weights_BN > 0
    index_N = jnp.arange(weights_BN.shape[-1], dtype=jnp.int32)
    last_B = jnp.max(jnp.where(positive_BN, index_N, 0), axis=-1)
    index_B = jnp.minimum(_first(positive_BN & (cumulative_BN > target_B[:, None])), last_B)
    return index_B, target_B - jnp.where(index_B > 0, _take(cumulative_BN, jnp.maximum(index_B - 1, 0)), 0)


def _keep(scaled_BIJ: jax.Array, top_k: int, top_p: float) -> jax.Array:
    """Set all entries but those that top-k, then top-p, keep to -inf."""
    scaled_BV = scaled_BIJ.reshape(len(scaled_BIJ), -1)
    if 0 < top_k < scaled_BV.shape[-1]:
        keep_BV = _within_top_k(scaled_BV, top_k, top_p)
    elif top_p < 1:
        keep_BV = _within_top_p(scaled_BV, top_p)
    else:
        return scaled_BIJ
    return jnp.where(keep_BV, scaled_BV, -jnp.inf).reshape(scaled_BIJ.shape)


def _within_top_k(scaled_BV: jax.Array, top_k: int, top_p: float) -> jax.Array:
    """Mark the k largest entries, or the smallest set of largest ones among them with a share `top_p` of their mass."""
    # The barrier keeps XLA from turning a sliced top_k into a full sort (80 times slower on CPU).
    values_BK, index_BK = jax.lax.optimization_barrier(jax.lax.top_k(scaled_BV, top_k))
    cumulative_BK = jnp.cumsum(jnp.exp(values_BK), axis=-1)
    last_B = jnp.sum(cumulative_BK < top_p * cumulative_BK[:, -1:], axis=-1) if top_p < 1 else top_k - 1
    last_B = jnp.full(len(scaled_BV), last_B)
    bound_B, index_B = _take(values_BK, last_B), _take(index_BK, last_B)
    tied_BV = (scaled_BV == bound_B[:, None]) & (jnp.arange(scaled_BV.shape[-1]) <= index_B[:, None])
    return (scaled_BV > bound_B[:, None]) | tied_BV


def _within_top_p(scaled_BV: jax.Array, top_p: float) -> jax.Array:
    """Mark the smallest set of largest entries that holds a share `top_p` of the mass.

    The bound is found bit by bit instead of by a sort of the vocabulary: 32 sums, eight times faster on CPU.
    """
    order_BV = _order(scaled_BV)
    weights_BV = jnp.exp(scaled_BV)
    wanted_B = top_p * jnp.sum(weights_BV, axis=-1)

    def mass(marked_BV: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(marked_BV, weights_BV, 0), axis=-1)

    def set_bit(i: jax.Array, bound_B: jax.Array) -> jax.Array:
        higher_B = bound_B | (jnp.uint32(1 << 31) >> i.astype(jnp.uint32))
        return jnp.where(mass(order_BV >= higher_B[:, None]) >= wanted_B, higher_B, bound_B)

    bound_B = jax.lax.fori_loop(0, 32, set_bit, jnp.zeros(len(scaled_BV), jnp.uint32))
    above_BV, tied_BV = order_BV > bound_B[:, None], order_BV == bound_B[:, None]
    weight_B = jnp.max(jnp.where(tied_BV, weights_BV, 0), axis=-1)
    places_B = jnp.maximum(jnp.ceil((wanted_B - mass(above_BV)) / weight_B), 1)
    return above_BV | (tied_BV & (jnp.cumsum(tied_BV, axis=-1) <= places_B[:, None]))


def _order(values_BV: jax.Array) -> jax.Array:
    """Map float32 to uint32 so that integers compare as the floats do."""
    bits_BV = jax.lax.bitcast_convert_type(jnp.where(values_BV == 0, 0.0, values_BV), jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits_BV >= sign, ~bits_BV, bits_BV | sign)
