"""PPO: advantages from a critic's values, by token, by turn, or on both levels."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_agent.algorithms.common import played_turns, turn_advantages_to_tokens
from jaxrl_agent.algorithms.gae import bilevel_gae, token_gae, turn_gae, whiten
from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.types import Rollout

LEVELS = ("token", "turn", "bilevel")


class CriticEstimate(NamedTuple):
    """What an estimator with a critic returns."""

    advantages_BL: jax.Array  # float32, 0 where the loss mask is False
    returns_BL: jax.Array  # float32, what the critic should have said; taken before any whitening
    value_mask_BL: jax.Array  # bool, tokens in front of which the critic is asked


def estimate_ppo(
    rollout: Rollout,
    *,
    values_BL: jax.Array,
    counted_B: jax.Array | None = None,
    level: str = "turn",
    gamma: float = 1.0,
    lam: float = 0.95,
    gamma_turn: float = 1.0,
    lam_turn: float = 0.95,
    whitening: bool = True,
) -> CriticEstimate:
    """Estimate token advantages and the critic's targets of a rollout.

    token    the step is a token: gamma and lam from one sampled token to the next, observations skipped
    turn     the step is a turn: gamma_turn and lam_turn, V in front of the turn's first token, one advantage a turn
    bilevel  over the turns' last tokens first, then over the tokens of each turn

    The value behind the last turn is 0, also where the budget ran out: the budget is part of the task. A turn's reward
    stands on its last token. Source: "PPO".

    Args:
        rollout: finished trajectories.
        values_BL: float32 [B, L], the critic's value in front of each sampled token; anything elsewhere.
        counted_B: bool [B], rows that count; all of them by default.
        level: `token`, `turn` or `bilevel`.
        gamma: discount from token to token.
        lam: GAE's lambda from token to token.
        gamma_turn: discount from turn to turn.
        lam_turn: GAE's lambda from turn to turn.
        whitening: shift and scale the advantages of the batch to mean 0 and variance 1.

    Returns:
        CriticEstimate.

    Raises:
        ArgumentError: unknown `level`.
    """
    if level not in LEVELS:
        raise ArgumentError(f"level must be one of {', '.join(LEVELS)}", value=level)
    batch = rollout.batch
    counted_B = jnp.ones(len(rollout.return_B), bool) if counted_B is None else counted_B
    mask_BL = batch.loss_mask_BL & counted_B[:, None]
    first_BL, last_BL = turn_edges(batch.turn_BL, batch.loss_mask_BL)
    values_BL = jnp.where(batch.loss_mask_BL, values_BL, 0.0)
    rewards_BL = jnp.where(last_BL, _of_turn(rollout.turns.reward_BT, batch.turn_BL), 0.0)
    if level == "turn":
        advantages_BL, returns_BL = _by_turn(rollout, values_BL, first_BL, gamma=gamma_turn, lam=lam_turn)
        value_mask_BL = first_BL & mask_BL
    else:
        over_tokens = functools.partial(token_gae, gamma=gamma, lam=lam)
        if level == "token":
            advantages_BL, returns_BL = jax.vmap(over_tokens)(rewards_BL, values_BL, batch.loss_mask_BL)
        else:
            both = functools.partial(bilevel_gae, gamma=gamma, lam=lam, gamma_turn=gamma_turn, lam_turn=lam_turn)
            advantages_BL, returns_BL = jax.vmap(both)(rewards_BL, values_BL, batch.loss_mask_BL, last_BL)
        value_mask_BL = mask_BL
    if whitening:
        advantages_BL = whiten(advantages_BL, mask_BL)
    return CriticEstimate(
        advantages_BL=jnp.where(mask_BL, advantages_BL, 0.0),
        returns_BL=jnp.where(value_mask_BL, returns_BL, 0.0),
        value_mask_BL=value_mask_BL,
    )


def turn_edges(turn_BL: jax.Array, mask_BL: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mark the first and the last sampled token of each turn; two bool [B, L]."""
    turn_BL = jnp.where(mask_BL, turn_BL, -1)
    before_BL = jnp.pad(turn_BL, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    after_BL = jnp.pad(turn_BL, ((0, 0), (0, 1)), constant_values=-1)[:, 1:]
    return mask_BL & (turn_BL != before_BL), mask_BL & (turn_BL != after_BL)


def _by_turn(rollout: Rollout, values_BL: jax.Array, first_BL: jax.Array, *, gamma: float, lam: float):
    """Advantages and returns turn by turn, laid out over tokens."""
    turns, turn_BL = rollout.turns.reward_BT.shape[1], rollout.batch.turn_BL
    played_BT = played_turns(rollout.n_turns_B, turns)
    values_BT = jax.vmap(lambda turn_L, value_L: jnp.zeros(turns).at[turn_L].add(value_L, mode="drop"))(
        jnp.where(first_BL, turn_BL, turns), values_BL
    )
    estimate = functools.partial(turn_gae, gamma=gamma, lam=lam)
    advantages_BT, returns_BT = jax.vmap(lambda reward_T, value_T, mask_T: estimate(reward_T, value_T, mask_T=mask_T))(
        rollout.turns.reward_BT, values_BT, played_BT
    )
    advantages_BL = turn_advantages_to_tokens(advantages_BT, turn_BL, rollout.batch.loss_mask_BL)
    return advantages_BL, _of_turn(returns_BT, turn_BL)


def _of_turn(values_BT: jax.Array, turn_BL: jax.Array) -> jax.Array:
    return jnp.take_along_axis(values_BT, jnp.maximum(turn_BL, 0), axis=1)
