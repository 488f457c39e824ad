from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.algorithms import grpo
from jaxrl_agent.algorithms.groups import dense_ids, first_rows
from jaxrl_agent.errors import ArgumentError

# rewards, A with std, A without std (Dr.GRPO), leave-one-out A; worked by hand.
GROUPS = [
    (
        [1, 0, 0, 0],
        [1.499997, -0.499999, -0.499999, -0.499999],
        [0.75, -0.25, -0.25, -0.25],
        [1, -1 / 3, -1 / 3, -1 / 3],
    ),
    ([1, 1, 0, 0], [0.8660239] * 2 + [-0.8660239] * 2, [0.5, 0.5, -0.5, -0.5], [2 / 3, 2 / 3, -2 / 3, -2 / 3]),
    (
        [1] * 3 + [0] * 5,
        [1.2076124] * 3 + [-0.72456744] * 5,
        [0.625] * 3 + [-0.375] * 5,
        [0.71428571] * 3 + [-0.42857143] * 5,
    ),
    ([1] + [0] * 7, [2.47486673] + [-0.35355239] * 7, [0.875] + [-0.125] * 7, [1] + [-0.14285714] * 7),
    (
        [0.2, 0.5, 1.0, 0.5],
        [-1.05528652, -0.15075522, 1.35679696, -0.15075522],
        [-0.35, -0.05, 0.45, -0.05],
        [-0.46666667, -0.06666667, 0.6, -0.06666667],
    ),
    ([1] * 4, [0] * 4, [0] * 4, [0] * 4),
    ([0] * 4, [0] * 4, [0] * 4, [0] * 4),
]
REWARDS_B = np.concatenate([group[0] for group in GROUPS]).astype(np.float32)
# Ids are arbitrary integers: neither dense, nor sorted, nor positive.
IDS_B = np.concatenate([np.full(len(group[0]), (-7) ** i) for i, group in enumerate(GROUPS)])


def expected_B(column: int) -> np.ndarray:
    return np.concatenate([group[column] for group in GROUPS])


@pytest.mark.parametrize(
    ("estimator", "column"),
    [
        (grpo.advantages, 1),
        (functools.partial(grpo.advantages, scale="none"), 2),
        (grpo.rloo_advantages, 3),
    ],
)
def test_advantages_equal_the_hand_computed_ones(variant, estimator, column):
    np.testing.assert_allclose(variant(estimator)(REWARDS_B, IDS_B), expected_B(column), atol=2e-6)


@pytest.mark.parametrize("estimator", [grpo.advantages, grpo.rloo_advantages])
def test_groups_are_keyed_by_id_and_never_by_position(variant, estimator):
    order = np.random.default_rng(0).permutation(len(REWARDS_B))
    in_order_B = np.asarray(variant(estimator)(REWARDS_B, IDS_B))
    np.testing.assert_allclose(variant(estimator)(REWARDS_B[order], IDS_B[order]), in_order_B[order], atol=1e-6)


@pytest.mark.parametrize("scale", grpo.SCALES)
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.7, 1e3 + 0.1])
def test_equal_rewards_give_exactly_zero_advantages(variant, scale, reward):
    rewards_B = np.full(7, reward, np.float32)
    ids_B = np.zeros(7, np.int32)
    assert not np.asarray(variant(functools.partial(grpo.advantages, scale=scale))(rewards_B, ids_B)).any()
    assert not np.asarray(variant(grpo.rloo_advantages)(rewards_B, ids_B)).any()


def test_rewards_that_differ_by_a_float_residue_count_as_equal(variant):
    rewards_B = np.array([0.3, 0.1 + 0.2, np.nextafter(np.float32(0.3), np.float32(1))], np.float32)
    assert not np.asarray(variant(grpo.advantages)(rewards_B, np.zeros(3, np.int32))).any()


def test_a_group_of_one_gets_zero(variant):
    for estimator in (grpo.advantages, grpo.rloo_advantages):
        advantages_B = np.asarray(variant(estimator)(np.array([1.0, 0.0, 1.0]), np.array([4, 9, 9])))
        assert advantages_B[0] == 0
        assert advantages_B[1] < 0 < advantages_B[2]


@pytest.mark.parametrize("scale", grpo.SCALES)
def test_masked_rows_move_nothing_and_get_zero(variant, scale):
    estimator = variant(lambda r, g, m: grpo.advantages(r, g, scale=scale, mask_B=m))
    clean_B = np.asarray(variant(functools.partial(grpo.advantages, scale=scale))(REWARDS_B, IDS_B))
    padded = [np.append(REWARDS_B, [np.nan, 5.0, 1.0]), np.append(IDS_B, [IDS_B[0], IDS_B[4], 12345])]
    mask_B = np.append(np.ones(len(REWARDS_B), bool), [False, False, False])
    np.testing.assert_allclose(estimator(*padded, mask_B), np.append(clean_B, [0, 0, 0]), atol=1e-6)


def test_rloo_of_masked_rows_moves_nothing(variant):
    estimator = variant(lambda r, g, m: grpo.rloo_advantages(r, g, mask_B=m))
    rewards_B, mask_B = np.array([1.0, 0.0, np.nan, 0.0]), np.array([True, True, False, True])
    np.testing.assert_allclose(estimator(rewards_B, np.zeros(4, np.int32), mask_B), [1, -0.5, 0, -0.5], atol=1e-6)


def test_batch_scale_divides_by_the_std_of_the_centred_rewards(variant):
    estimator = variant(functools.partial(grpo.advantages, scale="batch"))
    advantages_B = estimator(np.array([1.0, 0, 0, 0, 5, 5]), np.array([0, 0, 0, 0, 1, 1]))
    std = np.sqrt((0.75**2 + 3 * 0.25**2) / 5)  # centred: .75 -.25 -.25 -.25 0 0
    np.testing.assert_allclose(advantages_B, np.array([0.75, -0.25, -0.25, -0.25, 0, 0]) / std, rtol=1e-5)


def test_mixing_budgets_in_a_group_gives_equal_behaviour_opposite_advantages(variant):
    """Every trajectory succeeds at turn 6; budgets 2 and 10. One budget a group takes the bias away."""
    budgets_B = np.array([2, 2, 2, 2, 10, 10, 10, 10])
    rewards_B = (budgets_B >= 6).astype(np.float32)
    mixed_B = variant(grpo.advantages)(rewards_B, np.zeros(8, np.int32))
    np.testing.assert_allclose(mixed_B, [-0.9354126] * 4 + [0.9354126] * 4, atol=2e-6)
    assert not np.asarray(variant(grpo.advantages)(rewards_B, budgets_B)).any()


def test_informative_rows_are_those_of_groups_with_different_rewards(variant):
    rewards_B, ids_B = np.array([1.0, 0, 1, 1, 0]), np.array([3, 3, 5, 5, 5])
    mask_B = np.array([True, True, True, True, False])
    rows_B = variant(lambda r, g, m: grpo.informative_rows(r, g, mask_B=m))(rewards_B, ids_B, mask_B)
    np.testing.assert_array_equal(rows_B, [True, True, False, False, False])
    assert int(jnp.sum(rows_B & first_rows(dense_ids(ids_B), mask_B))) == 1


def test_ids_of_text_group_as_well():
    advantages_B = grpo.advantages([1, 0, 0, 1], ["lake-1", "lake-2", "lake-1", "lake-2"], scale="none")
    np.testing.assert_allclose(advantages_B, [0.5, -0.5, -0.5, 0.5])


def test_an_unknown_scale_is_refused():
    with pytest.raises(ArgumentError, match="group, batch, none"):
        grpo.advantages([1.0], [0], scale="std")
