from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.errors import ArgumentError, ConfigError
from jaxrl_agent.rollout import budget

LEVELS = {
    1: [1] * 10,
    4: [1, 1, 2, 2, 2, 3, 3, 4, 4, 4],
    5: [1, 1, 2, 2, 3, 3, 4, 4, 5, 5],
    6: [1, 2, 2, 3, 3, 4, 5, 5, 6, 6],
    8: [1, 2, 3, 4, 4, 5, 6, 7, 8, 8],
    10: list(range(1, 11)),
    15: [2, 3, 5, 6, 8, 9, 11, 12, 14, 15],
    16: [2, 4, 5, 7, 8, 10, 12, 13, 15, 16],
    20: list(range(2, 21, 2)),
    30: list(range(3, 31, 3)),
    50: list(range(5, 51, 5)),
    100: list(range(10, 101, 10)),
}


@pytest.mark.parametrize(("t_max", "levels"), LEVELS.items())
def test_levels_are_rounded_up_in_integers(t_max, levels):
    for function in (budget.budget_levels, jax.jit(budget.budget_levels)):
        np.testing.assert_array_equal(function(t_max), levels)


WEIGHTS = {
    5: [1.0, 0.8, 0.6, 0.4, 0.2],
    8: [1.0, 0.9, 0.8, 0.7, 0.5, 0.4, 0.3, 0.2],
    10: [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1],
    16: [1.0, 1.0, 0.9, 0.9, 0.8, 0.7, 0.7, 0.6, 0.5, 0.5, 0.4, 0.4, 0.3, 0.2, 0.2, 0.1],
    20: np.repeat(np.arange(10, 0, -1) / 10, 2),
}


@pytest.mark.parametrize(("t_max", "weights"), WEIGHTS.items())
def test_hidden_weight_is_the_chance_that_the_budget_lasts(t_max, weights):
    for function in (budget.hidden_weight, jax.jit(budget.hidden_weight, static_argnums=0)):
        np.testing.assert_allclose(function(t_max), weights, rtol=1e-6)


@pytest.mark.parametrize("t_max", [4, 16, 20])
def test_hidden_budget_mix_has_the_objective_of_the_marginal_reward(t_max):
    """E_B[success within B] = sum_t P(B >= t) P(first success at t), for any distribution of the first success."""
    first_success_T = np.random.default_rng(t_max).dirichlet(np.ones(t_max + 1))[:t_max]
    within_budget = np.mean([first_success_T[:level].sum() for level in LEVELS[t_max]])
    np.testing.assert_allclose(np.sum(budget.hidden_weight(t_max) * first_success_T), within_budget, rtol=1e-6)


@pytest.mark.parametrize("n_groups", [1, 7, 10, 16, 40, 53])
@pytest.mark.parametrize("compiled", [False, True])
def test_each_fraction_occurs_equally_often(n_groups, compiled):
    draw = functools.partial(budget.stratified_fractions, n_groups)
    draw = jax.jit(draw) if compiled else draw
    counts_K = np.bincount(draw(jax.random.key(n_groups)), minlength=10)
    assert counts_K.sum() == n_groups
    assert counts_K.max() - counts_K.min() <= 1
    assert counts_K.min() == n_groups // 10


def test_every_group_meets_every_fraction_equally_often_over_many_batches():
    keys = jax.random.split(jax.random.key(0), 2000)
    draws = np.asarray(jax.jit(jax.vmap(functools.partial(budget.stratified_fractions, 16)))(keys))
    for group in range(16):
        share_K = np.bincount(draws[:, group], minlength=10) / 2000
        np.testing.assert_allclose(share_K, 0.1, atol=0.03)  # 4.5 standard deviations


def test_budget_mix_draws_from_the_levels_and_repeats_with_its_key():
    draw = jax.jit(functools.partial(budget.budget_mix, 16, 30))
    budgets = np.asarray(draw(jax.random.key(1)))
    assert budgets.dtype == np.int32
    np.testing.assert_array_equal(np.sort(budgets), np.repeat(LEVELS[16], 3))
    np.testing.assert_array_equal(budgets, budget.budget_mix(16, 30, jax.random.key(1)))
    assert (budgets != np.asarray(draw(jax.random.key(2)))).any()


@pytest.mark.parametrize("name", ["fixed", "budget_mix", "budget_mix_marginal"])
def test_schedules_give_budgets_and_their_fractions(name):
    schedule = budget.make_schedule(name)
    budgets, fractions = jax.jit(lambda key, update: schedule(16, 12, key, update))(jax.random.key(0), 3)
    assert budgets.dtype == fractions.dtype == jnp.int32
    np.testing.assert_array_equal(budgets, np.array(LEVELS[16])[fractions])
    if name != "budget_mix":
        np.testing.assert_array_equal(budgets, 16)


def test_the_schedule_budget_mix_draws_what_the_function_draws():
    budgets, _ = budget.BUDGET_SCHEDULES["budget_mix"](16, 12, jax.random.key(5), 0)
    np.testing.assert_array_equal(budgets, budget.budget_mix(16, 12, jax.random.key(5)))


@pytest.mark.parametrize(
    ("update", "cap", "fraction"), [(0, 2, 0), (9, 2, 0), (10, 6, 3), (20, 16, 9), (10_000, 16, 9)]
)
def test_a_curriculum_moves_its_cap_every_n_updates(update, cap, fraction):
    schedule = budget.make_schedule("curriculum", caps=(2, 6, 16), every=10)
    budgets, fractions = jax.jit(lambda update: schedule(16, 3, None, update))(update)
    np.testing.assert_array_equal(budgets, [cap] * 3)
    np.testing.assert_array_equal(fractions, [fraction] * 3)


@pytest.mark.parametrize("options", [{"caps": (), "every": 1}, {"caps": (17,), "every": 1}, {"caps": (2,), "every": 0}])
def test_an_impossible_curriculum_is_refused(options):
    with pytest.raises(ConfigError, match="curriculum"):
        budget.make_schedule("curriculum", **options)(16, 3, None, 0)


# ---- by headroom


def drawn_by_headroom(headroom, n_groups, key, *, uniform_share=0.5):
    schedule = budget.make_schedule("headroom", uniform_share=uniform_share)
    return schedule(16, n_groups, jax.random.key(key), 0, jnp.asarray(headroom, jnp.float32))


@pytest.mark.parametrize("headroom", [np.ones(10), np.full(10, 1e-3), np.zeros(10), -np.ones(10)])
def test_a_flat_headroom_is_budget_mix(headroom):
    for key in range(5):
        budgets, fractions = drawn_by_headroom(headroom, 30, key)
        np.testing.assert_array_equal(np.bincount(fractions, minlength=10), 3)
        np.testing.assert_array_equal(budgets, np.array(LEVELS[16])[fractions])
    counts = sum(np.bincount(drawn_by_headroom(headroom, 16, key)[1], minlength=10) for key in range(400))
    assert (np.abs(counts - 640) < 60).all()  # a remainder is spread over all levels alike


def test_budgets_with_more_left_to_gain_are_drawn_more_often():
    headroom = np.array([0.6, 0.3, 0.1, 0, 0, 0, 0, 0, 0, 0])
    expected = 1000 * (0.2 / 10 + 0.8 * headroom)
    fractions = drawn_by_headroom(headroom, 1000, 1, uniform_share=0.2)[1]
    np.testing.assert_allclose(np.bincount(fractions, minlength=10), expected, atol=1)


def test_the_headroom_follows_the_latest_groups_of_each_level():
    before = jnp.linspace(1.0, 0.1, 10)
    after = budget.track_headroom(before, jnp.array([2, 2, 9]), jnp.array([0.5, 0.1, -0.4]))
    expected = np.array(before)
    expected[2] = 0.9 * expected[2] + 0.1 * 0.3
    expected[9] = 0.9 * expected[9]
    np.testing.assert_allclose(after, expected, rtol=1e-6)


def test_an_unknown_schedule_lists_the_known_ones():
    with pytest.raises(ConfigError, match="fixed, budget_mix, budget_mix_marginal, curriculum"):
        budget.make_schedule("uniform")


@pytest.mark.parametrize(("name", "options"), [("budget_mix", {"every": 2}), ("curriculum", {"every": 2})])
def test_missing_or_foreign_options_are_refused(name, options):
    with pytest.raises(ConfigError, match="exactly the options"):
        budget.make_schedule(name, **options)


@pytest.mark.parametrize("number", [0, -3, 2.5, "16"])
def test_budgets_that_are_no_positive_integers_are_refused(number):
    with pytest.raises(ArgumentError, match="t_max"):
        budget.budget_mix(number, 4, jax.random.key(0))
    with pytest.raises(ArgumentError, match="n_groups"):
        budget.budget_mix(16, number, jax.random.key(0))
