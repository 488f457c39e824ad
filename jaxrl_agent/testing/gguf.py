"""GGUF files for tests: any metadata and tensors, and small models as llama.cpp would write them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from jaxrl_agent.models.qwen3 import Qwen3Config

KINDS = {"float32": 0, "float16": 1, "bfloat16": 30}
"""ggml's numbers of the formats that are not quantised."""

# Numbers of the value types that are written, and struct's codes.
_TYPES = {bool: (7, "?"), int: (4, "I"), float: (6, "f"), str: (8, ""), list: (9, "")}
_NAMES = (
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("input_layernorm", "attn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("model.layers", "blk"),
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
)


class Stored(NamedTuple):
    """A tensor to write."""

    kind: int  # ggml's number of the format
    shape: tuple[int, ...]  # rows first
    content: bytes


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Stored] | None = None) -> Path:
    """Write a file of version 3 and return its path."""
    tensors, alignment = tensors or {}, metadata.get("general.alignment", 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _text(key) + struct.pack("<I", _TYPES[type(value)][0]) + _value(value)
    body = b""
    for key, (kind, shape, content) in tensors.items():
        head += _text(key) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, len(body))
        body += content + bytes(-len(content) % alignment)
    path.write_bytes(head + bytes(-len(head) % alignment) + body)
    return path


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return struct.pack("<IQ", _TYPES[type(value[0])][0], len(value)) + b"".join(map(_value, value))
    return struct.pack(f"<{_TYPES[type(value)][1]}", value)


def model_metadata(config: Qwen3Config) -> dict[str, Any]:
    """What a file says of a model."""
    family = config.model_type
    sizes = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_theta,
    }
    special = {"bos": config.bos_token_id, "eos": config.eos_token_id, "padding": config.pad_token_id}
    return (
        {"general.architecture": family}
        | {f"{family}.{key}": value for key, value in sizes.items()}
        | {f"tokenizer.ggml.{key}_token_id": value for key, value in special.items() if value is not None}
    )


def model_tensors(config: Qwen3Config, folder: Path, dtype: str = "float32") -> dict[str, Stored]:
    """The tensors of a weights folder under llama.cpp's names, Llama's queries and keys in its order.

    Args:
        config: the model's configuration.
        folder: with a single `model.safetensors`.
        dtype: one of KINDS.
    """
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    tensors = {}
    for name, array in load_file(folder / "model.safetensors").items():
        for theirs, ours in _NAMES:
            name = name.replace(theirs, ours)
        part = name.split(".")[-2]
        if config.model_type == "llama" and part in heads:
            halves = array.reshape(heads[part], 2, array.shape[0] // heads[part] // 2, *array.shape[1:])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        stored = np.ascontiguousarray(array.astype(jnp.dtype(dtype)))
        tensors[name] = Stored(KINDS[dtype], array.shape, stored.tobytes())
    return tensors
