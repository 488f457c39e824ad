"""Make the golden arrays of the Qwen3 port with PyTorch and transformers.

Run from the project's root, `python tests/golden/make_golden.py`; needs the extras `parity`. Each
`qwen3_*.npz` holds a small random model (weights exact in float16), right-padded tokens, and what
transformers makes of them in float32: logits, the summed next-token loss and the norm of every
gradient. The files are made anew only when a case is added or changed.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import transformers

CASES = {
    "qwen3_untied": {
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "qwen3_tied_bias_yarn": {
        "tie_word_embeddings": True,
        "attention_bias": True,
        "num_key_value_heads": 1,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
}
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}
LENGTHS = (24, 17, 1)


def draw_model(generator: torch.Generator, **settings) -> transformers.Qwen3ForCausalLM:
    """Draw weights that float16 holds exactly, with norms around 1 and biases around 0."""
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES | settings)).eval()
    for name, parameter in model.named_parameters():
        centre = float(name.endswith("norm.weight"))
        drawn = centre + 0.2 * torch.randn(parameter.shape, generator=generator)
        parameter.data = drawn.half().float()
    return model


def next_token_loss(logits_BLV: torch.Tensor, tokens_BL: torch.Tensor) -> torch.Tensor:
    """Sum of -log p(next token) over the real tokens of every row."""
    losses_BL = torch.nn.functional.cross_entropy(
        logits_BLV[:, :-1].transpose(1, 2), tokens_BL[:, 1:], reduction="none"
    )
    real_BL = torch.arange(1, max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return (losses_BL * real_BL).sum()


def make_case(name: str, folder: Path) -> None:
    """Write one golden file."""
    generator = torch.Generator().manual_seed(0)
    model = draw_model(generator, **CASES[name])
    tokens_BL = torch.randint(SIZES["vocab_size"], (len(LENGTHS), max(LENGTHS)), generator=generator)
    logits_BLV = model(tokens_BL).logits
    loss = next_token_loss(logits_BLV, tokens_BL)
    loss.backward()
    parameters = dict(model.named_parameters())
    np.savez_compressed(
        folder / f"{name}.npz",
        config=json.dumps(model.config.to_dict()),
        transformers_version=transformers.__version__,
        torch_version=torch.__version__,
        tokens_BL=tokens_BL.numpy().astype(np.int32),
        lengths_B=np.array(LENGTHS, np.int32),
        logits_BLV=logits_BLV.detach().numpy(),
        loss=loss.detach().numpy(),
        **{f"weight/{key}": value.detach().numpy().astype(np.float16) for key, value in parameters.items()},
        **{f"gradient_norm/{key}": value.grad.norm().numpy() for key, value in parameters.items()},
    )


if __name__ == "__main__":
    for case in CASES:
        make_case(case, Path(__file__).parent)
