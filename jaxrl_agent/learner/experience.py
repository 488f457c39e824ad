"""From the state of the learner to the trajectories of one update: instances, budgets, rollout, and what they pay."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agent.algorithms import Estimator, common
from jaxrl_agent.algorithms.grpo import informative_rows
from jaxrl_agent.learner.packing import trained_rows
from jaxrl_agent.learner.train_state import TrainState
from jaxrl_agent.learner.update import UpdateSettings
from jaxrl_agent.parallel.rules import constrain
from jaxrl_agent.rollout.budget import BudgetSchedule, hidden_weight
from jaxrl_agent.rollout.device_collect import DeviceTask, SamplingSettings, collect
from jaxrl_agent.types import Rollout


@dataclasses.dataclass(frozen=True)
class TaskShape:
    """All that the learner must know of a task that host code plays."""

    t_max: int  # turns
    max_tokens: int  # tokens of one reply


@dataclasses.dataclass(frozen=True)
class StepSettings:
    """What is fixed for a whole run (static under jit)."""

    task: DeviceTask | TaskShape
    sampling: SamplingSettings
    update: UpdateSettings
    schedule: BudgetSchedule
    estimator: Estimator
    n_instances: int  # training instances
    prompts: int  # groups in one update
    group_size: int  # trajectories of a group
    marginal_reward: bool  # pay w(t) = P(B >= t) for a success at turn t instead of 1
    candidates: int = 1  # groups sampled for each that is trained on
    balance: float = 0.0  # largest factor by which a budget's advantages are raised; 0 leaves them alone


@struct.dataclass
class Experience:
    """One rollout and the budget levels that its groups drew."""

    rollout: Rollout  # what is trained on
    fraction_P: jax.Array  # int32, 0..9, index of the budget level of each group
    gap_P: jax.Array  # float32, best possible success (1 where not known) minus success, over all candidates of a slot
    drawn: jax.Array  # int32 scalar, instances used up
    offered: Rollout | None = None  # everything that was sampled, where some of it is left out of training

    @property
    def sampled(self) -> Rollout:
        """What the policy did, with nothing chosen: groups with a spread alone would make it look half good."""
        return self.rollout if self.offered is None else self.offered


def draw_instances(key: jax.Array, cursor: jax.Array, *, n_instances: int, count: int) -> jax.Array:
    """Take the next `count` instances of an endless series of shuffled passes.

    Pass e is the permutation drawn from fold_in(key, e); the result depends on (key, cursor) alone, so that a
    resumed run goes on where it stopped. `count` may not exceed `n_instances`.
    """
    place_P = cursor + jnp.arange(count)
    first = cursor // n_instances
    passes = jnp.stack([jax.random.permutation(jax.random.fold_in(key, first + i), n_instances) for i in range(2)])
    return passes[place_P // n_instances - first, place_P % n_instances].astype(jnp.int32)


def update_keys(state: TrainState) -> jax.Array:
    """Keys of one update: budgets, rollout, shuffle. Number 0 of the stream belongs to the order of instances."""
    return jax.random.split(jax.random.fold_in(state.key, state.update + 1), 3)


@struct.dataclass
class Draw:
    """What the next update plays: group by group, all candidates of a slot side by side."""

    instances_P: jax.Array  # int32
    budgets_P: jax.Array  # int32, turns
    fraction_P: jax.Array  # int32, budget level of each slot
    key: jax.Array  # of the rollout


def draw_groups(settings: StepSettings, state: TrainState) -> Draw:
    """Choose instances and budgets of the next update; pure in `state`.

    All candidates of a slot share its budget, so that no budget is preferred for being easy.
    """
    key_budget, key_rollout, _ = update_keys(state)
    # The order of instances and the first states must not depend on budgets: they have a key of their own.
    key_order = jax.random.fold_in(state.key, 0)
    count = settings.prompts * settings.candidates
    instances_P = draw_instances(key_order, state.cursor, n_instances=settings.n_instances, count=count)
    budgets_P, fraction_P = settings.schedule(
        settings.task.t_max, settings.prompts, key_budget, state.update, state.headroom_F
    )
    sampled_P = jnp.repeat(budgets_P, settings.candidates, total_repeat_length=count)
    return Draw(instances_P, sampled_P, fraction_P, key_rollout)


def roll_out(settings: StepSettings, state: TrainState, data: Any) -> Experience:
    """Sample the trajectories of the next update inside jit; pure in (state, data)."""
    draw = draw_groups(settings, state)
    rollout = collect(
        settings.update.model,
        settings.task,
        settings.sampling,
        state.params,
        data,
        instances_P=draw.instances_P,
        budgets_P=draw.budgets_P,
        row_ids_B=row_numbers(settings),
        key=draw.key,
    )
    optimum_P = jax.vmap(settings.task.optimum, in_axes=(None, 0, 0))(data, draw.instances_P, draw.budgets_P)
    return to_experience(settings, draw, rollout, optimum_P)


def row_numbers(settings: StepSettings) -> jax.Array:
    """Identities of an update's trajectories, uint32 [B]."""
    return jnp.arange(settings.prompts * settings.candidates * settings.group_size, dtype=jnp.uint32)


def to_experience(settings: StepSettings, draw: Draw, rollout: Rollout, optimum_P: jax.Array) -> Experience:
    """What an update learns from.

    With several candidates a group, each slot of the update keeps the first candidate whose returns differ (DAPO's
    dynamic sampling).

    Args:
        settings: static settings.
        draw: what was asked for.
        rollout: what was played.
        optimum_P: float32, best possible success of each group, 1 where it is not known.
    """
    rollout = jax.tree.map(lambda leaf: constrain(leaf, ("batch", *(None,) * (leaf.ndim - 1))), rollout)
    success_P = rollout.success_B.reshape(-1, settings.group_size).mean(axis=1)
    gap_P = (optimum_P - success_P).reshape(settings.prompts, settings.candidates).mean(axis=1)
    count = settings.prompts * settings.candidates
    experience = Experience(rollout, draw.fraction_P, gap_P, drawn=jnp.int32(count))
    if settings.candidates == 1:
        return experience
    return experience.replace(rollout=_keep_informative(settings, rollout), offered=rollout)


def _keep_informative(settings: StepSettings, rollout: Rollout) -> Rollout:
    """The first candidate of each slot whose returns differ; the first of all where none do."""
    paid, counted_B = paid_rollout(settings, rollout)
    useful_B = informative_rows(paid.return_B, rollout.group_B, mask_B=counted_B)
    useful_PC = useful_B.reshape(settings.prompts, settings.candidates, settings.group_size).any(axis=-1)
    group_P = jnp.arange(settings.prompts) * settings.candidates + jnp.argmax(useful_PC, axis=1)
    rows_B = (group_P[:, None] * settings.group_size + jnp.arange(settings.group_size)).reshape(-1)
    kept = jax.tree.map(lambda leaf: leaf[rows_B], rollout)
    slots_B = jnp.repeat(jnp.arange(settings.prompts), settings.group_size)
    return kept.replace(group_B=slots_B)


def paid_rollout(settings: StepSettings, rollout: Rollout) -> tuple[Rollout, jax.Array]:
    """The rollout with the rewards that training pays, and which of its rows count (bool [B])."""
    algorithm = settings.update.algorithm
    counted_B = trained_rows(rollout, train_on_cut_replies=algorithm.train_on_cut_replies)
    reward_BT = rollout.turns.reward_BT
    last_BT = jnp.arange(reward_BT.shape[1]) == rollout.n_turns_B[:, None] - 1
    if settings.marginal_reward:
        weight_B = rollout.success_B * hidden_weight(settings.task.t_max)[rollout.n_turns_B - 1]
        reward_BT = jnp.where(last_BT, weight_B[:, None], 0.0)
    if algorithm.overlong_buffer:
        penalty_B = _overlong(rollout, settings.task.max_tokens, algorithm.overlong_buffer)
        reward_BT = jnp.where(last_BT, reward_BT + penalty_B[:, None], reward_BT)
    if not (settings.marginal_reward or algorithm.overlong_buffer):
        return rollout, counted_B
    return rollout.replace(turns=rollout.turns.replace(reward_BT=reward_BT), return_B=reward_BT.sum(axis=1)), counted_B


def _overlong(rollout: Rollout, max_tokens: int, buffer: int) -> jax.Array:
    """Penalty for the longest reply of each trajectory, within -1..0: the limit would end it wherever it stands."""
    batch, turns = rollout.batch, rollout.turns.reward_BT.shape[1]
    place_BL = jnp.where(batch.loss_mask_BL, batch.turn_BL, turns)
    lengths_BT = jax.vmap(lambda place_L: jnp.zeros(turns).at[place_L].add(1, mode="drop"))(place_BL)
    return common.soft_overlong_penalty(lengths_BT.max(axis=1), max_length=max_tokens, buffer=buffer)
