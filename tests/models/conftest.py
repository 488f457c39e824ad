"""A reference model of transformers beside ours, with the same weights."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl_agent.models.hf_weights import load_hf
from jaxrl_agent.models.qwen3 import Params, Qwen3Config
from jaxrl_agent.testing import gguf

VOCAB = 97


@dataclasses.dataclass(frozen=True)
class Pair:
    """One model twice: PyTorch's and ours."""

    reference: Any  # transformers' model
    config: Qwen3Config
    params: Params
    folder: Path

    def reference_logits(self, tokens_BL: np.ndarray) -> np.ndarray:
        import torch

        with torch.inference_mode():
            return self.reference(torch.from_numpy(tokens_BL).long()).logits.numpy()


FAMILIES = {"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama"}


def _draw_reference(*, family: str = "qwen3", **overrides: Any):
    """Make a small model whose norms and biases are no longer 1 and 0, so that forgetting one shows."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }
    if family == "qwen2":
        del settings["head_dim"]  # always hidden_size / num_attention_heads
    config = getattr(transformers, f"{FAMILIES[family]}Config")(**settings | overrides)
    model = getattr(transformers, f"{FAMILIES[family]}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = 0.15 * torch.randn(parameter.shape, generator=generator)
        parameter.data = parameter.data * (parameter.ndim == 1) + noise
    return model


@pytest.fixture
def make_pair(tmp_path: Path) -> Callable[..., Pair]:
    """Give a function that draws a reference model, saves it, and loads it with our loader."""

    def make(*, max_shard_size: str = "5GB", **overrides: Any) -> Pair:
        reference = _draw_reference(**overrides)
        folder = tmp_path / f"reference_{len(list(tmp_path.iterdir()))}"
        reference.save_pretrained(folder, max_shard_size=max_shard_size)
        config, params = load_hf(folder)
        return Pair(reference, config, params, folder)

    return make


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Give a function that writes metadata and tensors as a GGUF file."""
    return functools.partial(gguf.write_gguf, tmp_path / "model.gguf")
