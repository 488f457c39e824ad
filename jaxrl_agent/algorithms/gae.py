"""Generalised advantage estimation by token, by turn and on both levels, and the critic's loss.

All of it takes one row; `jax.vmap` makes a batch of it. Positions outside the mask (observations, templates, padding)
are transparent: value and advantage are carried through them, and a reward that stands on one belongs to the last
masked position before it, so that no reward is lost when a row ends in an observation.
Source: "PPO"; GAE is arXiv 1506.02438, the two-level form VAGEN, arXiv 2510.16907.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl_agent.algorithms.groups import EQUAL_SPREAD

WHITEN_EPSILON = 1e-8


class _Carry(NamedTuple):
    """What flows from later positions to earlier ones."""

    value: jax.Array  # value after this position
    advantage: jax.Array  # advantage of the next masked position
    reward: jax.Array  # rewards seen since that position


def token_gae(
    rewards_L: jax.Array,
    values_L: jax.Array,
    mask_L: jax.Array,
    *,
    gamma: float,
    lam: float,
    bootstrap: jax.Array | float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """Estimate advantages token by token, skipping what the policy did not sample.

    delta_t = r_t + gamma V_next - V_t, A_t = delta_t + gamma lam A_next, `next` being the next masked position;
    returns = A + V, before any whitening.

    Args:
        rewards_L: [L].
        values_L: [L], critic's value before each token.
        mask_L: bool or 0/1 [L], 1 on sampled tokens.
        gamma: discount by token.
        lam: GAE's lambda.
        bootstrap: value after the last token: 0 for a finished episode and for an exhausted budget (the budget is
            part of the task), the critic's value where only batching cut the row.

    Returns:
        advantages float32 [L] and returns float32 [L]. Outside the mask they hold what is carried; mask them.
    """
    rewards_L, values_L, mask_L = _as_row(rewards_L, values_L, mask_L)

    def step(carry: _Carry, inputs):
        reward, value, active = inputs
        reward += carry.reward
        advantage = reward + gamma * carry.value - value + gamma * lam * carry.advantage
        here = _Carry(value, advantage, jnp.zeros_like(reward))
        carry = _select(active, here, carry._replace(reward=reward))
        return carry, carry.advantage

    _, advantages_L = jax.lax.scan(step, _end_of_row(bootstrap), (rewards_L, values_L, mask_L), reverse=True)
    return advantages_L, advantages_L + values_L


def turn_gae(
    rewards_T: jax.Array,
    values_T: jax.Array,
    *,
    gamma: float,
    lam: float,
    bootstrap: jax.Array | float = 0.0,
    mask_T: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Estimate advantages turn by turn; every token of turn k then gets A_k.

    Args:
        rewards_T: [T].
        values_T: [T], critic's value at the start of each turn.
        gamma: discount by turn.
        lam: GAE's lambda.
        bootstrap: value after the last turn; 0 after the last allowed one.
        mask_T: bool [T], turns that took place; all of them by default.

    Returns:
        advantages float32 [T] and returns float32 [T].
    """
    mask_T = jnp.ones(jnp.shape(rewards_T), bool) if mask_T is None else mask_T
    return token_gae(rewards_T, values_T, mask_T, gamma=gamma, lam=lam, bootstrap=bootstrap)


def bilevel_gae(
    rewards_L: jax.Array,
    values_L: jax.Array,
    mask_L: jax.Array,
    turn_ends_L: jax.Array,
    *,
    gamma: float,
    lam: float,
    gamma_turn: float,
    lam_turn: float | None = None,
    bootstrap: jax.Array | float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """Estimate advantages over turns first, then over the tokens of each turn.

    At a turn's last token e_k: A = R_k + gamma_turn V(e_{k+1}) - V(e_k) + gamma_turn lam_turn A(e_{k+1}), R_k being
    the sum of the rewards from e_k up to just before e_{k+1}. At the other tokens of a turn: token-level GAE that
    starts from the advantage at the turn's last token. Returns = A + V.

    Args:
        rewards_L: [L].
        values_L: [L], critic's value at each token.
        mask_L: bool or 0/1 [L], 1 on sampled tokens.
        turn_ends_L: bool or 0/1 [L], 1 on the last sampled token of each turn. Explicit, because ends inferred from
            non-zero rewards merge all turns of a sparse-reward episode into one.
        gamma: discount by token inside a turn.
        lam: GAE's lambda inside a turn.
        gamma_turn: discount by turn.
        lam_turn: GAE's lambda over turns; `lam` by default.
        bootstrap: value after the last token, as in `token_gae`.

    Returns:
        advantages float32 [L] and returns float32 [L]. Outside the mask they hold what is carried; mask them.
    """
    rewards_L, values_L, mask_L = _as_row(rewards_L, values_L, mask_L)
    ends_L = mask_L & jnp.asarray(turn_ends_L, bool)
    lam_turn = lam if lam_turn is None else lam_turn

    def step(carry: tuple[_Carry, _Carry], inputs):
        token, turn = carry
        reward, value, active, ends = inputs
        token, turn = (level._replace(reward=level.reward + reward) for level in (token, turn))
        of_token = token.reward + gamma * token.value - value + gamma * lam * token.advantage
        of_turn = turn.reward + gamma_turn * turn.value - value + gamma_turn * lam_turn * turn.advantage
        here = _Carry(value, jnp.where(ends, of_turn, of_token), jnp.zeros_like(reward))
        token, turn = _select(active, here, token), _select(ends, here, turn)
        return (token, turn), token.advantage

    start = _end_of_row(bootstrap)
    _, advantages_L = jax.lax.scan(step, (start, start), (rewards_L, values_L, mask_L, ends_L), reverse=True)
    return advantages_L, advantages_L + values_L


def whiten(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Shift and scale the masked values to mean 0 and variance 1.

    (x - mean) / sqrt(var + 1e-8), var with ddof 1, over the mask; exactly 0 where they spread by less than 1e-6, since
    the float residue of their mean would come out ten thousand times larger.

    Args:
        values: any shape.
        mask: bool or 0/1, same shape.

    Returns:
        float32, same shape, 0 outside the mask.
    """
    values, mask = jnp.asarray(values, jnp.float32), jnp.asarray(mask, bool)
    chex.assert_equal_shape([values, mask])
    count = jnp.sum(mask)
    centred = values - jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(count, 1)
    centred = jnp.where(mask, centred, 0.0)
    variance = jnp.sum(centred**2) / jnp.maximum(count - 1, 1)
    spread = jnp.max(values, where=mask, initial=-jnp.inf) - jnp.min(values, where=mask, initial=jnp.inf)
    return jnp.where(spread >= EQUAL_SPREAD, centred * jax.lax.rsqrt(variance + WHITEN_EPSILON), 0.0)


def value_token_losses(
    values: jax.Array, old_values: jax.Array, returns: jax.Array, *, clip: float | None = None
) -> jax.Array:
    """Compute the critic's loss at every token.

    max((V - R)^2, (V_old + clip(V - V_old, -clip, clip) - R)^2) / 2. Source: "PPO"; baselines' ppo2.

    Args:
        values: any shape, of the critic that is trained.
        old_values: same shape, of the critic at the start of the update.
        returns: same shape, targets.
        clip: largest move of a value that pays off; None does not clip.

    Returns:
        float32, same shape.
    """
    values, old_values, returns = (jnp.asarray(x, jnp.float32) for x in (values, old_values, returns))
    chex.assert_equal_shape([values, old_values, returns])
    plain = (values - returns) ** 2
    if clip is None:
        return plain / 2
    held = old_values + jnp.clip(values - old_values, -clip, clip)
    return jnp.maximum(plain, (held - returns) ** 2) / 2


def _as_row(rewards_L: jax.Array, values_L: jax.Array, mask_L: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    rewards_L, values_L = (jnp.asarray(x, jnp.float32) for x in (rewards_L, values_L))
    mask_L = jnp.asarray(mask_L, bool)
    chex.assert_rank([rewards_L, values_L, mask_L], 1)
    chex.assert_equal_shape([rewards_L, values_L, mask_L])
    return rewards_L, values_L, mask_L


def _end_of_row(bootstrap: jax.Array | float) -> _Carry:
    zero = jnp.zeros((), jnp.float32)
    return _Carry(jnp.asarray(bootstrap, jnp.float32), zero, zero)


def _select(condition: jax.Array, yes: _Carry, no: _Carry) -> _Carry:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
