"""The learner's state: what it starts with, and where its arrays lie."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from jaxrl_agent.learner.optimizer import make_optimizer
from jaxrl_agent.learner.train_state import new_state, state_shardings
from jaxrl_agent.models.qwen3 import init_params, param_axes
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.parallel.rules import tree_shardings
from jaxrl_agent.testing.small import EVEN_MODEL, ODD_MODEL

OPTIMIZER, _ = make_optimizer(learning_rate=1e-3, weight_decay=0.01, clip_norm=1.0)


def abstract_state(model):
    make = functools.partial(new_state, optimizer=OPTIMIZER)
    params = jax.eval_shape(functools.partial(init_params, model), jax.random.key(0))
    return jax.eval_shape(make, params, key=jax.random.key(0))


def test_a_new_state_has_done_nothing():
    params = {"a": jnp.ones((2, 3))}
    state = new_state(params, OPTIMIZER, jax.random.key(5))
    assert (int(state.update), int(state.cursor), int(state.skips.total), int(state.skips.consecutive)) == (0, 0, 0, 0)
    assert state.params is params
    assert jax.tree.structure(state.opt_state) == jax.tree.structure(OPTIMIZER.init(params))
    assert all(not leaf.any() for leaf in jax.tree.leaves(state.opt_state))
    assert jax.dtypes.issubdtype(state.key.dtype, jax.dtypes.prng_key)


@pytest.mark.parametrize("model", [EVEN_MODEL, ODD_MODEL])
@pytest.mark.parametrize("mesh_text", ["data:8", "fsdp:8", "data:2,fsdp:2,tensor:2"])
def test_moments_lie_with_their_parameters_and_the_rest_everywhere(model, mesh_text):
    mesh = make_mesh(mesh_text)
    state = abstract_state(model)
    shardings = state_shardings(model, state, mesh)
    assert jax.tree.structure(shardings) == jax.tree.structure(state)
    expected = tree_shardings(param_axes(model), state.params, mesh)
    moments = [part for part in jax.tree.leaves(shardings.opt_state, is_leaf=has_moments) if has_moments(part)]
    assert len(moments) == 1
    assert shardings.params == moments[0].mu == moments[0].nu == expected
    whole = (shardings.update, shardings.cursor, shardings.key, shardings.skips.total, moments[0].count)
    assert {sharding.spec for sharding in whole} == {PartitionSpec()}


def has_moments(node) -> bool:
    return hasattr(node, "mu")


def test_fsdp_and_tensor_split_what_they_should():
    shardings = state_shardings(EVEN_MODEL, abstract_state(EVEN_MODEL), make_mesh("data:2,fsdp:2,tensor:2"))
    layers = shardings.params["layers"]
    assert layers["self_attn"]["q_proj"]["kernel"].spec == PartitionSpec(None, ("fsdp",), ("tensor",))
    assert layers["mlp"]["down_proj"]["kernel"].spec == PartitionSpec(None, ("tensor",), ("fsdp",))
    assert shardings.params["embed_tokens"]["embedding"].spec == PartitionSpec(("tensor",), ("fsdp",))


def test_a_state_goes_through_a_jitted_function_as_one_tree():
    state = new_state({"a": jnp.ones(3)}, OPTIMIZER, jax.random.key(5))
    after = jax.jit(lambda state: state.replace(update=state.update + 1))(state)
    assert int(after.update) == 1
    assert jax.random.key_data(after.key).tolist() == jax.random.key_data(state.key).tolist()
