"""Everything that an update changes, as one pytree: what a checkpoint holds and what a resumed run continues from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_agent.learner.optimizer import SkipCounter
from jaxrl_agent.models.qwen3 import Qwen3Config, param_axes
from jaxrl_agent.parallel.rules import tree_shardings
from jaxrl_agent.rollout.budget import N_LEVELS


@struct.dataclass
class TrainState:
    """State of the learner between two updates."""

    params: Any  # float32 tree
    opt_state: optax.OptState
    skips: SkipCounter  # optimizer steps left out because something was not finite
    update: jax.Array  # int32, updates done; update u draws from fold_in(key, u)
    cursor: jax.Array  # int32, groups drawn so far: the place in the shuffled passes over the training instances
    key: jax.Array  # typed key, never consumed, only folded
    headroom_F: jax.Array  # float32 [10], what is left to gain at each budget level, averaged over recent updates
    critic: Any = None  # its parameters, where there is one; trained by the same optimizer

    @property
    def trained(self) -> Any:
        """What the optimizer trains: the policy alone, or {"policy", "critic"}."""
        return self.params if self.critic is None else {"policy": self.params, "critic": self.critic}


def new_state(
    params: Any, optimizer: optax.GradientTransformation, key: jax.Array, *, critic: Any = None
) -> TrainState:
    """State before the first update."""
    return TrainState(
        params=params,
        opt_state=optimizer.init(params if critic is None else {"policy": params, "critic": critic}),
        skips=SkipCounter.zero(),
        update=jnp.int32(0),
        cursor=jnp.int32(0),
        key=key,
        headroom_F=jnp.ones(N_LEVELS),  # alike, so that the first updates draw every budget equally often
        critic=critic,
    )


def state_shardings(config: Qwen3Config, state: TrainState, mesh: Mesh) -> TrainState:
    """NamedShardings of a (possibly abstract) state: moments lie where their parameters lie, the rest everywhere.

    Args:
        config: the model.
        state: arrays or ShapeDtypeStructs.
        mesh: the device mesh.
    """
    params = tree_shardings(param_axes(config), state.params, mesh)
    whole = NamedSharding(mesh, PartitionSpec())
    structure = jax.tree.structure(state.params)

    def like_params(node):
        return jax.tree.structure(node) == structure

    def as_params(tree):
        """A copy of the policy lies where the policy lies: its moments, a critic's trunk and its moments."""
        return jax.tree.map(lambda node: params if like_params(node) else whole, tree, is_leaf=like_params)

    rest = jax.tree.map(lambda _: whole, state.replace(params=None, opt_state=None, critic=None))
    return rest.replace(params=params, opt_state=as_params(state.opt_state), critic=as_params(state.critic))
