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


@struct.dataclass
class TrainState:
    """State of the learner between two updates."""

    params: Any  # float32 tree
    opt_state: optax.OptState
    skips: SkipCounter  # optimizer steps left out because something was not finite
    update: jax.Array  # int32, updates done; update u draws from fold_in(key, u)
    cursor: jax.Array  # int32, groups drawn so far: the place in the shuffled passes over the training instances
    key: jax.Array  # typed key, never consumed, only folded


def new_state(params: Any, optimizer: optax.GradientTransformation, key: jax.Array) -> TrainState:
    """State before the first update."""
    return TrainState(
        params=params,
        opt_state=optimizer.init(params),
        skips=SkipCounter.zero(),
        update=jnp.int32(0),
        cursor=jnp.int32(0),
        key=key,
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

    opt_state = jax.tree.map(lambda node: params if like_params(node) else whole, state.opt_state, is_leaf=like_params)
    rest = jax.tree.map(lambda _: whole, state.replace(params=None, opt_state=None))
    return rest.replace(params=params, opt_state=opt_state)
