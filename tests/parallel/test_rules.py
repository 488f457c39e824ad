"""Logical axes on meshes: who splits what, and what stays whole because it does not divide."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from jaxrl_agent.models.qwen3 import init_params, param_axes
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.parallel.rules import LOGICAL_AXES, constrain, partition_spec, tree_shardings
from jaxrl_agent.testing.small import EVEN_MODEL, ODD_MODEL

MESH = AbstractMesh((2, 2, 2), ("data", "fsdp", "tensor"))


@pytest.mark.parametrize(
    ("axes", "shape", "expected"),
    [
        (("embed", "mlp"), (16, 32), (("fsdp",), ("tensor",))),
        (("vocab", "embed"), (62, 16), (("tensor",), ("fsdp",))),
        (("batch", None), (8, 3), (("data", "fsdp"), None)),
        (("batch",), (6,), (("data",),)),  # 6 rows split over 2, not over 4
        (("batch",), (3,), (None,)),
        (("vocab",), (63,), (None,)),
        (("layers", "length", "head_dim"), (2, 2, 2), (None, None, None)),
        ((), (), ()),
    ],
)
def test_an_axis_is_split_where_it_divides_and_whole_elsewhere(axes, shape, expected):
    assert partition_spec(axes, shape, MESH) == PartitionSpec(*expected)


def test_axes_named_whole_are_not_split():
    assert partition_spec(("embed", "mlp"), (16, 32), MESH, whole=("fsdp",)) == PartitionSpec(None, ("tensor",))


def test_a_mesh_without_an_axis_leaves_it_out():
    mesh = AbstractMesh((4,), ("data",))
    assert partition_spec(("batch", "embed"), (8, 16), mesh) == PartitionSpec(("data",), None)


def test_axes_and_shape_must_have_the_same_rank_and_names_must_be_known():
    with pytest.raises(ValueError, match="argument 2 is longer"):
        partition_spec(("embed",), (2, 2), MESH)
    with pytest.raises(KeyError, match="width"):
        partition_spec(("width",), (2,), MESH)


def test_every_parameter_has_axes_that_the_table_knows():
    for model in (EVEN_MODEL, ODD_MODEL):
        shapes = jax.eval_shape(lambda key, model=model: init_params(model, key), jax.random.key(0))
        axes = jax.tree.leaves(param_axes(model), is_leaf=lambda node: isinstance(node, tuple))
        for leaf, names in zip(jax.tree.leaves(shapes), axes, strict=True):
            assert len(names) == leaf.ndim
            assert set(names) - {None} <= LOGICAL_AXES.keys()


def test_a_tree_gets_one_sharding_for_each_array():
    mesh = make_mesh("fsdp:4,tensor:2")
    tree = {"a": jax.ShapeDtypeStruct((16, 32), jnp.float32), "b": {"c": jax.ShapeDtypeStruct((3,), jnp.float32)}}
    shardings = tree_shardings({"a": ("embed", "mlp"), "b": {"c": ("embed",)}}, tree, mesh)
    assert shardings == {
        "a": NamedSharding(mesh, PartitionSpec(("fsdp",), ("tensor",))),
        "b": {"c": NamedSharding(mesh, PartitionSpec(None))},
    }


def test_constrain_pins_an_array_under_a_mesh_and_does_nothing_without():
    x_BL = jnp.ones((8, 4))
    assert constrain(x_BL, ("batch", None)) is x_BL
    mesh = make_mesh("data:4,fsdp:2")
    with jax.set_mesh(mesh):
        pinned = jax.jit(lambda x_BL: constrain(2 * x_BL, ("batch", None)))(x_BL)
    assert pinned.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(("data", "fsdp"))), 2)
    assert pinned.addressable_shards[0].data.shape == (1, 4)
