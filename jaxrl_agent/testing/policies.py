"""Models whose replies a test can dictate, made of the real network with chosen weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agent.models.qwen3 import Qwen3Config, init_params

SURE = 40.0  # logit that wins against any number of zeros


def leaning_policy(
    logits_VV: np.ndarray, *, noise: float = 0.0, seed: int = 0, **shape: Any
) -> tuple[Qwen3Config, dict[str, Any]]:
    """Make a model whose next token follows the last one by `logits_VV`, more or less.

    Each token has a direction of its own in the residual stream, which the head reads back. Without noise the layers
    add nothing and the logits are the table's; with noise everything before the last token has its say as well.

    Args:
        logits_VV: [V, V], row t holds the logits after token t.
        noise: standard deviation of all random weights.
        seed: of the noise.
        shape: fields of Qwen3Config that are to differ.
    """
    vocab_size = len(logits_VV)
    fields = {
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rope_theta": 1e4,
        "max_position_embeddings": 2048,
    }
    config = Qwen3Config(vocab_size=vocab_size, hidden_size=vocab_size, **fields | shape)
    params = init_params(dataclasses.replace(config, initializer_range=noise), jax.random.key(seed))
    # Embeddings long enough to stand out from what the layers add; the final norm brings them to sqrt(V).
    params["embed_tokens"]["embedding"] += 4 * jnp.eye(vocab_size)
    params["lm_head"]["kernel"] += jnp.asarray(logits_VV / np.sqrt(vocab_size), jnp.float32)
    return config, params


def successions(vocab_size: int, follows: Mapping[int, int]) -> np.ndarray:
    """Logits [V, V] that let `follows[t]` come after token t, and anything after tokens not named."""
    logits_VV = np.zeros((vocab_size, vocab_size))
    for token, following in follows.items():
        logits_VV[token, following] = SURE
    return logits_VV


def babbling_words(tokenizer, actions: tuple[str, ...], *, slip: float = 2.0, seed: int = 0) -> np.ndarray:
    """Logits [V, V] of one who plays every action, mostly in well-formed words.

    Args:
        tokenizer: the tokenizer of words.
        actions: words of the actions.
        slip: the larger, the more often a reply is unusable; about 1 in 10 at 2.
        seed: of the preferences.
    """
    rng = np.random.default_rng(seed)
    action_ids = [tokenizer.encode(name)[0] for name in actions]
    logits_VV = rng.normal(size=(tokenizer.vocab_size,) * 2)
    logits_VV[:, action_ids] += 7 - slip
    logits_VV[action_ids] = rng.normal(size=(len(action_ids), tokenizer.vocab_size))
    logits_VV[action_ids, tokenizer.encode(".")[0]] += 9 - slip
    return logits_VV
