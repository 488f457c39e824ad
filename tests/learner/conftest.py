"""A small policy that has seen demonstrations, its game, and the training step's programs; made once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import pytest

from jaxrl_agent import assemble
from jaxrl_agent.config import Config
from jaxrl_agent.learner.fused_step import StepSettings
from jaxrl_agent.learner.train_state import TrainState, new_state, state_shardings
from jaxrl_agent.learner.warm_start import warm_start_steps
from jaxrl_agent.models.qwen3 import init_params
from jaxrl_agent.testing.small import EVEN_MODEL, one_device, small_config, small_preset

WARM_UPDATES = 200


@dataclasses.dataclass(frozen=True)
class Lesson:
    """A policy after its warm start, with what reinforcement learning needs."""

    config: Config
    game: assemble.Game
    settings: StepSettings
    params: Any  # numpy
    losses: list[float]  # of four equal spans of the warm start

    def state(self, seed: int = 3) -> TrainState:
        """A fresh state on one device, placed as an update leaves it."""
        return place_state(self.params, self.settings.update.optimizer, jax.random.key(seed))


def place_state(params: Any, optimizer: Any, key: jax.Array) -> TrainState:
    make = functools.partial(new_state, optimizer=optimizer)
    shardings = state_shardings(EVEN_MODEL, jax.eval_shape(make, params, key=key), one_device())
    return jax.jit(make, out_shardings=shardings)(params, key=key)


@pytest.fixture(scope="session")
def lesson() -> Lesson:
    """A policy that reaches the goal in about half of its games, under BudgetMix with told budgets."""
    config = small_config(
        warm_start__updates=WARM_UPDATES,
        warm_start__batch=16,
        warm_start__optimizer__learning_rate=1e-2,
        warm_start__optimizer__warmup=10,
        budget__schedule="budget_mix",
        algorithm__entropy_coefficient=0.01,
    )
    with small_preset(), jax.set_mesh(one_device()):
        policy = assemble.Policy(EVEN_MODEL, init_params(EVEN_MODEL, jax.random.key(0)), "lake_words")
        game = assemble.build_game(config, "train", policy, one_device())
        warm, _ = assemble.build_warm_start(config, policy, game)
        steps = jax.jit(functools.partial(warm_start_steps, warm, count=WARM_UPDATES // 4), donate_argnums=0)
        state = place_state(policy.params, warm.optimizer, jax.random.key(1))
        losses = []
        for _ in range(4):
            state, metrics = steps(state, game.data)
            losses.append(float(metrics["loss"]))
        settings = assemble.build_step(config, policy, game)
    return Lesson(config, game, settings, jax.device_get(state.params), losses)


@pytest.fixture(scope="session")
def fresh_state() -> Callable[..., TrainState]:
    """Make a state on one device, placed as an update leaves it: (params, optimizer, key)."""
    return place_state


@pytest.fixture(scope="session")
def on_one_device() -> Callable[..., Any]:
    """Call a function under the mesh of one device."""

    def call(function, *arguments):
        with jax.set_mesh(one_device()):
            return function(*arguments)

    return call
