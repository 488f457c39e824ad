"""Exact values against gymnasium's table, hand-made lakes, independent numbers, and the played game."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.envs import frozenlake as fl
from jaxrl_agent.envs.frozenlake_exact import (
    discounted_q,
    finite_horizon_q,
    first_success,
    greedy_policy,
    start_value,
    success_weighted_q,
    success_within,
    surviving_successors,
    transition_matrix,
    worst_surviving_action,
)
from jaxrl_agent.envs.frozenlake_maps import shortest_path, stack_maps
from jaxrl_agent.errors import ArgumentError, MapError

pytestmark = pytest.mark.usefixtures("strict_rank_promotion")

CLASSIC = ["SFFF", "FHFH", "FFFH", "HFFG"]
LAKES = {"4x4_slippery_1_3": 1 / 3, "4x4_slippery_0.8": 0.8, "4x4_deterministic": 1.0, "8x8_slippery_1_3": 1 / 3}
UNIFORM = np.full((16, 4), 0.25)
TOLERANCE = {"atol": 1e-6, "rtol": 0}  # the numbers are rounded to six digits


@pytest.fixture(params=LAKES)
def known_lake(request, golden):
    return golden["frozenlake"][request.param], LAKES[request.param]


def optimal_actions(q_X4: np.ndarray, alive_X: np.ndarray) -> np.ndarray:
    return (q_X4 >= q_X4.max(axis=1, keepdims=True) - 1e-9).sum(axis=1) * alive_X


def alive(desc: list[str]) -> np.ndarray:
    return np.array([letter not in "HG" for letter in "".join(desc)])


def test_transition_matrix_equals_gymnasiums_on_200_maps(mixed_lakes, gymnasium_table):
    for desc, rate in mixed_lakes:
        ours_X4X = transition_matrix(desc, success_rate=rate)
        np.testing.assert_allclose(ours_X4X, gymnasium_table(desc, rate)[0], atol=1e-12, err_msg=str(desc))


def test_backward_induction_on_gymnasiums_table_gives_the_same_q(mixed_lakes, gymnasium_table):
    for desc, rate in mixed_lakes[::4]:
        matrix_X4X, reward_X4X, ends_X4X = gymnasium_table(desc, rate)
        q_TX4 = finite_horizon_q(desc, success_rate=rate, horizon=12)
        expected_X4 = np.zeros_like(q_TX4[0])
        for turns_left in range(13):
            np.testing.assert_allclose(q_TX4[turns_left], expected_X4, atol=1e-12)
            worth_X4X = reward_X4X + ~ends_X4X * expected_X4.max(axis=1)
            expected_X4 = (matrix_X4X * worth_X4X).sum(axis=-1) * alive(desc)[:, None]


def test_best_success_from_the_start_is_as_known_for_every_horizon(known_lake):
    known, rate = known_lake
    values = known["V_start_finite_horizon_gamma1"]
    ours = start_value(known["desc"], success_rate=rate, budgets=[int(horizon) for horizon in values])
    np.testing.assert_allclose(ours, list(values.values()), atol=1e-8)


def test_finite_horizon_q_is_as_known_in_every_cell(known_lake):
    known, rate = known_lake
    q_TX4 = finite_horizon_q(known["desc"], success_rate=rate, horizon=200)
    assert q_TX4.shape == (201, len(known["desc"]) ** 2, 4)
    assert q_TX4.dtype == np.float64
    tables = {name: table for name, table in known.items() if "_finite_gamma1_h" in name}
    assert len(tables) >= 2
    for name, table in tables.items():
        q_X4 = q_TX4[int(name.rpartition("_h")[2])]
        np.testing.assert_allclose(q_X4 if name.startswith("Q") else q_X4.max(axis=1), table, **TOLERANCE)


def test_discounted_q_is_as_known_with_its_best_actions(known_lake):
    known, rate = known_lake
    alive_X = alive(known["desc"])
    q_X4 = discounted_q(known["desc"], success_rate=rate, gamma=0.99)
    np.testing.assert_allclose(q_X4.max(axis=1), known["V_gamma0.99"], **TOLERANCE)
    np.testing.assert_allclose(q_X4[0], known["Q_start_gamma0.99"], atol=1e-8)
    if "Q_gamma0.99" in known:
        np.testing.assert_allclose(q_X4, known["Q_gamma0.99"], **TOLERANCE)
    first_best_X = np.where(alive_X, greedy_policy(q_X4).argmax(axis=1), -1)
    assert first_best_X.tolist() == known["greedy_gamma0.99_argmax_first"]
    assert optimal_actions(q_X4, alive_X).tolist() == known["n_optimal_actions_gamma0.99"]


def test_undiscounted_q_is_the_chance_of_ever_arriving(known_lake):
    known, rate = known_lake
    q_X4 = discounted_q(known["desc"], success_rate=rate, gamma=1.0)
    np.testing.assert_allclose(q_X4[0].max(), known["V_start_gamma1_infinite"], atol=1e-8)
    assert optimal_actions(q_X4, alive(known["desc"])).tolist() == known["n_optimal_actions_gamma1_infinite"]


def test_gamma_one_ties_more_moves_than_gamma_099(known_lake):
    known, rate = known_lake
    desc, alive_X = known["desc"], alive(known["desc"])
    for name, expected in known["states_with_tied_best / all-four-equal"].items():
        if name == "n_nonterminal":
            assert alive_X.sum() == expected
            continue
        if name == "gamma0.99":
            q_X4 = discounted_q(desc, success_rate=rate, gamma=0.99)
        else:
            horizon = int(name.rpartition("_h")[2])
            q_X4 = finite_horizon_q(desc, success_rate=rate, horizon=horizon)[horizon]
        n_best_X = optimal_actions(q_X4, alive_X)
        assert [(n_best_X > 1).sum(), (n_best_X == 4).sum()] == expected, name


def test_on_a_deterministic_lake_the_shortest_path_decides(mixed_lakes):
    for desc, _ in mixed_lakes[::5]:
        path = shortest_path(desc)
        values = start_value(desc, success_rate=1.0, budgets=range(path + 3))
        assert values.tolist() == [0.0] * path + [1.0] * 3
        q_X4 = discounted_q(desc, success_rate=1.0, gamma=0.9)
        np.testing.assert_allclose(q_X4["".join(desc).index("S")].max(), 0.9 ** (path - 1), rtol=1e-12)


def test_terminal_cells_and_no_turns_are_worth_nothing():
    q_TX4 = finite_horizon_q(CLASSIC, success_rate=0.8, horizon=5)
    assert not q_TX4[0].any()
    assert not q_TX4[:, ~alive(CLASSIC)].any()
    assert finite_horizon_q(CLASSIC, success_rate=0.8, horizon=0).shape == (1, 16, 4)


def test_a_two_cell_lake_by_hand():
    # Right enters the goal with 0.6; slips go up and down, into the walls, and stay.
    q_TX4 = finite_horizon_q(["SG"], success_rate=0.6, horizon=2)
    np.testing.assert_allclose(q_TX4[1, 0], [0.0, 0.2, 0.6, 0.2])
    np.testing.assert_allclose(q_TX4[2, 0], [0.6, 0.2 + 0.8 * 0.6, 0.6 + 0.4 * 0.6, 0.2 + 0.8 * 0.6])
    # V = 0.6 + 0.4 * 0.9 V
    np.testing.assert_allclose(discounted_q(["SG"], success_rate=0.6, gamma=0.9)[0, 2], 0.6 / 0.64, rtol=1e-12)


@pytest.mark.parametrize("desc", [["SFFHG", "FFFFF"], ["SG"], ["SF", "FF", "HG"], ["SGF", "FHF", "FFG"], ["SH", "HG"]])
def test_rectangles_several_goals_and_lost_lakes_have_values_too(desc, gymnasium_table):
    matrix_X4X = gymnasium_table(desc, 0.5)[0]
    np.testing.assert_allclose(transition_matrix(desc, success_rate=0.5), matrix_X4X, atol=1e-12)
    goal_X = np.array([letter == "G" for letter in "".join(desc)])
    expected_X4 = (matrix_X4X @ goal_X) * alive(desc)[:, None]
    np.testing.assert_allclose(finite_horizon_q(desc, success_rate=0.5, horizon=1)[1], expected_X4, atol=1e-12)


def test_the_uniform_policy_succeeds_as_often_as_known(known_lake):
    known, rate = known_lake
    uniform = np.full((len(known["desc"]) ** 2, 4), 0.25)
    for name, expected in known.items():
        if name.startswith("V_start_uniform_policy_gamma1_h"):
            horizon = int(name.rpartition("_h")[2])
            ours = success_within(known["desc"], uniform, success_rate=rate, budgets=[horizon])
            np.testing.assert_allclose(ours, expected, atol=1e-7)


def test_stationary_policies_have_the_known_pass_at_k(golden):
    greedy = greedy_policy(discounted_q(CLASSIC, success_rate=1 / 3, gamma=0.99))
    policies = {
        "greedy_gamma0.99_stationary": greedy,
        "uniform_random": UNIFORM,
        "half_half_mixture_per_step": (greedy + UNIFORM) / 2,
    }
    for name, policy in policies.items():
        known = golden["pass_at_KT_truth"]["policies"][name]
        ours = success_within(CLASSIC, policy, success_rate=1 / 3, budgets=[int(turns) for turns in known])
        np.testing.assert_allclose(ours, [entry["p"] for entry in known.values()], atol=1e-8)


def test_hidden_budgets_average_to_weighted_first_successes(golden):
    known = golden["hidden_budget_identity"]
    budgets = np.array(known["budgets"])
    weights = [(budgets >= turn).mean() for turn in range(1, known["T_max"] + 1)]
    mean_success = success_within(CLASSIC, UNIFORM, success_rate=1 / 3, budgets=budgets).mean()
    weighted = weights @ first_success(CLASSIC, UNIFORM, success_rate=1 / 3, horizon=known["T_max"])
    np.testing.assert_allclose(mean_success, known["mean_over_budgets_of_success"], atol=1e-10)
    np.testing.assert_allclose(weighted, known["sum_w_times_first_success"], atol=1e-10)


def test_the_best_policies_of_three_budget_regimes_are_as_known(golden):
    for name, known in golden["budgetmix_oracle"].items():
        desc = golden["frozenlake"][f"{name[:3]}_slippery_1_3"]["desc"]
        rate = 0.8 if "0.8" in name else 1 / 3
        budgets = np.array(known["budgets"])
        weights = [(budgets >= turn).mean() for turn in range(1, known["T_max"] + 1)]
        full_q_TX4 = finite_horizon_q(desc, success_rate=rate, horizon=known["T_max"])[:0:-1]
        hidden_q_TX4 = success_weighted_q(desc, success_rate=rate, weights=weights)
        play = functools.partial(success_within, desc, success_rate=rate, budgets=budgets)
        curves = {
            "fixed_full": (play(greedy_policy(full_q_TX4)), known["fixed_full_budget_optimum_by_B"]),
            "hidden": (play(greedy_policy(hidden_q_TX4)), known["budgetmix_hidden_optimum_by_B"]),
            "told": (start_value(desc, success_rate=rate, budgets=budgets), known["budgetmix_told_optimum_by_B"]),
        }
        for regime, (ours, expected) in curves.items():
            np.testing.assert_allclose(ours, expected, **TOLERANCE, err_msg=f"{name} {regime}")
            np.testing.assert_allclose(ours.mean(), known["mean_over_B"][regime], **TOLERANCE)
        # A success-weighted value is the mean success that its own greedy policy reaches.
        np.testing.assert_allclose(hidden_q_TX4[0, 0].max(), curves["hidden"][0].mean(), atol=1e-12)


def test_unit_weights_are_the_game_of_a_fixed_budget():
    weighted_TX4 = success_weighted_q(CLASSIC, success_rate=0.8, weights=[1.0] * 9)
    np.testing.assert_array_equal(weighted_TX4[::-1], finite_horizon_q(CLASSIC, success_rate=0.8, horizon=9)[1:])


def test_a_policy_that_stands_still_half_the_time_arrives_geometrically():
    hesitant = np.zeros((2, 4))
    hesitant[0, fl.RIGHT] = 0.5
    success_T = first_success(["SG"], hesitant, success_rate=1.0, horizon=5)
    np.testing.assert_allclose(success_T, 0.5 ** np.arange(1, 6))


def test_a_policy_may_depend_on_the_turn_and_start_elsewhere():
    right_then_down_TX4 = np.zeros((2, 4, 4))
    right_then_down_TX4[0, :, fl.RIGHT] = right_then_down_TX4[1, :, fl.DOWN] = 1.0
    assert first_success(["SF", "FG"], right_then_down_TX4, success_rate=1.0).tolist() == [0.0, 1.0]
    assert first_success(["SF", "FG"], right_then_down_TX4, success_rate=1.0, start=2).tolist() == [1.0, 0.0]
    assert first_success(["SF", "FG"], right_then_down_TX4, success_rate=1.0, start=3).tolist() == [0.0, 0.0]
    assert success_within(["SF", "FG"], right_then_down_TX4, success_rate=1.0, budgets=[0, 1, 2]).tolist() == [0, 0, 1]


def test_greedy_takes_the_first_of_moves_that_differ_by_rounding_only():
    assert greedy_policy(np.array([[0.1, 0.3 - 1e-12, 0.3, 0.0]])).tolist() == [[0, 1, 0, 0]]


def test_injected_errors_on_the_slippery_lake_are_as_known(golden):
    q_TX4 = finite_horizon_q(CLASSIC, success_rate=1 / 3, horizon=20)
    worst_X = worst_surviving_action(CLASSIC, q_TX4[20], success_rate=1 / 3)
    following_X4X = surviving_successors(CLASSIC, success_rate=1 / 3)
    chance_X4 = transition_matrix(CLASSIC, success_rate=1 / 3) @ alive(CLASSIC)
    for cell, known in golden["frozenlake"]["error_injection_4x4_slippery_h20"].items():
        cell, action = int(cell), worst_X[int(cell)]
        assert action == known["worst_action"]
        np.testing.assert_allclose(q_TX4[20, cell], known["Q_h20"], **TOLERANCE)
        np.testing.assert_allclose(chance_X4[cell, action], known["prob_next_state_nonterminal"], **TOLERANCE)
        expected_X = np.zeros(16)
        expected_X[[int(other) for other in known["next_nonterminal"]]] = list(known["next_nonterminal"].values())
        np.testing.assert_allclose(following_X4X[cell, action], expected_X, **TOLERANCE)
        after = following_X4X[cell, action] @ q_TX4[19].max(axis=1)
        np.testing.assert_allclose(after, known["V_after_error_h19"], **TOLERANCE)


def test_injected_errors_on_the_deterministic_lake_are_as_known(golden):
    finite_X4 = finite_horizon_q(CLASSIC, success_rate=1.0, horizon=10)[10]
    discounted_X4 = discounted_q(CLASSIC, success_rate=1.0, gamma=0.99)
    alive_X4 = surviving_successors(CLASSIC, success_rate=1.0).any(axis=-1)
    for cell, known in golden["frozenlake"]["error_injection_4x4_deterministic_h10"].items():
        cell = int(cell)
        assert np.flatnonzero(alive_X4[cell]).tolist() == known["non_terminal_actions"]
        for q_X4, name in ((finite_X4, "worst_nonterminal_h10"), (discounted_X4, "worst_nonterminal_gamma0_99")):
            assert worst_surviving_action(CLASSIC, q_X4, success_rate=1.0)[cell] == known[name]


def test_no_error_can_be_injected_where_no_move_survives():
    desc = ["HHH", "HSH", "HHG"]
    assert worst_surviving_action(desc, np.zeros((9, 4)), success_rate=1.0).tolist() == [-1] * 9
    assert not surviving_successors(desc, success_rate=1.0).any()


def test_raw_q_pays_for_dawdling_and_the_exact_advantage_does_not(golden):
    known = golden["frozenlake"]["oracle_step_reward_dawdling"]
    q_X4 = discounted_q(CLASSIC, success_rate=1.0, gamma=known["gamma"])
    best = [fl.DOWN, fl.DOWN, fl.RIGHT, fl.DOWN, fl.RIGHT, fl.RIGHT]
    lake_map = jax.tree.map(lambda leaf: leaf[0], stack_maps([CLASSIC]))
    for name, actions in (("optimal", best), ("five_wall_bumps_then_optimal", [fl.LEFT] * 5 + best)):
        state, q, advantage = fl.reset(lake_map), 0.0, 0.0
        for action in actions:
            q += q_X4[state.cell, action]
            advantage += q_X4[state.cell, action] - q_X4[state.cell].max()
            state = fl.step(fl.LakeRules(), lake_map, state, jnp.int32(action), jax.random.key(0))[0]
        assert (len(actions), int(state.cell)) == (known[name]["steps"], 15)
        np.testing.assert_allclose([q, advantage], [known[name]["sum_Q"], known[name]["sum_A"]], **TOLERANCE)


def test_playing_the_best_policy_succeeds_as_often_as_computed(golden):
    """Monte Carlo over the environment itself: 20,000 episodes of 20 turns, slip 1/3."""
    lake_map = jax.tree.map(lambda leaf: leaf[0], stack_maps([CLASSIC]))
    best_TX = jnp.asarray(finite_horizon_q(CLASSIC, success_rate=1 / 3, horizon=20).argmax(axis=-1))

    def episode(key):
        def turn(state, inputs):
            turns_left, turn_key = inputs
            action = best_TX[turns_left, state.cell]
            state, reward, _ = fl.step(fl.LakeRules(1 / 3), lake_map, state, action, turn_key)
            return state, reward

        inputs = (jnp.arange(20, 0, -1), jax.random.split(key, 20))
        return jax.lax.scan(turn, fl.reset(lake_map), inputs)[1].sum()

    successes = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(1), 20_000))
    assert set(np.unique(successes)) == {0.0, 1.0}
    exact = golden["frozenlake"]["4x4_slippery_1_3"]["monte_carlo_h20"]["exact"]
    np.testing.assert_allclose(successes.mean(), exact, atol=0.0085)  # three standard errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: finite_horizon_q(CLASSIC, success_rate=1.2, horizon=3), "success_rate must lie in"),
        (lambda: finite_horizon_q(CLASSIC, success_rate=1.0, horizon=-1), "horizon must be at least 0; got -1"),
        (lambda: discounted_q(CLASSIC, success_rate=-0.1, gamma=0.9), "success_rate must lie in"),
        (lambda: discounted_q(CLASSIC, success_rate=1.0, gamma=1.01), "gamma must lie in"),
        (lambda: start_value(CLASSIC, success_rate=1.0, budgets=[]), "budgets must be a list of turn counts"),
        (lambda: start_value(CLASSIC, success_rate=1.0, budgets=[2, -1]), "budgets must be a list of turn counts"),
        (lambda: first_success(CLASSIC, UNIFORM, success_rate=1.0), "a stationary policy needs a horizon"),
        (lambda: first_success(CLASSIC, UNIFORM[:9], success_rate=1.0, horizon=3), r"a policy must be \[16, 4\]"),
        (lambda: first_success(CLASSIC, UNIFORM * 2, success_rate=1.0, horizon=3), "sum to at most 1"),
        (lambda: first_success(CLASSIC, -UNIFORM, success_rate=1.0, horizon=3), "sum to at most 1"),
        (lambda: first_success(CLASSIC, UNIFORM[None], success_rate=1.0, horizon=3), "must cover the horizon; got 3"),
    ],
)
def test_arguments_out_of_range_are_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


@pytest.mark.parametrize("desc", [[], ["SF", "G"], ["SX", "FG"], "SFFG"])
def test_what_is_no_map_is_refused(desc):
    with pytest.raises(MapError):
        finite_horizon_q(desc, success_rate=1.0, horizon=1)
    with pytest.raises(MapError):
        discounted_q(desc, success_rate=1.0, gamma=0.9)


def test_values_of_the_start_need_exactly_one():
    with pytest.raises(MapError, match="exactly one S"):
        start_value(["SS", "FG"], success_rate=1.0, budgets=[1])
