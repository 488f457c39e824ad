"""Where groups of trajectories are played, on the device or on the host: one way to ask, one kind of answer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np

from jaxrl_agent.models.qwen3 import Params, Qwen3Config
from jaxrl_agent.parallel.distributed import to_host
from jaxrl_agent.rollout import collect as host
from jaxrl_agent.rollout import device_collect as device
from jaxrl_agent.rollout.device_collect import DeviceTask, SamplingSettings
from jaxrl_agent.rollout.host_records import to_host_trajectories, to_rollout
from jaxrl_agent.rollout.records import to_trajectories
from jaxrl_agent.rollout.seats import Played, Request
from jaxrl_agent.tasks.base import HostInstances, HostTask
from jaxrl_agent.types import Rollout, Trajectory


class Stage(Protocol):
    """Plays groups of trajectories under any policy of one shape."""

    def play(self, params: Params, *, instances_P, budgets_P, row_ids_B, key: jax.Array) -> Rollout:
        """Play G trajectories of each of P instances, as `device_collect.collect` does."""

    def read(self, rollout: Rollout, rows: Sequence[int], *, policy_version: int) -> list[Trajectory]:
        """Some rows of the latest rollout, for people."""


class DeviceStage:
    """The stage of tasks that are played inside jit.

    Args:
        model: shape of the policies.
        task: the static half of the game.
        data: its device data.
        instances: the host's view of them.
        tokenizer: decodes tokens.
        sampling: how tokens are drawn.
    """

    def __init__(
        self,
        model: Qwen3Config,
        task: DeviceTask,
        data: Any,
        instances: Any,
        tokenizer: Any,
        sampling: SamplingSettings,
    ):
        self._task, self._data, self._instances, self._tokenizer = task, data, instances, tokenizer
        self._collect = _compiled(model, task, sampling)

    def play(self, params: Params, **groups: Any) -> Rollout:
        """Play groups, see `Stage.play`; the arrays stay on the device."""
        return self._collect(params, self._data, **groups)

    def read(self, rollout: Rollout, rows: Sequence[int], *, policy_version: int) -> list[Trajectory]:
        """Some rows of a rollout."""
        about = {"t_max": self._task.t_max, "policy_version": policy_version}
        return list(to_trajectories(to_host(rollout), self._instances, self._tokenizer, **about, rows=rows))


class HostStage:
    """The stage of tasks that host code plays.

    Attributes:
        stats: where the time of the latest rollout went, and what failed in it.

    Args:
        model: shape of the policies.
        task: the game.
        instances: the host's view of its instances.
        tokenizer: decodes tokens.
        sampling: how tokens are drawn.
        settings: how much is under way at one time.
    """

    def __init__(
        self,
        model: Qwen3Config,
        task: HostTask,
        instances: HostInstances,
        tokenizer: Any,
        sampling: SamplingSettings,
        settings: host.CollectSettings,
    ):
        self._model, self._task, self._instances, self._tokenizer = model, task, instances, tokenizer
        self._sampling, self._settings = sampling, settings
        self._played: list[Played] = []
        self.stats = host.CollectStats()

    def play(self, params: Params, *, instances_P, budgets_P, row_ids_B, key: jax.Array) -> Rollout:
        """Play groups, see `Stage.play`; numpy arrays in one of a few widths."""
        group = len(row_ids_B) // len(instances_P)
        requests = [
            Request(int(instances_P[row // group]), int(budgets_P[row // group]), int(row_id))
            for row, row_id in enumerate(np.asarray(row_ids_B))
        ]
        self._played, self.stats = host.collect(
            self._model, self._task, self._sampling, self._settings, params, requests, key=key
        )
        return to_rollout(self._played, t_max=self._task.t_max, groups_B=np.arange(len(requests)) // group)

    def read(self, rollout: Rollout, rows: Sequence[int], *, policy_version: int) -> list[Trajectory]:
        """Some rows of the latest rollout."""
        return list(
            to_host_trajectories(
                [self._played[row] for row in rows],
                self._instances,
                self._tokenizer,
                t_max=self._task.t_max,
                policy_version=policy_version,
                groups=np.asarray(rollout.group_B)[list(rows)].tolist(),
            )
        )


@functools.cache  # policies of one shape share the compiled program
def _compiled(model: Qwen3Config, task: DeviceTask, sampling: SamplingSettings):
    return jax.jit(functools.partial(device.collect, model, task, sampling))
