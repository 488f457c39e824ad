from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.algorithms.groups import dense_ids, first_rows, group_moments
from jaxrl_agent.errors import ArgumentError


def test_rows_share_a_number_exactly_when_all_keys_are_equal(variant):
    ids_N = variant(dense_ids)(jnp.array([7, -3, 7, 7, -3]), jnp.array([[1, 2], [1, 2], [1, 2], [1, 9], [1, 2]]))
    np.testing.assert_array_equal(
        ids_N[:, None] == ids_N[None, :], np.array([0, 1, 0, 2, 1])[:, None] == [0, 1, 0, 2, 1]
    )
    assert int(ids_N.min()) >= 0
    assert int(ids_N.max()) < 5


@pytest.mark.parametrize(
    "keys",
    [
        ["a", "b", "a"],
        [("map", 3), ("map", 4), ("map", 3)],
        np.array([2**40, 2**40 + 2**33, 2**40]),  # equal in the low 32 bits
        np.array(["seven", "7", "seven"]),
        np.array([[1, 2], [2, 1], [1, 2]]),
    ],
)
def test_host_keys_are_compared_as_they_are(keys):
    ids_N = np.asarray(dense_ids(keys))
    assert ids_N[0] == ids_N[2] != ids_N[1]


def test_a_float_key_on_device_is_refused():
    with pytest.raises(ArgumentError, match="integer"):
        dense_ids(jnp.array([0.5, 0.5]))


def test_keys_of_different_lengths_are_refused():
    with pytest.raises(ArgumentError, match="each row"):
        dense_ids([1, 2], [1, 2, 3])


def test_moments_ignore_masked_rows_but_are_told_to_them(variant):
    values_N = jnp.array([1.0, 3.0, jnp.nan, 8.0, 5.0])
    mask_N = jnp.array([True, True, False, True, False])
    moments = variant(group_moments)(values_N, jnp.array([0, 0, 0, 1, 2]), mask_N)
    np.testing.assert_array_equal(moments.count_N, [2, 2, 2, 1, 0])
    np.testing.assert_array_equal(moments.mean_N, [2, 2, 2, 8, 0])
    np.testing.assert_allclose(moments.std_N, [2**0.5, 2**0.5, 2**0.5, 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(moments.spread_N, [2, 2, 2, 0, 0])


def test_first_rows_count_groups(variant):
    ids_N = jnp.array([2, 0, 2, 0, 1])
    np.testing.assert_array_equal(variant(first_rows)(ids_N), [True, True, False, False, True])
    mask_N = jnp.array([False, True, True, True, False])
    np.testing.assert_array_equal(variant(first_rows)(ids_N, mask_N), [False, True, True, False, False])


def test_numbering_survives_any_order_of_rows():
    keys_N = np.array([5, 5, 2, 9, 2, 2])
    order = np.random.default_rng(0).permutation(6)
    ids_N, shuffled_N = (
        np.asarray(dense_ids(jax.device_put(keys_N))),
        np.asarray(dense_ids(jax.device_put(keys_N[order]))),
    )
    np.testing.assert_array_equal(ids_N[order], shuffled_N)
