"""Statistics of rows that share a key, for any order and any number of groups, inside jit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agent.errors import ArgumentError

# Values of one group that differ by less than this are equal. The spread decides, not the standard deviation:
# eight times 0.1 has a float residue of standard deviation that a division would blow up.
EQUAL_SPREAD = 1e-6

Keys = jax.Array | np.ndarray | Sequence


class GroupMoments(NamedTuple):
    """Statistics of the group that each row belongs to, over the rows of the group that count."""

    count_N: jax.Array  # float32, rows that count
    mean_N: jax.Array  # float32
    std_N: jax.Array  # float32, ddof 1; 0 below two rows
    spread_N: jax.Array  # float32, maximum minus minimum; 0 without rows


def dense_ids(*keys: Keys) -> jax.Array:
    """Number rows so that two rows have the same number exactly when all their keys are equal.

    Args:
        *keys: one or more keys for each of N rows. Device keys are integers, [N] or [N, columns]. Host keys are
            whatever is hashable (strings, tuples, 64-bit integers), compared as they are, never as text.

    Returns:
        int32 [N], within 0..N-1.

    Raises:
        ArgumentError: a device key is not of an integer dtype, or keys differ in length.
    """
    columns = [column for key in keys for column in _integer_columns(key)]
    if len({column.shape for column in columns}) != 1:
        raise ArgumentError("keys must have one entry for each row", value=[column.shape for column in columns])
    order = jnp.lexsort(columns)
    changes = [column[order][1:] != column[order][:-1] for column in columns]
    changed = jnp.any(jnp.stack(changes), axis=0)
    number_in_order = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(changed, dtype=jnp.int32)])
    return jnp.zeros_like(number_in_order).at[order].set(number_in_order, unique_indices=True)


def group_moments(values_N: jax.Array, ids_N: jax.Array, mask_N: jax.Array) -> GroupMoments:
    """Compute count, mean, standard deviation and spread of each row's group.

    Args:
        values_N: float32 [N].
        ids_N: int32 [N], within 0..N-1, as `dense_ids` makes them.
        mask_N: bool [N]; a row that is False counts nowhere (its value may be NaN) but reads its group's moments.

    Returns:
        GroupMoments with one entry for each row.
    """
    chex.assert_equal_shape([values_N, ids_N, mask_N])
    n_rows = values_N.shape[0]

    def total(x_N: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(x_N, ids_N, n_rows)[ids_N]

    count_N = total(mask_N.astype(jnp.float32))
    mean_N = total(jnp.where(mask_N, values_N, 0.0)) / jnp.maximum(count_N, 1.0)
    deviation_N = jnp.where(mask_N, values_N - mean_N, 0.0)
    std_N = jnp.sqrt(total(deviation_N**2) / jnp.maximum(count_N - 1.0, 1.0))
    high_N = jax.ops.segment_max(jnp.where(mask_N, values_N, -jnp.inf), ids_N, n_rows)[ids_N]
    low_N = jax.ops.segment_min(jnp.where(mask_N, values_N, jnp.inf), ids_N, n_rows)[ids_N]
    return GroupMoments(count_N, mean_N, std_N, jnp.where(count_N > 0, high_N - low_N, 0.0))


def first_rows(ids_N: jax.Array, mask_N: jax.Array | None = None) -> jax.Array:
    """Mark the first row of each group, so that a sum over the marks counts groups.

    Args:
        ids_N: int32 [N], within 0..N-1.
        mask_N: bool [N], rows that exist; all of them by default.

    Returns:
        bool [N], True once for each group that has a row.
    """
    n_rows = ids_N.shape[0]
    row_N = jnp.arange(n_rows)
    candidate_N = row_N if mask_N is None else jnp.where(mask_N, row_N, n_rows)
    return jax.ops.segment_min(candidate_N, ids_N, n_rows)[ids_N] == row_N


def _integer_columns(key: Keys) -> list[jax.Array]:
    """Turn one key into integer columns [N]; host keys are numbered in order of first appearance."""
    if not isinstance(key, jax.Array):
        rows = key.tolist() if isinstance(key, np.ndarray) else list(key)
        numbers: dict = {}
        codes = [numbers.setdefault(tuple(row) if isinstance(row, list) else row, len(numbers)) for row in rows]
        return [jnp.asarray(codes, jnp.int32)]
    if not (jnp.issubdtype(key.dtype, jnp.integer) or key.dtype == jnp.bool_):
        raise ArgumentError("a key on device must have an integer dtype", value=key.dtype)
    return [key] if key.ndim == 1 else list(key.T)
