"""The fakes must look like real runs, or the tests that use them prove nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from jaxrl_agent.config import build_config
from jaxrl_agent.evaluation.pass_at_kt import pass_at_kt
from jaxrl_agent.run_dir import RunDir
from jaxrl_agent.testing.fake_runs import FakeSpec, write_fake_run


@pytest.fixture(scope="module")
def base(pristine_runs) -> RunDir:
    return RunDir.open(pristine_runs["base"])


def test_the_configuration_is_a_real_one(pristine_runs):
    for name, schedule in (("base", "fixed"), ("grpo", "fixed"), ("budgetmix", "budget_mix")):
        config = build_config(RunDir.open(pristine_runs[name]).config())
        assert config.budget.schedule == schedule
        assert config.train.updates == len(RunDir.open(pristine_runs[name]).metrics())


def test_metrics_have_every_key_of_the_format(pristine_runs):
    keys = (
        "update trajectory_reward step_reward_pooled step_reward_mean_of_means step_reward_first_turn loss kl entropy"
    )
    keys += " clip_fraction sampler_trainer_max_diff zero_variance_groups effective_groups_by_budget groups_by_budget"
    keys += " turns stop_reasons"
    keys += " tokens_per_s seconds compiles success"
    for row in RunDir.open(pristine_runs["grpo"]).metrics():
        assert set(keys.split()) <= set(row)
        assert sum(row["stop_reasons"].values()) == pytest.approx(1)


def test_the_grid_agrees_with_the_evaluation_code(base):
    result = base.evaluations()["test"]
    assert {cell["K"] for cell in result["grid"]} == {1, 2, 4, 8, 16}
    for cell, entry in itertools.product(result["grid"], result["runs"]):
        if cell["T"] == entry["T"]:
            expected = pass_at_kt(np.array(entry["first_success_turns"]), cell["K"], cell["T"])
            assert cell["value"] == pytest.approx(expected, abs=1e-12)
            assert cell["ci_low"] <= cell["value"] <= cell["ci_high"]


def test_trajectories_obey_the_rules_of_the_lake(base):
    moves = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0), "look": (0, 0)}
    for episode in base.trajectories("evaluation_test"):
        board, turns = episode["instance"]["map"], episode["turns"]
        assert 1 <= len(turns) <= episode["budget"]
        cells = [turn["info"]["cell"] for turn in turns]
        assert "".join(board)[cells[0]] == "S"
        for turn, cell, following in zip(turns, cells, [*cells[1:], None], strict=True):
            down, right = moves[turn["parsed_action"]]
            row, col = min(max(cell // 4 + down, 0), 3), min(max(cell % 4 + right, 0), 3)
            letter = board[row][col]
            if following is not None:
                assert following == 4 * row + col
                assert letter in "SF"
            else:
                assert episode["stop_reason"] == {"G": "success", "H": "failure"}.get(letter, "budget")
            assert turn["info"]["quality"] <= turn["info"]["best_quality"] + 1e-12


def test_runs_repeat_from_their_seed(tmp_path):
    spec = FakeSpec(n_tasks=4, n_samples=2, updates=3)
    first, second = (write_fake_run(tmp_path / folder, "grpo", spec) for folder in ("a", "b"))
    for file in ("config.json", "metrics.jsonl", "evaluations/test.json", "trajectories/evaluation_test.jsonl"):
        assert (first / file).read_bytes() == (second / file).read_bytes()
