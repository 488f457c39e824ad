"""Trained positions a second: one optimizer step, preset tiny, rows of 256 tokens of which the policy wrote half.

    update               `learner.update.update_policy`: clipped policy gradient, clipping by global norm, AdamW
    torch                peer: the same loss on transformers' Qwen3 with the same weights, eager, one batch

The size is the number of rows. Everything runs in float32, on one device.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agent.benchmark.peer_model import torch_model
from jaxrl_agent.benchmark.timing import Contestant
from jaxrl_agent.config import AlgorithmConfig, TrainConfig
from jaxrl_agent.learner.logprobs import token_logprobs
from jaxrl_agent.learner.optimizer import make_optimizer
from jaxrl_agent.learner.packing import TrainingRows
from jaxrl_agent.learner.train_state import new_state
from jaxrl_agent.learner.update import UpdateSettings, update_policy
from jaxrl_agent.models.qwen3 import Params, init_params
from jaxrl_agent.models.sizes import PRESETS
from jaxrl_agent.parallel.mesh import make_mesh

UNIT = "trained positions"
PRESET = "tiny"
_RATE, _DECAY, _CLIP_NORM = 1e-5, 0.01, 1.0
_ALGORITHM = AlgorithmConfig(aggregation="token_mean")


def contestants(n_rows: tuple[int, ...] = (16,), *, length: int = 256, peers: bool = False) -> dict[str, Contestant]:
    """Build everything that is timed; each returns its loss.

    Args:
        n_rows: sizes of a batch.
        length: tokens of a row.
        peers: also PyTorch.

    Raises:
        ModuleNotFoundError: `peers` without PyTorch.
    """
    params = init_params(PRESETS[PRESET], jax.random.key(0))
    built = {}
    for n in n_rows:
        rows = _rows(params, n, length)
        built[f"update/{n}"] = Contestant(_ours(params, rows), n * length)
        if peers:
            built[f"torch/{n}"] = Contestant(_torch(torch_model(PRESETS[PRESET], params).train(), rows), n * length)
    return built


def _rows(params: Params, n: int, length: int) -> TrainingRows:
    """Random rows; the second half of each was sampled by this very policy, and some rows went better than others."""
    config, width = PRESETS[PRESET], length // 2
    tokens_BL = jnp.asarray(np.random.default_rng(1).integers(3, config.vocab_size, (n, length)), jnp.int32)
    lengths_B = jnp.full(n, length, jnp.int32)
    logprobs_BW = token_logprobs(config, params, tokens_BL, lengths_B)[:, width:]
    blank_BW = jnp.zeros_like(logprobs_BW)
    return TrainingRows(
        tokens_BL=tokens_BL,
        lengths_B=lengths_B,
        positions_BW=jnp.broadcast_to(jnp.arange(width, length), (n, length - width)),
        mask_BW=jnp.ones_like(logprobs_BW, bool),
        advantages_BW=jnp.broadcast_to(jnp.linspace(-1.0, 1.0, n)[:, None], logprobs_BW.shape),
        sampler_logprobs_BW=logprobs_BW,
        old_logprobs_BW=logprobs_BW,
        ref_logprobs_BW=blank_BW,
        turns_left_BW=jnp.ones_like(logprobs_BW, jnp.int32),
        old_values_BW=blank_BW,
        returns_BW=blank_BW,
        value_mask_BW=jnp.zeros_like(logprobs_BW, bool),
    )


def _ours(params: Params, rows: TrainingRows) -> Any:
    optimizer, _ = make_optimizer(learning_rate=_RATE, weight_decay=_DECAY, clip_norm=_CLIP_NORM)
    settings = UpdateSettings(
        model=PRESETS[PRESET],
        algorithm=_ALGORITHM,
        optimizer=optimizer,
        temperature=1.0,
        mini_batches=1,
        micro_batch_tokens=TrainConfig().micro_batch_tokens,
    )
    mesh = make_mesh("data:1", jax.devices()[:1])
    step = jax.jit(functools.partial(update_policy, settings), donate_argnums=0)
    keys = map(jax.random.key, itertools.count())
    with jax.set_mesh(mesh):
        held = [jax.jit(functools.partial(new_state, optimizer=optimizer))(params, key=jax.random.key(0))]

    def run() -> float:
        with jax.set_mesh(mesh):
            held[0], metrics = step(held[0], rows, next(keys))
        jax.block_until_ready(held[0].params)
        return float(metrics["loss"])

    return run


def _torch(model: Any, rows: TrainingRows) -> Any:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=_DECAY)
    tokens, old, advantages = (
        torch.from_numpy(np.array(x)) for x in (rows.tokens_BL, rows.old_logprobs_BW, rows.advantages_BW)
    )
    tokens, first = tokens.long(), tokens.shape[1] - old.shape[1]

    def run() -> float:
        optimizer.zero_grad(set_to_none=True)
        logits = model(tokens, use_cache=False).logits[:, first - 1 : -1]
        logprobs = torch.log_softmax(logits, -1).gather(-1, tokens[:, first:, None])[..., 0]
        ratio = (logprobs - old).exp()
        clipped = ratio.clamp(1 - _ALGORITHM.clip_low, 1 + _ALGORITHM.clip_high)
        loss = -torch.min(ratio * advantages, clipped * advantages).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP_NORM)
        optimizer.step()
        return float(loss.detach())

    return run
