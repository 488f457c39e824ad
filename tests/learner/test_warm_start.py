"""Supervised warm start: pure steps that lower the loss on the actor's words and on nothing else."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent import assemble
from jaxrl_agent.learner.warm_start import warm_start_step, warm_start_steps
from jaxrl_agent.models.qwen3 import forward, init_params
from jaxrl_agent.rollout.budget import budget_levels
from jaxrl_agent.rollout.scripted import play_script
from jaxrl_agent.testing.small import EVEN_MODEL


@pytest.fixture(scope="module")
def settings(lesson):
    policy = assemble.Policy(EVEN_MODEL, lesson.params, "lake_words")
    return assemble.build_warm_start(lesson.config, policy, lesson.game)[0]


@pytest.fixture(scope="module")
def start(settings, fresh_state):
    return fresh_state(init_params(EVEN_MODEL, jax.random.key(0)), settings.optimizer, jax.random.key(1))


@pytest.fixture(scope="module")
def step(settings, on_one_device):
    return functools.partial(on_one_device, jax.jit(functools.partial(warm_start_step, settings)))


def same_bits(tree, expected) -> bool:
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def test_the_loss_falls_from_that_of_guessing_to_that_of_an_imperfect_player(lesson):
    assert lesson.losses[0] > 1
    assert lesson.losses[-1] < 0.6
    assert lesson.losses == sorted(lesson.losses, reverse=True)


def test_the_first_loss_is_the_mean_negative_log_probability_of_the_replies(settings, start, step, lesson):
    _, metrics = step(start, lesson.game.data)
    key_instances, key_budgets, key_play = jax.random.split(jax.random.fold_in(start.key, 0), 3)
    levels = budget_levels(settings.source.task.t_max)
    source = settings.source
    play = jax.jit(functools.partial(play_script, source.task, actor=source.actor, turns=source.turns))
    batch, success_B = play(
        lesson.game.data,
        instances_B=jax.random.randint(key_instances, (source.batch,), 0, source.n_instances),
        budgets_B=levels[jax.random.randint(key_budgets, (source.batch,), 0, 10)],
        key=key_play,
    )
    logp_BLV = jax.nn.log_softmax(forward(EVEN_MODEL, start.params, batch.tokens_BL, batch.lengths_B))
    chosen_BL = jnp.take_along_axis(logp_BLV[:, :-1], batch.tokens_BL[:, 1:, None], axis=-1)[..., 0]
    expected = -chosen_BL[batch.loss_mask_BL[:, 1:]].mean()
    assert float(metrics["loss"]) == pytest.approx(float(expected), rel=1e-5)
    assert float(metrics["loss"]) > 3, "guessing among 62 words costs about log 62 nats"
    assert float(metrics["demonstration_success"]) == pytest.approx(float(success_B.mean()))


def test_several_steps_in_one_program_are_those_steps_one_by_one(settings, start, step, lesson, on_one_device):
    several = jax.jit(functools.partial(warm_start_steps, settings, count=3))
    together, metrics = on_one_device(several, start, lesson.game.data)
    state, losses = start, []
    for _ in range(3):
        state, one = step(state, lesson.game.data)
        losses.append(float(one["loss"]))
    assert int(together.update) == int(state.update) == 3
    for leaf, expected in zip(jax.tree.leaves(together.params), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_allclose(leaf, expected, atol=1e-5)
    assert float(metrics["loss"]) == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_step_is_a_function_of_its_state_and_demonstrations_differ_from_step_to_step(start, step, lesson):
    first, metrics = step(start, lesson.game.data)
    again, metrics_again = step(start, lesson.game.data)
    assert same_bits((first.params, first.opt_state, metrics), (again.params, again.opt_state, metrics_again))
    _, later = step(start.replace(update=start.update + 1), lesson.game.data)
    assert float(later["loss"]) != float(metrics["loss"])


def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(start, step, lesson):
    params = start.params | {"norm": {"scale": start.params["norm"]["scale"] * jnp.nan}}
    state, metrics = step(start.replace(params=params), lesson.game.data)
    assert np.isnan(metrics["loss"])
    assert same_bits((state.params, state.opt_state), (params, start.opt_state))
    assert (int(state.skips.consecutive), int(state.update)) == (1, 1)
