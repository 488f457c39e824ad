"""Weights of GGUF files under Hugging Face's names and in its layout, dequantised when they are read.

The package `gguf` knows the formats of quantisation; it is asked for when a file is quantised, and not before.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl_agent.errors import ConfigError, WeightsError
from jaxrl_agent.models.gguf_file import GgufFile, GgufTensor

_FAMILIES = ("llama", "qwen2", "qwen3")
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_UNQUANTISED = {0: np.float32, 1: np.float16, 30: jnp.bfloat16}  # by ggml's numbers
_IN_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_SPECIAL = (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
# What a model may say of itself and still be one that is ported; each holds where the file says nothing.
_PLAIN = {
    "expert_count": 0,
    "rope.scaling.type": "none",
    "rope.scale_linear": 1.0,
    "attention.sliding_window": 0,
    "attention.causal": True,
}


def hf_config(file: GgufFile) -> dict[str, Any]:
    """Write what the file says of its model as Hugging Face's `config.json` would.

    Raises:
        ConfigError: another architecture, or a feature that is not implemented.
        WeightsError: the file leaves a size out.
    """
    family = file.metadata.get("general.architecture")
    if family not in _FAMILIES:
        raise ConfigError(f"general.architecture must be one of {', '.join(_FAMILIES)}", value=family)
    for key, plain in _PLAIN.items():
        found = file.metadata.get(f"{family}.{key}", plain)
        if found != plain:
            raise ConfigError(f"{family}.{key} must be {plain}: nothing else is implemented", value=found)
    heads, width = (_stated(file, f"{family}.{key}") for key in ("attention.head_count", "embedding_length"))
    head_dim = file.metadata.get(f"{family}.attention.key_length", width // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        found = file.metadata.get(f"{family}.{key}", head_dim)
        if found != head_dim:
            raise ConfigError(f"{family}.{key} must be the size of a head, {head_dim}", value=found)
    special = {f"{name}_token_id": file.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIAL}
    return special | {
        "model_type": family,
        "vocab_size": _tensor(file, "token_embd.weight").shape[0],
        "hidden_size": width,
        "intermediate_size": _stated(file, f"{family}.feed_forward_length"),
        "num_hidden_layers": _stated(file, f"{family}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.metadata.get(f"{family}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": _decimal(_stated(file, f"{family}.attention.layer_norm_rms_epsilon")),
        "rope_theta": _decimal(file.metadata.get(f"{family}.rope.freq_base", 1e4)),
        "max_position_embeddings": _stated(file, f"{family}.context_length"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
    }


def hf_tensors(file: GgufFile) -> dict[str, LazyTensor]:
    """Name every tensor as Hugging Face does; what has no such name keeps its own.

    Raises:
        WeightsError: the package `gguf` is missing or too old, or a tensor lies beyond the end of the file.
    """
    family = file.metadata["general.architecture"]
    heads = _stated(file, f"{family}.attention.head_count")
    groups = {"attn_q": heads, "attn_k": file.metadata.get(f"{family}.attention.head_count_kv", heads)}
    tensors = {}
    for name, tensor in file.tensors.items():
        part = name.split(".")[-2] if "." in name else name
        order = _row_order(tensor.shape[0], groups[part]) if family == "llama" and part in groups else None
        tensors[_hf_name(name)] = LazyTensor(file, name, tensor, order)
    return tensors


class LazyTensor:
    """A tensor that is read and dequantised where it is indexed, as float32; the protocol of safetensors' slices.

    Args:
        file: where the tensor lies.
        name: its name there.
        tensor: its place.
        order: for each of our rows the file's; None for the same order.

    Raises:
        WeightsError: the tensor lies beyond the end of the file, or its format is unknown.
    """

    def __init__(self, file: GgufFile, name: str, tensor: GgufTensor, order: np.ndarray | None):
        self._shape, self._order = tensor.shape, order
        block, block_bytes, self._read = _format(name, tensor.kind)
        row_bytes = self._shape[-1] // block * block_bytes
        end = tensor.offset + math.prod(self._shape[:-1]) * row_bytes
        if end > file.data.size or self._shape[-1] % block:
            raise WeightsError(
                "a GGUF file must be whole",
                value=f"{file.path}: {name} ends beyond it",
                remedy="Copy or download the file again.",
            )
        self._raw = file.data[tensor.offset : end].reshape(*self._shape[:-1], row_bytes)

    def get_shape(self) -> list[int]:
        """Sizes, rows first."""
        return list(self._shape)

    def get_dtype(self) -> str:
        """Name of the dtype that it is read as."""
        return "F32"

    def __getitem__(self, index: slice | tuple[slice, ...]) -> np.ndarray:
        rows, *others = index if isinstance(index, tuple) else (index,)
        rows = rows if self._order is None else self._order[rows]
        # A copy in any case: a float32 tensor would otherwise be the file itself, which may change on disk.
        if len(self._shape) == 1:
            return np.array(self._read(self._raw)[rows], np.float32)
        return np.array(self._read(self._raw[rows])[:, *others], np.float32)


def _format(name: str, kind: int) -> tuple[int, int, Callable[[np.ndarray], np.ndarray]]:
    """Entries and bytes of a block, and how bytes become numbers."""
    if kind in _UNQUANTISED:
        dtype = np.dtype(_UNQUANTISED[kind])
        return 1, dtype.itemsize, lambda raw: raw.view(dtype)
    gguf = _gguf(name)
    try:
        quantisation = gguf.GGMLQuantizationType(kind)
        block, block_bytes = gguf.GGML_QUANT_SIZES[quantisation]
        gguf.quants.dequantize(np.zeros((1, block_bytes), np.uint8), quantisation)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise WeightsError(
            "the package gguf must know the format of every tensor",
            value=f"{name}: {error}",
            remedy="Install its newest release, or take a file of another quantisation (Q8_0, Q4_K_M, F16).",
        ) from error
    return block, block_bytes, functools.partial(gguf.quants.dequantize, qtype=quantisation)


def _hf_name(name: str) -> str:
    outer, _, suffix = name.rpartition(".")
    if outer in _OUTER:
        return f"{_OUTER[outer]}.{suffix}"
    found = _IN_LAYER.fullmatch(name)
    if found is None or found[2] not in _LAYER:
        return name
    return f"model.layers.{found[1]}.{_LAYER[found[2]]}.{found[3]}"


def _row_order(rows: int, heads: int) -> np.ndarray | None:
    """Undo what llama.cpp does to Llama's queries and keys: it rotates neighbours, we rotate halves of a head."""
    if rows % (2 * heads):
        return None  # misshapen, as whoever compares the shapes will say
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


def _stated(file: GgufFile, key: str) -> Any:
    if key not in file.metadata:
        raise WeightsError(f"a GGUF file must state {key}", value=str(file.path), remedy="Convert the model again.")
    return file.metadata[key]


def _tensor(file: GgufFile, name: str) -> GgufTensor:
    if name not in file.tensors:
        raise WeightsError(f"a GGUF file of a model must hold {name}", value=str(file.path))
    return file.tensors[name]


def _decimal(value: float) -> float:
    """The shortest decimal number that is this float32: 1e-05 instead of 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _gguf(name: str) -> ModuleType:
    try:
        import gguf
    except ImportError as error:
        raise WeightsError(
            "quantised weights of a GGUF file need the package gguf, which is not installed",
            value=name,
            remedy='Install it: pip install gguf (or pip install "jaxrl_agent[gguf]").',
        ) from error
    return gguf
