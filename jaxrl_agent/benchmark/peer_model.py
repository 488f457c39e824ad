"""The policy that peers in PyTorch run: transformers' Qwen3 with the very weights of ours."""

from __future__ import annotations

import tempfile
from typing import Any

from jaxrl_agent.models.hf_weights import save_hf
from jaxrl_agent.models.qwen3 import Params, Qwen3Config


def torch_model(config: Qwen3Config, params: Params) -> Any:
    """Load our weights into transformers, float32.

    Raises:
        ModuleNotFoundError: PyTorch is not installed.
    """
    import torch  # a peer, not a dependency
    from transformers import Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        save_hf(folder, config, params)
        return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
