"""Micro-batches of rows of uneven length are cut to the rows they hold."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

from jaxrl_agent.config import AlgorithmConfig
from jaxrl_agent.learner import update as update_module
from jaxrl_agent.learner.critic import CriticSettings, init_critic
from jaxrl_agent.learner.optimizer import with_critic
from jaxrl_agent.learner.train_state import new_state
from jaxrl_agent.learner.update import UpdateSettings, update_policy
from jaxrl_agent.models.qwen3 import init_params
from jaxrl_agent.models.value_head import ValueHead
from jaxrl_agent.testing.small import EVEN_MODEL, one_device, random_rows

LENGTH = 24
SGD = optax.sgd(1.0)  # what a parameter moves by is its gradient
EXTRAS = AlgorithmConfig(entropy_coefficient=0.02, kl_coefficient=0.1, importance_cap=1.1)
PARAMS = jax.device_get(init_params(EVEN_MODEL, jax.random.key(0)))


@pytest.mark.parametrize("critic", [False, True])
def test_micro_batches_that_are_cut_to_their_rows_change_rounding_alone(critic, monkeypatch):
    settings = UpdateSettings(EVEN_MODEL, EXTRAS, SGD, 0.8, mini_batches=1, micro_batch_tokens=2 * LENGTH)
    rows, params = random_rows(EVEN_MODEL, PARAMS, rows=16, length=LENGTH), PARAMS
    state = new_state(params, SGD, jax.random.key(1))
    if critic:
        head = CriticSettings(ValueHead(width=8, turns=0), separate=False, coefficient=0.5, clip=0.2, warmup=0)
        both = with_critic(SGD, learning_rate=1e-2, clip_norm=1.0)
        settings = dataclasses.replace(settings, critic=head, optimizer=both)
        rows = rows.replace(value_mask_BW=rows.mask_BW, returns_BW=np.ones_like(rows.returns_BW))
        value = init_critic(head, EVEN_MODEL, params, jax.random.key(3))
        state = new_state(params, both, jax.random.key(1), critic=value)
    found = {}
    for name, least in (("whole", 10**6), ("cut", 16)):
        monkeypatch.setattr(update_module, "_WORTH_CUTTING", least)
        with jax.set_mesh(one_device()):
            found[name] = jax.jit(functools.partial(update_policy, settings))(state, rows, jax.random.key(2))
    widths = update_module.row_widths(LENGTH)
    used = {int(np.searchsorted(widths, length)) for length in rows.lengths_B}
    assert len(widths) == 3
    assert len(used) > 1, "all rows need one width: the test shows nothing"
    for leaf, other in zip(*(jax.tree.leaves(found[name][0].trained) for name in ("cut", "whole")), strict=True):
        np.testing.assert_allclose(leaf, other, atol=1e-5 * max(float(np.abs(other).max()), 1e-3), rtol=0)
    for name, value in found["cut"][1].items():
        assert float(value) == pytest.approx(float(found["whole"][1][name]), rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize(
    ("width", "expected"), [(70, (70,)), (255, (255,)), (256, (64, 128, 256)), (768, (192, 384, 768))]
)
def test_short_rows_are_not_worth_cutting(width, expected):
    assert update_module.row_widths(width) == expected
