"""The training step as pure functions of (state, key): draw groups and budgets, roll out, update.

`train_step` is the whole; the trainer calls its two halves as two jitted programs, so that each can be timed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agent.algorithms import Estimator, common
from jaxrl_agent.learner.packing import TrainingRows, pack_rows, score_rows, trained_rows
from jaxrl_agent.learner.train_state import TrainState
from jaxrl_agent.learner.update import UpdateSettings, split_rows, update_policy
from jaxrl_agent.rollout.budget import N_LEVELS, BudgetSchedule, hidden_weight
from jaxrl_agent.rollout.device_collect import DeviceTask, SamplingSettings, collect
from jaxrl_agent.types import Rollout


@dataclasses.dataclass(frozen=True)
class StepSettings:
    """What is fixed for a whole run (static under jit)."""

    task: DeviceTask
    sampling: SamplingSettings
    update: UpdateSettings
    schedule: BudgetSchedule
    estimator: Estimator
    n_instances: int  # training instances
    prompts: int  # groups in one update
    group_size: int  # trajectories of a group
    marginal_reward: bool  # pay w(t) = P(B >= t) for a success at turn t instead of 1


@struct.dataclass
class Experience:
    """One rollout and the budget levels that its groups drew."""

    rollout: Rollout
    fraction_P: jax.Array  # int32, 0..9, index of the budget level of each group


def draw_instances(key: jax.Array, cursor: jax.Array, *, n_instances: int, count: int) -> jax.Array:
    """Take the next `count` instances of an endless series of shuffled passes.

    Pass e is the permutation drawn from fold_in(key, e); the result depends on (key, cursor) alone, so that a
    resumed run goes on where it stopped. `count` may not exceed `n_instances`.
    """
    place_P = cursor + jnp.arange(count)
    first = cursor // n_instances
    passes = jnp.stack([jax.random.permutation(jax.random.fold_in(key, first + i), n_instances) for i in range(2)])
    return passes[place_P // n_instances - first, place_P % n_instances].astype(jnp.int32)


def roll_out(settings: StepSettings, state: TrainState, data: Any) -> Experience:
    """Sample the trajectories of the next update; pure in (state, data)."""
    key_budget, key_rollout, _ = _update_keys(state)
    # The order of instances and the first states must not depend on budgets: they have a key of their own.
    key_order = jax.random.fold_in(state.key, 0)
    instances_P = draw_instances(key_order, state.cursor, n_instances=settings.n_instances, count=settings.prompts)
    budgets_P, fraction_P = settings.schedule(settings.task.t_max, settings.prompts, key_budget, state.update)
    rows = settings.prompts * settings.group_size
    rollout = collect(
        settings.update.model,
        settings.task,
        settings.sampling,
        state.params,
        data,
        instances_P=instances_P,
        budgets_P=budgets_P,
        row_ids_B=jnp.arange(rows, dtype=jnp.uint32),
        key=key_rollout,
    )
    return Experience(rollout=rollout, fraction_P=fraction_P)


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
    rows = prepare_rows(settings, experience.rollout, state.params, ref_params)
    state, metrics = update_policy(settings.update, state, rows, _update_keys(state)[2])
    metrics["gradient_share_by_budget"] = gradient_shares(settings, rows, experience.fraction_P)
    return state.replace(update=state.update + 1, cursor=state.cursor + settings.prompts), metrics


def train_step(
    settings: StepSettings, state: TrainState, data: Any, ref_params: Any = None
) -> tuple[TrainState, Experience, dict[str, jax.Array]]:
    """One whole update as one pure function, to be jitted, scanned or mapped over seeds and settings."""
    experience = roll_out(settings, state, data)
    state, metrics = learn(settings, state, experience, ref_params)
    return state, experience, metrics


def prepare_rows(settings: StepSettings, rollout: Rollout, params: Any, ref_params: Any = None) -> TrainingRows:
    """Gather to the sampled tokens what the loss needs.

    The trainer's own log-probabilities at the start of the update are computed where importance weights correct the
    sampler by them, the reference policy's where a KL term asks for them.
    """
    update = settings.update
    rollout, counted_B = paid_rollout(settings, rollout)
    advantages_BL = settings.estimator(rollout, counted_B=counted_B)
    rows = pack_rows(rollout, advantages_BL, counted_B, width=settings.task.t_max * settings.task.max_tokens)
    if update.algorithm.importance_cap > 0:
        rows = rows.replace(old_logprobs_BW=_score_in_pieces(update, params, rows))
    if update.algorithm.kl_coefficient > 0:
        rows = rows.replace(ref_logprobs_BW=_score_in_pieces(update, ref_params, rows))
    return rows


def _score_in_pieces(update: UpdateSettings, params: Any, rows: TrainingRows) -> jax.Array:
    """Log-probabilities of all rows in micro-batches: all at once would hold the activations of a whole rollout."""

    def score(part: TrainingRows) -> jax.Array:
        return score_rows(update.model, params, part, temperature=update.temperature)[0]

    parts = jax.lax.map(score, split_rows(rows, rows.tokens_BL.shape[1], update))
    return jax.lax.stop_gradient(parts.reshape(rows.mask_BW.shape))


def paid_rollout(settings: StepSettings, rollout: Rollout) -> tuple[Rollout, jax.Array]:
    """The rollout with the returns that training pays, and which of its rows count (bool [B])."""
    counted_B = trained_rows(rollout, train_on_cut_replies=settings.update.algorithm.train_on_cut_replies)
    if settings.marginal_reward:
        weight_T = hidden_weight(settings.task.t_max)
        rollout = rollout.replace(return_B=rollout.success_B * weight_T[rollout.n_turns_B - 1])
    return rollout, counted_B


def gradient_shares(settings: StepSettings, rows: TrainingRows, fraction_P: jax.Array) -> jax.Array:
    """Share of each budget level in the sum of |advantage| times the token's weight in the loss; float32 [10]."""
    weights_BW = common.aggregation_weights(
        rows.mask_BW, aggregation=settings.update.algorithm.aggregation, max_length=rows.mask_BW.shape[1]
    )
    mass_B = jnp.sum(weights_BW * jnp.abs(rows.advantages_BW), axis=1)
    mass_P = mass_B.reshape(len(fraction_P), -1).sum(axis=1)
    mass_F = jnp.zeros(N_LEVELS).at[fraction_P].add(mass_P)
    return mass_F / jnp.maximum(mass_F.sum(), jnp.finfo(jnp.float32).tiny)


def _update_keys(state: TrainState) -> jax.Array:
    """Keys of one update: budgets, rollout, shuffle. Number 0 of the stream belongs to the order of instances."""
    return jax.random.split(jax.random.fold_in(state.key, state.update + 1), 3)
