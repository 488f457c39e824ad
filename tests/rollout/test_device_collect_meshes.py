"""The same rollouts on many devices, and with the layers in a scan."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_agent.learner.logprobs import token_logprobs
from jaxrl_agent.models.qwen3 import param_axes
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.parallel.rules import tree_shardings
from jaxrl_agent.rollout import decoding
from jaxrl_agent.rollout.device_collect import SamplingSettings, collect
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES
from jaxrl_agent.testing.lakes import FOUR_LAKES, lake_game
from jaxrl_agent.testing.policies import babbling_words, leaning_policy
from jaxrl_agent.testing.replay import play
from jaxrl_agent.types import Rollout

LOGPROB_TOLERANCE = 1e-4  # float32 on CPU
ARGUMENTS = {"instances": range(4), "budgets": (8, 5, 6, 1), "rows": range(7, 31)}
SEED = 1  # one under which no draw falls within rounding of the border between two tokens


@pytest.fixture(scope="module")
def game():
    return lake_game(FOUR_LAKES, t_max=8, lake={"success_rate": 0.7})


def lean(game, **shape: Any):
    return leaning_policy(babbling_words(game.tokenizer, ACTION_NAMES), noise=0.06, **shape)


def collect_anew(game, config, params, **arguments: Any) -> Rollout:
    """Collect with a program traced here and now, on whatever mesh is set; arrays stay on their devices."""
    program = jax.jit(functools.partial(collect, config, game.task, SamplingSettings()))
    return program(
        params,
        game.data,
        instances_P=np.array(ARGUMENTS["instances"], np.int32),
        budgets_P=np.array(ARGUMENTS["budgets"], np.int32),
        row_ids_B=np.array(ARGUMENTS["rows"], np.uint32),
        key=jax.random.key(SEED),
    )


def assert_same(found: Rollout, expected: Rollout) -> None:
    """All arrays equal, log-probabilities to the last bits that the order of a sum decides."""
    for (path, left), right in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        tolerance = LOGPROB_TOLERANCE if "logprobs" in jax.tree_util.keystr(path) else 0
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance, err_msg=jax.tree_util.keystr(path))


@pytest.fixture(scope="module")
def expected(game) -> Rollout:
    rollout = play(game, *lean(game), **ARGUMENTS, seed=SEED)
    assert len(set(rollout.batch.tokens_BL[rollout.batch.loss_mask_BL].tolist())) > 5
    return rollout


@pytest.mark.parametrize(("axes", "rows_a_device"), [("data:8", 3), ("data:2,fsdp:2,tensor:2", 6)])
def test_rollouts_on_a_mesh_have_the_same_tokens_and_stay_split_over_the_batch(game, expected, axes, rows_a_device):
    """The four prompts cannot be split over eight devices; the rows can."""
    mesh = make_mesh(axes)
    config, params = lean(game)
    with jax.set_mesh(mesh):
        params = jax.device_put(params, tree_shardings(param_axes(config), params, mesh))
        rollout = collect_anew(game, config, params)
    assert_same(rollout, expected)
    for path, leaf in jax.tree.leaves_with_path(rollout):
        assert leaf.sharding.shard_shape(leaf.shape)[0] == rows_a_device, jax.tree_util.keystr(path)


def test_layers_in_a_scan_and_layers_unrolled_sample_the_same(game, expected, monkeypatch):
    config, params = lean(game)
    monkeypatch.setattr(decoding, "UNROLLED_LAYERS", config.num_hidden_layers - 1)
    # Functions that read the constant are jitted themselves: a configuration that they have not met is traced anew.
    unmet = dataclasses.replace(config, remat=not config.remat)
    assert decoding.empty_cache(unmet, 1, 1).stacked
    assert_same(collect_anew(game, unmet, params), expected)


def test_more_layers_than_are_unrolled_sample_what_the_learner_scores(game):
    config, params = lean(game, num_hidden_layers=decoding.UNROLLED_LAYERS + 1)
    batch = collect_anew(game, config, params).batch
    scores_BL = token_logprobs(config, params, batch.tokens_BL, batch.lengths_B)
    difference_BL = np.where(batch.loss_mask_BL, scores_BL - batch.sampler_logprobs_BL, 0)
    assert np.abs(difference_BL).max() < LOGPROB_TOLERANCE
