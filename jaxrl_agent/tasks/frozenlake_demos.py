"""An imperfect player of FrozenLake, whose games teach a new model the rules before reinforcement learning."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_agent.config import WarmStartConfig
from jaxrl_agent.envs import frozenlake, frozenlake_exact
from jaxrl_agent.tasks.frozenlake import LakeData, LakeTask

_PLAN_GAMMA = 0.9
_TIE_NOISE = 1e-5  # far below the gap between two distances to the goal on a 10x10 lake


@dataclasses.dataclass(frozen=True)
class Demonstrator:
    """Plans on what it has seen, errs at random, errs more after an error, and looks the more the larger its budget.

    It plans by value iteration on the holes it knows of (on the foggy lake unknown cells count as ice) and breaks ties
    at random. `memory` is 1 after a random move that was not optimal.
    """

    task: LakeTask
    random_move: float
    repeat_mistake: float
    look_base: float
    look_slope: float

    @classmethod
    def of(cls, task: LakeTask, config: WarmStartConfig) -> Demonstrator:
        """The demonstrator that the settings describe."""
        return cls(task, config.random_move, config.repeat_mistake, config.look_base, config.look_slope)

    def __call__(
        self,
        data: LakeData,
        instance: jax.Array,
        state: frozenlake.LakeState,
        memory: jax.Array,
        budget: jax.Array,
        key: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Choose one action: (action int32, memory int32). Consumes `key`."""
        key_tie, key_err, key_move, key_look = jax.random.split(key, 4)
        lake = jax.tree.map(lambda leaf: leaf[instance], data.maps)
        foggy = self.task.rules.foggy
        holes_X = frozenlake.believed_holes(lake, state) if foggy else lake.hole_X
        quality_4 = frozenlake_exact.q_from_holes(
            holes_X,
            lake.goal,
            lake.size,
            success_rate=self.task.rules.success_rate,
            gamma=_PLAN_GAMMA,
            sweeps=holes_X.shape[0],
        )[state.cell]
        planned = jnp.argmax(quality_4 + _TIE_NOISE * jax.random.uniform(key_tie, (frozenlake.N_MOVES,)))
        errs = jax.random.uniform(key_err) < jnp.where(memory > 0, self.repeat_mistake, self.random_move)
        move = jnp.where(errs, jax.random.randint(key_move, (), 0, frozenlake.N_MOVES), planned)
        mistaken = errs & (quality_4[move] < quality_4.max() - 2 * _TIE_NOISE)
        if not foggy:
            return move.astype(jnp.int32), mistaken.astype(jnp.int32)
        near_4 = frozenlake.neighbours(lake.size, state.cell)
        news = jnp.any((near_4 != state.cell) & ~state.seen_X[near_4])
        eagerness = self.look_base + self.look_slope * budget / self.task.t_max
        looks = news & (jax.random.uniform(key_look) < eagerness)
        action = jnp.where(looks, frozenlake.LOOK, move)
        return action.astype(jnp.int32), jnp.where(looks, memory, mistaken).astype(jnp.int32)
