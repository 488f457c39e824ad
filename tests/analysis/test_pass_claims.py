"""What Pass@(K,T) decides, on evaluations made up for the purpose."""

from __future__ import annotations

import dataclasses
import math

import pytest

from jaxrl_agent.analysis.pass_claims import both, judge, over_tasks
from jaxrl_agent.analysis.pass_surface import Comparison
from jaxrl_agent.analysis.seeds import SeedMean
from jaxrl_agent.statistics import Estimate, judge_above, judge_below
from jaxrl_agent.testing.fake_evaluations import ARMS, BASE, GRPO, fake_comparison


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return fake_comparison()


def verdicts(comparison: Comparison) -> dict[tuple[str, str, int], str]:
    return {(claim.topic.split()[0], claim.difference[0], claim.turns): claim.verdict for claim in judge(comparison)}


# ---- the rule


def seed_mean(tasks, seeds) -> SeedMean:
    return SeedMean(0.0, Estimate(0.0, *tasks, 60), Estimate(0.0, *seeds, 4), 0.0, (0.0,))


@pytest.mark.parametrize(
    ("tasks", "seeds", "verdict"),
    [
        ((0.01, 0.2), (0.02, 0.3), "supported"),
        ((0.01, 0.2), (-0.02, 0.3), "undecided"),
        ((-0.01, 0.2), (0.02, 0.3), "undecided"),
        ((0.01, 0.2), (-0.3, -0.1), "undecided"),
        ((-0.2, -0.01), (-0.3, -0.1), "contradicted"),
        ((-0.2, -0.01), (-0.3, 0.1), "undecided"),
        ((0.01, 0.2), (math.nan, math.nan), "undecided"),
    ],
)
def test_a_verdict_needs_the_interval_over_tasks_and_the_one_over_seeds(tasks, seeds, verdict):
    assert both(seed_mean(tasks, seeds), judge_above, 0.0) == verdict
    mirrored = seed_mean((-tasks[1], -tasks[0]), (-seeds[1], -seeds[0]))
    assert both(mirrored, judge_below, 0.0) == verdict


def test_a_few_tasks_decide_nothing_although_all_of_them_agree():
    few = SeedMean(0.1, Estimate(0.1, 0.05, 0.2, 5), Estimate(0.1, 0.05, 0.2, 4), 0.0, (0.1,))
    for agreement in (both, over_tasks):
        assert agreement(few, judge_above, 0.0) == "undecided"
        many = dataclasses.replace(few, tasks=Estimate(0.1, 0.05, 0.2, 6))
        assert agreement(many, judge_above, 0.0) == "supported"


# ---- the claims


def test_the_pattern_of_the_study_supports_every_claim_but_the_ceiling(comparison):
    assert verdicts(comparison) == {
        ("gain", "grpo", 16): "supported",
        ("reversal", "grpo", 4): "supported",
        ("repair", "mix", 4): "supported",
        ("repair", "mix", 8): "supported",
        ("repair", "mix", 12): "supported",
        ("parity", "mix", 16): "supported",
        ("beyond", "grpo", 16): "undecided",
        ("beyond", "mix", 16): "undecided",
    }


def test_the_opposite_pattern_contradicts_every_claim_but_the_ceiling():
    found = verdicts(fake_comparison(base=(0.2, 0.5, 0.6, 0.9), grpo=(0.4, 0.7, 0.8, 0.7), mix=(0.2, 0.5, 0.6, 0.5)))
    assert {verdict for (topic, _, _), verdict in found.items() if topic != "beyond"} == {"contradicted"}
    assert len(found) == 8


def test_one_seed_decides_nothing():
    found = judge(fake_comparison(seeds=1))
    assert {claim.verdict for claim in found} == {"undecided"}
    assert "one seed, which says nothing of others" in found[0].sentence


def test_one_seed_decides_by_its_tasks_where_that_is_asked_for():
    found = judge(fake_comparison(seeds=1), agreement=over_tasks)
    gain = found[0]
    assert gain.verdict == judge_above(gain.value.tasks, 0.0) == "supported"
    assert gain.rule == "the interval over tasks above 0"
    assert "one seed, which says nothing of others" in gain.sentence


def test_a_reversal_without_headroom_is_no_reversal():
    claim = next(c for c in judge(fake_comparison(optimal=0.4)) if c.topic.startswith("reversal"))
    assert max(claim.value.tasks.high, claim.value.seeds.high) < 0
    assert claim.verdict == "undecided"
    assert "headroom of one may be 0" in claim.sentence


def test_a_reversal_is_judged_without_headroom_where_exact_values_are_not_known():
    claim = next(c for c in judge(fake_comparison(optimal=None)) if c.topic.startswith("reversal"))
    assert claim.verdict == "supported"
    assert "exact headroom is not known" in claim.sentence
    assert "optimum" not in claim.sentence


def test_a_ceiling_is_judged_from_64_attempts_on():
    few, many = (
        next(c for c in judge(fake_comparison(base=shares, grpo=GRPO, samples=samples)) if c.topic.startswith("beyond"))
        for shares, samples in ((BASE, 16), ((0.01,) * 4, 128))
    )
    assert (few.k, few.verdict) == (8, "undecided")
    assert "a ceiling needs K of 64, so 128 samples a task" in few.sentence
    assert (many.k, many.verdict) == (64, "supported")
    assert "64 attempts (from 128 samples a task)" in many.sentence


def test_claims_are_made_only_at_budgets_that_were_evaluated():
    arms = ARMS[:2]
    found = judge(fake_comparison(base=(0.4,), grpo=(0.9,), arms=arms))
    assert [claim.topic.split()[0] for claim in found] == ["gain", "beyond"]


def test_mixed_budgets_are_compared_with_fixed_ones_in_whatever_order_they_are_listed(comparison):
    turned = fake_comparison(arms=(ARMS[0], ARMS[2], ARMS[1]))
    assert turned.differences.keys() == comparison.differences.keys()
    assert verdicts(turned) == verdicts(comparison)


def test_mixed_budgets_alone_are_compared_with_their_base():
    found = judge(fake_comparison(arms=(ARMS[0], ARMS[2])))
    assert [(claim.topic.split()[0], claim.difference) for claim in found] == [
        ("gain", ("mix", "base")),
        ("beyond", ("mix", "base")),
    ]


def test_a_sentence_says_the_verdict_the_claim_and_both_intervals(comparison):
    gain = judge(comparison)[0]
    value = gain.value
    numbers = [f"{100 * x:+.1f}" for x in (value.mean, value.tasks.low, value.tasks.high, *seed_ends(value))]
    assert gain.sentence == (
        "Supported: with 16 of 16 turns, grpo succeeds more often than base "
        f"({numbers[0]} points of Pass@1; over tasks {numbers[1]} to {numbers[2]}, "
        f"over 4 seeds {numbers[3]} to {numbers[4]})."
    )


def seed_ends(value: SeedMean) -> tuple[float, float]:
    return value.seeds.low, value.seeds.high
