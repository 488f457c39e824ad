from __future__ import annotations

import pytest

from jaxrl_agent.report.load import load_run
from jaxrl_agent.report.reading import MARGIN, judge_above, judge_below, mixes_budgets, read, tally
from jaxrl_agent.report.surface import compute_surface, turns_at
from jaxrl_agent.run_dir import read_json, write_json
from jaxrl_agent.statistics import Estimate


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.01, 0.2, "supported"),
        (-0.01, 0.2, "undecided"),
        (0.0, 0.2, "undecided"),
        (-0.2, -0.01, "contradicted"),
        (-0.2, 0.0, "undecided"),
        (0.0, 0.0, "undecided"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(low, high, verdict):
    assert judge_above(Estimate((low + high) / 2, low, high, 9), 0.0) == verdict
    assert judge_below(Estimate(-(low + high) / 2, -high, -low, 9), 0.0) == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.02, 0.01, "supported"), (-0.04, 0.01, "undecided"), (-0.2, -0.04, "contradicted")],
)
def test_parity_is_judged_against_the_margin(low, high, verdict):
    assert judge_above(Estimate((low + high) / 2, low, high, 9), -MARGIN) == verdict


def surface_of(runs, names, **schedules):
    for name, schedule in schedules.items():
        config = read_json(runs[name] / "config.json")
        config["budget"]["schedule"] = schedule
        write_json(runs[name] / "config.json", config)
    return compute_surface([load_run(name, str(runs[name]), slot=i) for i, name in enumerate(names)])


def test_three_runs_give_gain_reversal_repair_and_parity(runs):
    surface = surface_of(runs, ["base", "grpo", "budgetmix"])
    claims = read(surface)
    assert [(c.label.replace("\N{MINUS SIGN}", "-"), c.topic.split()[0]) for c in claims] == [
        ("grpo - base", "Gain"),
        ("grpo - base", "Reversal"),
        ("budgetmix - grpo", "Repair"),
        ("budgetmix - grpo", "Parity"),
    ]
    cells = {d.label: d.cells for d in surface.differences}
    for claim, turns in zip(claims, (16, 4, 4, 16), strict=True):
        assert claim.estimate == cells[claim.label][1, turns]
        assert f"With {turns} turns" in claim.statement
    assert claims[0].verdict == judge_above(claims[0].estimate, 0.0)
    assert claims[1].verdict == judge_below(claims[1].estimate, 0.0)
    assert claims[3].verdict == judge_above(claims[3].estimate, -MARGIN)
    assert sum(int(part.split()[0]) for part in tally(claims).split(", ")) == 4


def test_the_role_of_a_run_comes_from_its_schedule_and_not_from_its_name(runs):
    surface = surface_of(runs, ["base", "grpo", "budgetmix"], grpo="budget_mix", budgetmix="fixed")
    assert [mixes_budgets(run) for run in surface.runs] == [False, True, False]
    labels = [claim.label.replace("\N{MINUS SIGN}", "-") for claim in read(surface)]
    assert labels == ["budgetmix - base", "budgetmix - base", "grpo - base", "grpo - base"]


def test_one_run_says_nothing(runs):
    assert read(surface_of(runs, ["base"])) == []


@pytest.mark.parametrize(
    ("percent", "t_max", "turns"), [(25, 16, 4), (25, 10, 3), (75, 50, 38), (30, 50, 15), (25, 1, 1)]
)
def test_budgets_are_rounded_up_in_integers(percent, t_max, turns):
    assert turns_at(percent, t_max) == turns
