"""The model of Qwen3, and of the families that its configuration names: parameters, and the two ways to run them.

    forward, hidden_states   whole right-padded rows, no cache (training)
    extend                   a chunk of new tokens against a cache (prefill, observations, decoding)

Parameters are a plain dict under Hugging Face's module names, layer parameters stacked on axis 0:

    {"embed_tokens": {"embedding"}, "layers": {"self_attn": {"q_proj": {"kernel"}, ...}, ...},
     "norm": {"scale"}, "lm_head": {"kernel"} where the head is not tied}
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.models.attention import cached_attention, causal_attention
from jaxrl_agent.models.kv_cache import KVCache, write_slots, write_tokens
from jaxrl_agent.models.qwen3_config import Qwen3Config
from jaxrl_agent.models.rope import rotate, rotation
from jaxrl_agent.parallel.rules import constrain

__all__ = [
    "Params",
    "Qwen3Config",
    "extend",
    "forward",
    "hidden_states",
    "init_params",
    "output_logits",
    "param_axes",
    "unstack_layers",
]

Params = dict[str, Any]

_TOKENS = ("batch", "length", None)
_QUERIES = ("batch", "length", "heads", "head_dim")
_KEYS = ("batch", "length", "kv_heads", "head_dim")

# Modules. `attend` is what differs between training and sampling: (q, k, v) -> (output, its own state).
Attend = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * scale, the statistics in float32."""

    eps: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        wide = x.astype(jnp.float32)
        unit = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return unit.astype(x.dtype) * scale.astype(x.dtype)


def _dense(config: Qwen3Config, features: int, name: str, *, use_bias: bool = False) -> nn.Dense:
    normal = nn.initializers.normal(config.initializer_range)
    return nn.Dense(features, use_bias=use_bias, dtype=config.compute_dtype, kernel_init=normal, name=name)


class SelfAttention(nn.Module):
    """Grouped-query attention; Qwen3 normalises queries and keys (Qwen3 report, section 2)."""

    config: Qwen3Config

    @nn.compact
    def __call__(self, x_BLD: jax.Array, cos_sin: tuple[jax.Array, jax.Array], attend: Attend):
        config = self.config

        def heads_of(name: str, heads: int, axes) -> jax.Array:
            flat = _dense(config, heads * config.head_dim, name, use_bias=config.attention_bias)(x_BLD)
            return constrain(flat.reshape(*x_BLD.shape[:2], heads, config.head_dim), axes)

        q_BLHE = heads_of("q_proj", config.num_attention_heads, _QUERIES)
        k_BLKE = heads_of("k_proj", config.num_key_value_heads, _KEYS)
        v_BLKE = heads_of("v_proj", config.num_key_value_heads, _KEYS)
        if config.qk_norm:
            q_BLHE = RMSNorm(config.rms_norm_eps, name="q_norm")(q_BLHE)
            k_BLKE = RMSNorm(config.rms_norm_eps, name="k_norm")(k_BLKE)
        out_BLHE, state = attend(rotate(q_BLHE, cos_sin), rotate(k_BLKE, cos_sin), v_BLKE)
        flat = out_BLHE.reshape(*x_BLD.shape[:2], -1)
        return _dense(config, config.hidden_size, "o_proj", use_bias=config.output_bias)(flat), state


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    config: Qwen3Config

    @nn.compact
    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        gate_BLF = _dense(self.config, self.config.intermediate_size, "gate_proj")(x_BLD)
        up_BLF = _dense(self.config, self.config.intermediate_size, "up_proj")(x_BLD)
        inner_BLF = constrain(nn.silu(gate_BLF) * up_BLF, ("batch", "length", "mlp"))
        return _dense(self.config, self.config.hidden_size, "down_proj")(inner_BLF)


class DecoderLayer(nn.Module):
    """One pre-norm transformer layer; returns its output and the state of `attend`."""

    config: Qwen3Config

    @nn.compact
    def __call__(self, x_BLD: jax.Array, cos_sin: tuple[jax.Array, jax.Array], attend: Attend):
        eps = self.config.rms_norm_eps
        normed_BLD = RMSNorm(eps, name="input_layernorm")(x_BLD)
        attended_BLD, state = SelfAttention(self.config, name="self_attn")(normed_BLD, cos_sin, attend)
        x_BLD = constrain(x_BLD + attended_BLD, _TOKENS)
        normed_BLD = RMSNorm(eps, name="post_attention_layernorm")(x_BLD)
        return constrain(x_BLD + MLP(self.config, name="mlp")(normed_BLD), _TOKENS), state


def _apply_layer(config: Qwen3Config, layer: Params, x_BLD: jax.Array, cos_sin, attend: Attend):
    return DecoderLayer(config).apply({"params": layer}, x_BLD, cos_sin, attend)


# Parameters.


@functools.partial(jax.jit, static_argnums=0)
def init_params(config: Qwen3Config, key: jax.Array) -> Params:
    """Draw fresh parameters: normal with `initializer_range`, norms 1, biases 0.

    Args:
        config: the model's configuration.
        key: consumed here alone.

    Returns:
        Float32 parameters, layers stacked on axis 0.
    """
    embed_key, layers_key, head_key = jax.random.split(key, 3)
    normal = nn.initializers.normal(config.initializer_range)
    x_BLD = jnp.zeros((1, 1, config.hidden_size), config.compute_dtype)
    cos_sin = rotation(jnp.zeros((1, 1), jnp.int32), config.rope_theta, config.head_dim)

    def pass_queries(q_BLHE, k_BLKE, v_BLKE):
        return q_BLHE, None  # the right shape is all that drawing parameters needs

    def init_layer(layer_key: jax.Array) -> Params:
        return DecoderLayer(config).init(layer_key, x_BLD, cos_sin, pass_queries)["params"]

    params = {
        "embed_tokens": {"embedding": normal(embed_key, (config.vocab_size, config.hidden_size))},
        "layers": jax.vmap(init_layer)(jax.random.split(layers_key, config.num_hidden_layers)),
        "norm": {"scale": jnp.ones(config.hidden_size)},
    }
    if not config.tie_word_embeddings:
        params["lm_head"] = {"kernel": normal(head_key, (config.hidden_size, config.vocab_size))}
    return params


def param_axes(config: Qwen3Config) -> Params:
    """Name the logical axes of every parameter: the tree of `init_params` with tuples for leaves."""
    bias = config.attention_bias

    def dense(inputs: str, outputs: str, *, use_bias: bool = False) -> Params:
        axes = {"kernel": ("layers", inputs, outputs)}
        return axes | {"bias": ("layers", None if outputs == "embed" else outputs)} if use_bias else axes

    norm = {"scale": ("layers", None)}
    axes = {
        "embed_tokens": {"embedding": ("vocab", "embed")},
        "layers": {
            "input_layernorm": norm,
            "self_attn": {
                "q_proj": dense("embed", "heads", use_bias=bias),
                "k_proj": dense("embed", "kv_heads", use_bias=bias),
                "v_proj": dense("embed", "kv_heads", use_bias=bias),
                "o_proj": dense("heads", "embed", use_bias=config.output_bias),
                **({"q_norm": norm, "k_norm": norm} if config.qk_norm else {}),
            },
            "post_attention_layernorm": norm,
            "mlp": {
                "gate_proj": dense("embed", "mlp"),
                "up_proj": dense("embed", "mlp"),
                "down_proj": dense("mlp", "embed"),
            },
        },
        "norm": {"scale": (None,)},
    }
    if not config.tie_word_embeddings:
        axes["lm_head"] = {"kernel": ("embed", "vocab")}
    return axes


def unstack_layers(params: Params) -> Params:
    """Split the stacked layers into a tuple of per-layer dicts, for `extend` on few layers.

    Unrolled layers decode up to half as fast again as a scan on up to about eight layers, provided
    that the cache is per layer too. Do it once a policy update, not once a call: it copies the weights.
    """
    layers = params["layers"]
    count = jax.tree.leaves(layers)[0].shape[0]
    return params | {"layers": tuple(jax.tree.map(lambda leaf, i=i: leaf[i], layers) for i in range(count))}


# Running.


def _embed(config: Qwen3Config, params: Params, tokens: jax.Array, counts: jax.Array) -> jax.Array:
    """Look tokens up; padding becomes token 0, so that any id may stand there."""
    real = jnp.arange(tokens.shape[1]) < counts[:, None]
    table = constrain(params["embed_tokens"]["embedding"], ("vocab", None))
    x_BLD = jnp.take(table, jnp.where(real, tokens, 0), axis=0, mode="clip")
    return constrain(x_BLD.astype(config.compute_dtype), _TOKENS)


def _final_norm(config: Qwen3Config, params: Params, x_BLD: jax.Array) -> jax.Array:
    return RMSNorm(config.rms_norm_eps).apply({"params": params["norm"]}, x_BLD)


def hidden_states(config: Qwen3Config, params: Params, tokens_BL: jax.Array, lengths_B: jax.Array) -> jax.Array:
    """Run whole rows without a cache, up to and including the final norm.

    Args:
        config: the model's configuration.
        params: parameters, layers stacked.
        tokens_BL: int32 token ids, right-padded; any id may stand in the padding.
        lengths_B: int32, tokens in use.

    Returns:
        [B, L, D] in the compute dtype; finite everywhere, of meaning at real tokens only.
    """
    chex.assert_rank([tokens_BL, lengths_B], [2, 1])
    positions_BL = jnp.arange(tokens_BL.shape[1], dtype=jnp.int32)[None]
    cos_sin = rotation(positions_BL, config.rope_theta, config.head_dim, config.rope_scaling)

    def attend(q_BLHE, k_BLKE, v_BLKE):
        return causal_attention(q_BLHE, k_BLKE, v_BLKE, implementation=config.attention), None

    def apply_layer(x_BLD, layer):
        return _apply_layer(config, layer, x_BLD, cos_sin, attend)

    if config.remat:
        # Inside a scan nothing can be merged across layers, so the guard against it is not needed.
        apply_layer = jax.checkpoint(apply_layer, prevent_cse=False)
    x_BLD, _ = jax.lax.scan(apply_layer, _embed(config, params, tokens_BL, lengths_B), params["layers"])
    return _final_norm(config, params, x_BLD)


def output_logits(config: Qwen3Config, params: Params, hidden_xD: jax.Array) -> jax.Array:
    """Project hidden states to float32 logits.

    Args:
        config: the model's configuration.
        params: parameters.
        hidden_xD: final hidden states, any leading axes.

    Returns:
        Float32 logits, the last axis of size V.
    """
    if config.tie_word_embeddings:
        weight, weight_axis = params["embed_tokens"]["embedding"], 1
    else:
        weight, weight_axis = params["lm_head"]["kernel"], 0
    contraction = (((hidden_xD.ndim - 1,), (weight_axis,)), ((), ()))
    return jax.lax.dot_general(
        hidden_xD, weight.astype(hidden_xD.dtype), contraction, preferred_element_type=jnp.float32
    )


@functools.partial(jax.jit, static_argnums=0)
def forward(config: Qwen3Config, params: Params, tokens_BL: jax.Array, lengths_B: jax.Array) -> jax.Array:
    """Compute the logits of whole right-padded rows.

    Args:
        config: the model's configuration.
        params: parameters, layers stacked.
        tokens_BL: int32 token ids, right-padded.
        lengths_B: int32, tokens in use.

    Returns:
        Float32 [B, L, V]; entry l predicts token l + 1.
    """
    logits_BLV = output_logits(config, params, hidden_states(config, params, tokens_BL, lengths_B))
    return constrain(logits_BLV, ("batch", "length", "vocab"))


def extend(
    config: Qwen3Config, params: Params, cache: KVCache, tokens_BC: jax.Array, counts_B: jax.Array
) -> tuple[jax.Array, KVCache]:
    """Append the first `counts_B[b]` tokens of every row to the cache: prefill and append are one operation.

    A new token at position p sees slots 0 .. p of its row. A row with count 0 keeps its cache and length.
    Tokens that find no room are not written and move no length: what they return means nothing.

    Args:
        config: the model's configuration.
        params: parameters, layers stacked like the cache, or both a tuple (see `unstack_layers`).
        cache: what the rows hold so far.
        tokens_BC: int32 token ids, right-padded; C is static.
        counts_B: int32 in 0 .. C, tokens to append.

    Returns:
        Final hidden states [B, C, D] in the compute dtype, of meaning at real tokens, and the new cache.

    Raises:
        ArgumentError: stacked parameters with a per-layer cache, or the reverse.
    """
    chex.assert_rank([tokens_BC, counts_B], [2, 1])
    if cache.stacked == isinstance(params["layers"], tuple):
        raise ArgumentError(
            "parameters and cache must have the same layout",
            value=f"cache stacked: {cache.stacked}",
            remedy="Use unstack_layers(params) with init_cache(..., stacked=False).",
        )
    chunk, slots = tokens_BC.shape[1], cache.slots
    positions_BC = cache.lengths_B[:, None] + jnp.arange(chunk, dtype=jnp.int32)
    slots_BC = write_slots(cache.lengths_B, counts_B, chunk, slots)
    cos_sin = rotation(positions_BC, config.rope_theta, config.head_dim, config.rope_scaling)
    x_BCD = _embed(config, params, tokens_BC, counts_B)
    run_layers = _scan_layers if cache.stacked else _unroll_layers
    x_BCD, key, value = run_layers(config, params["layers"], cache, x_BCD, cos_sin, slots_BC, positions_BC)
    lengths_B = jnp.minimum(cache.lengths_B + counts_B, slots)
    return _final_norm(config, params, x_BCD), KVCache(key=key, value=value, lengths_B=lengths_B)


def _scan_layers(config, layers, cache, x_BCD, cos_sin, slots_BC, positions_BC):
    """The stacked cache rides in the carry and only new tokens are written: nothing is copied."""

    def apply_layer(carry, layer_and_index):
        x_BCD, key, value = carry
        layer, index = layer_and_index

        def attend(q_BCHE, k_BCKE, v_BCKE):
            new_key = write_tokens(key, k_BCKE, slots_BC, slot_axis=-1, layer=index)
            new_value = write_tokens(value, v_BCKE, slots_BC, slot_axis=-2, layer=index)
            key_BKES = jax.lax.dynamic_index_in_dim(new_key, index, keepdims=False)
            value_BKSE = jax.lax.dynamic_index_in_dim(new_value, index, keepdims=False)
            return cached_attention(q_BCHE, key_BKES, value_BKSE, positions_BC), (new_key, new_value)

        x_BCD, (key, value) = _apply_layer(config, layer, x_BCD, cos_sin, attend)
        return (x_BCD, key, value), None

    indices = jnp.arange(config.num_hidden_layers, dtype=jnp.int32)
    return jax.lax.scan(apply_layer, (x_BCD, cache.key, cache.value), (layers, indices))[0]


def _unroll_layers(config, layers, cache, x_BCD, cos_sin, slots_BC, positions_BC):
    written = []
    for layer, key, value in zip(layers, cache.key, cache.value, strict=True):

        def attend(q_BCHE, k_BCKE, v_BCKE, key=key, value=value):
            new_key = write_tokens(key, k_BCKE, slots_BC, slot_axis=-1)
            new_value = write_tokens(value, v_BCKE, slots_BC, slot_axis=-2)
            return cached_attention(q_BCHE, new_key, new_value, positions_BC), (new_key, new_value)

        x_BCD, state = _apply_layer(config, layer, x_BCD, cos_sin, attend)
        written.append(state)
    keys, values = zip(*written, strict=True)
    return x_BCD, keys, values
