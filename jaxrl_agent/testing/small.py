"""Models, settings and rows so small that a whole run takes seconds."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxrl_agent.config import Config, build_config, default_config
from jaxrl_agent.learner.packing import TrainingRows, score_rows
from jaxrl_agent.models import sizes
from jaxrl_agent.models.qwen3 import Qwen3Config
from jaxrl_agent.parallel.mesh import make_mesh

# Every width divides by 8 where fsdp splits it, and by 2 where tensor does. One layer: rollouts compile twice as fast.
EVEN_MODEL = Qwen3Config(
    vocab_size=62,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=8,
    rope_theta=1e4,
    tie_word_embeddings=True,
    max_position_embeddings=256,
    initializer_range=0.25,
    remat=False,
)
# Hardly any width divides by anything.
ODD_MODEL = dataclasses.replace(
    EVEN_MODEL,
    vocab_size=63,
    hidden_size=12,
    num_hidden_layers=2,
    intermediate_size=21,
    num_attention_heads=3,
    num_key_value_heads=1,
    tie_word_embeddings=False,
)
PRESET = "small"  # name of EVEN_MODEL while `small_preset` is active


@contextlib.contextmanager
def small_preset() -> Iterator[None]:
    """Let `config.model.preset` name EVEN_MODEL; contexts may overlap."""
    before = dict(sizes.PRESETS)
    sizes.PRESETS[PRESET] = EVEN_MODEL
    try:
        yield
    finally:
        if PRESET not in before:
            sizes.PRESETS.pop(PRESET, None)


def small_values(**changes: Any) -> Any:
    """The ConfigDict of a run of seconds: 3x3 lakes, 4 turns, 4 groups of 4; dotted keys (`a__b`) change it."""
    values = default_config()
    settings = {
        "model__preset": PRESET,
        "task__t_max": 4,
        "task__n_train": 8,
        "task__n_test": 6,
        "task__lake__min_size": 3,
        "task__lake__max_size": 3,
        "task__lake__max_holes": 2,
        "rollout__prompts_per_update": 4,
        "rollout__group_size": 4,
        "optimizer__learning_rate": 3e-3,
        "warm_start__updates": 4,
        "warm_start__batch": 8,
        "warm_start__turns": 4,
        "warm_start__log_every": 2,
        "warm_start__checkpoint_every": 2,
        "warm_start__optimizer__warmup": 1,
        "train__updates": 4,
        "train__micro_batch_tokens": 100,
        "train__checkpoint_every": 2,
        "train__trajectories_every": 2,
        "train__stored_trajectories": 3,
        "evaluation__samples": 4,
        **changes,
    }
    with values.unlocked():
        values.update_from_flattened_dict({key.replace("__", "."): value for key, value in settings.items()})
    return values


def small_config(**changes: Any) -> Config:
    """`small_values` as a validated configuration."""
    return build_config(small_values(**changes))


def one_device() -> jax.sharding.Mesh:
    """A mesh of the first device alone, whatever else the process sees."""
    return make_mesh("data:1", jax.devices()[:1])


def random_rows(
    model: Qwen3Config,
    params: Any,
    *,
    rows: int = 8,
    length: int = 24,
    width: int = 8,
    noise: float = 0.3,
    seed: int = 0,
) -> TrainingRows:
    """Rows of random tokens with up to `width` sampled ones each, as numpy arrays.

    Args:
        model: model that scores them.
        params: the policy that is said to have sampled them.
        rows: number of rows.
        length: tokens of the longest row.
        width: most sampled tokens of a row.
        noise: standard deviation of old log-probabilities around the policy's own, so that some ratios are clipped.
        seed: of everything.
    """
    rng = np.random.default_rng(seed)
    lengths_B = rng.integers(width + 2, length + 1, rows)
    positions_BW = np.stack([np.sort(rng.choice(np.arange(1, n), width, replace=False)) for n in lengths_B])
    counts_B = rng.integers(1, width + 1, rows)
    mask_BW = np.arange(width) < counts_B[:, None]
    blank_BW = np.zeros((rows, width), np.float32)
    made = TrainingRows(
        tokens_BL=rng.integers(0, model.vocab_size, (rows, length)).astype(np.int32),
        lengths_B=lengths_B.astype(np.int32),
        positions_BW=positions_BW.astype(np.int32),
        mask_BW=mask_BW,
        advantages_BW=np.where(mask_BW, rng.normal(size=(rows, 1)), 0).astype(np.float32),
        sampler_logprobs_BW=blank_BW,
        old_logprobs_BW=blank_BW,
        ref_logprobs_BW=blank_BW,
        turns_left_BW=np.ones(mask_BW.shape, np.int32),
        old_values_BW=blank_BW,
        returns_BW=blank_BW,
        value_mask_BW=np.zeros(mask_BW.shape, bool),
    )
    logprobs_BW = np.asarray(score_rows(model, params, made, temperature=1.0)[0])

    def near():
        return np.where(mask_BW, logprobs_BW + noise * rng.normal(size=mask_BW.shape), 0).astype(np.float32)

    old_BW = near()
    return made.replace(sampler_logprobs_BW=old_BW, old_logprobs_BW=old_BW, ref_logprobs_BW=near())
