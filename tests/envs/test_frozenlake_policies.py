"""Policies played on many lakes at once, against the exact functions of one lake and against published numbers."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl_agent.envs import frozenlake_exact as exact
from jaxrl_agent.envs.frozenlake_maps import random_map, shortest_path
from jaxrl_agent.envs.frozenlake_policies import POLICIES, Styles, play_all
from jaxrl_agent.errors import ArgumentError, MapError

CLASSIC = ["SFFF", "FHFH", "FFFH", "HFFG"]
CLASSIC_8 = ["SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF", "FFFHFFFG"]
LAKES = [random_map(seed, size=4, frozen_prob=0.7, start=start) for seed in range(3) for start in ("corner", "random")]
T_MAX = 20
BUDGETS = [1, 4, 9, 20]
STYLES = Styles(epsilon=0.3, temperature=0.1, myopic_turns=4)


def mix_weights(t_max: int) -> np.ndarray:
    """P(B >= t) for B_k = ceil(k t_max / 10)."""
    levels = [-(-k * t_max // 10) for k in range(1, 11)]
    return np.array([np.mean([level >= t for level in levels]) for t in range(1, t_max + 1)])


def policies_of(desc: list[str], rate: float) -> dict[str, np.ndarray]:
    """The policies, turn by turn, [T, X, 4], made of the host's tables."""
    plain_TX4 = exact.finite_horizon_q(desc, success_rate=rate, horizon=T_MAX)[:0:-1]
    hidden_TX4 = exact.success_weighted_q(desc, success_rate=rate, weights=mix_weights(T_MAX))
    odds_TX4 = np.exp(plain_TX4 / STYLES.temperature)
    full_TX4 = exact.greedy_policy(plain_TX4)
    return {
        "random": np.full_like(plain_TX4, 0.25),
        "epsilon": 0.7 * full_TX4 + 0.3 / 4,
        "softmax": odds_TX4 / odds_TX4.sum(axis=-1, keepdims=True),
        "myopic": np.broadcast_to(exact.greedy_policy(plain_TX4[T_MAX - STYLES.myopic_turns]), plain_TX4.shape),
        "full": full_TX4,
        "quick": quick_policy(desc, rate, plain_TX4),
        "hidden": exact.greedy_policy(hidden_TX4),
    }


def quick_policy(desc: list[str], rate: float, plain_TX4: np.ndarray) -> np.ndarray:
    """Of the best moves for t_max turns the one with most weighted success to come, last turn first."""
    matrix_X4X = exact.transition_matrix(desc, success_rate=rate)
    letters = np.array(list("".join(desc)))
    value_X, policy_TX4 = np.zeros(len(letters)), np.zeros_like(plain_TX4)
    for turn in reversed(range(T_MAX)):
        worth_X = np.where(letters == "G", mix_weights(T_MAX)[turn], value_X)
        quick_X4 = (matrix_X4X @ worth_X) * ~np.isin(letters, ["G", "H"])[:, None]
        best_X4 = plain_TX4[turn] >= plain_TX4[turn].max(axis=-1, keepdims=True) - 1e-9
        policy_TX4[turn] = exact.greedy_policy(np.where(best_X4, quick_X4, -1.0))
        value_X = (policy_TX4[turn] * quick_X4).sum(axis=-1)
    return policy_TX4


def recovery_of(desc: list[str], rate: float, policy_TX4: np.ndarray) -> np.ndarray:
    """Success within each budget after the error, one successor after the other."""
    start = "".join(desc).index("S")
    hidden_X4 = exact.success_weighted_q(desc, success_rate=rate, weights=mix_weights(T_MAX))[0]
    worst = exact.worst_surviving_action(desc, hidden_X4, success_rate=rate)[start]
    if worst < 0:
        return np.full(len(BUDGETS), np.nan)
    successor_X = exact.surviving_successors(desc, success_rate=rate)[start, worst]
    later = [budget - 1 for budget in BUDGETS]
    return sum(
        chance * exact.success_within(desc, policy_TX4[1:], success_rate=rate, budgets=later, start=cell)
        for cell, chance in enumerate(successor_X)
        if chance > 0
    )


@pytest.mark.parametrize("rate", [1 / 3, 0.8, 1.0])
def test_every_policy_fares_as_the_functions_of_one_lake_say(rate):
    played = play_all(LAKES, success_rate=rate, budgets=BUDGETS, t_max=T_MAX, weights=mix_weights(T_MAX), styles=STYLES)
    for i, desc in enumerate(LAKES):
        policies = policies_of(desc, rate)
        assert set(policies) == set(POLICIES) - {"told"}
        for name, policy_TX4 in policies.items():
            success = exact.success_within(desc, policy_TX4, success_rate=rate, budgets=BUDGETS)
            np.testing.assert_allclose(played.success_PNB[POLICIES.index(name), i], success, atol=1e-12, err_msg=name)
            recovery = recovery_of(desc, rate, policy_TX4)
            np.testing.assert_allclose(played.recovery_PNB[POLICIES.index(name), i], recovery, atol=1e-12)
        best = exact.start_value(desc, success_rate=rate, budgets=BUDGETS)
        np.testing.assert_allclose(played.best_NB[i], best, atol=1e-12)
        np.testing.assert_array_equal(played.success_PNB[POLICIES.index("told"), i], played.best_NB[i])


@pytest.mark.parametrize("rate", [1 / 3, 0.8])
def test_the_told_optimum_recovers_best(rate):
    played = play_all(LAKES, success_rate=rate, budgets=BUDGETS, t_max=T_MAX, weights=mix_weights(T_MAX), styles=STYLES)
    told_NB = played.recovery_PNB[POLICIES.index("told")]
    possible = ~np.isnan(told_NB)
    assert possible.any()
    assert (played.recovery_PNB <= told_NB + 1e-12)[:, possible].all()
    for i, desc in enumerate(LAKES):  # with one budget, the told optimum is a policy like any other
        for b, budget in enumerate(BUDGETS):
            rest = exact.finite_horizon_q(desc, success_rate=rate, horizon=T_MAX)
            policy_TX4 = exact.greedy_policy(np.concatenate([rest[budget:0:-1], rest[T_MAX:budget:-1]]))
            expected = recovery_of(desc, rate, policy_TX4)[b]
            np.testing.assert_allclose(told_NB[i, b], expected, atol=1e-12)


@pytest.mark.parametrize("case", ["4x4_slippery_1_3_T100", "4x4_slippery_0.8_T100", "8x8_slippery_1_3_T200"])
def test_what_budgetmix_can_gain_on_gymnasiums_maps(case, golden):
    """Independent numpy code made these, rounded to six digits."""
    numbers = golden["budgetmix_oracle"][case]
    t_max = numbers["T_max"]
    played = play_all(
        [CLASSIC if case.startswith("4x4") else CLASSIC_8],
        success_rate=0.8 if "0.8" in case else 1 / 3,
        budgets=numbers["budgets"],
        t_max=t_max,
        weights=mix_weights(t_max),
        policies=["full", "hidden", "told"],
    )
    for row, name in enumerate(["fixed_full_budget", "budgetmix_hidden", "budgetmix_told"]):
        np.testing.assert_allclose(played.success_PNB[row, 0], numbers[f"{name}_optimum_by_B"], atol=5.1e-7)


def test_a_budget_below_the_shortest_path_has_no_value_at_all():
    lakes = [random_map(seed, size=5, frozen_prob=0.6, start="random") for seed in range(80)]
    budgets = [1, 3, 5, 30]
    played = play_all(lakes, success_rate=0.8, budgets=budgets, t_max=30, weights=np.ones(30), policies=["told"])
    paths = np.array([shortest_path(desc) for desc in lakes])
    np.testing.assert_array_equal(played.best_NB == 0.0, paths[:, None] > np.array(budgets))
    assert 0 < (paths > 5).sum() < (paths > 1).sum() < 80


def test_lakes_beyond_a_whole_chunk_are_played_like_the_others():
    lakes = [random_map(seed, size=3, frozen_prob=0.8) for seed in range(70)]
    options = {"success_rate": 0.5, "budgets": [3, 6], "t_max": 6, "weights": mix_weights(6)}
    together = play_all(lakes, **options)
    apart = play_all(lakes[60:], **options)
    assert together.success_PNB.shape == (len(POLICIES), 70, 2)
    np.testing.assert_allclose(together.success_PNB[:, 60:], apart.success_PNB, atol=1e-14)
    np.testing.assert_allclose(together.best_NB[60:], apart.best_NB, atol=1e-14)


def test_what_cannot_be_played_is_refused():
    options = {"success_rate": 1.0, "budgets": [2], "t_max": 4, "weights": np.ones(4)}
    with pytest.raises(MapError, match="one size"):
        play_all([CLASSIC, ["SF", "FG"]], **options)
    with pytest.raises(MapError, match="one S and one G"):
        play_all([["SF", "FF"]], **options)
    for wrong in ({"budgets": [5]}, {"budgets": []}, {"policies": ["best"]}, {"success_rate": 2.0}):
        with pytest.raises(ArgumentError):
            play_all([CLASSIC], **options | wrong)
    for wrong in ({"epsilon": 1.5}, {"temperature": 0.0}, {"myopic_turns": 0}):
        with pytest.raises(ArgumentError):
            Styles(**wrong)


def test_on_a_deterministic_lake_only_ties_keep_the_full_optimum_from_being_quick():
    lakes = [random_map(seed, size=5, frozen_prob=0.7, start="random") for seed in range(40)]
    played = play_all(lakes, success_rate=1.0, budgets=[6, 20], t_max=20, weights=mix_weights(20))
    full, quick, told = (played.success_PNB[POLICIES.index(name)] for name in ("full", "quick", "told"))
    np.testing.assert_array_equal(quick, told)
    assert full[:, 0].mean() < 0.5 < told[:, 0].mean()
    np.testing.assert_array_equal(full[:, 1], told[:, 1])


def test_uniform_play_on_gymnasiums_map_has_the_known_pass_at_k_and_mean_over_budgets(golden):
    known = golden["pass_at_KT_truth"]["policies"]["uniform_random"]
    budgets = [int(turns) for turns in known]
    options = {"success_rate": 1 / 3, "policies": ["random"]}
    played = play_all([CLASSIC], budgets=budgets, t_max=100, weights=mix_weights(100), **options)
    for p, numbers in zip(played.success_PNB[0, 0], known.values(), strict=True):
        assert p == pytest.approx(numbers["p"], abs=1e-8)
        for k, value in numbers["pass_at_K"].items():
            assert 1 - (1 - p) ** int(k) == pytest.approx(value, abs=1e-7)
    identity = golden["hidden_budget_identity"]
    played = play_all([CLASSIC], budgets=identity["budgets"], t_max=20, weights=mix_weights(20), **options)
    assert played.success_PNB.mean() == pytest.approx(identity["sum_w_times_first_success"], abs=1e-10)
