"""The key/value cache: an explicit pytree that lives across turns.

Keys keep their slots on the last axis, so that the score matmul of one new token reads them in
memory order; values keep the head on the last axis for the same reason.

Two layouts of the same content:

    stacked     key [layers, B, K, E, S]       carried through a scan over layers
    per layer   key (layers x) [B, K, E, S]    for unrolled layers (few layers, short decode steps)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agent.models.qwen3_config import Qwen3Config
from jaxrl_agent.parallel.rules import constrain

KEY_AXES = ("batch", "kv_heads", "head_dim", None)
VALUE_AXES = ("batch", "kv_heads", None, "head_dim")


@struct.dataclass
class KVCache:
    """Keys and values of the tokens so far; slots at and after `lengths_B` hold nothing of meaning."""

    key: jax.Array | tuple[jax.Array, ...]  # compute dtype, [layers, B, K, E, S] or layers x [B, K, E, S]
    value: jax.Array | tuple[jax.Array, ...]  # compute dtype, [layers, B, K, S, E] or layers x [B, K, S, E]
    lengths_B: jax.Array  # int32, tokens in use

    @property
    def stacked(self) -> bool:
        """Whether the layers are one array."""
        return not isinstance(self.key, tuple)

    @property
    def slots(self) -> int:
        """Tokens that a row can hold."""
        return jax.tree.leaves(self.key)[0].shape[-1]


def init_cache(config: Qwen3Config, batch: int, slots: int, *, stacked: bool = True) -> KVCache:
    """Make an empty cache.

    Args:
        config: the model's configuration.
        batch: rows.
        slots: tokens that a row can hold.
        stacked: one array for all layers, or (False) a tuple with one array a layer.
    """
    heads, head_dim, dtype = config.num_key_value_heads, config.head_dim, config.compute_dtype
    layers = config.num_hidden_layers

    def empty(shape, axes):
        if stacked:
            return constrain(jnp.zeros((layers, *shape), dtype), ("layers", *axes))
        return tuple(constrain(jnp.zeros(shape, dtype), axes) for _ in range(layers))

    return KVCache(
        key=empty((batch, heads, head_dim, slots), KEY_AXES),
        value=empty((batch, heads, slots, head_dim), VALUE_AXES),
        lengths_B=constrain(jnp.zeros((batch,), jnp.int32), ("batch",)),
    )


def gather_rows(cache: KVCache, rows_R: jax.Array) -> KVCache:
    """Build the cache whose row r is row `rows_R[r]` of `cache`: fork a prompt to a group, drop or refill rows.

    Args:
        cache: cache of B rows.
        rows_R: int32 row numbers in 0 .. B-1; a row may be taken any number of times.

    Returns:
        Cache of R rows in the same layout.
    """

    def take(array, axes):
        taken = jnp.take(array, rows_R, axis=array.ndim - 4, mode="clip")
        return constrain(taken, (None,) * (array.ndim - 4) + axes)

    return KVCache(
        key=jax.tree.map(lambda array: take(array, KEY_AXES), cache.key),
        value=jax.tree.map(lambda array: take(array, VALUE_AXES), cache.value),
        lengths_B=constrain(jnp.take(cache.lengths_B, rows_R, mode="clip"), ("batch",)),
    )


def put_rows(cache: KVCache, rows_R: jax.Array, fresh: KVCache) -> KVCache:
    """Replace rows by those of another cache, touching nothing else.

    Args:
        cache: cache of B rows.
        rows_R: int32 row numbers, each at most once; B and beyond put a row nowhere.
        fresh: cache of R rows in the same layout, with as many slots.
    """

    def put(array, new):
        index = (slice(None),) * max(array.ndim - 4, 0) + (rows_R,)
        return array.at[index].set(new, mode="drop", unique_indices=False)

    return jax.tree.map(put, cache, fresh)


def write_slots(lengths_B: jax.Array, counts_B: jax.Array, chunk: int, slots: int) -> jax.Array:
    """Choose the slot of every token of a chunk; what must not be written gets a slot past the end.

    Args:
        lengths_B: int32, tokens in use.
        counts_B: int32, tokens of the chunk that are real.
        chunk: tokens in the chunk, padding included.
        slots: size of the cache.

    Returns:
        int32 [B, chunk]. Padding and tokens without room point at or past `slots`, each somewhere
        else, so that the indices of a row stay unique as the scatter promises.
    """
    offsets = jnp.arange(chunk, dtype=jnp.int32)
    wanted_BC = lengths_B[:, None] + offsets
    real_BC = (offsets < counts_B[:, None]) & (wanted_BC < slots)
    return jnp.where(real_BC, wanted_BC, slots + offsets)


def write_tokens(
    array: jax.Array, new_BCKE: jax.Array, slots_BC: jax.Array, *, slot_axis: int, layer: jax.Array | None = None
) -> jax.Array:
    """Write new keys (or values) of one layer into their slots, touching nothing else.

    The rows are a batching dimension of the scatter, not an index: the partitioner can then leave
    the batch split over devices instead of gathering the cache.

    Args:
        array: keys or values, per layer (rank 4) or stacked (rank 5).
        new_BCKE: what to write, [B, C, K, E].
        slots_BC: int32 slots from `write_slots`.
        slot_axis: axis of the slots counted from the end: -1 for keys, -2 for values.
        layer: int32 scalar, which layer of a stacked array; None for a per-layer array.

    Returns:
        The updated array.
    """
    slot_dim, batch_dim = array.ndim + slot_axis, array.ndim - 4
    indices = slots_BC[..., None]
    if layer is not None:
        indices = jnp.concatenate([jnp.broadcast_to(layer, indices.shape).astype(indices.dtype), indices], axis=-1)
    indexed = (slot_dim,) if layer is None else (0, slot_dim)
    return jax.lax.scatter(
        array,
        indices,
        new_BCKE.astype(array.dtype),
        jax.lax.ScatterDimensionNumbers(
            update_window_dims=(2, 3),
            inserted_window_dims=indexed,
            scatter_dims_to_operand_dims=indexed,
            operand_batching_dims=(batch_dim,),
            scatter_indices_batching_dims=(0,),
        ),
        unique_indices=True,
        mode=jax.lax.GatherScatterMode.FILL_OR_DROP,
    )
