"""Names become objects: every name is checked before anything is built, and what is built follows the settings."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl_agent import assemble, preflight, tasks
from jaxrl_agent.config import build_config, default_config
from jaxrl_agent.errors import ConfigError, TokenizerError
from jaxrl_agent.models.hf_weights import save_hf
from jaxrl_agent.models.qwen3 import init_params
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.testing.small import EVEN_MODEL, one_device, small_config, small_preset


@pytest.fixture(autouse=True)
def _preset():
    with small_preset():
        yield


@pytest.fixture(scope="module")
def policy():
    return assemble.Policy(EVEN_MODEL, init_params(EVEN_MODEL, jax.random.key(0)), "lake_words")


@pytest.fixture(scope="module")
def game(policy):
    return assemble.build_game(small_config(), "train", policy, one_device())


# ---- names


def test_the_defaults_and_the_small_settings_pass():
    preflight.check_names(build_config(default_config()))
    preflight.check_names(small_config())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task__name": "frozenlak"}, r"config\.task\.name.*Did you mean 'frozenlake'"),
        ({"algorithm__name": "grp"}, r"config\.algorithm\.name.*Did you mean 'grpo'"),
        ({"algorithm__name": "zzz"}, r"config\.algorithm\.name.*Known: .*grpo.*rloo"),
        ({"budget__schedule": "budgetmix"}, r"config\.budget\.schedule.*Did you mean 'budget_mix'"),
        ({"model__preset": "lake-tini"}, r"Did you mean 'lake-tiny'"),
        ({"model__attention": "cudnn"}, "cudnn needs a 16-bit dtype"),
        ({"mesh": "rows:8"}, "axes data, fsdp, tensor"),
        ({"optimizer__schedule": "linear", "optimizer__warmup": 8}, "more total_steps than warm-up"),
        ({"warm_start__optimizer__warmup": 4}, "more total_steps than warm-up"),
        ({"budget__schedule": "budget_mix_marginal"}, "budget_visibility=hidden"),
        ({"budget__schedule": "curriculum"}, "caps within 1..4"),
        ({"budget__schedule": "curriculum", "budget__caps": (2, 5)}, "caps within 1..4"),
        ({"budget__caps": (2, 4)}, "caps belong to schedule curriculum"),
    ],
)
def test_unknown_names_and_pairs_without_meaning_are_refused_before_anything_is_built(changes, message):
    with pytest.raises(ConfigError, match=message):
        preflight.check_names(small_config(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"budget__schedule": "budget_mix_marginal", "task__budget_visibility": "hidden"},
        {"budget__schedule": "curriculum", "budget__caps": (2, 4)},
        {"init": "hf:somewhere", "model__preset": "not used", "warm_start__optimizer__warmup": 4},
        {"warm_start__updates": 0, "train__updates": 0},
        {"algorithm__name": "rloo"},
    ],
)
def test_what_goes_together_passes(changes):
    preflight.check_names(small_config(**changes))


def test_a_policy_that_never_saw_the_task_is_not_trained_by_reinforcement():
    with pytest.raises(ConfigError, match=r"no --init and config.warm_start.updates=0"):
        preflight.check_start(small_config(warm_start__updates=0))
    preflight.check_start(small_config(warm_start__updates=0, train__updates=0))
    preflight.check_start(small_config(warm_start__updates=0, init="hf:x"))


def test_a_warm_start_needs_somebody_who_demonstrates(monkeypatch):
    for table in (tasks.TASKS, tasks.HOST_TASKS):
        monkeypatch.setitem(table, "mine", None)
    for changes in ({"init": "hf:x"}, {"warm_start__updates": 0}):
        preflight.check_names(small_config(task__name="mine", **changes))
    with pytest.raises(ConfigError, match=r"needs demonstrations.*got 'mine'"):
        preflight.check_names(small_config(task__name="mine"))


# ---- games


def test_splits_are_disjoint_and_named_by_their_maps(policy, game):
    test = assemble.build_game(small_config(), "test", policy, one_device())
    assert (len(game.instances), len(test.instances)) == (8, 6)
    names = [{split.instances.instance_id(i) for i in range(len(split.instances))} for split in (game, test)]
    assert not names[0] & names[1]
    assert game.instances.data_hash != test.instances.data_hash


def test_a_game_lies_on_every_device_of_the_mesh(policy):
    game = assemble.build_game(small_config(), "test", policy, make_mesh("data:4,fsdp:2"))
    assert all(len(leaf.devices()) == 8 for leaf in jax.tree.leaves(game.data))


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(policy):
    narrow = dataclasses.replace(policy, model=dataclasses.replace(EVEN_MODEL, vocab_size=61))
    with pytest.raises(TokenizerError, match=r"vocabulary \(61\) must hold every id of the tokenizer 'lake_words'"):
        assemble.build_game(small_config(), "train", narrow, one_device())


# ---- policies


def test_fresh_parameters_lie_in_their_shardings_and_follow_the_key():
    mesh = make_mesh("fsdp:8")
    policy = assemble.initial_policy(small_config(), mesh, jax.random.key(5))
    kernel = policy.params["layers"]["mlp"]["up_proj"]["kernel"]
    assert kernel.addressable_shards[0].data.size * 8 == kernel.size
    expected = init_params(EVEN_MODEL, jax.random.key(5))
    for leaf, other in zip(jax.tree.leaves(policy.params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-6)
    assert policy.tokenizer == "lake_words"


def test_how_to_compute_comes_from_the_settings_whatever_the_checkpoint_says(tmp_path, policy):
    save_hf(tmp_path / "weights", EVEN_MODEL, policy.params)
    config = small_config(init=f"hf:{tmp_path / 'weights'}", model__dtype="bfloat16", model__remat=True)
    loaded = assemble.initial_policy(config, one_device(), jax.random.key(0))
    assert loaded.model == dataclasses.replace(EVEN_MODEL, dtype="bfloat16", remat=True)
    assert loaded.params["norm"]["scale"].dtype == np.float32
    assert loaded.tokenizer == "lake_words"


def test_without_a_tokenizer_in_the_settings_the_weights_folder_is_it(tmp_path, policy):
    save_hf(tmp_path / "weights", EVEN_MODEL, policy.params)
    config = small_config(init=f"hf:{tmp_path / 'weights'}", task__tokenizer="")
    assert assemble.initial_policy(config, one_device(), jax.random.key(0)).tokenizer == str(tmp_path / "weights")


def test_a_run_brings_its_own_tokenizer(small_run):
    config = small_config(init=f"run:{small_run.path}", task__tokenizer="")
    policy = assemble.initial_policy(config, one_device(), jax.random.key(0))
    assert (policy.tokenizer, policy.update) == ("lake_words", 24)
    other = small_config(init=f"run:{small_run.path}", task__tokenizer="byte")
    with pytest.raises(TokenizerError, match="a run begins with, 'lake_words'; got 'byte'"):
        assemble.initial_policy(other, one_device(), jax.random.key(0))


# ---- steps


def test_the_step_follows_the_settings(policy, game):
    config = small_config(algorithm__scale="none", rollout__temperature=0.7, rollout__top_k=5)
    step = assemble.build_step(config, policy, game)
    assert (step.prompts, step.group_size, step.n_instances, step.marginal_reward) == (4, 4, 8, False)
    assert (step.sampling.temperature, step.sampling.top_k, step.update.temperature) == (0.7, 5, 0.7)
    assert step.estimator.keywords == {"scale": "none"}
    assert step.update.algorithm == config.algorithm


def test_an_estimator_gets_the_options_that_it_takes_and_no_others(policy, game):
    step = assemble.build_step(small_config(algorithm__name="rloo", algorithm__scale="batch"), policy, game)
    assert step.estimator.keywords == {}


def test_a_curriculum_moves_from_cap_to_cap(policy, game):
    config = small_config(budget__schedule="curriculum", budget__caps=(1, 2, 4), budget__stage_updates=10)
    schedule = assemble.build_step(config, policy, game).schedule
    caps = [schedule(4, 2, jax.random.key(0), update)[0].tolist() for update in (0, 9, 10, 25, 1000)]
    assert caps == [[1, 1], [1, 1], [2, 2], [4, 4], [4, 4]]


def test_marginal_reward_goes_with_its_schedule(policy, game):
    config = small_config(budget__schedule="budget_mix_marginal", task__budget_visibility="hidden")
    assert assemble.build_step(config, policy, game).marginal_reward


def test_the_warm_start_follows_its_own_settings(policy, game):
    warm, data = assemble.build_warm_start(small_config(warm_start__random_move=0.3), policy, game)
    source = warm.source
    assert (source.batch, source.turns, source.n_instances, source.actor.random_move) == (8, 4, 8, 0.3)
    assert data is game.data


@pytest.mark.parametrize(("steps", "expected"), [(10, 1e-3), (0, 1e-3)])
def test_an_optimizer_is_built_even_for_no_steps(steps, expected):
    config = small_config(optimizer__learning_rate=expected)
    _, rate = assemble.build_optimizer(config.optimizer, steps)
    assert float(rate(0)) == pytest.approx(expected)
