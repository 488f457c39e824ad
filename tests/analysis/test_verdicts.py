"""The table of verdicts: every claim a row, decided by intervals alone."""

from __future__ import annotations

import dataclasses

import pytest

from jaxrl_agent.analysis.arms import Policy, method_of, partners
from jaxrl_agent.analysis.pair import analyse_pair
from jaxrl_agent.analysis.verdicts import Evidence, judge_all, to_markdown
from jaxrl_agent.testing.fake_evaluations import fake_comparison
from jaxrl_agent.testing.fake_probes import fake_probe

GRPO, MIX = Policy("grpo", "base"), Policy("mix", "base", mixes_budgets=True)
KEYS = {"topic", "paper", "here", "verdict", "rule", "policy", "note"}


def metrics(start: float, end: float, *, updates: int = 40) -> list[dict]:
    """Rewards that rise or fall in even steps, step rewards by half as much."""
    names = ("step_reward_pooled", "step_reward_mean_of_means", "step_reward_first_turn")
    series = [start + (end - start) * u / (updates - 1) for u in range(updates)]
    return [{"update": u + 1, "trajectory_reward": x, **dict.fromkeys(names, -x / 2)} for u, x in enumerate(series)]


def pair(name: str, seed: int = 0, *, rise: float = 0.4, **options):
    return analyse_pair(fake_probe(seed, name=name, **options), metrics(0.4, 0.4 + rise))


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    pairs = {"grpo": (pair("grpo", tools=True),), "mix": (pair("mix", rise=0.1, tools=True),)}
    return Evidence((GRPO, MIX), pairs, fake_comparison(seeds=1))


@pytest.fixture(scope="module")
def rows(evidence) -> list[dict]:
    return judge_all(evidence)


def of(rows, topic: str, policy: str = "grpo") -> dict:
    found = [row for row in rows if row["topic"].startswith(topic) and row["policy"] == policy]
    assert found, topic
    return found[0]


def test_every_claim_is_a_row_with_all_its_parts(rows):
    assert all(row.keys() == KEYS and row["paper"] and row["rule"] for row in rows)
    assert [row["topic"] for row in rows if row["policy"] == "grpo"] == [
        "gain with turns to spare",
        "reversal when turns are scarce",
        "beyond the base's ceiling",
        "single actions in ordinary states",
        "mean value of single actions",
        "single actions in error states",
        "single actions in ordinary states, judged by an oracle",
        "single actions in error states, judged by an oracle",
        "recovery after an error",
        "gain after an error against gain without one",
        "tool errors corrected",
        "trajectory reward along training",
        "step reward along training",
        "likelihood of RL's actions under the base",
        "likelihood ratio of successful trajectories",
        "sanity of likelihood ratios",
        "sanity of likelihood ratios",
    ]
    assert [row["topic"].split()[0] for row in rows if row["policy"] == "mix"] == [
        *["sanity"] * 2,
        *["repair"] * 3,
        "parity",
        *["decline"] * 2,
        "beyond",
    ]


def test_verdicts_follow_the_intervals_of_the_pair(rows, evidence):
    cell = evidence.pairs["grpo"][0]["step_quality"]["ordinary"]
    assert cell["intervals"]["wins_plus_half_ties"][0] > 0.5
    row = of(rows, "single actions in ordinary")
    assert row["verdict"] == "contradicted", "the paper says that RL is not better"
    share, (low, high) = cell["wins_plus_half_ties"], cell["intervals"]["wins_plus_half_ties"]
    interval = f"(over tasks {100 * low:.1f} to {100 * high:.1f})"
    assert row["here"].startswith(f"wins plus half ties {100 * share:.1f}% {interval}; better / equal / worse")
    assert of(rows, "single actions in error")["verdict"] == "supported"
    assert of(rows, "recovery")["verdict"] == "supported"
    assert of(rows, "trajectory reward")["verdict"] == "supported"


def test_the_opposite_pair_turns_the_verdicts(evidence):
    found = dict(evidence.pairs["grpo"][0])
    for name in ("ordinary_wins_plus_half_ties", "error_states_wins_plus_half_ties"):
        found = {**found, "measures": {**found["measures"], name: dict(SHIFTED)}}
    rows = judge_all(Evidence((GRPO,), {"grpo": (found,)}))
    assert of(rows, "single actions in ordinary")["verdict"] == "supported"
    assert of(rows, "single actions in error")["verdict"] == "contradicted"


SHIFTED = {"value": 0.4, "ci_low": 0.35, "ci_high": 0.45, "n_tasks": 12, "per_task": {}}


def test_the_mean_difference_names_the_quality_and_its_discount(rows):
    here = of(rows, "mean value")["here"]
    assert "under monte_carlo (gamma 1)" in here
    assert "q_star_0.99 (gamma 0.99)" in here


def test_both_policies_own_values_are_told(rows, evidence):
    found = evidence.pairs["grpo"][0]["recovery"]
    here = of(rows, "recovery")["here"]
    assert here.startswith(f"{100 * found['policy']:.1f}% against {100 * found['base']:.1f}%: ")
    assert "on first turns alone -0.1" in of(rows, "step reward")["here"]


def test_pass_rows_are_judged_over_tasks_for_one_seed_and_by_both_for_several(evidence):
    one = of(judge_all(evidence), "gain with turns")
    assert (one["verdict"], one["rule"]) == ("supported", "the interval over tasks above 0")
    assert "one seed, which says nothing of others" in one["note"]
    several = of(judge_all(dataclasses.replace(evidence, comparison=fake_comparison(seeds=4))), "gain with turns")
    assert (several["verdict"], several["rule"], several["note"]) == ("supported", "both intervals above 0", "")
    assert "over 4 seeds" in several["here"]


def test_mixed_budgets_are_judged_against_the_fixed_policy(rows):
    repair = [row for row in rows if row["topic"].startswith("repair")]
    assert [row["paper"].split()[2] for row in repair] == ["7.5", "5.3", "4.0"]
    assert {row["verdict"] for row in repair} == {"supported"}
    along, probed = [row for row in rows if row["topic"].startswith("decline")]
    # Step rewards fall by half of the rise: by 0.05 against 0.2, over nine tenths of the way.
    assert along["verdict"] == "supported"
    assert along["here"].startswith("change of pooled step reward along training, of mix minus that of grpo: +0.13")
    assert "training budgets are unequal" in along["note"]
    assert "of mix minus that of grpo" in probed["here"]
    assert "over tasks" in probed["here"]


def test_several_seeds_need_both_intervals():
    seeds = [pair("grpo", seed) for seed in range(3)]
    row = of(judge_all(Evidence((GRPO,), {"grpo": seeds})), "recovery")
    assert (row["verdict"], row["note"]) == ("supported", "")
    assert "over tasks" in row["here"]
    assert "over 3 seeds" in row["here"]
    training = of(judge_all(Evidence((GRPO,), {"grpo": seeds})), "trajectory reward")
    assert training["here"].count("over") == 1, "no interval over tasks"


def test_identical_policies_contradict_nothing_and_support_the_sanity_checks():
    rows = judge_all(Evidence((GRPO,), {"grpo": (analyse_pair(fake_probe(identical=True)),)}))
    assert {row["verdict"] for row in rows if row["topic"] != "sanity of likelihood ratios"} == {"undecided"}
    assert {row["verdict"] for row in rows if row["topic"] == "sanity of likelihood ratios"} == {"supported"}


def test_claims_without_data_are_rows_that_say_why():
    bare = {**fake_probe(), "states": {}, "recovery": None, "episodes": None}
    rows = judge_all(
        Evidence((GRPO,), {"grpo": (analyse_pair(bare),)}, no_comparison="no evaluations/test.json of base")
    )
    assert {row["verdict"] for row in rows} == {"undecided"}
    assert all(row["here"].startswith("not measured: ") for row in rows)
    assert of(rows, "gain with turns")["here"] == "not measured: no evaluations/test.json of base"
    assert of(rows, "repair", "")["here"] == "not measured: no policy trained on mixed budgets"


def test_without_a_policy_at_a_fixed_budget_its_claims_are_rows_too():
    rows = judge_all(Evidence((MIX,), {"mix": (pair("mix"),)}))
    assert of(rows, "recovery", "")["here"] == "not measured: no policy trained at a fixed budget"
    assert of(rows, "parity", "mix")["here"] == "not measured: no policy trained at a fixed budget"


def test_process_rewards_are_judged_where_a_policy_had_them():
    row = judge_all(Evidence((GRPO,), {"grpo": (pair("grpo"),)}))[-1]
    reason = "no run with exact process rewards among the policies"
    assert (row["topic"], row["verdict"], row["note"]) == ("process rewards", "undecided", reason)
    rewarded = Policy("mix", "base", process_rewards=True)
    arms = (Policy("base"), GRPO, rewarded)
    pairs = {"grpo": (pair("grpo"),), "mix": (pair("mix"),)}
    row = judge_all(Evidence((GRPO, rewarded), pairs, fake_comparison(mix=(0.9,) * 4, arms=arms)))[-1]
    assert row["here"].startswith("mix minus grpo with all turns: ")
    assert row["verdict"] == "undecided"
    row = judge_all(Evidence((GRPO, rewarded), pairs, fake_comparison(mix=(1.0,) * 4, arms=arms)))[-1]
    assert row["verdict"] == "supported"


def test_the_markdown_has_a_line_for_each_row_and_says_what_one_seed_is_worth(rows):
    lines = to_markdown(rows).splitlines()
    assert lines[0] == "| Claim | The paper says | Here | Verdict |"
    body = lines[2 : 2 + len(rows)]
    words = {"supported": "supports", "contradicted": "contradicts", "undecided": "cannot tell"}
    for line, row in zip(body, rows, strict=True):
        assert line.endswith(f"| **{words[row['verdict']]}** |")
        assert row["paper"] in line
        assert "one seed" not in line
    assert lines[-1].endswith("for their number. Intervals are of one seed, which says nothing of others.")
    assert "a \\| b" in to_markdown([{**rows[0], "here": "a | b"}])


def test_mixed_budgets_are_compared_with_what_was_trained_alike_but_for_that():
    fixed = [Policy("grpo", method="grpo"), Policy("oracle", method="process_reward"), Policy("ppo", method="ppo")]
    mixed = Policy("mix", mixes_budgets=True, method="process_reward")
    assert [arm.name for arm in partners(mixed, fixed)] == ["oracle"]
    assert partners(Policy("mix", mixes_budgets=True, method="gspo"), fixed) == fixed
    assert method_of("grpo", "budget_mix") == method_of("grpo", "fixed") == method_of("grpo", "headroom") == "grpo"
    assert method_of("grpo", "curriculum") != "grpo"
