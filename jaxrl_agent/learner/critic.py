"""The critic of PPO: a head on the policy's hidden states, or on those of a network of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_agent.algorithms import common
from jaxrl_agent.algorithms.gae import value_token_losses
from jaxrl_agent.learner.packing import TrainingRows
from jaxrl_agent.models.qwen3 import Qwen3Config, hidden_states
from jaxrl_agent.models.value_head import ValueHead, init_value_head


@dataclasses.dataclass(frozen=True)
class CriticSettings:
    """What is fixed for a whole run (static under jit)."""

    head: ValueHead
    separate: bool  # it has a trunk of its own, which starts as a copy of the policy
    coefficient: float  # weight of its loss
    clip: float  # largest move of a value that pays off; 0 does not clip
    warmup: int  # updates in which it alone learns


def init_critic(settings: CriticSettings, model: Qwen3Config, params: Any, key: jax.Array) -> dict[str, Any]:
    """Fresh parameters: "head", and "trunk" where the critic has its own."""
    critic = {"head": init_value_head(settings.head, model.hidden_size, key)}
    return {**critic, "trunk": jax.tree.map(jnp.copy, params)} if settings.separate else critic


def critic_values(
    settings: CriticSettings, model: Qwen3Config, critic: Any, rows: TrainingRows, hidden_BLD: jax.Array
) -> jax.Array:
    """Value in front of every sampled token.

    Args:
        settings: static settings.
        model: shape of the policy, and of a separate trunk.
        critic: parameters.
        rows: B rows.
        hidden_BLD: the policy's hidden states; not read where the trunk is separate.

    Returns:
        float32 [B, W]; anything where no token was sampled.
    """
    if settings.separate:
        hidden_BLD = hidden_states(model, critic["trunk"], rows.tokens_BL, rows.lengths_B)
    before_BW = jnp.maximum(rows.positions_BW - 1, 0)  # what the policy had read when it chose the token
    hidden_BWD = jnp.take_along_axis(hidden_BLD, before_BW[..., None], axis=1)
    return settings.head.apply({"params": critic["head"]}, hidden_BWD, rows.turns_left_BW)


def value_loss(settings: CriticSettings, values_BW: jax.Array, rows: TrainingRows, weights_BW: jax.Array) -> jax.Array:
    """Weighted loss of one micro-batch, without the critic's coefficient.

    Args:
        settings: static settings.
        values_BW: the critic's values.
        rows: with `old_values_BW` and `returns_BW`.
        weights_BW: weight of each value in the mini-batch, see `value_weights`.
    """
    losses_BW = value_token_losses(values_BW, rows.old_values_BW, rows.returns_BW, clip=settings.clip or None)
    return jnp.sum(jnp.where(weights_BW > 0, losses_BW, 0.0) * weights_BW)


def value_weights(rows: TrainingRows) -> jax.Array:
    """One over the values that are asked for in a mini-batch, and 0 elsewhere; float32 [B, W]."""
    return common.aggregation_weights(rows.value_mask_BW, aggregation="token_mean")
