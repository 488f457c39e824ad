"""Supervised training on imperfect demonstrations: it makes the base policy that stands in for a pretrained model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from jaxrl_agent.learner.logprobs import positions_from_mask, selected_logprobs
from jaxrl_agent.learner.optimizer import apply_if_finite
from jaxrl_agent.learner.train_state import TrainState
from jaxrl_agent.models.qwen3 import Qwen3Config, hidden_states
from jaxrl_agent.rollout.buckets import bucket, padded_pieces
from jaxrl_agent.rollout.budget import budget_levels
from jaxrl_agent.rollout.device_collect import DeviceTask
from jaxrl_agent.rollout.scripted import Actor, play_script
from jaxrl_agent.tasks.base import Demonstration
from jaxrl_agent.types import TokenBatch

_SMALLEST_ROW = 64
_KEPT_SHARE = 0.95


class Source(Protocol):
    """Where demonstrations come from; hashable, called inside jit."""

    width: int  # most ids of a row that the actor wrote

    def __call__(self, data: Any, key: jax.Array) -> tuple[TokenBatch, jax.Array]:
        """Rows whose loss mask marks the actor's replies, and which of them reach the goal (bool [rows])."""


@dataclasses.dataclass(frozen=True)
class PlayedInside:
    """Fresh games of an actor, played inside jit; the budget that each shows is drawn from BudgetMix's ten levels."""

    task: DeviceTask
    actor: Actor
    n_instances: int
    batch: int  # fresh demonstrations in one update
    turns: int  # most turns of a demonstration
    width: int

    def __call__(self, data: Any, key: jax.Array) -> tuple[TokenBatch, jax.Array]:
        """Play them; consumes `key`."""
        key_instances, key_budgets, key_play = jax.random.split(key, 3)
        instances_B = jax.random.randint(key_instances, (self.batch,), 0, self.n_instances)
        levels = budget_levels(self.task.t_max)
        budgets_B = levels[jax.random.randint(key_budgets, (self.batch,), 0, len(levels))]
        return play_script(
            self.task,
            data,
            self.actor,
            instances_B=instances_B,
            budgets_B=budgets_B,
            key=key_play,
            turns=self.turns,
        )


@struct.dataclass
class WrittenRows:
    """Demonstrations that host code made beforehand."""

    batch: TokenBatch
    success_N: jax.Array  # bool


def written_rows(rows: Sequence[Demonstration]) -> WrittenRows:
    """Lay demonstrations out in rows of one length, without the longest twentieth, for which all would be padded."""
    lengths = sorted(len(row.row.ids) for row in rows)
    width = bucket(lengths[int(_KEPT_SHARE * (len(rows) - 1))], _SMALLEST_ROW)
    rows = [row for row in rows if len(row.row.ids) <= width]
    tokens_NL, counts_N = padded_pieces([row.row.ids for row in rows], len(rows), width)
    turn_NL = np.full((len(rows), width), -1, np.int32)
    for index, row in enumerate(rows):
        turn_NL[index, : counts_N[index]] = row.row.turns
    batch = TokenBatch(tokens_NL, counts_N, turn_NL >= 0, np.zeros((len(rows), width), np.float32), turn_NL)
    return WrittenRows(jax.tree.map(jnp.asarray, batch), jnp.array([row.success for row in rows]))


@dataclasses.dataclass(frozen=True)
class DrawnRows:
    """Rows drawn from those that host code made beforehand."""

    batch: int
    width: int

    def __call__(self, data: WrittenRows, key: jax.Array) -> tuple[TokenBatch, jax.Array]:
        """Draw them with replacement; consumes `key`."""
        rows_B = jax.random.randint(key, (self.batch,), 0, len(data.success_N))
        return jax.tree.map(lambda leaf: leaf[rows_B], (data.batch, data.success_N))


@dataclasses.dataclass(frozen=True)
class WarmStartSettings:
    """What is fixed for the whole warm start (static under jit)."""

    model: Qwen3Config
    source: Source
    optimizer: optax.GradientTransformation


def warm_start_step(
    settings: WarmStartSettings, state: TrainState, data: Any
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Take one supervised step on fresh demonstrations, failures included.

    Loss = - mean of log p over the tokens of the actor's replies. Pure in (state, data).

    Args:
        settings: static settings.
        state: donated by the caller.
        data: what the source draws from.

    Returns:
        The next state and float32 scalars: loss (nats a token), demonstration_success (share of demonstrations that
        reach the goal), grad_norm.
    """
    batch, success_B = settings.source(data, jax.random.fold_in(state.key, state.update))
    positions_BW, valid_BW = positions_from_mask(batch.loss_mask_BL, settings.source.width)

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
