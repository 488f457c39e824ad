"""All members of a training sweep as one program: the fused step scanned over updates and mapped over members.

A member is a seed under one combination of the varied scalars. Members never talk to one another, so where there are
several devices each takes its share of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
from flax import struct
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxrl_agent.config import OptimizerConfig
from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.learner.fused_step import StepSettings, train_step
from jaxrl_agent.learner.rollout_metrics import summarise
from jaxrl_agent.learner.train_state import TrainState, new_state
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
    optimizer: OptimizerConfig  # what of it does not vary
    total_steps: int  # optimizer steps of a run
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
        return new_state(_pick(bases, member.base), self._settings(member).update.optimizer, key)

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
        return with_scalars(self.step, member.values, optimizer=self.optimizer, total_steps=self.total_steps)

    def _run(self, name: str, first: Any, second: Any, shared: Any = None, *, donate: bool = False, **static: int):
        """Call a method on every member's part of `first` and `second`, and on all of `shared`."""
        mesh = member_mesh(jax.tree.leaves(first)[0].shape[0])
        split, whole = _split(mesh), _whole(mesh)
        program = _program(self, name, mesh, donate, **static)
        return program(jax.device_put(first, split), jax.device_put(second, split), jax.device_put(shared, whole))


def choose_map(how: str) -> str:
    """What `auto` stands for on this platform.

    On two CPU cores lax_map needs FIGURE of vmap's time: a mapped while loop runs until its last member is done and
    selects every carried array in every turn, and one member's micro-batches fit the cache where all members' do not.
    An accelerator would idle under one tiny member at a time; vmap there is a choice by this argument, not measured.

    Raises:
        ArgumentError: an unknown name.
    """
    if how not in MAPS:
        raise ArgumentError(f"a map must be one of {', '.join(MAPS)}", value=how)
    return how if how != "auto" else "lax_map" if jax.default_backend() == "cpu" else "vmap"


def member_mesh(count: int) -> Mesh:
    """As many devices as divide `count` members evenly."""
    devices = jax.devices()
    used = max(size for size in range(1, len(devices) + 1) if count % size == 0)
    return jax.make_mesh((used,), (_AXIS,), axis_types=(AxisType.Auto,), devices=devices[:used])


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
