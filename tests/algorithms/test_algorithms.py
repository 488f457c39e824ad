from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.algorithms import estimator_options, make_estimator
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.types import Rollout, TokenBatch, TurnRecord


def rollout() -> Rollout:
    """Two groups of two; rows have 2, 1, 3 and 0 loss tokens."""
    loss_mask_BL = jnp.array([[0, 1, 1, 0], [0, 1, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0]], bool)
    zeros_B, zeros_BL, zeros_BT = jnp.zeros(4, jnp.int32), jnp.zeros((4, 4)), jnp.zeros((4, 2))
    return Rollout(
        batch=TokenBatch(zeros_BL.astype(int), zeros_B + 4, loss_mask_BL, zeros_BL, zeros_BL.astype(int)),
        turns=TurnRecord(
            state_BT=zeros_BT.astype(int),
            action_BT=zeros_BT.astype(int),
            reward_BT=zeros_BT,
            step_quality_BT=zeros_BT,
            best_quality_BT=zeros_BT,
            process_BT=zeros_BT,
            key_BTK=zeros_BT.astype(int)[..., None],
        ),
        instance_B=jnp.array([31, 31, 8, 8]),
        group_B=jnp.array([1, 1, 0, 0]),
        budget_B=zeros_B + 2,
        n_turns_B=zeros_B + 2,
        prompt_lengths_B=zeros_B + 1,
        stop_B=zeros_B,
        return_B=jnp.array([1.0, 0.0, 1.0, 1.0]),
        success_B=jnp.array([True, False, True, True]),
    )


@pytest.mark.parametrize(("name", "options", "size"), [("grpo", {"scale": "none"}, 0.5), ("rloo", {}, 1.0)])
def test_an_estimator_gives_each_loss_token_its_trajectorys_advantage(variant, name, options, size):
    advantages_BL = variant(make_estimator(name, **options))(rollout())
    expected_BL = size * np.array([[0, 1, 1, 0], [0, -1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(advantages_BL, expected_BL, atol=1e-6)
    assert advantages_BL.dtype == jnp.float32


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_rows_that_do_not_count_silence_their_group(name):
    advantages_BL = make_estimator(name)(rollout(), counted_B=jnp.array([True, False, True, True]))
    assert not np.asarray(advantages_BL).any()


def test_an_unknown_algorithm_lists_the_known_ones():
    with pytest.raises(ConfigError, match="grpo, rloo"):
        make_estimator("reinforce")


def test_an_option_of_another_algorithm_is_refused():
    assert estimator_options("grpo") == {"scale"}
    assert estimator_options("rloo") == set()
    with pytest.raises(ConfigError, match="rloo takes"):
        make_estimator("rloo", scale="group")
