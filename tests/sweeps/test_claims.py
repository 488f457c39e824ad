"""What a comparison decides, on evaluations made up for the purpose."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import pytest

from jaxrl_agent.config import build_config, default_config
from jaxrl_agent.errors import RunError
from jaxrl_agent.statistics import Estimate, judge_above, judge_below
from jaxrl_agent.sweeps import tables
from jaxrl_agent.sweeps.claims import both, judge
from jaxrl_agent.sweeps.compare import summary, to_json
from jaxrl_agent.sweeps.numbers import Comparison, analyse
from jaxrl_agent.sweeps.runs import Arm
from jaxrl_agent.sweeps.seeds import SeedMean

T_MAX, TASKS = 16, 60
# Shares of success at 4, 8, 12 and 16 turns.
BASE, GRPO, MIX = (0.4, 0.5, 0.6, 0.65), (0.2, 0.6, 0.7, 0.9), (0.5, 0.75, 0.85, 0.93)


def config_of(schedule: str):
    values = default_config()
    values.budget.schedule = schedule
    return build_config(values)


ARMS = (
    Arm("base", config_of("fixed")),
    Arm("grpo", config_of("fixed"), "base"),
    Arm("mix", config_of("budget_mix"), "base"),
)


def evaluation(shares, *, seed: int, samples: int = 16, optimal: float | None = 1.0, **changes):
    """An evaluation in the format of evaluate.py whose policy succeeds with these probabilities."""
    rng = np.random.default_rng([seed, *(int(1000 * share) for share in shares)])
    budgets = [T_MAX // len(shares) * (i + 1) for i in range(len(shares))]
    wins_TPN = rng.random((len(shares), TASKS, samples)) < np.reshape(shares, (-1, 1, 1))
    headroom = [
        {"T": turns, "optimal": optimal, "headroom": optimal - wins.mean(), "ci_low": optimal - wins.mean() - 0.02}
        for turns, wins in zip(budgets, wins_TPN, strict=True)
        if optimal is not None
    ]
    return {
        "task": "frozenlake",
        "split": "test",
        "data_hash": "abc",
        "t_max": T_MAX,
        "budget_visibility": "total",
        "n_tasks": TASKS,
        "n_samples": samples,
        "grid": [{"K": 1, "T": turns} for turns in budgets],
        "runs": [
            {"T": turns, "first_success_turns": np.where(wins, turns, 0).tolist()}
            for turns, wins in zip(budgets, wins_TPN, strict=True)
        ],
        "headroom": {"by_T": headroom} if headroom else None,
        **changes,
    }


def comparison_of(base=BASE, grpo=GRPO, mix=MIX, *, seeds=4, arms=ARMS, **options) -> Comparison:
    shares = {"base": base, "grpo": grpo, "mix": mix}
    found = {arm.name: [evaluation(shares[arm.name], seed=seed, **options) for seed in range(seeds)] for arm in arms}
    return analyse(arms, range(seeds), found)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return comparison_of()


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
    found = verdicts(comparison_of(base=(0.2, 0.5, 0.6, 0.9), grpo=(0.4, 0.7, 0.8, 0.7), mix=(0.2, 0.5, 0.6, 0.5)))
    assert {verdict for (topic, _, _), verdict in found.items() if topic != "beyond"} == {"contradicted"}
    assert len(found) == 8


def test_one_seed_decides_nothing():
    found = judge(comparison_of(seeds=1))
    assert {claim.verdict for claim in found} == {"undecided"}
    assert "one seed, which says nothing of others" in found[0].sentence


def test_a_reversal_without_headroom_is_no_reversal():
    claim = next(c for c in judge(comparison_of(optimal=0.4)) if c.topic.startswith("reversal"))
    assert max(claim.value.tasks.high, claim.value.seeds.high) < 0
    assert claim.verdict == "undecided"
    assert "headroom of one may be 0" in claim.sentence


def test_a_reversal_is_judged_without_headroom_where_exact_values_are_not_known():
    claim = next(c for c in judge(comparison_of(optimal=None)) if c.topic.startswith("reversal"))
    assert claim.verdict == "supported"
    assert "exact headroom is not known" in claim.sentence
    assert "optimum" not in claim.sentence


def test_a_ceiling_is_judged_from_64_attempts_on():
    few, many = (
        next(c for c in judge(comparison_of(base=shares, grpo=GRPO, samples=samples)) if c.topic.startswith("beyond"))
        for shares, samples in ((BASE, 16), ((0.01,) * 4, 128))
    )
    assert (few.k, few.verdict) == (8, "undecided")
    assert "a ceiling needs K of 64, so 128 samples a task" in few.sentence
    assert (many.k, many.verdict) == (64, "supported")
    assert "64 attempts (from 128 samples a task)" in many.sentence


def test_claims_are_made_only_at_budgets_that_were_evaluated():
    arms = ARMS[:2]
    found = judge(comparison_of(base=(0.4,), grpo=(0.9,), arms=arms))
    assert [claim.topic.split()[0] for claim in found] == ["gain", "beyond"]


def test_mixed_budgets_are_compared_with_fixed_ones_in_whatever_order_they_are_listed(comparison):
    turned = comparison_of(arms=(ARMS[0], ARMS[2], ARMS[1]))
    assert turned.differences.keys() == comparison.differences.keys()
    assert verdicts(turned) == verdicts(comparison)


def test_mixed_budgets_alone_are_compared_with_their_base():
    found = judge(comparison_of(arms=(ARMS[0], ARMS[2])))
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


# ---- the numbers behind them


def test_means_and_differences_are_those_of_the_samples(comparison):
    found = {
        name: [evaluation(shares, seed=seed) for seed in range(4)] for name, shares in (("base", BASE), ("grpo", GRPO))
    }
    for column, turns in enumerate((4, 8, 12, 16)):
        shares = {
            name: [np.mean(np.array(e["runs"][column]["first_success_turns"]) > 0) for e in evaluations]
            for name, evaluations in found.items()
        }
        assert comparison.values["base"][1, turns].per_seed == pytest.approx(shares["base"])
        difference = comparison.differences["grpo", "base"][1, turns]
        assert difference.per_seed == pytest.approx(np.subtract(shares["grpo"], shares["base"]))
        assert comparison.headroom["grpo"][turns].mean == pytest.approx(1 - np.mean(shares["grpo"]))


def test_one_run_with_a_hidden_budget_serves_every_turn():
    first = np.tile([3, 4, 5, 0], (TASKS, 1))
    hidden = evaluation(
        (0.5,),
        seed=0,
        samples=4,
        budget_visibility="hidden",
        grid=[{"K": 1, "T": turns} for turns in (4, 8, 16)],
        runs=[{"T": T_MAX, "first_success_turns": first.tolist()}],
    )
    found = analyse(ARMS[:1], [0], {"base": [hidden]})
    assert [found.values["base"][1, turns].mean for turns in (4, 8, 16)] == [0.5, 0.75, 0.75]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_hash": "other"}, r"same data_hash \(abc\); grpo with seed 0 has another; got 'other'"),
        ({"n_samples": 8}, "same n_samples"),
        ({"grid": [{"K": 1, "T": 16}]}, "same budgets"),
    ],
)
def test_evaluations_that_do_not_belong_together_are_refused_by_name(changes, message):
    found = {"base": [evaluation(BASE, seed=0)], "grpo": [evaluation(GRPO, seed=0, **changes)]}
    with pytest.raises(RunError, match=message):
        analyse(ARMS[:2], [0], found)


# ---- tables


def test_the_csv_has_a_line_for_every_mean_and_difference(comparison):
    rows = list(csv.DictReader(io.StringIO(tables.tidy(comparison))))
    assert len(rows) == (3 + 3) * 4 * 4, "arms and differences, K of 1, 2, 4, 8, four budgets"
    row = next(r for r in rows if (r["method"], r["minus"], r["K"], r["T"]) == ("mix", "grpo", "8", "12"))
    value = comparison.differences["mix", "grpo"][8, 12]
    assert float(row["mean"]) == value.mean
    assert (float(row["task_low"]), float(row["task_high"])) == (value.tasks.low, value.tasks.high)
    assert (float(row["seed_low"]), float(row["seed_high"])) == seed_ends(value)
    assert (row["T_fraction"], row["n_seeds"], row["n_tasks"], row["n_samples"]) == ("0.75", "4", "60", "16")


def test_the_csv_of_one_seed_leaves_its_spread_empty():
    row = next(csv.DictReader(io.StringIO(tables.tidy(comparison_of(seeds=1)))))
    assert row["seed_sd"] == row["seed_low"] == row["seed_high"] == ""


def test_the_markdown_has_methods_by_budgets_with_intervals(comparison):
    first, second, legend = tables.markdown(comparison).strip().split("\n\n")
    header, _, base, grpo, *_, optimum = first.splitlines()
    assert header == "| Pass@1, % | T=4 (25%) | T=8 (50%) | T=12 (75%) | T=16 (100%) |"
    value = comparison.values["base"][1, 4]
    cell = f"{100 * value.mean:.1f} [{100 * value.tasks.low:.1f}, {100 * value.tasks.high:.1f}] ± {100 * value.sd:.1f}"
    assert base.startswith(f"| base | {cell} |")
    assert grpo.startswith("| grpo |")
    assert optimum == "| optimum | 100.0 | 100.0 | 100.0 | 100.0 |"
    assert second.startswith("| Pass@8, %")
    assert "optimum" not in second, "what is best for one attempt is not best for eight"
    assert "60 held-out tasks" in legend
    assert "4 seeds" in legend


def test_the_summary_has_the_table_and_a_line_for_each_claim(comparison):
    lines = summary(comparison).splitlines()
    sentences = [claim.sentence for claim in judge(comparison)]
    assert lines[-len(sentences) :] == sentences
    assert lines[0].split()[0] == "Pass@1,"


def test_the_json_names_the_same_numbers_and_verdicts(comparison):
    found = to_json(comparison)
    assert [claim["verdict"] for claim in found["claims"]] == [claim.verdict for claim in judge(comparison)]
    row = next(r for r in found["table"] if (r["method"], r["K"], r["T"]) == ("grpo", 1, 4))
    assert row["mean"] == comparison.values["grpo"][1, 4].mean
    assert found["arms"][2]["runs"] == ["seed0/mix", "seed1/mix", "seed2/mix", "seed3/mix"]
    assert found["seeds"] == (0, 1, 2, 3)
