"""Probes of policies whose every probability is known: what comes out equals dynamic programming.

One slippery lake with four starts, so four tasks on which the same table is optimal. `wanderer` errs everywhere by
known odds, `walker` hardly ever.
"""

from __future__ import annotations

import types

import numpy as np
import pytest

from jaxrl_agent.envs import frozenlake_exact as exact
from jaxrl_agent.evaluation.device_arena import DeviceArena
from jaxrl_agent.evaluation.pair_probe import ProbeSettings, Study, Subject
from jaxrl_agent.progress import Display
from jaxrl_agent.tasks.frozenlake_probe import LakeProbe
from jaxrl_agent.testing.fake_probes import assert_ties_everywhere
from jaxrl_agent.testing.small import small_config
from jaxrl_agent.testing.tabular import tabular_game, tabular_policy

RATE, T_MAX = 0.8, 10
STARTS = ("SFFF FHFH FFFH HFFG", "FSFF FHFH FFFH HFFG", "FFFF FHFH SFFH HFFG", "FFFS FHFH FFFH HFFG")
LAKES = [start.split() for start in STARTS]
SETTINGS = ProbeSettings(samples=64, states=24, error_states=12, replies=64, continuations=64)


def blend(share: float) -> np.ndarray:
    """The best move with this probability, any of the four with the rest."""
    best_X4 = exact.greedy_policy(exact.discounted_q(LAKES[0], success_rate=RATE, gamma=0.99))
    return share * best_X4 + (1 - share) / 4


WANDERER, WALKER = blend(0.3), blend(0.96)


def arena_of(game, **settings) -> DeviceArena:
    return DeviceArena(game, LakeProbe(game.task, game.instances), **{"budget": T_MAX, "rows": 256} | settings)


@pytest.fixture(scope="module")
def table():
    game = tabular_game(LAKES, t_max=T_MAX, lake={"success_rate": RATE})
    arena = arena_of(game)
    facts = {"n_tasks": len(LAKES), "budget": T_MAX}
    study = Study(arena, SETTINGS, Display(mode="quiet"), facts=facts)
    policies = {"base": tabular_policy(game, WANDERER), "policy": tabular_policy(game, WALKER)}
    return types.SimpleNamespace(game=game, arena=arena, study=study, policies=policies)


@pytest.fixture(scope="module")
def probed(table, tmp_path_factory):
    """The raw columns of (wanderer, walker)."""
    return pair(table, "base", "policy")


def pair(table, base: str, policy: str):
    config = small_config(init="hf:nowhere")
    players = [table.study.play(Subject(name, config), table.policies[name]) for name in (base, policy)]
    return table.study.pair(*players)


def near(found: float, expected: float, sd: float, n: int) -> bool:
    """Within four standard errors."""
    return abs(found - expected) < 4 * sd / np.sqrt(n)


def within(policy, cell: int, turns: int) -> float:
    return float(exact.success_within(LAKES[0], policy, success_rate=RATE, budgets=[turns], start=cell)[0])


def cells(columns) -> list[int]:
    return [int(key.split("/")[1]) for key in columns["key"]]


@pytest.mark.parametrize(("name", "policy"), [("base", WANDERER), ("policy", WALKER)])
def test_success_of_whole_episodes_is_that_of_forward_propagation(probed, name, policy):
    episodes = probed.raw["episodes"][name]
    for task, desc in enumerate(LAKES):
        expected = within(policy, "".join(desc).index("S"), T_MAX)
        won = [success for t, success in zip(episodes["task"], episodes["success"], strict=True) if t == task]
        assert near(np.mean(won), expected, np.sqrt(expected * (1 - expected)), len(won))


@pytest.mark.parametrize(("name", "policy"), [("base", WANDERER), ("policy", WALKER)])
def test_a_hidden_budget_is_worth_the_chance_that_it_reaches_the_first_success(probed, name, policy):
    """E_B[success within B] = sum_t P(B >= t) P(first success at t), on sampled episodes and by propagation."""
    budgets = np.arange(1, T_MAX + 1)
    reach_T = (budgets[None] >= budgets[:, None]).mean(axis=1)  # P(B >= t), B uniform
    episodes = probed.raw["episodes"][name]
    first = np.where(episodes["success"], episodes["n_turns"], 0)
    tasks = np.array(episodes["task"])
    sampled_by_budget = np.mean([((first > 0) & (first <= b)).mean() for b in budgets])
    sampled_by_turn = sum(reach * (first == t).mean() for t, reach in zip(budgets, reach_T, strict=True))
    assert sampled_by_budget == pytest.approx(sampled_by_turn, abs=1e-12)
    first_T = np.mean(
        [
            exact.first_success(LAKES[0], policy, success_rate=RATE, horizon=T_MAX, start="".join(desc).index("S"))
            for desc in LAKES
        ],
        axis=0,
    )
    assert near(sampled_by_turn, float(first_T @ reach_T), 0.5, len(tasks))


def test_likelihood_ratios_are_those_of_the_tables(table, probed):
    log_X4 = np.log(WALKER) - np.log(WANDERER)
    for name in ("base", "policy"):
        episodes = table.study.arena.play(table.policies[name], samples=SETTINGS.samples)
        columns = probed.raw["episodes"][name]
        turns = episodes.rollout.turns
        for row, n in enumerate(columns["n_turns"]):
            cell_T, action_T = turns.state_BT[row, :n], turns.action_BT[row, :n]
            llr_T = np.subtract(columns["logprobs"]["policy"][row], columns["logprobs"]["base"][row])
            np.testing.assert_allclose(llr_T, log_X4[cell_T, action_T], atol=2e-3)
            nll_T = -np.array(columns["logprobs"]["base"][row])
            np.testing.assert_allclose(nll_T, -np.log(WANDERER)[cell_T, action_T], atol=2e-3)
        assert columns["logprobs"] == columns["action_logprobs"]  # bare words leave no room for reasoning


def test_likelihood_ratios_of_a_policys_own_episodes_have_its_sign_on_average(probed):
    for name, sign in (("policy", 1), ("base", -1)):
        columns = probed.raw["episodes"][name]["logprobs"]
        totals = [sum(a) - sum(b) for a, b in zip(columns["policy"], columns["base"], strict=True)]
        assert sign * np.mean(totals) > 0


@pytest.mark.parametrize(("who", "policy"), [("base", WANDERER), ("policy", WALKER)])
@pytest.mark.parametrize("kind", ["ordinary", "error"])
def test_mean_values_of_replies_are_the_policys_expectation_of_q(probed, who, policy, kind):
    states = probed.raw["states"][kind]
    horizon = exact.finite_horizon_q(LAKES[0], success_rate=RATE, horizon=T_MAX)
    gaps, variances = [], []
    for state, (cell, left) in enumerate(zip(cells(states), states["turns_left"], strict=True)):
        np.testing.assert_allclose(states["values"]["q_horizon"][state][:4], horizon[left, cell], atol=1e-12)
        value = np.array(states["values"]["q_horizon"][state])
        sampled = value[states[f"{who}_actions"][state]].mean()
        mean = policy[cell] @ horizon[left, cell]
        gaps.append(sampled - mean)
        variances.append((policy[cell] @ (horizon[left, cell] - mean) ** 2) / SETTINGS.replies)
    assert abs(np.sum(gaps)) < 4 * np.sqrt(np.sum(variances))


def test_win_shares_are_those_of_two_tables_that_share_their_random_numbers(probed):
    """Both policies invert their cumulative distributions, in the order of the words, on the same uniforms."""
    states, rng = probed.raw["states"]["ordinary"], np.random.default_rng(0)
    horizon = exact.finite_horizon_q(LAKES[0], success_rate=RATE, horizon=T_MAX)
    expected, found = np.zeros(3), np.zeros(3)
    for state, (cell, left) in enumerate(zip(cells(states), states["turns_left"], strict=True)):
        u = rng.random((2000, SETTINGS.replies))
        value = horizon[left, cell]
        means = []
        for policy in (WALKER, WANDERER):
            action = (u[..., None] >= np.cumsum(policy[cell])[:3]).sum(axis=-1)
            counts = np.stack([(action == a).sum(axis=1) for a in range(4)], axis=1)
            means.append(counts @ value / SETTINGS.replies)
        d = means[0] - means[1]
        expected += [(d > 1e-9).mean(), (np.abs(d) <= 1e-9).mean(), (d < -1e-9).mean()]
        sampled = [
            np.bincount(states[f"{who}_actions"][state], minlength=6)[:4] @ value / SETTINGS.replies
            for who in ("policy", "base")
        ]
        gap = sampled[0] - sampled[1]
        found += [gap > 1e-9, abs(gap) <= 1e-9, gap < -1e-9]
    n = len(states["task"])
    assert expected[0] > 2 * expected[2]  # the walker is the better one
    for share, truth in zip(found / n, expected / n, strict=True):
        assert near(share, truth, np.sqrt(truth * (1 - truth)) + 0.02, n)


@pytest.mark.parametrize(("who", "policy"), [("base", WANDERER), ("policy", WALKER)])
def test_recovery_is_that_of_forward_propagation_with_and_without_the_error(table, probed, who, policy):
    states, recovery = probed.raw["states"]["error"], probed.raw["recovery"]
    after = [within(policy, cell, left) for cell, left in zip(cells(states), states["turns_left"], strict=True)]
    n = SETTINGS.continuations * len(after)
    assert near(np.mean(recovery[f"{who}_success"]), np.mean(after), 0.5, n)
    best = exact.finite_horizon_q(LAKES[0], success_rate=RATE, horizon=T_MAX).max(axis=2)
    np.testing.assert_allclose(
        recovery["optimal_after"],
        [best[left, cell] for cell, left in zip(cells(states), states["turns_left"], strict=True)],
    )
    assert np.mean(recovery["optimal_before"]) > np.mean(recovery["optimal_after"])
    assert np.mean(recovery[f"{who}_without_error"]) > np.mean(recovery[f"{who}_success"])


def test_injected_errors_are_the_worst_moves_that_leave_the_agent_alive(probed):
    q_X4 = exact.discounted_q(LAKES[0], success_rate=RATE, gamma=0.99)
    worst_X = exact.worst_surviving_action(LAKES[0], q_X4, success_rate=RATE)
    names = ("left", "down", "right", "up")
    assert set(probed.raw["recovery"]["injected"]) <= {names[action] for action in worst_X if action >= 0}
    letters = "".join(LAKES[0])
    assert all(letters[cell] not in "HG" for cell in cells(probed.raw["states"]["error"]))
    for trajectory in probed.trajectories:
        marked = [turn for turn in trajectory.turns if turn.info.get("injected")]
        assert len(marked) == (trajectory.instance["condition"] != "ordinary")
        for turn in marked:
            assert turn.parsed_action == names[worst_X[turn.info["cell"]]]
            assert "llr" not in turn.info
            assert turn.logprobs == []


def test_a_policy_against_itself_ties_everywhere_and_has_ratios_of_exactly_zero(table):
    assert_ties_everywhere(pair(table, "base", "base").raw)


def test_sampled_values_agree_with_exact_ones(table):
    """Monte-Carlo values under the walker, against its own Q by forward propagation from every successor."""
    arena, walker = table.arena, table.policies["policy"]
    episodes = arena.play(table.policies["base"], samples=4)
    visits = arena.visits(episodes)
    few = np.arange(0, len(visits.keys), 7)[:8]
    positions = arena.positions([episodes], np.zeros(len(few), int), visits.row_V[few], visits.turn_V[few])
    replies = arena.act([table.policies["base"]], positions, replies=64)
    values = arena.monte_carlo(walker, positions, replies, rollouts=64)
    moves_X4X = exact.transition_matrix(LAKES[0], success_rate=RATE)
    goal = "".join(LAKES[0]).index("G")
    gaps = []
    for state, (cell, left) in enumerate(zip(positions.starts.state.cell, positions.turns_left_S, strict=True)):
        used = set(replies.outcome_SN[0][state].tolist())
        assert {outcome for outcome, value in enumerate(values[state]) if value is not None} == used
        for action in used:
            after = [1.0 if x == goal else within(WALKER, x, int(left) - 1) for x in range(16)]
            gaps.append(values[state][action] - moves_X4X[cell, action] @ after)
    assert near(np.mean(gaps), 0.0, 0.5, 64 * len(gaps))
    assert np.std(gaps) < 3 * 0.5 / 8


def test_replies_to_a_state_do_not_depend_on_the_other_states_probed(table):
    arena, policy = table.arena, table.policies["base"]
    episodes = arena.play(policy, samples=4)
    visits = arena.visits(episodes)
    index = np.arange(12)
    positions = arena.positions([episodes], np.zeros(12, int), visits.row_V[index], visits.turn_V[index])
    whole = arena.act([policy], positions, replies=8).outcome_SN[0]
    part = arena.act([policy], positions.take(np.array([7, 2])), replies=8).outcome_SN[0]
    np.testing.assert_array_equal(part, whole[[7, 2]])


def test_without_holes_and_with_turns_to_spare_all_moves_tie_at_gamma_1_but_not_below():
    game = tabular_game([["SFF", "FFF", "FFG"]], t_max=12)
    probe = LakeProbe(game.task, game.instances)
    state = types.SimpleNamespace(cell=np.array([4]))
    values = probe.values(np.array([0]), state, np.array([12]))
    assert np.ptp(values["q_horizon"][0]) == 0
    assert np.ptp(values["q_star_0.99"][0]) > 0.01
