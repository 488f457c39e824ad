"""One policy update: mini-batches of micro-batches, one global denominator each, inside one jitted call."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxrl_agent.algorithms import common
from jaxrl_agent.config import AlgorithmConfig
from jaxrl_agent.learner.critic import CriticSettings, critic_values, value_loss, value_weights
from jaxrl_agent.learner.optimizer import apply_if_finite, hold_policy
from jaxrl_agent.learner.packing import TrainingRows, score_hidden
from jaxrl_agent.learner.train_state import TrainState
from jaxrl_agent.models.qwen3 import Qwen3Config, hidden_states
from jaxrl_agent.parallel.rules import constrain

_WORTH_CUTTING = 256  # tokens of a row; shorter ones are padded by little


@dataclasses.dataclass(frozen=True)
class UpdateSettings:
    """What is fixed for a whole run (static under jit)."""

    model: Qwen3Config
    algorithm: AlgorithmConfig
    optimizer: optax.GradientTransformation
    temperature: float  # of the sampler: both sides speak of the same distribution
    mini_batches: int  # optimizer steps in one update
    micro_batch_tokens: int  # token positions of one gradient piece on one device
    sequence_ratio: bool = False  # one ratio for each row (GSPO)
    critic: CriticSettings | None = None


@struct.dataclass
class _Sums:
    """Sums over tokens of the loss, in float32; divided once at the end."""

    loss: jax.Array
    clipped: jax.Array
    entropy: jax.Array
    behaviour_k3: jax.Array
    reference_k3: jax.Array
    reference_clamped: jax.Array
    tokens: jax.Array
    max_mismatch: jax.Array  # a maximum, not a sum
    mismatch: jax.Array
    value_loss: jax.Array

    def plus(self, other: _Sums) -> _Sums:
        total = jax.tree.map(jnp.add, self, other)
        return total.replace(max_mismatch=jnp.maximum(self.max_mismatch, other.max_mismatch))


def update_policy(
    settings: UpdateSettings, state: TrainState, rows: TrainingRows, key: jax.Array
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Take `mini_batches` optimizer steps on the rows of one rollout.

    Each mini-batch is a random part of the rows; its loss has one denominator over all its micro-batches, so that
    their size changes rounding alone. A step whose loss or gradient is not finite is left out and counted.

    Args:
        settings: static settings.
        state: donated by the caller.
        rows: B rows; `mini_batches` divides B.
        key: consumed by the shuffle.

    Returns:
        The state (update counter untouched) and float32 scalars: loss, grad_norm, clip_fraction, entropy, kl (k3
        against the policy that sampled), reference_kl, reference_kl_clamped (share of tokens),
        sampler_trainer_max_diff and _mean_diff (first mini-batch, where both are the same policy), loss_tokens,
        skipped_steps; with a critic also value_loss and explained_variance (of its values before the update).
    """
    batch = rows.lengths_B.shape[0]
    size = batch // settings.mini_batches
    order_B = jax.random.permutation(key, batch)

    def to_mini(leaf):
        return leaf[order_B].reshape(settings.mini_batches, size, *leaf.shape[1:])

    def one_step(carry, mini: TrainingRows):
        trained, opt_state, skips = carry
        grads, sums = _gradients(settings, trained, mini)
        *stepped, new_skips, grad_norm = apply_if_finite(
            settings.optimizer, trained, opt_state, grads, sums.loss, skips
        )
        if settings.critic is not None:
            stepped = hold_policy(state.update < settings.critic.warmup, (trained, opt_state), tuple(stepped))
        return (*stepped, new_skips), (sums, grad_norm, new_skips.total - skips.total)

    carry = (state.trained, state.opt_state, state.skips)
    (trained, opt_state, skips), (sums_M, norm_M, skipped_M) = jax.lax.scan(
        one_step, carry, jax.tree.map(to_mini, rows)
    )
    tokens = jnp.maximum(sums_M.tokens.sum(), 1)
    first_tokens = jnp.maximum(sums_M.tokens[0], 1)
    metrics = {
        "loss": sums_M.loss.mean(),
        "grad_norm": norm_M.mean(),
        "clip_fraction": sums_M.clipped.sum() / tokens,
        "entropy": sums_M.entropy.sum() / tokens,
        "kl": sums_M.behaviour_k3.sum() / tokens,
        "reference_kl": sums_M.reference_k3.sum() / tokens,
        "reference_kl_clamped": sums_M.reference_clamped.sum() / tokens,
        "sampler_trainer_max_diff": sums_M.max_mismatch[0],
        "sampler_trainer_mean_diff": sums_M.mismatch[0] / first_tokens,
        "loss_tokens": sums_M.tokens.sum(),
        "skipped_steps": skipped_M.sum(),
    }
    if settings.critic is None:
        return state.replace(params=trained, opt_state=opt_state, skips=skips), metrics
    metrics |= {"value_loss": sums_M.value_loss.mean(), "explained_variance": _explained_variance(rows)}
    parts = {"params": trained["policy"], "critic": trained["critic"]}
    return state.replace(**parts, opt_state=opt_state, skips=skips), metrics


def _explained_variance(rows: TrainingRows) -> jax.Array:
    """1 - Var(returns - values) / Var(returns) of the critic at the start of the update; 0 where returns are equal."""

    def variance(values_BW):
        mean = common.masked_mean(values_BW, rows.value_mask_BW)
        return common.masked_mean((values_BW - mean) ** 2, rows.value_mask_BW)

    spread = variance(rows.returns_BW)
    rest = variance(rows.returns_BW - rows.old_values_BW)
    return jnp.where(spread > 0, 1 - rest / jnp.where(spread > 0, spread, 1.0), 0.0)


def micro_batch_rows(rows: int, width: int, tokens: int, shards: int) -> int:
    """Rows of one micro-batch: the largest divisor of `rows` within `tokens` positions a shard, whole shards first.

    Args:
        rows: rows of a mini-batch.
        width: token positions of a row.
        tokens: positions that one device should hold at once.
        shards: devices over which the batch is split.
    """
    most = max(1, tokens // width) * shards
    divisors = [size for size in range(1, rows + 1) if rows % size == 0 and size <= max(most, 1)]
    whole = [size for size in divisors if size % shards == 0]
    return max(whole or divisors)


def split_rows(tree: Any, width: int, settings: UpdateSettings) -> Any:
    """Cut the leading axis of every array into micro-batches, each spread over all devices of the batch.

    Args:
        tree: arrays of B rows.
        width: token positions of a row.
        settings: say how many positions a device should hold at once.
    """
    mesh = jax.sharding.get_abstract_mesh()
    shards = 1 if mesh.empty else mesh.shape.get("data", 1) * mesh.shape.get("fsdp", 1)
    size = micro_batch_rows(jax.tree.leaves(tree)[0].shape[0], width, settings.micro_batch_tokens, shards)

    def split(leaf):
        return constrain(leaf.reshape(-1, size, *leaf.shape[1:]), (None, "batch") + (None,) * (leaf.ndim - 1))

    return jax.tree.map(split, tree)


def row_widths(width: int) -> tuple[int, ...]:
    """Widths that a micro-batch may be cut to: a quarter, a half, and all of it, for rows of 256 tokens and more."""
    return (width // 4, width // 2, width) if width >= _WORTH_CUTTING else (width,)


def _gradients(settings: UpdateSettings, trained: Any, mini: TrainingRows) -> tuple[Any, _Sums]:
    """Sum gradients over micro-batches, so that activations of one of them live at a time.

    Long rows are put together, and each micro-batch is cut to the smallest of a few widths that holds its rows: where
    trajectories differ in length, most of a batch is padding.
    """
    algorithm = settings.algorithm
    weights_BW = common.aggregation_weights(
        mini.mask_BW, aggregation=algorithm.aggregation, max_length=mini.mask_BW.shape[1]
    )
    rows = (mini, weights_BW, value_weights(mini))
    widths = jnp.asarray(row_widths(mini.tokens_BL.shape[1]))
    if len(widths) > 1:
        order_B = jnp.argsort(mini.lengths_B)
        rows = jax.tree.map(lambda leaf: leaf[order_B], rows)
    gradient = jax.value_and_grad(functools.partial(_micro_loss, settings), has_aux=True)

    def at_width(width: int):
        return lambda rows, *weights: gradient(trained, _cut(rows, width), *(leaf[:, :width] for leaf in weights))

    branches = [at_width(width) for width in row_widths(mini.tokens_BL.shape[1])]

    def add(carry, piece):
        grads, sums = carry
        (_, new_sums), new_grads = jax.lax.switch(jnp.searchsorted(widths, piece[0].lengths_B.max()), branches, *piece)
        return (jax.tree.map(jnp.add, grads, new_grads), sums.plus(new_sums)), None

    zero = jnp.float32(0)
    start = (jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), trained), _Sums(*[zero] * 10))
    (grads, sums), _ = jax.lax.scan(add, start, split_rows(rows, mini.tokens_BL.shape[1], settings))
    return grads, sums


def _cut(rows: TrainingRows, width: int) -> TrainingRows:
    """The first `width` columns; sampled tokens stand at the front, and a row has no more of them than tokens."""
    cut = jax.tree.map(lambda leaf: leaf[:, :width] if leaf.ndim > 1 else leaf, rows)
    return cut.replace(positions_BW=jnp.minimum(cut.positions_BW, width - 1))


def _micro_loss(settings: UpdateSettings, trained: Any, rows: TrainingRows, weights_BW, value_weights_BW):
    """Weighted loss of one micro-batch; summed over micro-batches it is the mini-batch's loss."""
    algorithm, critic = settings.algorithm, settings.critic
    mask_BW = rows.mask_BW
    params = trained if critic is None else trained["policy"]
    hidden_BLD = hidden_states(settings.model, params, rows.tokens_BL, rows.lengths_B)
    logprobs_BW, entropy_BW = score_hidden(settings.model, params, rows, hidden_BLD, temperature=settings.temperature)
    importance_BW = None
    if algorithm.importance_cap > 0:
        raw_BW = common.importance_weights(rows.old_logprobs_BW, rows.sampler_logprobs_BW, mask_BW)
        importance_BW = common.truncated_importance_weights(raw_BW, cap=algorithm.importance_cap)
    losses = common.token_losses(
        logprobs_BW,
        rows.old_logprobs_BW,
        rows.advantages_BW,
        mask_BW,
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        dual_clip=algorithm.dual_clip or None,
        sequence_ratio=settings.sequence_ratio,
        importance_weights_BL=importance_BW,
    )
    total_BW = losses.loss_BL - algorithm.entropy_coefficient * jnp.where(mask_BW, entropy_BW, 0.0)
    reference_k3_BW, clamped_BW = jnp.zeros_like(total_BW), jnp.zeros_like(mask_BW)
    if algorithm.kl_coefficient > 0:
        reference_k3_BW, clamped_BW = common.kl_losses(logprobs_BW, rows.ref_logprobs_BW, mask_BW)
        total_BW += algorithm.kl_coefficient * reference_k3_BW
    loss = jnp.sum(total_BW * weights_BW)
    critic_loss = jnp.float32(0)
    if critic is not None:
        values_BW = critic_values(critic, settings.model, trained["critic"], rows, hidden_BLD)
        critic_loss = value_loss(critic, values_BW, rows, value_weights_BW)
        loss += critic.coefficient * critic_loss

    def total(values_BW):
        return jnp.sum(jnp.where(mask_BW, jax.lax.stop_gradient(values_BW), 0.0).astype(jnp.float32))

    difference_BW = jnp.where(mask_BW, jnp.abs(logprobs_BW - rows.sampler_logprobs_BW), 0.0)
    return loss, _Sums(
        loss=jax.lax.stop_gradient(loss),
        clipped=total(losses.clipped_BL),
        entropy=total(entropy_BW),
        behaviour_k3=total(common.kl(logprobs_BW, rows.sampler_logprobs_BW)),
        reference_k3=total(reference_k3_BW),
        reference_clamped=total(clamped_BW),
        tokens=total(jnp.ones_like(total_BW)),
        max_mismatch=jax.lax.stop_gradient(difference_BW.max()),
        mismatch=total(difference_BW),
        value_loss=jax.lax.stop_gradient(critic_loss),
    )
