from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.algorithms import common
from jaxrl_agent.errors import ArgumentError

OLD_BL = np.log([[0.5, 0.2, 0.1, 1.0], [0.4, 0.1, 1.0, 1.0]])
NEW_BL = np.log([[0.55, 0.3, 0.05, 1.0], [0.2, 0.5, 1.0, 1.0]])
ADVANTAGES_BL = np.array([[1.0, 1.0, 1.0, 0.0], [-1.0, -1.0, 0.0, 0.0]])
MASK_BL = np.array([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])

# options, per-token losses, then the four aggregations in the order of AGGREGATIONS with L_max = 4.
CLIPS = [
    (
        {"clip_low": 0.2, "clip_high": 0.2},
        [[-1.1, -1.2, -0.5, 0], [0.8, 5.0, 0, 0]],
        [0.6, 0.98333333, 1.5, 0.375],
    ),
    ({}, [[-1.1, -1.28, -0.5, 0], [0.8, 5.0, 0, 0]], [0.584, 0.97, 1.46, 0.365]),
    ({"dual_clip": 3.0}, [[-1.1, -1.28, -0.5, 0], [0.8, 3.0, 0, 0]], [0.184, 0.47, 0.46, 0.115]),
]


@pytest.mark.parametrize(("options", "expected_BL", "_losses"), CLIPS)
def test_token_losses_equal_the_hand_computed_ones(variant, options, expected_BL, _losses):
    function = variant(functools.partial(common.token_losses, **options))
    losses = function(NEW_BL, OLD_BL, ADVANTAGES_BL, MASK_BL)
    np.testing.assert_allclose(losses.loss_BL, expected_BL, atol=2e-6)


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize(("options", "_tokens", "losses"), CLIPS)
def test_policy_loss_equals_the_hand_computed_one(variant, options, _tokens, losses, index):
    function = functools.partial(common.policy_loss, aggregation=common.AGGREGATIONS[index], max_length=4, **options)
    loss = variant(function)(NEW_BL, OLD_BL, ADVANTAGES_BL, MASK_BL)
    assert loss.shape == ()
    np.testing.assert_allclose(loss, losses[index], atol=2e-6)


def test_sequence_ratio_is_the_geometric_mean_of_the_token_ratios(variant):
    function = functools.partial(
        common.policy_loss,
        clip_low=3e-4,
        clip_high=4e-4,
        sequence_ratio=True,
        aggregation="seq_mean_token_mean",
    )
    advantages_BL = ADVANTAGES_BL * MASK_BL
    np.testing.assert_allclose(variant(function)(NEW_BL, OLD_BL, advantages_BL, MASK_BL), 0.32162505, atol=1e-6)
    losses_BL = common.token_losses(
        NEW_BL, OLD_BL, advantages_BL, MASK_BL, clip_low=1, clip_high=9, sequence_ratio=True
    )
    np.testing.assert_allclose(-losses_BL.loss_BL[0, :3], [0.93788873] * 3, rtol=1e-6)
    np.testing.assert_allclose(losses_BL.loss_BL[1, :2], [1.58113883] * 2, rtol=1e-6)


def test_sequence_ratio_sends_its_gradient_to_every_token_of_the_row():
    def loss(logprobs_BL):
        return common.policy_loss(
            logprobs_BL,
            OLD_BL,
            ADVANTAGES_BL,
            MASK_BL,
            clip_low=0.9,
            clip_high=9,
            sequence_ratio=True,
            aggregation="seq_mean_token_mean",
        )

    gradient_BL = jax.grad(loss)(jnp.asarray(NEW_BL))
    expected_BL = np.array([[-0.93788873 / 3] * 3 + [0], [1.58113883 / 2] * 2 + [0] * 2]) / 2  # -A s / length / rows
    np.testing.assert_allclose(gradient_BL, expected_BL, rtol=1e-5)


def test_clipped_tokens_are_marked_and_have_no_gradient(variant):
    function = variant(functools.partial(common.token_losses, dual_clip=3.0))
    clipped_BL = function(NEW_BL, OLD_BL, ADVANTAGES_BL, MASK_BL).clipped_BL
    np.testing.assert_array_equal(clipped_BL, [[False, True, False, False], [True, True, False, False]])
    np.testing.assert_allclose(common.masked_mean(clipped_BL, MASK_BL), 0.6, rtol=1e-6)

    def loss(logprobs_BL):
        return common.policy_loss(logprobs_BL, OLD_BL, ADVANTAGES_BL, MASK_BL, dual_clip=3.0)

    gradient_BL = np.asarray(jax.grad(loss)(jnp.asarray(NEW_BL)))
    np.testing.assert_array_equal(gradient_BL != 0, MASK_BL.astype(bool) & ~np.asarray(clipped_BL))


def test_on_policy_gradient_is_minus_the_advantage(variant):
    def loss(logprobs_BL):
        return common.policy_loss(logprobs_BL, OLD_BL, ADVANTAGES_BL, MASK_BL)

    np.testing.assert_allclose(variant(jax.grad(loss))(OLD_BL), -ADVANTAGES_BL * MASK_BL / 5, atol=1e-7)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
def test_what_stands_outside_the_mask_has_no_influence(variant, garbage):
    def loss(logprobs_BL, old_BL, advantages_BL, weights_BL):
        return common.policy_loss(logprobs_BL, old_BL, advantages_BL, MASK_BL, importance_weights_BL=weights_BL)

    spoiled = [np.where(MASK_BL > 0, x_BL, garbage) for x_BL in (NEW_BL, OLD_BL, ADVANTAGES_BL, MASK_BL)]
    value, gradient_BL = variant(jax.value_and_grad(loss))(*(jnp.asarray(x_BL, jnp.float32) for x_BL in spoiled))
    np.testing.assert_allclose(value, 0.584, atol=2e-6)
    assert np.isfinite(np.asarray(gradient_BL)).all()


def test_huge_log_ratios_stay_finite(variant):
    value = variant(common.policy_loss)(
        np.array([[0.0, -1e4]]), np.array([[-1e4, 0.0]]), -np.ones((1, 2)), np.ones((1, 2))
    )
    np.testing.assert_allclose(value, (np.exp(20.0) + 0.8) / 2, rtol=1e-5)


@pytest.mark.parametrize("aggregation", common.AGGREGATIONS)
def test_rows_without_loss_tokens_change_nothing(variant, aggregation):
    function = variant(functools.partial(common.policy_loss, aggregation=aggregation, max_length=4))
    plain = function(NEW_BL, OLD_BL, ADVANTAGES_BL, MASK_BL)
    padded = [np.concatenate([x_BL, 0 * x_BL]) for x_BL in (NEW_BL, OLD_BL, ADVANTAGES_BL, MASK_BL)]
    np.testing.assert_allclose(function(*padded), plain, rtol=1e-6)
    assert float(function(*(0 * x_BL for x_BL in padded))) == 0.0


@pytest.mark.parametrize("aggregation", common.AGGREGATIONS)
def test_micro_batches_add_up_to_the_whole_batch(aggregation):
    rng = np.random.default_rng(0)
    new_BL, old_BL = -rng.random((2, 6, 5)).astype(np.float32)
    advantages_BL = rng.normal(size=(6, 5)).astype(np.float32)
    mask_BL = np.arange(5) < np.array([5, 0, 1, 3, 2, 5])[:, None]
    weights_BL = common.aggregation_weights(mask_BL, aggregation=aggregation, max_length=5)

    def whole(x_BL):
        return common.policy_loss(x_BL, old_BL, advantages_BL, mask_BL, aggregation=aggregation, max_length=5)

    def piece(x_BL, rows):
        losses = common.token_losses(x_BL, old_BL[rows], advantages_BL[rows], mask_BL[rows])
        return jnp.sum(losses.loss_BL * weights_BL[rows])

    pieces = [jax.value_and_grad(piece)(new_BL[rows], rows) for rows in (slice(0, 2), slice(2, 3), slice(3, 6))]
    value, gradient_BL = jax.value_and_grad(whole)(new_BL)
    np.testing.assert_allclose(sum(value for value, _ in pieces), value, rtol=1e-5)
    np.testing.assert_allclose(np.concatenate([gradient for _, gradient in pieces]), gradient_BL, rtol=1e-5, atol=1e-8)


def test_unknown_aggregation_and_missing_length_are_refused():
    with pytest.raises(ArgumentError, match="token_mean, seq_mean_token_mean"):
        common.aggregation_weights(MASK_BL, aggregation="mean")
    with pytest.raises(ArgumentError, match="max_length"):
        common.aggregation_weights(MASK_BL, aggregation="seq_mean_token_sum_norm")


# logp, logp of the reference, k1, k2, k3, derivative of k3 by logp.
KL_POINTS = np.array(
    [
        [-1.0, -1.0, 0.0, 0.0, 0.0, 0.0],
        [-1.0, -1.5, 0.5, 0.125, 0.10653066, 0.39346934],
        [-1.5, -1.0, -0.5, 0.125, 0.14872127, -0.64872127],
        [-0.1, -3.0, 2.9, 4.205, 1.95502322, 0.94497678],
        [-3.0, -0.1, -2.9, 4.205, 14.27414537, -17.17414537],
        [-2.0, -2.2, 0.2, 0.02, 0.01873075, 0.18126925],
    ]
)


@pytest.mark.parametrize(("estimator", "column"), [("k1", 2), ("k2", 3), ("k3", 4)])
def test_kl_estimators_equal_the_hand_computed_points(variant, estimator, column):
    function = variant(functools.partial(common.kl, estimator=estimator))
    np.testing.assert_allclose(function(KL_POINTS[:, 0], KL_POINTS[:, 1]), KL_POINTS[:, column], rtol=2e-6, atol=1e-7)


def test_k3_has_the_right_gradient(variant):
    gradient = variant(jax.grad(lambda x, ref: common.kl(x, ref).sum()))(*jnp.asarray(KL_POINTS[:, :2].T))
    np.testing.assert_allclose(gradient, KL_POINTS[:, 5], rtol=2e-6, atol=1e-7)


def test_k1_and_k3_are_unbiased_on_the_policys_own_samples():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
    expectations = [float(np.sum(p * common.kl(np.log(p), np.log(q), estimator=k))) for k in common.KL_ESTIMATORS]
    np.testing.assert_allclose(expectations, [0.02526715, 0.02486241, 0.02526715], atol=1e-7)


def test_kl_is_clamped_only_when_asked(variant):
    np.testing.assert_allclose(variant(common.kl)(np.array([-30.0]), np.array([0.0])), np.exp(30.0) - 31, rtol=1e-5)
    clamped = variant(functools.partial(common.kl, clamp=2.0))(np.array([-30.0]), np.array([0.0]))
    np.testing.assert_allclose(clamped, np.exp(2.0) - 3, rtol=1e-6)
    with pytest.raises(ArgumentError, match="k1, k2, k3"):
        common.kl(0.0, 0.0, estimator="k4")


def test_kl_losses_are_bounded_and_say_where(variant):
    logprobs_BL = np.array([[-1.0, -3.0, -200.0, -0.1, np.nan]])
    ref_BL = np.array([[-1.5, -0.1, 0.0, -200.0, np.inf]])
    losses_BL, clamped_BL = variant(common.kl_losses)(logprobs_BL, ref_BL, np.array([[1, 1, 1, 1, 0]]))
    # the last: d = -199.9 is clamped to -20 and k3 = exp(-20) + 19 to 10.
    np.testing.assert_allclose(losses_BL, [[0.10653066, 10.0, 10.0, 10.0, 0.0]], rtol=2e-6)
    np.testing.assert_array_equal(clamped_BL, [[False, True, True, True, False]])


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("token", [1.22140276, 1.0, 3.00416602, 0.95122942]),
        ("sequence", [3.49034296] * 4),
        ("geometric_mean", [1.36683794] * 4),
    ],
)
def test_importance_weights_compare_trainer_and_sampler(variant, level, expected):
    trainer_BL, sampler_BL = np.array([[-1.0, -0.5, -2.0, -0.1, 0]]), np.array([[-1.2, -0.5, -3.1, -0.05, -9]])
    function = variant(functools.partial(common.importance_weights, level=level))
    weights_BL = function(trainer_BL, sampler_BL, np.array([[1, 1, 1, 1, 0]]))
    np.testing.assert_allclose(weights_BL, [[*expected, 0.0]], rtol=2e-6)
    np.testing.assert_allclose(
        common.truncated_importance_weights(weights_BL)[0, :4], np.minimum(expected, 2.0), rtol=2e-6
    )


def test_importance_weights_can_be_banded():
    weights_L = jnp.array([0.4, 0.5, 3.0, 5.1])
    np.testing.assert_allclose(common.banded_importance_weights(weights_L), [0, 0.5, 3.0, 0])


def test_importance_weights_scale_the_loss_and_carry_no_gradient():
    def loss(logprobs_BL):
        weights_BL = common.importance_weights(logprobs_BL, OLD_BL - np.log(3.0), MASK_BL)
        return common.policy_loss(logprobs_BL, OLD_BL, ADVANTAGES_BL, MASK_BL, importance_weights_BL=weights_BL)

    np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(OLD_BL)), -3.0 * ADVANTAGES_BL * MASK_BL / 5, rtol=1e-5)
    with pytest.raises(ArgumentError, match="geometric_mean"):
        common.importance_weights(OLD_BL, OLD_BL, MASK_BL, level="row")


def test_soft_overlong_penalty_falls_linearly_inside_the_buffer(variant):
    function = variant(functools.partial(common.soft_overlong_penalty, max_length=100, buffer=20))
    np.testing.assert_allclose(function(np.array([0, 80, 85, 100, 130])), [0, 0, -0.25, -1, -1])


def test_each_token_gets_the_advantage_of_its_turn(variant):
    turn_BL = np.array([[-1, 0, 0, -1, 1], [-1, 0, 1, -1, -1]])
    advantages_BT = jnp.array([[2.0, 3.0], [5.0, 7.0]])
    tokens_BL = variant(common.turn_advantages_to_tokens)(advantages_BT, turn_BL, turn_BL >= 0)
    np.testing.assert_array_equal(tokens_BL, [[0, 2, 2, 0, 3], [0, 5, 7, 0, 0]])
