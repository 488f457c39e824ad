"""All members of a training sweep as one program: the fused step scanned over updates and mapped over members.

A member is a seed under one combination of the varied scalars. Members never talk to one another, so where there are
several devices each takes its share of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable
from typing import Any

import jax
from flax import struct
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxrl_agent.config import Config
from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.learner.critic import init_critic
from jaxrl_agent.learner.fused_step import StepSettings, train_step
from jaxrl_agent.learner.rollout_metrics import summarise
from jaxrl_agent.learner.train_state import TrainState, new_state
from jaxrl_agent.learner.update import UpdateSettings
from jaxrl_agent.learner.warm_start import WarmStartSettings, warm_start_steps
from jaxrl_agent.models.qwen3 import init_params
from jaxrl_agent.sweeps.scalars import with_scalars

MAPS = ("auto", "vmap", "lax_map")
_AXIS = "members"


@struct.dataclass
class Member:
    """What one member is; arrays of a population have the axis N in front."""

    values: dict[str, jax.Array]  # float32 scalars by key, the varied settings
    base: jax.Array  # int32, place of the parameters that it starts from


@dataclasses.dataclass(frozen=True)
class Population:
    """The programs of one sweep; static under jit, equal ones share what is compiled."""

    step: StepSettings
    warm: WarmStartSettings | None
    config: Config  # what does not vary
    how: str  # "vmap" or "lax_map"

    def base_states(self, init_keys: jax.Array, warm_keys: jax.Array) -> TrainState:
        """Draw parameters and make the state before the warm start for every seed.

        Args:
            init_keys: typed keys [seeds], of the parameters.
            warm_keys: typed keys [seeds], of the warm start.
        """
        return self._run("_base_state", init_keys, warm_keys)

    def warm_start(self, states: TrainState, data: Any, *, count: int) -> tuple[TrainState, dict[str, jax.Array]]:
        """Take `count` supervised steps of every seed; metrics [seeds] are means over them. `states` are used up."""
        return self._run("_warm_start", states, None, data, donate=True, count=count)

    def first_states(self, members: Member, keys: jax.Array, bases: Any) -> TrainState:
        """Make the states before reinforcement learning.

        Args:
            members: N of them.
            keys: typed keys [N] of their runs.
            bases: parameters, stacked on an axis in front that `members.base` counts along.
        """
        return self._run("_first_state", members, keys, bases)

    def advance(
        self, states: TrainState, members: Member, data: Any, references: Any, *, count: int
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """Take `count` updates (rollout and optimizer steps) of every member; metrics are [N, count, ...].

        Args:
            states: used up.
            members: N of them.
            data: the task's device data.
            references: parameters of the reference policies, stacked as `bases`; None without a KL term.
            count: updates in one call (static).
        """
        return self._run("_advance", states, members, (data, references), donate=True, count=count)

    def _base_state(self, init_key: jax.Array, warm_key: jax.Array, _: None) -> TrainState:
        return new_state(init_params(self.warm.model, init_key), self.warm.optimizer, warm_key)

    def _warm_start(
        self, state: TrainState, _: None, data: Any, *, count: int
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        return warm_start_steps(self.warm, state, data, count=count)

    def _first_state(self, member: Member, key: jax.Array, bases: Any) -> TrainState:
        return reinforcement_state(self._settings(member).update, _pick(bases, member.base), key)

    def _advance(
        self, state: TrainState, member: Member, shared: tuple[Any, Any], *, count: int
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        data, references = shared
        settings, reference = self._settings(member), _pick(references, member.base)

        def update(state: TrainState, _: None) -> tuple[TrainState, dict[str, jax.Array]]:
            state, experience, metrics = train_step(settings, state, data, reference)
            return state, {**metrics, **summarise(settings, experience)}

        return jax.lax.scan(update, state, length=count)

    def _settings(self, member: Member) -> StepSettings:
        return with_scalars(self.step, self.config, member.values)

    def _run(self, name: str, first: Any, second: Any, shared: Any = None, *, donate: bool = False, **static: int):
        """Call a method on every member's part of `first` and `second`, and on all of `shared`."""
        mesh = member_mesh(jax.tree.leaves(first)[0].shape[0])
        split, whole = _split(mesh), _whole(mesh)
        program = _program(self, name, mesh, donate, **static)
        return program(jax.device_put(first, split), jax.device_put(second, split), jax.device_put(shared, whole))


def reinforcement_state(update: UpdateSettings, params: Any, key: jax.Array) -> TrainState:
    """State before the first update, with the critic that `train.py` would draw for this key."""
    critic = None
    if update.critic is not None:
        critic = init_critic(update.critic, update.model, params, jax.random.fold_in(key, 2**31))
    return new_state(params, update.optimizer, key, critic=critic)


def choose_map(how: str) -> str:
    """What `auto` stands for on this platform.

    Eight seeds of configs/frozenlake_grpo.py on two CPU cores, seconds an update of one seed (processor seconds in
    brackets): lax_map 0.105 (0.153), vmap 0.126 (0.208), a run of train.py 0.102 (0.153); with a device for each core
    lax_map 0.066 (0.131), vmap 0.093 (0.181). A mapped while loop runs until its last member is done and selects
    every carried array in every turn. An accelerator would idle under one small member at a time, so there it is
    vmap; that has not been measured.

    Raises:
        ArgumentError: an unknown name.
    """
    if how not in MAPS:
        raise ArgumentError(f"a map must be one of {', '.join(MAPS)}", value=how)
    return how if how != "auto" else "lax_map" if jax.default_backend() == "cpu" else "vmap"


def member_mesh(count: int) -> Mesh:
    """As many devices as divide `count` members evenly."""
    devices = jax.devices()
    used = _shares(count, len(devices))
    return jax.make_mesh((used,), (_AXIS,), axis_types=(AxisType.Auto,), devices=devices[:used])


def spread_over_cores(count: int) -> None:
    """Make a CPU device of every core that `count` members can be shared out over evenly.

    One small member cannot keep several cores busy. Where jax has its devices already, or XLA_FLAGS say how many CPUs
    there are, nothing changes.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", _shares(count, cores))


def _shares(count: int, places: int) -> int:
    return max(size for size in range(1, places + 1) if count % size == 0)


def restorable(shapes: Any) -> Any:
    """Put the shardings of a population into ShapeDtypeStructs, whose leading axis counts its members."""
    sharding = _split(member_mesh(jax.tree.leaves(shapes)[0].shape[0]))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes)


def updates_in_a_call(*numbers: int, most: int = 5) -> int:
    """Updates to take in one call: the largest number up to `most` that divides all `numbers`, so that one program
    serves the whole sweep; small, because a signal is answered between two calls.
    """
    return max(count for count in range(1, most + 1) if math.gcd(*numbers) % count == 0)


@functools.cache
def _program(population: Population, name: str, mesh: Mesh, donate: bool, **static: int) -> Callable:
    one = functools.partial(getattr(population, name), **static)

    def every(first: Any, second: Any, shared: Any) -> Any:
        if population.how == "vmap":
            return jax.vmap(one, in_axes=(0, 0, None))(first, second, shared)
        return jax.lax.map(lambda pair: one(*pair, shared), (first, second))

    split, whole = PartitionSpec(_AXIS), PartitionSpec()
    mapped = jax.shard_map(every, mesh=mesh, in_specs=(split, split, whole), out_specs=split, check_vma=False)
    return jax.jit(mapped, donate_argnums=0 if donate else ())


def _pick(stacked: Any, place: jax.Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[place], stacked)


def _split(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(_AXIS))


def _whole(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())
