"""Configuration of the model, and its translation from and to Hugging Face's `config.json`.

The dense decoders of three families are one model to us: Qwen3, Qwen2 and Llama differ in what stands around attention.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from jaxrl_agent.errors import ConfigError
from jaxrl_agent.models.attention import IMPLEMENTATIONS
from jaxrl_agent.models.rope import RopeScaling

ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
COMPUTE_DTYPES = ("float32", "bfloat16", "float16")
_NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_RUN_OPTIONS = ("dtype", "remat", "attention")


@dataclasses.dataclass(frozen=True)
class Qwen3Config:
    """Shape of the model under Hugging Face's field names, and how to run it."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 128
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    max_position_embeddings: int = 40960  # tokens
    initializer_range: float = 0.02  # standard deviation of fresh weights
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    pad_token_id: int | None = None
    model_type: str = "qwen3"  # the family, see qk_norm and output_bias
    # How to run it; not part of a weights folder.
    dtype: str = "float32"  # of matmuls and activations; norms, softmax and logits are float32
    remat: bool = True  # recompute layers in the backward pass: less memory, and on CPU less time as well
    attention: str = "xla"  # training attention, see attention.IMPLEMENTATIONS

    def __post_init__(self):
        self.validate()

    def validate(self) -> None:
        """Check what the model needs of its numbers.

        Raises:
            ConfigError: a size that is not positive, heads that do not group, an odd head size, an unknown name.
        """
        for name in (*_NEEDED, "num_key_value_heads", "head_dim", "max_position_embeddings"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name} must be a positive integer", value=value)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                "num_attention_heads must be a multiple of num_key_value_heads",
                value=(self.num_attention_heads, self.num_key_value_heads),
            )
        if self.head_dim % 2:
            raise ConfigError("head_dim must be even: rotary embedding turns pairs", value=self.head_dim)
        if self.rms_norm_eps < 0:
            raise ConfigError("rms_norm_eps must not be negative", value=self.rms_norm_eps)
        if self.rope_theta <= 1:
            raise ConfigError("rope_theta must be above 1", value=self.rope_theta)
        options = (("model_type", ARCHITECTURES), ("dtype", COMPUTE_DTYPES), ("attention", IMPLEMENTATIONS))
        for name, known in options:
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} must be one of {', '.join(known)}", value=getattr(self, name))
        if self.model_type == "qwen2" and not self.attention_bias:
            raise ConfigError("a qwen2 model has biases on queries, keys and values", value="attention_bias=False")
        if self.attention == "cudnn" and self.dtype == "float32":
            raise ConfigError(
                "attention cudnn needs a 16-bit dtype",
                value=self.dtype,
                remedy="Set dtype to bfloat16, or attention to xla.",
            )

    @property
    def compute_dtype(self) -> jnp.dtype:
        """`dtype` as a numpy dtype."""
        return jnp.dtype(self.dtype)

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised, each head by itself."""
        return self.model_type == "qwen3"

    @property
    def output_bias(self) -> bool:
        """Whether the output projection of attention has a bias."""
        return self.attention_bias and self.model_type != "qwen2"

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any], **run_options: Any) -> Qwen3Config:
        """Read a Hugging Face `config.json`, with `rope_theta` and `rope_scaling` or with `rope_parameters`.

        Args:
            hf: the file's content.
            run_options: `dtype`, `remat`, `attention`.

        Raises:
            ConfigError: another model type, a feature this port lacks, or a missing or impossible size.
        """
        _refuse_what_is_not_ported(hf)
        missing = [name for name in _NEEDED if hf.get(name) is None]
        if missing:
            raise ConfigError("config.json must name every size of the model", value=missing)
        ours = {field.name for field in dataclasses.fields(cls)} - {"rope_scaling", *_RUN_OPTIONS}
        values = {name: hf[name] for name in ours if hf.get(name) is not None}
        for name, default in _defaults(hf).items():
            values.setdefault(name, default)
        if isinstance(values.get("eos_token_id"), list):
            values["eos_token_id"] = tuple(values["eos_token_id"])
        rope = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
        values["rope_theta"] = float(rope.get("rope_theta") or hf.get("rope_theta") or 10_000.0)
        values["rope_scaling"] = RopeScaling.from_hf(rope, max_position_embeddings=values["max_position_embeddings"])
        return cls(**values, **run_options)

    def to_hf(self) -> dict[str, Any]:
        """Write a Hugging Face `config.json` that every transformers release with the family reads."""
        hf = dataclasses.asdict(self)
        for name in _RUN_OPTIONS:
            del hf[name]
        eos = self.eos_token_id
        return hf | {
            "architectures": [ARCHITECTURES[self.model_type]],
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            **({"mlp_bias": False} if self.model_type == "llama" else {"use_sliding_window": False}),
            "eos_token_id": list(eos) if isinstance(eos, tuple) else eos,
            "rope_scaling": self.rope_scaling.to_hf() if self.rope_scaling else None,
        }


def _defaults(hf: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers takes where a family's `config.json` says nothing."""
    heads, family = hf["num_attention_heads"], hf["model_type"]
    defaults = {
        "num_key_value_heads": heads,
        "max_position_embeddings": 2048 if family == "llama" else 32768,
        "attention_bias": family == "qwen2",
    }
    if family != "qwen3":
        defaults["head_dim"] = hf["hidden_size"] // heads if isinstance(heads, int) and heads > 0 else 0
    return defaults


def _refuse_what_is_not_ported(hf: Mapping[str, Any]) -> None:
    if hf.get("model_type") not in ARCHITECTURES:
        raise ConfigError(
            f"model_type must be one of {', '.join(ARCHITECTURES)}",
            value=hf.get("model_type"),
            remedy="This port runs dense checkpoints of these families only.",
        )
    if hf.get("hidden_act", "silu") != "silu":
        raise ConfigError("hidden_act must be silu", value=hf["hidden_act"])
    if hf.get("mlp_bias"):
        raise ConfigError("mlp_bias must be false: biases of the MLP are not implemented", value=hf["mlp_bias"])
    layer_types = hf.get("layer_types")
    if layer_types is None and hf.get("use_sliding_window") and hf.get("sliding_window") is not None:
        full_layers = hf.get("max_window_layers", 28)
        layer_types = ["sliding_attention"] * (int(hf.get("num_hidden_layers") or 0) - full_layers)
    others = sorted(set(layer_types or ()) - {"full_attention"})
    if others:
        raise ConfigError(
            "every layer must use full attention", value=others, remedy="Sliding windows are not implemented."
        )
