"""Supervised training on imperfect demonstrations: it makes the base policy that stands in for a pretrained model."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl_agent.learner.logprobs import positions_from_mask, selected_logprobs
from jaxrl_agent.learner.optimizer import apply_if_finite
from jaxrl_agent.learner.train_state import TrainState
from jaxrl_agent.models.qwen3 import Qwen3Config, hidden_states
from jaxrl_agent.rollout.budget import budget_levels
from jaxrl_agent.rollout.device_collect import DeviceTask
from jaxrl_agent.rollout.scripted import Actor, play_script


@dataclasses.dataclass(frozen=True)
class WarmStartSettings:
    """What is fixed for the whole warm start (static under jit)."""

    model: Qwen3Config
    task: DeviceTask
    actor: Actor
    optimizer: optax.GradientTransformation
    n_instances: int
    batch: int  # fresh demonstrations in one update
    turns: int  # most turns of a demonstration


def warm_start_step(
    settings: WarmStartSettings, state: TrainState, data: Any
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Take one supervised step on fresh demonstrations, failures included.

    Loss = - mean of log p over the tokens of the actor's replies. The budget that a demonstration shows is drawn
    uniformly from the ten levels of BudgetMix. Pure in (state, data).

    Args:
        settings: static settings.
        state: donated by the caller.
        data: the task's device data.

    Returns:
        The next state and float32 scalars: loss (nats a token), demonstration_success (share of demonstrations that
        reach the goal), grad_norm.
    """
    key_instances, key_budgets, key_play = jax.random.split(jax.random.fold_in(state.key, state.update), 3)
    instances_B = jax.random.randint(key_instances, (settings.batch,), 0, settings.n_instances)
    levels = budget_levels(settings.task.t_max)
    budgets_B = levels[jax.random.randint(key_budgets, (settings.batch,), 0, len(levels))]
    batch, success_B = play_script(
        settings.task,
        data,
        settings.actor,
        instances_B=instances_B,
        budgets_B=budgets_B,
        key=key_play,
        turns=settings.turns,
    )
    width = settings.turns * data.text.replies.width
    positions_BW, valid_BW = positions_from_mask(batch.loss_mask_BL, width)

    def loss_of(params):
        hidden_BLD = hidden_states(settings.model, params, batch.tokens_BL, batch.lengths_B)
        logprobs_BW, _ = selected_logprobs(
            settings.model, params, hidden_BLD, batch.tokens_BL, positions_BW, valid_BW, temperature=1.0
        )
        return -logprobs_BW.sum() / jnp.maximum(valid_BW.sum(), 1)

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    params, opt_state, skips, grad_norm = apply_if_finite(
        settings.optimizer, state.params, state.opt_state, grads, loss, state.skips
    )
    state = state.replace(params=params, opt_state=opt_state, skips=skips, update=state.update + 1)
    return state, {"loss": loss, "demonstration_success": success_B.mean(), "grad_norm": grad_norm}


def warm_start_steps(
    settings: WarmStartSettings, state: TrainState, data: Any, *, count: int
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Take `count` steps in one program, so that the host is not asked between them; metrics are their means."""
    state, metrics = jax.lax.scan(lambda state, _: warm_start_step(settings, state, data), state, length=count)
    return state, jax.tree.map(jnp.mean, metrics)
