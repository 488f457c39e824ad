"""The FrozenLake sweep: its rows against exact values, its words against its rows, the command from end to end."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from jaxrl_agent.envs.frozenlake_exact import start_value, success_within
from jaxrl_agent.envs.frozenlake_maps import shortest_path
from jaxrl_agent.envs.frozenlake_policies import POLICIES
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.sweeps.lake_sweep import LakeSweep, draw_maps, parse_numbers, run, to_csv
from jaxrl_agent.sweeps.lake_words import answer, helps
from jaxrl_agent.testing.commands import assert_one_line_error

SWEEP = LakeSweep(
    sizes=(3, 4), frozen_probs=(0.7,), success_rates=(0.8, 1.0), budgets=(4, 8, 20), maps=40, ks=(2, 8), resamples=200
)


@pytest.fixture(scope="module")
def rows():
    return run(SWEEP)


def cells(rows, **wanted):
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def test_there_is_a_row_for_every_cell_and_policy(rows):
    keys = [(row["size"], row["success_rate"], row["policy"], row["budget"]) for row in rows]
    assert len(set(keys)) == len(keys) == 2 * 2 * len(POLICIES) * 3
    assert {row["t_max"] for row in rows} == {20}
    assert {row["n_maps"] for row in rows} == {40}


def test_means_are_those_of_the_exact_values_of_each_map(rows):
    descs = draw_maps(SWEEP, 4, 0.7)
    uniform = np.full((16, 4), 0.25)
    p = np.array([success_within(desc, uniform, success_rate=0.8, budgets=[4, 8, 20]) for desc in descs])
    best = np.array([start_value(desc, success_rate=0.8, budgets=[4, 8, 20]) for desc in descs])
    for b, row in enumerate(cells(rows, size=4, success_rate=0.8, policy="random")):
        assert row["success"] == pytest.approx(p[:, b].mean(), abs=1e-12)
        assert row["pass_at_8"] == pytest.approx((1 - (1 - p[:, b]) ** 8).mean(), abs=1e-12)
        assert row["best"] == pytest.approx(best[:, b].mean(), abs=1e-12)
        assert row["headroom"] == pytest.approx((best - p)[:, b].mean(), abs=1e-12)
        assert row["success_low"] < row["success"] < row["success_high"] or row["success"] == 0
        assert row["infeasible_share"] == np.mean([shortest_path(desc) > row["budget"] for desc in descs])


def test_leads_are_differences_on_the_same_maps(rows):
    for row in rows:
        lake = {key: row[key] for key in ("size", "success_rate", "budget")}
        for name in ("full", "quick"):
            (reference,) = cells(rows, policy=name, **lake)
            assert row[f"over_{name}"] == pytest.approx(row["success"] - reference["success"], abs=1e-12)
    assert all(row["headroom"] == 0 for row in cells(rows, policy="told"))
    assert all(abs(row["over_full"]) < 1e-12 for row in cells(rows, policy="told", budget=20))


def test_policies_left_out_change_no_other_row(rows):
    fewer = run(LakeSweep(**vars(SWEEP) | {"policies": ("told",), "sizes": (3,), "success_rates": (0.8,)}))
    for few, row in zip(fewer, cells(rows, size=3, success_rate=0.8, policy="told"), strict=True):
        assert few == pytest.approx(row, abs=1e-12)


def test_the_table_can_be_read_back(rows):
    read = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert len(read) == len(rows)
    assert [float(line["recovery"]) for line in read] == [row["recovery"] for row in rows]


def test_budgets_are_those_of_budgetmix_unless_given():
    assert LakeSweep(t_max=16).all_budgets == [2, 4, 5, 7, 8, 10, 12, 13, 15, 16]
    assert LakeSweep().all_budgets == list(range(10, 101, 10))
    assert LakeSweep(budgets=(9, 3)).all_budgets == [3, 9]
    assert LakeSweep(budgets=(9, 3)).full_budget == 9


def test_the_answer_counts_where_budgets_matter(rows):
    said = answer(rows, 0.03)
    short = [row for row in rows if row["policy"] == "told" and row["budget"] < 20]
    where = [row for row in short if helps(row)]
    beyond = [row for row in short if helps(row, over="quick")]
    assert 0 < len(beyond) < len(where) < len(short)
    assert f"(told) leads by more in {len(where)} of {len(short)} cells" in said[1]
    assert f"in {len(beyond)} of them beyond ties" in said[1]
    deterministic = cells(short, success_rate=1.0)
    hits = sum(map(helps, deterministic))
    assert any(f"success rate 1 {hits} of {len(deterministic)}, 0 beyond ties" in sentence for sentence in said)


def test_the_answer_says_so_where_nothing_can_be_gained(rows):
    said = answer(rows, margin=1.0)
    assert sum("leads nowhere by that much" in sentence for sentence in said) == 2
    assert "cannot say" in answer(cells(rows, policy="random"))[-1]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sizes": ()}, "--sizes"),
        ({"policies": ("told", "told")}, "--policies"),
        ({"policies": ("best",)}, "known"),
        ({"budgets": (0, 4)}, "--budgets"),
        ({"budgets": (30,), "t_max": 20}, "--budgets"),
        ({"maps": 0}, "--maps"),
        ({"ks": (0,)}, "--ks"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, words):
    with pytest.raises(ConfigError, match=words):
        LakeSweep(**wrong)


def test_numbers_of_flags_may_be_fractions():
    assert parse_numbers("success_rates", ["1/3", "0.8"], float) == (1 / 3, 0.8)
    for texts, kind in ((["4.5"], int), (["a"], float), (["1/0"], float)):
        with pytest.raises(ConfigError, match="--x"):
            parse_numbers("x", texts, kind)


def test_the_command_writes_table_and_figures_and_prints_the_answer(launch, tmp_path):
    flags = ("--sizes=3,4", "--frozen_probs=0.7", "--success_rates=0.8,1", "--budgets=4,8,20", "--maps=40", "--ks=2,8")
    result = launch("sweep_frozenlake", *flags, f"--out={tmp_path}/new/lake.csv")
    assert (result.code, result.err.count("error")) == (0, 0)
    assert "BudgetMix can help where" in result.out
    table = list(csv.DictReader((tmp_path / "new" / "lake.csv").open()))
    assert len(table) == 2 * 2 * len(POLICIES) * 3
    assert "BudgetMix can help where" in (tmp_path / "new" / "lake.html").read_text()
    assert_one_line_error(launch("sweep_frozenlake", "--sizes=x", "--out=never.csv"), "--sizes")
    assert_one_line_error(launch("sweep_frozenlake", "--sizes=40", "--maps=1", "--out=never.csv"), "size must lie in")
