"""Sampled tokens a second: preset tiny, prompts of 64 tokens, 128 new ones at temperature 1, prefill included.

    sampler              `rollout.sampler.Sampler.generate`
    transformers         peer: `generate` of the same weights with its default cache, PyTorch

The size is the number of rows. Everything runs in float32.
"""

from __future__ import annotations

import itertools

import jax
import numpy as np

from jaxrl_agent.benchmark.peer_model import torch_model
from jaxrl_agent.benchmark.timing import Contestant
from jaxrl_agent.models.qwen3 import Params, init_params
from jaxrl_agent.models.sizes import PRESETS
from jaxrl_agent.rollout.sampler import generate

UNIT = "sampled tokens"
PRESET = "tiny"
_PROMPT = 64


def contestants(
    n_rows: tuple[int, ...] = (1, 16, 64), *, new_tokens: int = 128, peers: bool = False
) -> dict[str, Contestant]:
    """Build everything that is timed.

    Args:
        n_rows: sizes of a batch.
        new_tokens: sampled by each row in one run.
        peers: also transformers.

    Raises:
        ModuleNotFoundError: `peers` without PyTorch.
    """
    config = PRESETS[PRESET]
    params = init_params(config, jax.random.key(0))
    built = {}
    model = torch_model(config, params).eval() if peers else None
    for n in n_rows:
        prompts = np.random.default_rng(n).integers(3, config.vocab_size, (n, _PROMPT))
        built[f"sampler/{n}"] = _ours(params, prompts, new_tokens)
        if model is not None:
            built[f"transformers/{n}"] = _transformers(model, prompts, new_tokens)
    return built


def _ours(params: Params, prompts: np.ndarray, new_tokens: int) -> Contestant:
    seeds, rows = itertools.count(), prompts.tolist()

    def run() -> object:
        options = {"max_new_tokens": new_tokens, "temperature": 1.0, "seed": next(seeds)}
        return generate(PRESETS[PRESET], params, rows, **options)

    return Contestant(run, len(rows) * new_tokens)


def _transformers(model, prompts: np.ndarray, new_tokens: int) -> Contestant:
    import torch

    tokens = torch.from_numpy(prompts).long()
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 0}
    options |= {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "eos_token_id": None}

    def run() -> object:
        with torch.inference_mode():
            return model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)

    return Contestant(run, len(prompts) * new_tokens)
