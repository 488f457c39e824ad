"""The training step: a pure function of its state, equal to its halves, the same on eight devices as on one."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.algorithms import make_estimator
from jaxrl_agent.checkpoint import load_policy
from jaxrl_agent.learner.experience import draw_instances, paid_rollout
from jaxrl_agent.learner.fused_step import (
    balance_budgets,
    gradient_shares,
    learn,
    prepare_rows,
    roll_out,
    train_step,
)
from jaxrl_agent.learner.train_state import new_state, state_shardings
from jaxrl_agent.models.hf_weights import save_hf
from jaxrl_agent.parallel.compile_counter import compiled_programs
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.rollout.budget import fixed, hidden_weight, make_schedule
from jaxrl_agent.rollout.starts import empty_record
from jaxrl_agent.testing.small import EVEN_MODEL
from jaxrl_agent.types import Rollout, StopReason, TokenBatch


def same_bits(tree, expected) -> bool:
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def on_host(state):
    return jax.device_get(state.replace(key=jax.random.key_data(state.key)))


@pytest.fixture(scope="module")
def programs(lesson):
    """The whole step and its two halves, compiled once."""
    return tuple(jax.jit(functools.partial(function, lesson.settings)) for function in (train_step, roll_out, learn))


@pytest.fixture(scope="module")
def played(lesson, programs, on_one_device):
    """State, experience and metrics after one whole step."""
    return on_one_device(programs[0], lesson.state(), lesson.game.data)


# ---- the step


def test_the_step_is_its_rollout_followed_by_its_update(lesson, programs, played, on_one_device):
    _, collect, update = programs
    experience = on_one_device(collect, lesson.state(), lesson.game.data)
    state, metrics = on_one_device(update, lesson.state(), experience)
    whole, whole_experience, whole_metrics = played
    np.testing.assert_array_equal(
        experience.rollout.batch.tokens_BL, whole_experience.rollout.batch.tokens_BL, err_msg="tokens"
    )
    for leaf, expected in zip(jax.tree.leaves(state.params), jax.tree.leaves(whole.params), strict=True):
        np.testing.assert_allclose(leaf, expected, atol=1e-5)
    assert float(metrics["loss"]) == pytest.approx(float(whole_metrics["loss"]), abs=1e-6)
    assert (int(state.update), int(state.cursor)) == (1, lesson.settings.prompts)


def test_the_same_state_gives_the_same_bits_and_another_key_gives_others(lesson, programs, played, on_one_device):
    state, experience, metrics = on_one_device(programs[0], lesson.state(), lesson.game.data)
    assert same_bits((on_host(state), experience, metrics), (on_host(played[0]), played[1], played[2]))
    _, experience, _ = on_one_device(programs[0], lesson.state(seed=99), lesson.game.data)
    assert not same_bits(experience.rollout.batch.tokens_BL, played[1].rollout.batch.tokens_BL)


def test_later_steps_draw_anew_and_compile_nothing(lesson, programs, played, on_one_device):
    programs_before = compiled_programs()
    _, experience, _ = on_one_device(programs[0], played[0], lesson.game.data)
    assert compiled_programs() == programs_before
    assert not same_bits(experience.rollout.batch.tokens_BL, played[1].rollout.batch.tokens_BL)


def test_sampler_and_trainer_agree_on_log_probabilities(played):
    metrics = played[2]
    assert 0 < float(metrics["sampler_trainer_max_diff"]) < 1e-4
    assert float(metrics["sampler_trainer_mean_diff"]) < 1e-5


def test_the_policy_moves_and_the_key_does_not(lesson, played):
    state = played[0]
    assert not same_bits(state.params, lesson.params)
    assert same_bits(jax.random.key_data(state.key), jax.random.key_data(lesson.state().key))
    assert int(state.skips.total) == 0


def test_the_loss_counts_the_sampled_tokens_of_all_rows(lesson, played):
    _, experience, metrics = played
    rollout = experience.rollout
    assert float(metrics["loss_tokens"]) == int(rollout.batch.loss_mask_BL.sum()) == 2 * int(rollout.n_turns_B.sum())


# ---- groups, budgets, order


def test_a_group_shares_instance_and_budget_and_budgets_differ_between_groups(lesson, played):
    experience = played[1]
    size = lesson.settings.group_size
    for rows_B in (experience.rollout.instance_B, experience.rollout.budget_B):
        rows_PG = np.asarray(rows_B).reshape(-1, size)
        assert (rows_PG == rows_PG[:, :1]).all()
    budgets_P = np.asarray(experience.rollout.budget_B)[::size]
    fraction_P = np.asarray(experience.fraction_P)
    assert len(set(fraction_P)) == len(fraction_P), "4 groups of 10 levels are stratified"
    np.testing.assert_array_equal(budgets_P, np.maximum(1, ((fraction_P + 1) * lesson.settings.task.t_max + 9) // 10))
    assert (np.asarray(experience.rollout.n_turns_B) <= np.asarray(experience.rollout.budget_B)).all()


def test_the_order_of_instances_does_not_depend_on_the_budget_schedule(lesson, played, on_one_device):
    settings = dataclasses.replace(lesson.settings, schedule=fixed)
    instances = jax.jit(lambda state, data: roll_out(settings, state, data).rollout.instance_B)
    np.testing.assert_array_equal(
        on_one_device(instances, lesson.state(), lesson.game.data), played[1].rollout.instance_B
    )


@pytest.mark.parametrize(("n_instances", "count"), [(8, 4), (7, 3), (5, 5), (1, 1)])
def test_each_pass_visits_every_instance_once(n_instances, count):
    key = jax.random.key(0)
    draw = jax.jit(functools.partial(draw_instances, n_instances=n_instances, count=count))
    drawn = np.concatenate([draw(key, jnp.int32(cursor)) for cursor in range(0, 3 * n_instances * count, count)])
    passes = drawn[: len(drawn) // n_instances * n_instances].reshape(-1, n_instances)
    assert len(passes) >= 3
    np.testing.assert_array_equal(np.sort(passes, axis=1), np.broadcast_to(np.arange(n_instances), passes.shape))
    if n_instances > 4:
        assert any((one != passes[0]).any() for one in passes[1:])


def test_what_is_drawn_next_depends_on_key_and_cursor_alone():
    whole = draw_instances(jax.random.key(0), jnp.int32(3), n_instances=8, count=6)
    parts = [draw_instances(jax.random.key(0), jnp.int32(cursor), n_instances=8, count=3) for cursor in (3, 6)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert (whole != draw_instances(jax.random.key(1), jnp.int32(3), n_instances=8, count=6)).any()


# ---- what is paid


def finished_rollout(*, success, turns, stop=None, groups=2, t_max=4) -> Rollout:
    """Rows of two tokens a turn without any text between them."""
    success_B, turns_B = np.array(success), np.array(turns)
    batch = len(success)
    sampled_BL = np.arange(2 * t_max + 1)[None] > 0
    sampled_BL = sampled_BL & (np.arange(2 * t_max + 1) <= 2 * turns_B[:, None])
    stop = [StopReason.SUCCESS if won else StopReason.BUDGET for won in success] if stop is None else stop
    return Rollout(
        batch=TokenBatch(
            tokens_BL=jnp.ones(sampled_BL.shape, jnp.int32),
            lengths_B=jnp.asarray(2 * turns_B + 1),
            loss_mask_BL=jnp.asarray(sampled_BL),
            sampler_logprobs_BL=jnp.where(sampled_BL, -1.0, 0.0),
            turn_BL=jnp.where(sampled_BL, (np.arange(2 * t_max + 1) - 1) // 2, -1),
        ),
        turns=empty_record(batch, t_max),
        instance_B=jnp.repeat(jnp.arange(groups), batch // groups),
        group_B=jnp.repeat(jnp.arange(groups), batch // groups),
        budget_B=jnp.full(batch, t_max),
        n_turns_B=jnp.asarray(turns_B),
        prompt_lengths_B=jnp.ones(batch, jnp.int32),
        stop_B=jnp.asarray([reason.code for reason in stop]),
        return_B=jnp.asarray(success_B, jnp.float32),
        success_B=jnp.asarray(success_B),
    )


def plain_settings(lesson, **changes):
    """Settings whose advantages are returns minus the group's mean."""
    algorithm = dataclasses.replace(lesson.settings.update.algorithm, **changes.pop("algorithm", {}))
    update = dataclasses.replace(lesson.settings.update, algorithm=algorithm)
    return dataclasses.replace(
        lesson.settings, update=update, estimator=make_estimator("grpo", scale="none"), **changes
    )


def test_marginal_reward_pays_a_success_the_chance_that_the_budget_reached_it(lesson):
    settings = plain_settings(lesson, marginal_reward=True)
    rollout = finished_rollout(success=[True, True, False, False], turns=[1, 4, 4, 2], groups=1)
    weight_T = np.asarray(hidden_weight(4))
    np.testing.assert_allclose(weight_T, [1.0, 0.8, 0.5, 0.3], rtol=1e-6)
    paid, _ = paid_rollout(settings, rollout)
    np.testing.assert_allclose(paid.return_B, [1.0, 0.3, 0, 0], rtol=1e-6)
    rows = prepare_rows(settings, rollout, None)
    np.testing.assert_allclose(rows.advantages_BW[:, 0], np.array([1.0, 0.3, 0, 0]) - 0.325, rtol=1e-5)


def test_the_schedule_of_marginal_reward_lets_every_group_play_to_the_end():
    budgets_P, _ = make_schedule("budget_mix_marginal")(16, 3, jax.random.key(0), 0)
    assert budgets_P.tolist() == [16, 16, 16]


def test_rows_cut_by_a_limit_move_neither_the_loss_nor_the_mean_of_their_group(lesson):
    stops = [StopReason.SUCCESS, StopReason.TOKEN_LIMIT, StopReason.BUDGET, StopReason.CONTEXT_LIMIT]
    rollout = finished_rollout(success=[True, False, False, False], turns=[1, 2, 4, 3], stop=stops, groups=1)
    rows = prepare_rows(plain_settings(lesson), rollout, None)
    assert rows.mask_BW.sum(axis=1).tolist() == [2, 0, 8, 0]
    np.testing.assert_allclose(rows.advantages_BW[:, 0], [0.5, 0, -0.5, 0])
    rows = prepare_rows(plain_settings(lesson, algorithm={"train_on_cut_replies": True}), rollout, None)
    assert rows.mask_BW.sum(axis=1).tolist() == [2, 4, 8, 6]
    np.testing.assert_allclose(rows.advantages_BW[:, 0], [0.75, -0.25, -0.25, -0.25])


def test_the_reference_scores_the_sampled_tokens(lesson, played):
    settings = plain_settings(lesson, algorithm={"kl_coefficient": 0.1})
    assert settings.update.micro_batch_tokens < played[1].rollout.batch.tokens_BL.size, "more than one micro-batch"
    # Every row was sampled by this very policy, so as a reference it agrees with the sampler.
    rows = prepare_rows(settings, played[1].rollout, None, lesson.params)
    assert np.abs(rows.old_logprobs_BW).max() > 0.1
    np.testing.assert_allclose(rows.ref_logprobs_BW, rows.old_logprobs_BW, atol=1e-4)
    silent = prepare_rows(plain_settings(lesson), played[1].rollout, None)
    assert not silent.ref_logprobs_BW.any()


def test_gradient_shares_follow_tokens_and_advantages(lesson):
    settings = plain_settings(lesson)
    # Group 0: advantages +-1/2 over 2 + 8 tokens. Group 1: no spread. Group 2: +-1/2 over 4 + 6 tokens.
    rollout = finished_rollout(success=[True, False, True, True, True, False], turns=[1, 4, 1, 1, 2, 3], groups=3)
    rows = prepare_rows(settings, rollout, None)
    share_F = gradient_shares(settings, rows, jnp.array([1, 4, 9]))
    np.testing.assert_allclose(share_F, [0, 0.5, 0, 0, 0, 0, 0, 0, 0, 0.5], atol=1e-6)
    none_F = gradient_shares(settings, rows.replace(advantages_BW=jnp.zeros_like(rows.advantages_BW)), jnp.arange(3))
    assert none_F.tolist() == [0.0] * 10


def test_balanced_budgets_weigh_alike_up_to_a_bound(lesson):
    rollout = finished_rollout(success=[True, False, True, True, True, False], turns=[1, 1, 1, 1, 4, 4], groups=3)
    levels = jnp.array([1, 4, 9])

    def shares(balance):
        settings = dataclasses.replace(plain_settings(lesson, balance=balance), group_size=2)
        rows = prepare_rows(settings, rollout, None)
        return np.asarray(gradient_shares(settings, balance_budgets(settings, rows, levels), levels))[[1, 4, 9]]

    np.testing.assert_allclose(shares(100.0), [0.5, 0, 0.5], atol=1e-6)
    # Before, the groups weigh 2 and 8: the small one is raised by 1.25 at most, the large one falls to its share.
    np.testing.assert_allclose(shares(1.25), [2.5 / 7.5, 0, 5 / 7.5], atol=1e-6)


def test_a_reply_near_its_limit_lowers_the_return_of_its_trajectory(lesson):
    settings = plain_settings(lesson, algorithm={"overlong_buffer": 2})
    rollout = finished_rollout(success=[True, False], turns=[2, 4], groups=1)
    paid, _ = paid_rollout(settings, rollout)  # replies have two tokens, all of which are buffer
    np.testing.assert_allclose(paid.return_B, [-1.0, -1.0])
    np.testing.assert_allclose(paid.turns.reward_BT.sum(axis=1), paid.return_B)
    np.testing.assert_allclose(paid.turns.reward_BT[1], [0, 0, 0, -1])
    untouched, _ = paid_rollout(plain_settings(lesson), rollout)
    np.testing.assert_array_equal(untouched.return_B, rollout.return_B)


def test_of_several_candidates_the_first_with_a_spread_is_trained_on(lesson, on_one_device):
    settings = dataclasses.replace(lesson.settings, candidates=2)
    pair = jax.jit(lambda state, data: (roll_out(settings, state, data), roll_out(lesson.settings, state, data)))
    kept, plain = jax.device_get(on_one_device(pair, lesson.state(), lesson.game.data))
    count, size = settings.prompts, settings.group_size
    np.testing.assert_array_equal(kept.fraction_P, plain.fraction_P)
    assert int(kept.drawn) == 2 * count
    order = draw_instances(jax.random.fold_in(lesson.state().key, 0), 0, n_instances=settings.n_instances, count=8)
    offered = np.asarray(order).reshape(count, 2)
    chosen = kept.rollout.instance_B.reshape(count, size)[:, 0]
    assert all(one in pair for one, pair in zip(chosen, offered, strict=True))
    np.testing.assert_array_equal(kept.rollout.group_B, np.repeat(np.arange(count), size))
    spread = np.ptp(kept.rollout.return_B.reshape(count, size), axis=1) > 0
    # A slot that took its second candidate did so for a spread.
    assert spread[chosen == offered[:, 1]].all()
    # What was left out still tells how good the policy is.
    assert kept.sampled.success_B.shape == (2 * count * size,)
    np.testing.assert_array_equal(kept.sampled.instance_B, np.repeat(offered.ravel(), size))
    np.testing.assert_allclose(kept.gap_P, 1 - kept.sampled.success_B.reshape(count, -1).mean(axis=1), atol=1e-6)
    assert plain.sampled is plain.rollout


# ---- devices


def test_weights_of_a_folder_train_sharded_as_on_one_device(lesson, played, tmp_path):
    save_hf(tmp_path / "weights", EVEN_MODEL, lesson.params)
    mesh = make_mesh("fsdp:4,tensor:2")
    with jax.set_mesh(mesh):
        policy = load_policy(f"hf:{tmp_path / 'weights'}", mesh=mesh)
        kernel = policy.params["layers"]["mlp"]["up_proj"]["kernel"]
        assert kernel.addressable_shards[0].data.size * 8 == kernel.size
        make = functools.partial(new_state, optimizer=lesson.settings.update.optimizer)
        shardings = state_shardings(EVEN_MODEL, jax.eval_shape(make, policy.params, key=jax.random.key(3)), mesh)
        state = jax.jit(make, out_shardings=shardings, donate_argnums=0)(policy.params, key=jax.random.key(3))
        assert kernel.is_deleted(), "the state takes the loaded arrays over"
        data = jax.device_get(lesson.game.data)
        state, experience, metrics = jax.jit(functools.partial(train_step, lesson.settings))(state, data)
    kept = jax.tree.map(lambda leaf, sharding: leaf.sharding.is_equivalent_to(sharding, leaf.ndim), state, shardings)
    assert all(jax.tree.leaves(kept))
    expected_state, expected, expected_metrics = played
    np.testing.assert_array_equal(experience.rollout.batch.tokens_BL, expected.rollout.batch.tokens_BL)
    for leaf, other in zip(jax.tree.leaves(state.params), jax.tree.leaves(expected_state.params), strict=True):
        np.testing.assert_allclose(leaf, other, atol=1e-4)
    assert float(metrics["sampler_trainer_max_diff"]) < 1e-4
    assert float(metrics["loss"]) == pytest.approx(float(expected_metrics["loss"]), abs=1e-5)
