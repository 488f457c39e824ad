"""The training step as pure functions of (state, key): draw groups and budgets, roll out, update.

`train_step` is the whole; the trainer calls its two halves, `roll_out` and `learn`, as two jitted programs, so that
each can be timed.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_agent.algorithms import common
from jaxrl_agent.learner.critic import critic_values
from jaxrl_agent.learner.experience import Experience, StepSettings, paid_rollout, roll_out, update_keys
from jaxrl_agent.learner.packing import TrainingRows, gather_tokens, pack_rows, scatter_tokens, score_rows
from jaxrl_agent.learner.train_state import TrainState
from jaxrl_agent.learner.update import UpdateSettings, split_rows, update_policy
from jaxrl_agent.models.qwen3 import hidden_states
from jaxrl_agent.rollout.budget import N_LEVELS, track_headroom
from jaxrl_agent.types import Rollout

__all__ = ["Experience", "StepSettings", "gradient_shares", "learn", "prepare_rows", "roll_out", "train_step"]


def learn(
    settings: StepSettings, state: TrainState, experience: Experience, ref_params: Any = None
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Update the policy on one rollout; pure.

    Args:
        settings: static settings.
        state: state that the rollout was sampled from.
        experience: from `roll_out`.
        ref_params: the reference policy, needed if the KL coefficient is above 0.
    """
    rollout, fraction_P = experience.rollout, experience.fraction_P
    rows = prepare_rows(settings, rollout, state, ref_params)
    if settings.balance:
        rows = balance_budgets(settings, rows, fraction_P)
    state, metrics = update_policy(settings.update, state, rows, update_keys(state)[2])
    metrics["gradient_share_by_budget"] = gradient_shares(settings, rows, fraction_P)
    headroom_F = track_headroom(state.headroom_F, fraction_P, experience.gap_P)
    metrics["headroom_by_budget"] = headroom_F
    cursor = state.cursor + experience.drawn
    return state.replace(update=state.update + 1, cursor=cursor, headroom_F=headroom_F), metrics


def train_step(
    settings: StepSettings, state: TrainState, data: Any, ref_params: Any = None
) -> tuple[TrainState, Experience, dict[str, jax.Array]]:
    """One whole update as one pure function, to be jitted, scanned or mapped over seeds and settings."""
    experience = roll_out(settings, state, data)
    state, metrics = learn(settings, state, experience, ref_params)
    return state, experience, metrics


def prepare_rows(settings: StepSettings, rollout: Rollout, state: TrainState, ref_params: Any = None) -> TrainingRows:
    """Gather to the sampled tokens what the loss needs.

    The trainer's own log-probabilities at the start of the update are computed where importance weights correct the
    sampler by them, the reference policy's where a KL term asks for them, and the critic's values where there is one.
    """
    update = settings.update
    rollout, counted_B = paid_rollout(settings, rollout)
    width = settings.task.t_max * settings.task.max_tokens
    if update.critic is None:
        rows = pack_rows(rollout, settings.estimator(rollout, counted_B=counted_B), counted_B, width=width)
    else:
        rows = _criticised_rows(settings, rollout, counted_B, state, width)
    if update.algorithm.importance_cap > 0:
        rows = rows.replace(old_logprobs_BW=_score_in_pieces(update, state.params, rows))
    if update.algorithm.kl_coefficient > 0:
        rows = rows.replace(ref_logprobs_BW=_score_in_pieces(update, ref_params, rows))
    return rows


def _criticised_rows(
    settings: StepSettings, rollout: Rollout, counted_B: jax.Array, state: TrainState, width: int
) -> TrainingRows:
    """Rows with advantages from the critic's values, and with what it is to learn."""
    update = settings.update
    rows = pack_rows(rollout, jnp.zeros(rollout.batch.tokens_BL.shape), counted_B, width=width)

    def value(part: TrainingRows) -> jax.Array:
        hidden_BLD = hidden_states(update.model, state.params, part.tokens_BL, part.lengths_B)
        return critic_values(update.critic, update.model, state.critic, part, hidden_BLD)

    values_BW = _in_pieces(update, value, rows)
    values_BL = scatter_tokens(rows, rollout, values_BW)
    found = settings.estimator(rollout, counted_B=counted_B, values_BL=values_BL)
    sampled_BW = rows.mask_BW
    return rows.replace(
        advantages_BW=jnp.where(sampled_BW, gather_tokens(rows, found.advantages_BL), 0.0),
        old_values_BW=values_BW,
        returns_BW=gather_tokens(rows, found.returns_BL),
        value_mask_BW=sampled_BW & gather_tokens(rows, found.value_mask_BL),
    )


def _score_in_pieces(update: UpdateSettings, params: Any, rows: TrainingRows) -> jax.Array:
    def score(part: TrainingRows) -> jax.Array:
        return score_rows(update.model, params, part, temperature=update.temperature)[0]

    return _in_pieces(update, score, rows)


def _in_pieces(update: UpdateSettings, function: Any, rows: TrainingRows) -> jax.Array:
    """`function` of all rows in micro-batches, [B, W]: all at once would hold the activations of a whole rollout."""
    parts = jax.lax.map(function, split_rows(rows, rows.tokens_BL.shape[1], update))
    return jax.lax.stop_gradient(parts.reshape(rows.mask_BW.shape))


def balance_budgets(settings: StepSettings, rows: TrainingRows, fraction_P: jax.Array) -> TrainingRows:
    """Scale advantages so that every budget level with a gradient weighs the same in the loss.

    A level's factor is the mean over such levels of `gradient_shares`, divided by its own share, at most
    `settings.balance`. Tight budgets have few groups whose returns differ, and short rows; left alone they drown.
    """
    share_F = gradient_shares(settings, rows, fraction_P)
    active_F = share_F > 0
    mean = 1.0 / jnp.maximum(active_F.sum(), 1)
    factor_F = jnp.where(active_F, jnp.minimum(mean / jnp.where(active_F, share_F, 1.0), settings.balance), 1.0)
    factor_B = jnp.repeat(factor_F[fraction_P], settings.group_size, total_repeat_length=rows.mask_BW.shape[0])
    return rows.replace(advantages_BW=rows.advantages_BW * factor_B[:, None])


def gradient_shares(settings: StepSettings, rows: TrainingRows, fraction_P: jax.Array) -> jax.Array:
    """Share of each budget level in the sum of |advantage| times the token's weight in the loss; float32 [10]."""
    weights_BW = common.aggregation_weights(
        rows.mask_BW, aggregation=settings.update.algorithm.aggregation, max_length=rows.mask_BW.shape[1]
    )
    mass_B = jnp.sum(weights_BW * jnp.abs(rows.advantages_BW), axis=1)
    mass_P = mass_B.reshape(len(fraction_P), -1).sum(axis=1)
    mass_F = jnp.zeros(N_LEVELS).at[fraction_P].add(mass_P)
    return mass_F / jnp.maximum(mass_F.sum(), jnp.finfo(jnp.float32).tiny)
