"""The policy loss and what it is made of: ratios, clipping, aggregation, KL and importance weights.

Per-token losses and aggregation weights are separate functions, so that micro-batches can share one global
denominator: compute the weights once for the whole batch, slice them along with the rows, and add up
`sum(token_losses * weights)`. The sum over micro-batches then *is* the loss of the whole batch.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl_agent.errors import ArgumentError

AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm")
KL_ESTIMATORS = ("k1", "k2", "k3")
IMPORTANCE_LEVELS = ("token", "sequence", "geometric_mean")
MAX_LOG_RATIO = 20.0  # exp(20) is finite in every float dtype we use
MAX_K3 = 10.0


class TokenLosses(NamedTuple):
    """Surrogate losses before aggregation."""

    loss_BL: jax.Array  # float32, 0 where the loss mask is False
    clipped_BL: jax.Array  # bool, True where a clip replaced the plain surrogate (no gradient from that token)


def token_losses(
    logprobs_BL: jax.Array,
    old_logprobs_BL: jax.Array,
    advantages_BL: jax.Array,
    loss_mask_BL: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
    sequence_ratio: bool = False,
    importance_weights_BL: jax.Array | None = None,
) -> TokenLosses:
    """Compute the clipped surrogate of every token.

    r = exp(clip(logp - old, +-20)); loss = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)); with a dual clip c
    and A < 0 the loss is at most -A c. Source: "GRPO family"; PPO arXiv 1707.06347, clip-higher DAPO 2503.14476,
    dual clip 1912.09729, sequence ratio GSPO 2507.18071 (r of a row = exp(mean over its tokens of logp - old)).

    Args:
        logprobs_BL: float32 [B, L], natural log, of the policy that is trained.
        old_logprobs_BL: float32 [B, L], of the policy at the start of the update.
        advantages_BL: float32 [B, L].
        loss_mask_BL: bool or 0/1 [B, L], 1 on sampled tokens. What stands elsewhere has no influence.
        clip_low: lower clip width, below 1.
        clip_high: upper clip width.
        dual_clip: bound c > 1 on the ratio where A < 0; None for none.
        sequence_ratio: use one ratio for each row (GSPO; its clip widths are 3e-4 and 4e-4).
        importance_weights_BL: float32 [B, L], constant factors such as `truncated_importance_weights`.

    Returns:
        TokenLosses.
    """
    mask_BL = jnp.asarray(loss_mask_BL, bool)
    log_ratio_BL = _masked_difference(logprobs_BL, old_logprobs_BL, mask_BL)
    if sequence_ratio:
        log_ratio_BL = jnp.broadcast_to(_row_mean(log_ratio_BL, mask_BL)[:, None], log_ratio_BL.shape)
    ratio_BL = jnp.exp(jnp.clip(log_ratio_BL, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    advantages_BL = jnp.where(mask_BL, jnp.asarray(advantages_BL, jnp.float32), 0.0)
    plain_BL = -advantages_BL * ratio_BL
    loss_BL = jnp.maximum(plain_BL, -advantages_BL * jnp.clip(ratio_BL, 1.0 - clip_low, 1.0 + clip_high))
    if dual_clip is not None:
        bounded_BL = jnp.minimum(loss_BL, -advantages_BL * dual_clip)
        loss_BL = jnp.where(advantages_BL < 0, bounded_BL, loss_BL)
    clipped_BL = mask_BL & (loss_BL != plain_BL)
    if importance_weights_BL is not None:
        loss_BL *= jax.lax.stop_gradient(jnp.where(mask_BL, jnp.asarray(importance_weights_BL, jnp.float32), 0.0))
    return TokenLosses(loss_BL, clipped_BL)


def aggregation_weights(
    loss_mask_BL: jax.Array,
    *,
    aggregation: str = "token_mean",
    max_length: int | None = None,
) -> jax.Array:
    """Compute the weight that each token's loss has in the loss of the batch.

        token_mean               1 / (tokens in the batch)
        seq_mean_token_mean      1 / (rows * tokens of the row)
        seq_mean_token_sum       1 / rows
        seq_mean_token_sum_norm  1 / (rows * max_length)

    Rows without a single loss token (padding, masked for their stop reason) are not counted in `rows`, so that adding
    such rows moves nothing; a batch without any loss token has weights 0. Source: "GRPO family".

    Args:
        loss_mask_BL: bool or 0/1 [B, L] of the *whole* batch, all micro-batches and devices together.
        aggregation: one of the four names. With mixed budgets, token_mean weighs long budgets by their turns.
        max_length: constant L_max in tokens, for seq_mean_token_sum_norm.

    Returns:
        float32 [B, L], 0 where the loss mask is False.

    Raises:
        ArgumentError: unknown `aggregation`, or seq_mean_token_sum_norm without a positive `max_length`.
    """
    check_aggregation(aggregation, max_length)
    mask_BL = jnp.asarray(loss_mask_BL, bool).astype(jnp.float32)
    chex.assert_rank(mask_BL, 2)
    tokens_B = jnp.sum(mask_BL, axis=1)
    if aggregation == "token_mean":
        return mask_BL / jnp.maximum(jnp.sum(tokens_B), 1.0)
    rows = jnp.maximum(jnp.sum(tokens_B > 0), 1)
    if aggregation == "seq_mean_token_mean":
        return mask_BL / (rows * jnp.maximum(tokens_B, 1.0))[:, None]
    return mask_BL / (rows * (1 if aggregation == "seq_mean_token_sum" else max_length))


def check_aggregation(aggregation: str, max_length: int | None) -> None:
    """Refuse an unknown aggregation, or seq_mean_token_sum_norm without its constant, with ArgumentError."""
    if aggregation not in AGGREGATIONS:
        raise ArgumentError(f"aggregation must be one of {', '.join(AGGREGATIONS)}", value=aggregation)
    if aggregation == "seq_mean_token_sum_norm" and (max_length is None or max_length < 1):
        raise ArgumentError(
            "seq_mean_token_sum_norm needs a positive max_length",
            value=max_length,
            remedy="Pass the largest number of loss tokens that a row can have.",
        )


def aggregate(
    values_BL: jax.Array,
    loss_mask_BL: jax.Array,
    *,
    aggregation: str = "token_mean",
    max_length: int | None = None,
) -> jax.Array:
    """Reduce per-token values to one number; see `aggregation_weights`.

    Args:
        values_BL: float32 [B, L]; what stands outside the mask has no influence, NaN included.
        loss_mask_BL: bool or 0/1 [B, L].
        aggregation: one of the four names.
        max_length: constant L_max in tokens, for seq_mean_token_sum_norm.

    Returns:
        float32 scalar.

    Raises:
        ArgumentError: as `aggregation_weights`.
    """
    weights_BL = aggregation_weights(loss_mask_BL, aggregation=aggregation, max_length=max_length)
    return jnp.sum(jnp.where(weights_BL > 0, values_BL, 0.0) * weights_BL)


def policy_loss(
    logprobs_BL: jax.Array,
    old_logprobs_BL: jax.Array,
    advantages_BL: jax.Array,
    loss_mask_BL: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
    aggregation: str = "token_mean",
    max_length: int | None = None,
    sequence_ratio: bool = False,
    importance_weights_BL: jax.Array | None = None,
) -> jax.Array:
    """Compute the policy loss of one whole batch: `aggregate` of `token_losses`.

    Args:
        logprobs_BL: float32 [B, L], natural log, of the policy that is trained.
        old_logprobs_BL: float32 [B, L], of the policy at the start of the update.
        advantages_BL: float32 [B, L].
        loss_mask_BL: bool or 0/1 [B, L], 1 on sampled tokens.
        clip_low: lower clip width.
        clip_high: upper clip width.
        dual_clip: bound on the ratio where A < 0; None for none.
        aggregation: one of the four names of `aggregation_weights`.
        max_length: constant L_max in tokens, for seq_mean_token_sum_norm.
        sequence_ratio: use one ratio for each row (GSPO).
        importance_weights_BL: float32 [B, L], constant factors.

    Returns:
        float32 scalar.

    Raises:
        ArgumentError: as `aggregation_weights`.
    """
    losses = token_losses(
        logprobs_BL,
        old_logprobs_BL,
        advantages_BL,
        loss_mask_BL,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        sequence_ratio=sequence_ratio,
        importance_weights_BL=importance_weights_BL,
    )
    return aggregate(losses.loss_BL, loss_mask_BL, aggregation=aggregation, max_length=max_length)


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Average `values` where `mask` is set; 0 where it is set nowhere. Serves clip fraction and other shares."""
    mask = jnp.asarray(mask, bool)
    return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask), 1)


def kl(logprobs: jax.Array, ref_logprobs: jax.Array, *, estimator: str = "k3", clamp: float | None = None) -> jax.Array:
    """Estimate KL(policy || reference) from each sampled token.

    With d = ref - logp: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1. k1 and k3 are unbiased on the policy's own
    samples, k3 is never negative. Source: "GRPO family"; J. Schulman, "Approximating KL divergence" (2020).

    Args:
        logprobs: natural log, any shape, of the policy that sampled.
        ref_logprobs: same shape, of the reference policy.
        estimator: `k1`, `k2` or `k3`.
        clamp: bound on |d| before the estimator; None leaves it alone.

    Returns:
        float32, same shape.

    Raises:
        ArgumentError: unknown `estimator`.
    """
    if estimator not in KL_ESTIMATORS:
        raise ArgumentError(f"estimator must be one of {', '.join(KL_ESTIMATORS)}", value=estimator)
    difference = jnp.asarray(ref_logprobs, jnp.float32) - jnp.asarray(logprobs, jnp.float32)
    if clamp is not None:
        difference = jnp.clip(difference, -clamp, clamp)
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return difference**2 / 2
    return jnp.expm1(difference) - difference


def kl_losses(
    logprobs_BL: jax.Array, ref_logprobs_BL: jax.Array, loss_mask_BL: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Compute the bounded k3 of every token, the form that may enter a loss.

    d is clamped to +-20 and k3 to 10: exp overflows otherwise. Where a clamp acts the token gives no gradient, so
    the clamped tokens are marked for counting. Source: "GRPO family".

    Args:
        logprobs_BL: float32 [B, L], natural log, of the policy that is trained.
        ref_logprobs_BL: float32 [B, L], of the reference policy.
        loss_mask_BL: bool or 0/1 [B, L].

    Returns:
        losses float32 [B, L], 0 outside the mask; clamped bool [B, L].
    """
    mask_BL = jnp.asarray(loss_mask_BL, bool)
    difference_BL = _masked_difference(ref_logprobs_BL, logprobs_BL, mask_BL)
    k3_BL = kl(-difference_BL, jnp.zeros_like(difference_BL), clamp=MAX_LOG_RATIO)
    clamped_BL = mask_BL & ((jnp.abs(difference_BL) > MAX_LOG_RATIO) | (k3_BL > MAX_K3))
    return jnp.minimum(k3_BL, MAX_K3), clamped_BL


def importance_weights(
    logprobs_BL: jax.Array, sampler_logprobs_BL: jax.Array, loss_mask_BL: jax.Array, *, level: str = "token"
) -> jax.Array:
    """Compute how much likelier the trainer finds the sampled tokens than the sampler did.

    token: exp(logp - sampler) of each token; sequence: exp of the row's sum; geometric_mean: exp of the row's mean.
    The exponent is clipped to +-20. Source: "Sampler and trainer must agree".

    Args:
        logprobs_BL: float32 [B, L], natural log, by the trainer, at the sampling temperature.
        sampler_logprobs_BL: float32 [B, L], by the sampler.
        loss_mask_BL: bool or 0/1 [B, L].
        level: `token`, `sequence` or `geometric_mean`.

    Returns:
        float32 [B, L], without gradient; 0 outside the mask.

    Raises:
        ArgumentError: unknown `level`.
    """
    if level not in IMPORTANCE_LEVELS:
        raise ArgumentError(f"level must be one of {', '.join(IMPORTANCE_LEVELS)}", value=level)
    mask_BL = jnp.asarray(loss_mask_BL, bool)
    log_ratio_BL = _masked_difference(logprobs_BL, sampler_logprobs_BL, mask_BL)
    if level == "sequence":
        log_ratio_BL = jnp.broadcast_to(jnp.sum(log_ratio_BL, axis=1)[:, None], mask_BL.shape)
    elif level == "geometric_mean":
        log_ratio_BL = jnp.broadcast_to(_row_mean(log_ratio_BL, mask_BL)[:, None], mask_BL.shape)
    weights_BL = jnp.exp(jnp.clip(log_ratio_BL, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    return jax.lax.stop_gradient(jnp.where(mask_BL, weights_BL, 0.0))


def truncated_importance_weights(weights_BL: jax.Array, *, cap: float = 2.0) -> jax.Array:
    """Bound importance weights from above, min(w, cap): truncated importance sampling."""
    return jnp.minimum(weights_BL, cap)


def banded_importance_weights(weights_BL: jax.Array, *, low: float = 0.5, high: float = 5.0) -> jax.Array:
    """Drop tokens whose importance weight lies outside [low, high] (IcePop, arXiv 2510.18855)."""
    return jnp.where((weights_BL >= low) & (weights_BL <= high), weights_BL, 0.0)


def soft_overlong_penalty(lengths: jax.Array, *, max_length: int, buffer: int) -> jax.Array:
    """Compute the reward penalty for replies that come near the token limit.

    0 up to max_length - buffer, then linear down to -1 at max_length. Source: DAPO, arXiv 2503.14476, section 3.4.

    Args:
        lengths: sampled tokens, any shape.
        max_length: token limit.
        buffer: width in tokens of the linear part, 1 or more.

    Returns:
        float32, same shape, within -1..0.
    """
    return jnp.clip((max_length - buffer - jnp.asarray(lengths, jnp.float32)) / buffer, -1.0, 0.0)


def played_turns(n_turns_B: jax.Array, turns: int) -> jax.Array:
    """Mark the turns that took place; bool [B, turns]."""
    return jnp.arange(turns)[None, :] < n_turns_B[:, None]


def trajectory_advantages_to_tokens(advantages_B: jax.Array, loss_mask_BL: jax.Array) -> jax.Array:
    """Give each loss token its trajectory's advantage; 0 elsewhere. [B], [B, L] -> float32 [B, L]."""
    return jnp.where(jnp.asarray(loss_mask_BL, bool), advantages_B[:, None], 0.0)


def turn_advantages_to_tokens(advantages_BT: jax.Array, turn_BL: jax.Array, loss_mask_BL: jax.Array) -> jax.Array:
    """Give each loss token its turn's advantage; 0 elsewhere. [B, T], [B, L], [B, L] -> float32 [B, L]."""
    per_token_BL = jnp.take_along_axis(advantages_BT, jnp.maximum(turn_BL, 0), axis=1)
    return jnp.where(jnp.asarray(loss_mask_BL, bool), per_token_BL, 0.0)


def _masked_difference(a_BL: jax.Array, b_BL: jax.Array, mask_BL: jax.Array) -> jax.Array:
    """Compute a - b in float32, and 0 where the mask is False, whatever stands there."""
    difference_BL = jnp.asarray(a_BL, jnp.float32) - jnp.asarray(b_BL, jnp.float32)
    chex.assert_equal_shape([difference_BL, mask_BL])
    return jnp.where(mask_BL, difference_BL, 0.0)


def _row_mean(values_BL: jax.Array, mask_BL: jax.Array) -> jax.Array:
    """Average each row of values that are already 0 outside the mask."""
    return jnp.sum(values_BL, axis=1) / jnp.maximum(jnp.sum(mask_BL, axis=1), 1)
