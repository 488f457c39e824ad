"""One table that says which mesh axis carries each logical axis of an array."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

# `batch` is split over data and fsdp alike: fsdp is data parallelism whose parameters are split too.
LOGICAL_AXES: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "embed": ("fsdp",),
    "vocab": ("tensor",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "mlp": ("tensor",),
    "layers": (),
    "length": (),
    "head_dim": (),
}

Axes = Sequence[str | None]


def partition_spec(
    axes: Axes, shape: Sequence[int], mesh: Mesh | AbstractMesh, *, whole: Sequence[str] = ()
) -> PartitionSpec:
    """Translate logical axes into a PartitionSpec that `shape` can carry on `mesh`.

    A mesh axis that does not divide its dimension is dropped (the dimension stays whole there),
    so that odd vocabularies or two key/value heads on four devices still run.

    Args:
        axes: one logical name or None for each dimension.
        shape: the array's shape.
        mesh: mesh with axes `data`, `fsdp`, `tensor` (any subset).
        whole: mesh axes over which nothing is split.

    Returns:
        The PartitionSpec, one entry for each dimension.
    """
    entries: list[tuple[str, ...] | None] = []
    for name, size in zip(axes, shape, strict=True):
        chosen: list[str] = []
        for axis in LOGICAL_AXES[name] if name else ():
            width = mesh.shape.get(axis, 1)
            if axis not in whole and width > 1 and size % (width * math.prod(mesh.shape[a] for a in chosen)) == 0:
                chosen.append(axis)
        entries.append(tuple(chosen) or None)
    return PartitionSpec(*entries)


def constrain(x: jax.Array, axes: Axes, *, whole: Sequence[str] = ()) -> jax.Array:
    """Pin `x` to its logical axes under the mesh set by `jax.set_mesh`.

    A no-op without a mesh, and inside a `jax.shard_map` over all of its axes, where `x` is one device's own.

    Args:
        x: array.
        axes: one logical name or None for each dimension.
        whole: mesh axes over which nothing is split.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or all(kind == AxisType.Manual for kind in mesh.axis_types):
        return x
    return jax.lax.with_sharding_constraint(x, partition_spec(axes, x.shape, mesh, whole=whole))


def tree_shardings(axes_tree, shapes_tree, mesh: Mesh):
    """NamedShardings for a tree of arrays.

    Args:
        axes_tree: tree of tuples of logical names, same structure as `shapes_tree`.
        shapes_tree: tree of anything with `.shape`.
        mesh: the device mesh.

    Returns:
        Tree of NamedSharding.
    """
    return jax.tree.map(
        lambda leaf, axes: NamedSharding(mesh, partition_spec(axes, leaf.shape, mesh)),
        shapes_tree,
        axes_tree,
        is_leaf=lambda node: hasattr(node, "shape"),
    )
