"""What plays the trajectories of each update of a run: inside jit, or on the host beside the accelerator."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl_agent import sandbox
from jaxrl_agent.learner.experience import (
    Draw,
    Experience,
    StepSettings,
    draw_groups,
    roll_out,
    row_numbers,
    to_experience,
)
from jaxrl_agent.learner.train_state import TrainState
from jaxrl_agent.parallel.distributed import to_host
from jaxrl_agent.rollout.records import to_trajectories
from jaxrl_agent.rollout.stage import HostStage
from jaxrl_agent.run_dir import Json
from jaxrl_agent.types import Rollout, Trajectory


class Rollouts(Protocol):
    """From the state of the learner to the trajectories of its next update."""

    def __call__(self, state: TrainState) -> Experience:
        """Play them."""

    def figures(self) -> Json:
        """What metrics.jsonl says of the environments of the latest rollout."""

    def failures(self) -> str:
        """What the machinery said in the latest rollout, for people; empty where nothing failed."""

    def read(self, experience: Experience, rows: Sequence[int], *, policy_version: int) -> list[Trajectory]:
        """Some trajectories of the latest rollout, for people."""


class DeviceRollouts:
    """Rollouts in one jitted program.

    Args:
        settings: static settings of the run.
        data: the task's device data.
        instances: the host's view of its instances.
        tokenizer: decodes tokens.
    """

    def __init__(self, settings: StepSettings, data: Any, instances: Any, tokenizer: Any):
        self._settings, self._data, self._instances, self._tokenizer = settings, data, instances, tokenizer

    def __call__(self, state: TrainState) -> Experience:
        """Play the trajectories of the next update."""
        return _jitted(roll_out, self._settings)(state, self._data)

    def figures(self) -> Json:
        """Nothing: the environment is part of the program."""
        return {}

    def failures(self) -> str:
        """Nothing fails inside jit."""
        return ""

    def read(self, experience: Experience, rows: Sequence[int], *, policy_version: int) -> list[Trajectory]:
        """Some trajectories of a rollout."""
        about = {"t_max": self._settings.task.t_max, "policy_version": policy_version}
        rollout = to_host(experience.rollout)
        return list(to_trajectories(rollout, self._instances, self._tokenizer, **about, rows=rows))


class HostRollouts:
    """Rollouts whose environments run on the host.

    Args:
        settings: static settings of the run.
        stage: plays groups of trajectories.
    """

    def __init__(self, settings: StepSettings, stage: HostStage):
        self._settings, self._stage = settings, stage
        self._rollout: Rollout | None = None

    def __call__(self, state: TrainState) -> Experience:
        """Play the trajectories of the next update."""
        draw = _jitted(draw_groups, self._settings)(state)
        self._rollout = self._stage.play(
            state.params,
            instances_P=to_host(draw.instances_P),
            budgets_P=to_host(draw.budgets_P),
            row_ids_B=to_host(row_numbers(self._settings)),
            key=draw.key,
        )
        return _jitted(_from_host, self._settings)(draw, self._rollout)

    def figures(self) -> Json:
        """Environments and lanes of the latest rollout, and the sandboxes behind them where they are in use."""
        found = {"environments": self._stage.stats.to_json()}
        return found | ({"sandbox": sandbox.metrics()} if sandbox.running() else {})

    def failures(self) -> str:
        """The commonest failures of the latest rollout."""
        return "; ".join(f"{count} x {name}" for name, count in self._stage.stats.failures.most_common(3))

    def read(self, experience: Experience, rows: Sequence[int], *, policy_version: int) -> list[Trajectory]:
        """Some trajectories of the latest rollout, candidates that were left out included."""
        del experience
        return self._stage.read(self._rollout, rows, policy_version=policy_version)


def _from_host(settings: StepSettings, draw: Draw, rollout: Rollout) -> Experience:
    return to_experience(settings, draw, rollout, jnp.ones(len(draw.instances_P)))


@functools.cache
def _jitted(function: Any, settings: StepSettings) -> Any:
    return jax.jit(functools.partial(function, settings))
