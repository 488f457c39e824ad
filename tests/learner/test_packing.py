"""Training rows: sampled tokens alone, each with its own advantage and log-probability."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.learner.packing import pack_rows, score_rows, trained_rows
from jaxrl_agent.models.qwen3 import forward, init_params
from jaxrl_agent.rollout.starts import empty_record
from jaxrl_agent.testing.small import EVEN_MODEL, random_rows
from jaxrl_agent.types import Rollout, StopReason, TokenBatch


def rollout(stops=(StopReason.SUCCESS, StopReason.BUDGET), loss_mask_BL=((0, 1, 1, 0, 1, 0), (0, 0, 1, 0, 0, 0))):
    mask_BL = jnp.asarray(loss_mask_BL, bool)
    batch, length = mask_BL.shape
    count_B = jnp.zeros(batch, jnp.int32)
    return Rollout(
        batch=TokenBatch(
            tokens_BL=jnp.arange(batch * length, dtype=jnp.int32).reshape(batch, length),
            lengths_B=jnp.full(batch, length),
            loss_mask_BL=mask_BL,
            sampler_logprobs_BL=jnp.where(mask_BL, -jnp.arange(length, dtype=jnp.float32), 0.0),
            turn_BL=jnp.zeros((batch, length), jnp.int32),
        ),
        turns=empty_record(batch, 2),
        instance_B=count_B,
        group_B=count_B,
        budget_B=count_B,
        n_turns_B=count_B,
        prompt_lengths_B=count_B,
        stop_B=jnp.asarray([reason.code for reason in stops]),
        return_B=jnp.zeros(batch),
        success_B=jnp.zeros(batch, bool),
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_sampled_tokens_are_gathered_in_order_with_what_belongs_to_them(compiled):
    pack = jax.jit(pack_rows, static_argnames="width") if compiled else pack_rows
    advantages_BL = jnp.array([[0, 5, 5, 0, 7, 0], [0, 0, -1, 0, 0, 0]], jnp.float32)
    rows = pack(rollout(), advantages_BL, jnp.array([True, True]), width=4)
    assert rows.positions_BW[0, :3].tolist() == [1, 2, 4]
    assert rows.mask_BW.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert rows.advantages_BW.tolist() == [[5, 5, 7, 0], [-1, 0, 0, 0]]
    assert rows.old_logprobs_BW.tolist() == [[-1, -2, -4, 0], [-2, 0, 0, 0]]
    assert rows.ref_logprobs_BW.shape == (2, 4)
    assert rows.tokens_BL.shape == (2, 6)


def test_a_width_beyond_the_row_is_cut_to_the_row():
    rows = pack_rows(rollout(), jnp.zeros((2, 6)), jnp.array([True, True]), width=99)
    assert rows.mask_BW.shape == (2, 6)
    assert rows.mask_BW.sum() == 4


def test_rows_that_do_not_count_keep_their_numbers_but_leave_the_loss():
    rows = pack_rows(rollout(), jnp.ones((2, 6)), jnp.array([False, True]), width=4)
    assert rows.mask_BW.sum(axis=1).tolist() == [0, 1]
    assert rows.old_logprobs_BW[0].tolist() == [-1, -2, -4, 0]


@pytest.mark.parametrize("reason", StopReason)
def test_limits_of_tokens_and_context_and_failing_machinery_take_a_row_out(reason):
    rows = rollout(stops=(reason, reason))
    cut = reason in (StopReason.TOKEN_LIMIT, StopReason.CONTEXT_LIMIT)
    failed = reason in (StopReason.ENVIRONMENT_ERROR, StopReason.TIME_LIMIT, StopReason.COULD_NOT_CHECK)
    assert trained_rows(rows, train_on_cut_replies=False).tolist() == [not (cut or failed)] * 2
    assert trained_rows(rows, train_on_cut_replies=True).tolist() == [not failed] * 2


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_those_of_the_whole_logits_at_the_sampling_temperature(temperature):
    model = dataclasses.replace(EVEN_MODEL, initializer_range=0.5)
    params = init_params(model, jax.random.key(0))
    rows = random_rows(model, params, rows=3)
    logprobs_BW, entropy_BW = score_rows(model, params, rows, temperature=temperature)
    logits_BLV = np.asarray(forward(model, params, rows.tokens_BL, rows.lengths_B), np.float64) / temperature
    logp_BLV = logits_BLV - np.log(np.exp(logits_BLV).sum(axis=-1, keepdims=True))
    for row, column in np.ndindex(rows.mask_BW.shape):
        if not rows.mask_BW[row, column]:
            assert logprobs_BW[row, column] == entropy_BW[row, column] == 0
            continue
        position = rows.positions_BW[row, column]
        logp_V = logp_BLV[row, position - 1]
        assert logprobs_BW[row, column] == pytest.approx(logp_V[rows.tokens_BL[row, position]], abs=2e-5)
        assert entropy_BW[row, column] == pytest.approx(-(np.exp(logp_V) * logp_V).sum(), abs=2e-5)
