"""Evaluation: one run for each told budget, equal numbers however they are batched, headroom that nobody beats."""

from __future__ import annotations

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent import assemble
from jaxrl_agent.checkpoint import Checkpoints, abstract_params, describe_policy
from jaxrl_agent.errors import CheckpointError, ConfigError, NonFiniteError
from jaxrl_agent.evaluation import evaluator
from jaxrl_agent.evaluation.evaluator import enforced_budgets, evaluate, is_current
from jaxrl_agent.evaluation.pass_at_kt import pass_at_kt
from jaxrl_agent.models.hf_weights import save_hf
from jaxrl_agent.models.qwen3 import init_params
from jaxrl_agent.progress import Display
from jaxrl_agent.run_dir import RunDir, read_json, to_jsonable, write_json
from jaxrl_agent.testing.small import EVEN_MODEL, one_device, small_config

SAMPLES, TASKS = 4, 6


@pytest.fixture(scope="module")
def sampled(small_run):
    """Evaluate the small policy, each set of changes once."""

    @functools.cache
    def result_of(temperature=1.0, seed=0, **changes):
        config = small_config(init=f"run:{small_run.path}", **changes)
        return evaluate(config, temperature=temperature, seed=seed, display=Display(quiet=True))

    return result_of


@pytest.fixture(scope="module")
def told(sampled):
    return sampled()[0]


# ---- what comes out


def test_the_result_has_the_keys_that_readers_rely_on_and_is_json(told, small_run):
    keys = (
        "task split n_tasks n_samples t_max budget_visibility sampling could_not_check grid runs headroom data_hash "
        "checkpoint versions"
    )
    assert set(keys.split()) <= told.keys()
    assert (told["task"], told["split"], told["budget_visibility"]) == ("frozenlake", "test", "total")
    assert (told["n_tasks"], told["n_samples"], told["t_max"]) == (TASKS, SAMPLES, 4)
    assert told["checkpoint"] == f"run:{small_run.path}@224"
    expected = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 0, "max_tokens": 2, "think": "off"}
    assert told["sampling"] == expected
    assert told["could_not_check"] == 0
    assert told["warnings"] == []
    json.dumps(to_jsonable(told), allow_nan=False)


def test_a_told_budget_has_one_run_for_each_fraction(told):
    assert [run["T"] for run in told["runs"]] == [1, 2, 3, 4]
    for run in told["runs"]:
        first_PN = np.array(run["first_success_turns"])
        assert first_PN.shape == (TASKS, SAMPLES)
        assert ((first_PN >= 0) & (first_PN <= run["T"])).all()
        assert sum(run["stop_reasons"].values()) == TASKS * SAMPLES
        assert run["stop_reasons"].get("success", 0) == (first_PN > 0).sum()
    assert (np.array(told["runs"][3]["first_success_turns"]) > 0).any()


def test_the_grid_is_pass_at_kt_of_the_runs_with_intervals(told):
    runs = {run["T"]: run["first_success_turns"] for run in told["runs"]}
    assert [(cell["K"], cell["T"]) for cell in told["grid"]] == [(k, t) for t in (1, 2, 3, 4) for k in (1, 2)]
    for cell in told["grid"]:
        assert cell["value"] == pytest.approx(pass_at_kt(runs[cell["T"]], cell["K"], cell["T"]))
        assert cell["T_fraction"] == cell["T"] / 4
        assert 0 <= cell["ci_low"] <= cell["value"] <= cell["ci_high"] <= 1


def test_no_lake_here_can_be_won_in_one_turn(told):
    rows = told["headroom"]["by_T"]
    assert [row["T"] for row in rows] == [1, 2, 3, 4]
    assert (rows[0]["optimal"], rows[0]["infeasible_share"], rows[0]["success"]) == (0, 1, 0)
    assert all(row["optimal"] == pytest.approx(1 - row["infeasible_share"]) for row in rows), "nothing slips"
    for row in rows:
        assert row["headroom"] == pytest.approx(row["optimal"] - row["success"])
        assert row["ci_low"] - 1e-12 <= row["headroom"] <= row["ci_high"] + 1e-12


def test_trajectories_are_a_few_of_each_task_and_budget(sampled):
    _, trajectories = sampled()
    assert [trajectory.budget for trajectory in trajectories] == sorted([1, 2, 3, 4] * 2 * TASKS)
    assert [trajectory.group_id for trajectory in trajectories[: 2 * TASKS]] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert {trajectory.policy_version for trajectory in trajectories} == {24}
    assert all(len(trajectory.turns) <= trajectory.budget for trajectory in trajectories)


# ---- batches, seeds, budgets


def test_batches_change_neither_numbers_nor_trajectories(sampled):
    result, trajectories = sampled()
    # 4 tasks a batch: the second batch is filled up with two tasks of the first.
    other, other_trajectories = sampled(evaluation__rows=16)
    assert other["runs"] == result["runs"]
    assert other["grid"] == result["grid"]
    assert other["headroom"] == result["headroom"]

    def readable(rows):
        return [(row.instance_id, row.group_id, row.budget, [turn.text for turn in row.turns]) for row in rows]

    assert readable(other_trajectories) == readable(trajectories)


def test_a_seed_gives_the_same_result_again_and_another_seed_another(sampled, small_run):
    config = small_config(init=f"run:{small_run.path}")
    again, _ = evaluate(config, display=Display(quiet=True))
    assert to_jsonable(again) == to_jsonable(sampled()[0])
    other = sampled(seed=1)[0]
    assert other["runs"] != again["runs"]
    assert other["sampling"]["seed"] == 1
    assert other["data_hash"] == again["data_hash"]


def test_two_policies_under_one_seed_share_tasks_and_random_numbers(sampled, small_run, tmp_path):
    copy = RunDir.create(tmp_path / "copy", small_run.config())
    with Checkpoints(small_run.checkpoints) as source:
        meta = source.meta()
        params = source.restore_params(abstract_params(EVEN_MODEL, one_device()))
    with Checkpoints(copy.checkpoints) as target:
        target.save_params(0, params, meta)
    config = small_config(init=f"run:{copy.path}")
    result, _ = evaluate(config, display=Display(quiet=True))
    assert result["runs"] == sampled()[0]["runs"], "equal policies act equally"


def test_a_hidden_budget_needs_one_run_that_serves_every_budget(sampled):
    result, trajectories = sampled(task__budget_visibility="hidden")
    assert [run["T"] for run in result["runs"]] == [4]
    first_PN = result["runs"][0]["first_success_turns"]
    assert {cell["T"] for cell in result["grid"]} == {1, 2, 3, 4}
    assert len(result["grid"]) == 2 * 4
    for cell in result["grid"]:
        assert cell["value"] == pytest.approx(pass_at_kt(first_PN, cell["K"], cell["T"]))
    for k in (1, 2):
        values = [cell["value"] for cell in result["grid"] if cell["K"] == k]
        assert values == sorted(values), "more turns never hurt what is read off one run"
    assert [row["T"] for row in result["headroom"]["by_T"]] == [1, 2, 3, 4]
    assert {trajectory.budget for trajectory in trajectories} == {4}


@pytest.mark.parametrize(
    ("t_max", "fractions", "expected"),
    [
        (16, (0.25, 0.5, 0.75, 1.0), [4, 8, 12, 16]),
        (50, (0.3,), [15]),  # 0.3 * 50 is 15.000000000000002
        (100, (0.07, 0.29, 0.57), [7, 29, 57]),
        (10, (0.25, 1.0), [3, 10]),
        (16, (0.125, 0.001), [1, 2]),
        (4, (0.9, 1.0, 0.8), [4]),
    ],
)
def test_fractions_become_whole_turns_rounded_up_each_once(t_max, fractions, expected):
    config = small_config(task__t_max=t_max, evaluation__budget_fractions=fractions)
    assert enforced_budgets(config) == expected


# ---- headroom


@pytest.mark.parametrize("visibility", ["total", "hidden"])
def test_an_optimal_policy_has_no_headroom_and_any_other_has_some(visibility):
    config = small_config(task__budget_visibility=visibility)
    policy = assemble.Policy(EVEN_MODEL, None, "lake_words")
    game = assemble.build_game(config, "test", policy, one_device())
    budgets = [1, 2, 3, 4]
    optimal_BP = game.instances.optimal_success(budgets, success_rate=1.0)
    shortest_P = np.array([next((b for b, won in zip(budgets, wins, strict=True) if won), 0) for wins in optimal_BP.T])
    assert set(shortest_P) <= {0, 2, 3, 4}

    def run(budget, first_P):
        first_PN = np.repeat(np.where(first_P <= budget, first_P, 0)[:, None], SAMPLES, axis=1)
        return evaluator.EnforcedRun(budget, first_PN, could_not_check=0, stop_reasons={}, trajectories=[])

    enforced = [4] if visibility == "hidden" else budgets
    best = evaluator._headroom(config, game, [run(budget, shortest_P) for budget in enforced])
    assert [row["headroom"] for row in best["by_T"]] == [0, 0, 0, 0]
    late_P = np.where(shortest_P > 0, shortest_P + 1, 0)
    late = evaluator._headroom(config, game, [run(budget, late_P) for budget in enforced])
    assert all(row["headroom"] >= 0 for row in late["by_T"])
    assert late["by_T"][1]["headroom"] > 0


def test_what_could_not_be_checked_is_counted_apart_and_stays_in_the_denominator():
    codes = [reason.code for reason in (evaluator.StopReason.SUCCESS, evaluator.StopReason.ENVIRONMENT_ERROR)]
    part = {"first": np.array([2, 0, 0, 0]), "stop": np.array([codes[0], codes[1], codes[1], codes[1]])}
    run = evaluator._enforced_run(4, [part], 2, 2, [])
    assert run.could_not_check == 3
    assert run.first_success_PN.tolist() == [[2, 0], [0, 0]]
    assert run.stop_reasons == {"success": 1, "environment_error": 3}


# ---- greedy


def test_greedy_samples_of_a_lake_that_does_not_slip_are_all_the_same_and_warn(sampled):
    result, _ = sampled(temperature=0.0)
    for run in result["runs"]:
        first_PN = np.array(run["first_success_turns"])
        assert (first_PN == first_PN[:, :1]).all()
    assert len(result["warnings"]) == 1
    assert "read K=1 only" in result["warnings"][0]


def test_a_single_greedy_sample_does_not_warn():
    assert evaluator._warnings(evaluator.SamplingSettings(temperature=0.0), 1) == []
    assert evaluator._warnings(evaluator.SamplingSettings(temperature=0.5), 8) == []


# ---- reuse


def test_a_stored_evaluation_is_current_until_anything_changes(told, small_run, tmp_path):
    write_json(tmp_path / "test.json", told)
    stored = read_json(tmp_path / "test.json")
    config = small_config(init=f"run:{small_run.path}")
    assert is_current(stored, config, temperature=1.0, seed=0)
    assert not is_current(stored, config, temperature=0.5, seed=0)
    assert not is_current(stored, config, temperature=1.0, seed=1)
    assert not is_current(stored, small_config(init=f"run:{small_run.path}", task__n_test=5), temperature=1.0, seed=0)
    older = stored | {"checkpoint": f"run:{small_run.path}@223"}
    assert not is_current(older, config, temperature=1.0, seed=0)
    assert not is_current({}, config, temperature=1.0, seed=0)


# ---- refusals


def test_an_evaluation_needs_a_policy_with_a_checkpoint_and_known_names(small_run, tmp_path):
    with pytest.raises(ConfigError, match="needs a policy"):
        evaluate(small_config(), display=Display(quiet=True))
    with pytest.raises(ConfigError, match="Did you mean 'frozenlake'"):
        evaluate(small_config(init=f"run:{small_run.path}", task__name="frozen"), display=Display(quiet=True))
    young = RunDir.create(tmp_path / "young", {})
    with pytest.raises(CheckpointError, match="finished checkpoint"):
        evaluate(small_config(init=f"run:{young.path}"), display=Display(quiet=True))


def test_a_policy_of_broken_weights_is_no_policy_that_never_succeeds(tmp_path):
    params = init_params(EVEN_MODEL, jax.random.key(0))
    params["norm"]["scale"] = params["norm"]["scale"].at[0].set(jnp.nan)
    save_hf(tmp_path / "broken", EVEN_MODEL, params)
    with pytest.raises(NonFiniteError, match="log-probabilities must be finite"):
        evaluate(small_config(init=f"hf:{tmp_path / 'broken'}"), display=Display(quiet=True))


def test_a_policy_in_the_middle_of_its_warm_start_can_be_evaluated(tmp_path):
    run = RunDir.create(tmp_path / "run", {})
    with Checkpoints(run.checkpoints) as checkpoints:
        meta = describe_policy(EVEN_MODEL, "lake_words", {}, phase="warm_start", update=2)
        checkpoints.save_params(2, init_params(EVEN_MODEL, jax.random.key(0)), meta)
    result, trajectories = evaluate(small_config(init=f"run:{run.path}"), display=Display(quiet=True))
    assert result["checkpoint"].endswith("@2")
    assert {trajectory.policy_version for trajectory in trajectories} == {0}
    assert dataclasses.asdict(trajectories[0])["stop_reason"]
