"""Named model sizes: the published Qwen3 models and small ones."""

from __future__ import annotations

import difflib

from jaxrl_agent.errors import ConfigError
from jaxrl_agent.models.qwen3_config import Qwen3Config


def _published(layers: int, hidden: int, mlp: int, heads: int, *, tied: bool) -> Qwen3Config:
    """What all published dense Qwen3 models share is written here once (Qwen3 report, table 1)."""
    return Qwen3Config(
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        rope_theta=1e6,
        tie_word_embeddings=tied,
        max_position_embeddings=40_960,
        bos_token_id=151_643,
        eos_token_id=151_645,
    )


PRESETS: dict[str, Qwen3Config] = {
    "qwen3-0.6b": _published(28, 1024, 3072, 16, tied=True),
    "qwen3-1.7b": _published(28, 2048, 6144, 16, tied=True),
    "qwen3-4b": _published(36, 2560, 9728, 32, tied=True),
    "qwen3-8b": _published(36, 4096, 12288, 32, tied=False),
    "qwen3-14b": _published(40, 5120, 17408, 40, tied=False),
    "qwen3-32b": _published(64, 5120, 25600, 64, tied=False),
    "tiny": Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        rope_theta=1e6,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
    ),
    "lake-tiny": Qwen3Config(
        vocab_size=62,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rope_theta=1e4,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        # 1 / sqrt(width): from Hugging Face's 0.02 so narrow a model does not learn the lake's geometry in time.
        initializer_range=0.125,
    ),
    "code-tiny": Qwen3Config(
        vocab_size=576,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        rope_theta=1e4,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        initializer_range=0.1,  # about 1 / sqrt(width), as above
    ),
}


def get_preset(name: str) -> Qwen3Config:
    """Look a size up by name.

    Raises:
        ConfigError: unknown name; the message gives the nearest known one and all of them.
    """
    if name in PRESETS:
        return PRESETS[name]
    nearest = difflib.get_close_matches(name.lower(), PRESETS, n=1, cutoff=0.0)[0]
    raise ConfigError(
        f"a model size must be one of {', '.join(PRESETS)}", value=name, remedy=f"Did you mean {nearest!r}?"
    )
