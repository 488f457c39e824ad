"""PPO's critic: what it reads, what trains it, and that the policy waits for it."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent import assemble
from jaxrl_agent.learner.critic import CriticSettings, critic_values, init_critic, value_loss, value_weights
from jaxrl_agent.learner.fused_step import prepare_rows, train_step
from jaxrl_agent.learner.packing import gather_tokens, scatter_tokens
from jaxrl_agent.learner.train_state import new_state, state_shardings
from jaxrl_agent.models.qwen3 import hidden_states
from jaxrl_agent.models.value_head import ValueHead
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.testing.small import EVEN_MODEL, random_rows, small_preset

SETTINGS = CriticSettings(ValueHead(width=8, turns=4), separate=False, coefficient=0.5, clip=0.2, warmup=1)


def ppo_settings(lesson, **changes):
    """The lesson's step with PPO."""
    algorithm = dataclasses.replace(
        lesson.config.algorithm,
        name="ppo",
        ppo=dataclasses.replace(lesson.config.algorithm.ppo, **{"width": 8, "warmup_updates": 1, **changes}),
    )
    config = dataclasses.replace(lesson.config, algorithm=algorithm)
    with small_preset():
        return assemble.build_step(config, assemble.Policy(EVEN_MODEL, None, "lake_words"), lesson.game)


def first_state(lesson, settings, key=3):
    critic = init_critic(settings.update.critic, EVEN_MODEL, lesson.params, jax.random.key(9))
    return new_state(lesson.params, settings.update.optimizer, jax.random.key(key), critic=critic)


def rows_and_hidden(lesson):
    rows = random_rows(EVEN_MODEL, lesson.params)
    return rows, hidden_states(EVEN_MODEL, lesson.params, rows.tokens_BL, rows.lengths_B)


def perturbed(critic):
    return jax.tree.map(lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), critic)


def test_a_fresh_critic_says_nothing(lesson):
    rows, hidden_BLD = rows_and_hidden(lesson)
    critic = init_critic(SETTINGS, EVEN_MODEL, lesson.params, jax.random.key(0))
    assert set(critic) == {"head"}
    assert not np.asarray(critic_values(SETTINGS, EVEN_MODEL, critic, rows, hidden_BLD)).any()


def test_a_value_depends_on_what_was_read_before_the_token_and_on_the_turns_left(lesson):
    rows, hidden_BLD = rows_and_hidden(lesson)
    critic = perturbed(init_critic(SETTINGS, EVEN_MODEL, lesson.params, jax.random.key(0)))
    value = functools.partial(critic_values, SETTINGS, EVEN_MODEL, critic)
    values_BW = value(rows, hidden_BLD)
    later = rows.positions_BW[:, :1] + np.arange(hidden_BLD.shape[1]) * 0
    column_L = np.arange(hidden_BLD.shape[1])
    changed = jnp.where((column_L >= later)[..., None], 7.0, hidden_BLD)
    np.testing.assert_array_equal(value(rows, changed)[:, 0], values_BW[:, 0])
    fewer = rows.replace(turns_left_BW=rows.turns_left_BW + 1)
    assert np.abs(value(fewer, hidden_BLD) - values_BW).min() > 0
    blind = dataclasses.replace(SETTINGS, head=ValueHead(width=8, turns=0))
    head = perturbed(init_critic(blind, EVEN_MODEL, lesson.params, jax.random.key(0)))
    seen = functools.partial(critic_values, blind, EVEN_MODEL, head)
    np.testing.assert_array_equal(seen(fewer, hidden_BLD), seen(rows, hidden_BLD))


def test_a_separate_critic_starts_as_the_policy_and_reads_its_own_states(lesson):
    separate = dataclasses.replace(SETTINGS, separate=True)
    rows, hidden_BLD = rows_and_hidden(lesson)
    critic = init_critic(separate, EVEN_MODEL, lesson.params, jax.random.key(0))
    critic["head"] = perturbed(critic["head"])
    own = critic_values(separate, EVEN_MODEL, critic, rows, jnp.full_like(hidden_BLD, np.nan))
    shared = critic_values(SETTINGS, EVEN_MODEL, {"head": critic["head"]}, rows, hidden_BLD)
    np.testing.assert_allclose(own, shared, atol=1e-6)


def test_values_travel_to_the_row_and_back(lesson):
    played = jax.jit(functools.partial(train_step, lesson.settings))(lesson.state(), lesson.game.data)[1].rollout
    rows = prepare_rows(lesson.settings, played, None)
    values_BW = jnp.arange(rows.positions_BW.size, dtype=jnp.float32).reshape(rows.positions_BW.shape) + 1
    back_BW = gather_tokens(rows, scatter_tokens(rows, played, values_BW))
    sampled_BW = np.arange(values_BW.shape[1]) < played.batch.loss_mask_BL.sum(axis=1)[:, None]
    np.testing.assert_array_equal(np.asarray(back_BW)[sampled_BW], np.asarray(values_BW)[sampled_BW])


def test_the_loss_is_the_mean_over_the_tokens_that_are_asked(lesson):
    rows, _ = rows_and_hidden(lesson)
    mask = np.zeros(rows.mask_BW.shape, bool)
    mask[0, 0] = mask[1, 1] = True
    rows = rows.replace(value_mask_BW=mask, returns_BW=np.ones(mask.shape), old_values_BW=np.zeros(mask.shape))
    values = np.where(mask, [[0.1]] + [[0.5]] * (len(mask) - 1), 9.0)
    # The second value moved by more than the clip, so it is judged as if it had stopped there.
    expected = ((1 - 0.1) ** 2 / 2 + (1 - 0.2) ** 2 / 2) / 2
    assert float(value_loss(SETTINGS, values, rows, value_weights(rows))) == pytest.approx(expected)


@pytest.fixture(scope="module")
def two_updates(lesson):
    """States before, after the critic's warm-up, and after an update of both; and their metrics."""
    settings = ppo_settings(lesson)
    step = jax.jit(functools.partial(train_step, settings))
    states, metrics = [first_state(lesson, settings)], []
    for _ in range(2):
        state, _, found = step(states[-1], lesson.game.data)
        states.append(state)
        metrics.append(jax.device_get(found))
    return states, metrics


def moved(before, after) -> bool:
    return any(
        (np.asarray(a) != np.asarray(b)).any() for a, b in zip(*map(jax.tree.leaves, (before, after)), strict=True)
    )


def test_the_policy_waits_while_the_critic_warms_up(two_updates):
    start, warm, both = two_updates[0]
    assert not moved(start.params, warm.params)
    assert not moved(start.opt_state.inner_states["policy"], warm.opt_state.inner_states["policy"])
    assert moved(start.critic, warm.critic)
    assert moved(warm.params, both.params)
    assert moved(warm.critic, both.critic)


def test_the_critic_is_measured(two_updates):
    first, second = two_updates[1]
    assert first["value_loss"] > 0
    assert first["explained_variance"] == pytest.approx(0, abs=1e-5)  # it began silent
    assert np.isfinite(second["explained_variance"])


@pytest.mark.parametrize("trunk", ["shared", "separate"])
def test_a_critic_lies_on_a_mesh_as_the_policy_does(lesson, trunk):
    settings = ppo_settings(lesson, trunk=trunk)
    mesh = make_mesh("fsdp:4,tensor:2")
    with jax.set_mesh(mesh):
        shapes = jax.eval_shape(functools.partial(first_state, lesson, settings))
        shardings = state_shardings(EVEN_MODEL, shapes, mesh)
    assert jax.tree.structure(shardings) == jax.tree.structure(shapes)
    specs = [str(leaf.spec) for leaf in jax.tree.leaves(shardings.critic)]
    assert any("fsdp" in spec for spec in specs) == (trunk == "separate")
    moments = [str(leaf.spec) for leaf in jax.tree.leaves(shardings.opt_state.inner_states["policy"])]
    assert any("fsdp" in spec for spec in moments)


def test_a_separate_trunk_learns_at_the_policys_rate_and_the_head_at_its_own(lesson):
    settings = ppo_settings(lesson, trunk="separate")
    state, data = first_state(lesson, settings), lesson.game.data
    after, _, _ = jax.jit(functools.partial(train_step, settings))(state, data)
    rate = lesson.config.optimizer.learning_rate

    def largest(part):
        steps = jax.tree.map(
            lambda new, old: np.abs(np.asarray(new) - np.asarray(old)).max(), after.critic[part], state.critic[part]
        )
        return max(jax.tree.leaves(steps))

    # Adam's steps are about as large as its rate; there are two in an update.
    assert 0 < largest("trunk") < 3 * rate
    assert largest("head") > 0
    assert not moved(state.params, after.params)
