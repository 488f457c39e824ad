"""A comparison as text and as JSON, on evaluations made up for the purpose."""

from __future__ import annotations

import csv
import io

import pytest

from jaxrl_agent.analysis.pass_claims import judge
from jaxrl_agent.analysis.pass_surface import Comparison
from jaxrl_agent.config import build_config, default_config
from jaxrl_agent.sweeps import tables
from jaxrl_agent.sweeps.compare import summary, to_json
from jaxrl_agent.sweeps.runs import Arm
from jaxrl_agent.testing.fake_evaluations import fake_comparison


def config_of(schedule: str):
    values = default_config()
    values.budget.schedule = schedule
    return build_config(values)


ARMS = (
    Arm("base", config_of("fixed")),
    Arm("grpo", config_of("fixed"), "base"),
    Arm("mix", config_of("budget_mix"), "base"),
)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return fake_comparison(arms=ARMS)


def test_the_csv_has_a_line_for_every_mean_and_difference(comparison):
    rows = list(csv.DictReader(io.StringIO(tables.tidy(comparison))))
    assert len(rows) == (3 + 3) * 4 * 4, "arms and differences, K of 1, 2, 4, 8, four budgets"
    row = next(r for r in rows if (r["method"], r["minus"], r["K"], r["T"]) == ("mix", "grpo", "8", "12"))
    value = comparison.differences["mix", "grpo"][8, 12]
    assert float(row["mean"]) == value.mean
    assert (float(row["task_low"]), float(row["task_high"])) == (value.tasks.low, value.tasks.high)
    assert (float(row["seed_low"]), float(row["seed_high"])) == (value.seeds.low, value.seeds.high)
    assert (row["T_fraction"], row["n_seeds"], row["n_tasks"], row["n_samples"]) == ("0.75", "4", "60", "16")


def test_the_csv_of_one_seed_leaves_its_spread_empty():
    row = next(csv.DictReader(io.StringIO(tables.tidy(fake_comparison(seeds=1, arms=ARMS)))))
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
