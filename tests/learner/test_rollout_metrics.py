"""Metrics of a rollout, on four trajectories whose numbers are known."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.learner.fused_step import Experience
from jaxrl_agent.learner.rollout_metrics import summarise
from jaxrl_agent.types import Rollout, StopReason, TokenBatch, TurnRecord

S, F, B, T = (
    reason.code for reason in (StopReason.SUCCESS, StopReason.FAILURE, StopReason.BUDGET, StopReason.TOKEN_LIMIT)
)


def experience(stops=(S, F, B, B), success=(True, False, False, False)) -> Experience:
    """Two groups of two; turns used 1, 2, 3, 3 of 3. What stands behind the last turn must not count."""
    quality_BT = jnp.array([[1.0, 9, 9], [0.5, 0.0, 9], [0.6, 0.6, 0.3], [0.9, 0.9, 0.9]])
    best_BT = jnp.array([[1.0, 9, 9], [1.0, 0.5, 9], [0.6, 0.7, 0.6], [0.9, 0.9, 0.9]])
    actions_BT = jnp.array([[0, -1, -1], [1, 2, -1], [3, 0, -1], [0, 0, 0]])
    turns_B = jnp.array([1, 2, 3, 3])
    success_B = jnp.array(success)
    mask_BL = jnp.arange(9) < 2 * turns_B[:, None]
    rollout = Rollout(
        batch=TokenBatch(
            tokens_BL=jnp.zeros((4, 9), jnp.int32),
            lengths_B=jnp.array([3, 5, 7, 7]),
            loss_mask_BL=mask_BL,
            sampler_logprobs_BL=jnp.zeros((4, 9)),
            turn_BL=jnp.zeros((4, 9), jnp.int32),
        ),
        turns=TurnRecord(
            state_BT=jnp.zeros((4, 3), jnp.int32),
            action_BT=actions_BT,
            reward_BT=jnp.zeros((4, 3)),
            step_quality_BT=quality_BT,
            best_quality_BT=best_BT,
            process_BT=jnp.zeros((4, 3)),
            key_BTK=jnp.zeros((4, 3, 1), jnp.int32),
        ),
        instance_B=jnp.array([5, 5, 7, 7]),
        group_B=jnp.array([0, 0, 1, 1]),
        budget_B=jnp.full(4, 3),
        n_turns_B=turns_B,
        prompt_lengths_B=jnp.ones(4, jnp.int32),
        stop_B=jnp.array(stops),
        return_B=success_B.astype(jnp.float32),
        success_B=success_B,
    )
    return Experience(rollout, fraction_P=jnp.array([2, 9]), gap_P=jnp.ones(2), drawn=jnp.int32(2))


def test_a_turn_that_its_environment_failed_says_nothing_of_the_policy(lesson):
    """Neither as a best action, nor as an unusable reply, nor as one worth 0."""
    failed = StopReason.COULD_NOT_CHECK.code
    summary = summarise(lesson.settings, experience(stops=(failed, failed, B, B)))
    expected = {
        "step_reward_pooled": (0.5 + 1.5 + 2.7) / 7,
        "step_reward_mean_of_means": (0.5 + 0.5 + 0.9) / 3,
        "step_reward_first_turn": (0.5 + 0.6 + 0.9) / 3,
        "optimal_share": 4 / 7,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(summary[name], value, rtol=1e-6, err_msg=name)


@pytest.fixture(params=[False, True], ids=["plain", "jitted"])
def summary(lesson, request):
    def of(played, **changes):
        function = functools.partial(summarise, dataclasses.replace(lesson.settings, **changes))
        return jax.device_get((jax.jit(function) if request.param else function)(played))

    return of


def test_metrics_are_those_computed_by_hand(summary):
    metrics = summary(experience())
    expected = {
        "trajectory_reward": 1 / 4,
        "success": 1 / 4,
        "turns": 9 / 4,
        "tokens": 22,
        "sampled_tokens": 18,
        "step_reward_pooled": (1.0 + 0.5 + 1.5 + 2.7) / 9,
        "step_reward_mean_of_means": (1.0 + 0.25 + 0.5 + 0.9) / 4,
        "step_reward_first_turn": (1.0 + 0.5 + 0.6 + 0.9) / 4,
        "regret": (0 + 1.0 + 0.4 + 0) / 9,
        "optimal_share": (1 + 0 + 1 + 3) / 9,
        "invalid_share": 1 / 9,
        "zero_variance_groups": 1 / 2,
    }
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-5), name
    assert metrics.keys() == expected.keys() | {"stop_reasons", "effective_groups_by_budget", "groups_by_budget"}
    assert metrics["stop_reasons"][[S, F, B]].tolist() == [0.25, 0.25, 0.5]
    assert metrics["stop_reasons"].sum() == 1
    assert np.flatnonzero(metrics["groups_by_budget"]).tolist() == [2, 9]
    assert np.flatnonzero(metrics["effective_groups_by_budget"]).tolist() == [2]


def test_trajectories_without_a_turn_do_not_divide_by_zero(summary):
    played = experience(stops=(StopReason.CONTEXT_LIMIT.code,) * 4, success=(False,) * 4)
    played = played.replace(rollout=played.rollout.replace(n_turns_B=jnp.zeros(4, jnp.int32)))
    metrics = summary(played)
    assert all(np.isfinite(value).all() for value in jax.tree.leaves(metrics))
    assert metrics["turns"] == metrics["step_reward_pooled"] == 0


def test_a_group_that_differs_only_in_rows_out_of_the_loss_has_no_gradient(summary):
    assert summary(experience(stops=(S, T, B, B)))["zero_variance_groups"] == 1
    assert summary(experience(stops=(S, B, B, B)))["zero_variance_groups"] == 0.5


def test_success_is_that_of_everything_sampled_and_groups_are_those_trained_on(summary):
    played = experience()
    offered = jax.tree.map(lambda leaf: jnp.concatenate([leaf[:2], leaf[2:], leaf[2:], leaf[2:]]), played.rollout)
    alone, metrics = summary(played), summary(played.replace(offered=offered))
    assert (alone["success"], metrics["success"]) == (0.25, 0.125)
    assert metrics["turns"] == (1 + 2 + 6 * 3) / 8
    assert metrics["zero_variance_groups"] == alone["zero_variance_groups"] == 0.5
    np.testing.assert_array_equal(metrics["groups_by_budget"], alone["groups_by_budget"])


def test_under_marginal_reward_two_successes_at_different_turns_are_a_signal(summary):
    played = experience(stops=(S, S, B, B), success=(True, True, False, False))
    assert summary(played)["zero_variance_groups"] == 1
    assert summary(played, marginal_reward=True)["zero_variance_groups"] == 0.5
    assert summary(played, marginal_reward=True)["trajectory_reward"] == 0.5, "the environment's own reward"
