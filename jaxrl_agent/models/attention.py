"""Attention: causal over whole rows (training) and against a cache (sampling).

Queries come in H heads, keys and values in K <= H heads; query head h reads key/value head
h // (H / K). Scores and softmax are float32 whatever the compute dtype.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_agent.errors import ArgumentError

IMPLEMENTATIONS = ("xla", "cudnn")

# Finite, so that a row that sees nothing yet gives numbers instead of NaN.
_MASKED = -1e30


def causal_attention(q_BLHE: jax.Array, k_BLKE: jax.Array, v_BLKE: jax.Array, *, implementation: str) -> jax.Array:
    """Attend from every position to itself and everything before it.

    softmax(q k^T / sqrt(E)) v. Right padding needs no mask of its own: a real token comes before
    all padding of its row, and what a padded query returns is finite and read by nobody.

    Args:
        q_BLHE: queries.
        k_BLKE: keys.
        v_BLKE: values.
        implementation: "xla", or "cudnn" (flash attention on NVIDIA GPUs, 16-bit dtypes only).

    Returns:
        [B, L, H, E], in the dtype of the values.

    Raises:
        ArgumentError: unknown implementation.
    """
    if implementation == "cudnn":
        return jax.nn.dot_product_attention(q_BLHE, k_BLKE, v_BLKE, is_causal=True, implementation="cudnn")
    if implementation == "xla":
        return _grouped_attention(q_BLHE, k_BLKE, v_BLKE)
    raise ArgumentError(f"attention must be one of {', '.join(IMPLEMENTATIONS)}", value=implementation)


def _grouped_attention(q_BLHE: jax.Array, k_BLKE: jax.Array, v_BLKE: jax.Array) -> jax.Array:
    batch, length, heads, head_dim = q_BLHE.shape
    kv_heads = k_BLKE.shape[2]
    q_BLKGE = q_BLHE.reshape(batch, length, kv_heads, heads // kv_heads, head_dim)
    scores = jnp.einsum("blkge,bmke->bkglm", q_BLKGE, k_BLKE, preferred_element_type=jnp.float32)
    seen_LL = jnp.tri(length, dtype=bool)
    weights = _softmax(scores * head_dim**-0.5, seen_LL).astype(v_BLKE.dtype)
    out_BLKGE = jnp.einsum("bkglm,bmke->blkge", weights, v_BLKE)
    return out_BLKGE.reshape(batch, length, heads, head_dim)


def cached_attention(q_BCHE: jax.Array, key_BKES: jax.Array, value_BKSE: jax.Array, positions_BC: jax.Array):
    """Attend from new tokens to slots 0 .. position of their own row.

    Args:
        q_BCHE: queries of the new tokens.
        key_BKES: keys of one layer, the new tokens' already written.
        value_BKSE: values of one layer, likewise.
        positions_BC: int32 position of each query in its row.

    Returns:
        [B, C, H, E], in the dtype of the values.
    """
    batch, chunk, heads, head_dim = q_BCHE.shape
    _, kv_heads, _, slots = key_BKES.shape
    # Heads of one group and tokens of one chunk share their keys: one matmul for all of them.
    grouped = (batch, kv_heads, heads // kv_heads * chunk, head_dim)
    q_BKQE = q_BCHE.reshape(batch, chunk, kv_heads, -1, head_dim).transpose(0, 2, 3, 1, 4).reshape(grouped)
    scores = jnp.einsum("bkqe,bkes->bkqs", q_BKQE, key_BKES, preferred_element_type=jnp.float32)
    scores = scores.reshape(batch, kv_heads, -1, chunk, slots) * head_dim**-0.5
    seen_BCS = jnp.arange(slots) <= positions_BC[..., None]
    weights = _softmax(scores, seen_BCS[:, None, None]).astype(value_BKSE.dtype)
    out_BKQE = jnp.einsum("bkqs,bkse->bkqe", weights.reshape(*grouped[:3], slots), value_BKSE)
    out_BCKGE = out_BKQE.reshape(batch, kv_heads, -1, chunk, head_dim).transpose(0, 3, 1, 2, 4)
    return out_BCKGE.reshape(batch, chunk, heads, head_dim)


def _softmax(scores: jax.Array, seen: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.where(seen, scores, _MASKED), axis=-1)
