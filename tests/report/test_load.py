from __future__ import annotations

import numpy as np
import pytest

from jaxrl_agent.errors import ArgumentError, RunError
from jaxrl_agent.report.load import check_comparable, choose_evaluation, load_run, parse_runs, setting
from jaxrl_agent.run_dir import RunDir, read_json, write_json


def test_runs_are_named_in_order():
    assert parse_runs(["base=a/b", " grpo = c=d "]) == [("base", "a/b"), ("grpo", "c=d")]


@pytest.mark.parametrize("items", [[], ["base"], ["=dir"], ["base="], ["a=x", "a=y"]])
def test_malformed_lists_of_runs_are_refused(items):
    with pytest.raises(ArgumentError, match="--runs"):
        parse_runs(items)


def evaluations(folder, *names):
    run = RunDir.create(folder, {"seed": 0})
    for name in names:
        write_json(run.path / "evaluations" / f"{name}.json", {"name": name})
    return run


def test_the_evaluation_named_test_wins(tmp_path):
    assert choose_evaluation(evaluations(tmp_path, "a", "test", "z"))[1] == {"name": "test"}


def test_a_single_evaluation_needs_no_name(tmp_path):
    assert choose_evaluation(evaluations(tmp_path, "held_out"))[0] == "held_out"


def test_an_evaluation_can_be_asked_for(tmp_path):
    assert choose_evaluation(evaluations(tmp_path, "test", "long"), "long")[0] == "long"


def test_an_unclear_choice_names_the_choices(tmp_path):
    with pytest.raises(RunError, match=r"--evaluation=NAME; there are: a, b\."):
        choose_evaluation(evaluations(tmp_path, "a", "b"))
    with pytest.raises(RunError, match="there are: a, b"):
        choose_evaluation(RunDir.open(tmp_path), "test")


def test_a_run_without_evaluation_says_how_to_make_one(tmp_path):
    with pytest.raises(RunError, match=r"evaluate\.py with --out=.*test\.json"):
        choose_evaluation(evaluations(tmp_path))


def edited(run, **changes):
    file = run / "evaluations" / "test.json"
    write_json(file, {**read_json(file), **changes})
    return load_run("base", str(run), slot=0)


def test_an_absent_sample_counts_as_never_solved(runs):
    rows = [[None, 0, 3, 16] + [0] * 12 for _ in range(12)]
    run = edited(runs["base"], runs=[{"T": 16, "first_success_turns": rows}], grid=None)
    assert run.first_success_PN(16)[0, :4].tolist() == [0, 0, 3, 16]
    assert run.first_success_PN(8) is None
    assert run.evaluated_turns() == [16]
    assert run.ks == [1]


def test_a_hidden_budget_cuts_the_one_set_of_samples(runs):
    rows = [[1, 4, 5, 0] + [0] * 12 for _ in range(12)]
    entries = [{"T": 16, "first_success_turns": rows}]
    run = edited(runs["base"], runs=entries, budget_visibility="hidden", grid=None)
    np.testing.assert_array_equal(run.first_success_PN(4)[0, :4], [1, 4, 0, 0])
    assert run.evaluated_turns() == list(range(1, 17))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runs": []}, "must hold the samples of t_max"),
        ({"runs": [{"first_success_turns": [[0] * 16] * 12}]}, 'must have a "T"'),
        ({"n_tasks": 11}, "n_tasks=11"),
    ],
)
def test_malformed_evaluations_are_refused(runs, changes, message):
    with pytest.raises(RunError, match=message):
        edited(runs["base"], **changes)


@pytest.mark.parametrize(
    ("key", "value"), [("think", "keep"), ("think", None), ("temperature", 0.5), ("top_k", 7), ("top_p", 0.9)]
)
def test_runs_that_were_sampled_in_different_ways_are_not_compared(runs, key, value):
    sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "think": "off"}
    one, same, other = (
        edited(runs["base"], sampling=values) for values in (sampling, sampling, {**sampling, key: value})
    )
    check_comparable([one, same])
    with pytest.raises(RunError, match=rf"the same sampling\.{key}.*{value}"):
        check_comparable([one, same, other])


def test_a_line_without_update_is_refused(runs):
    with (runs["grpo"] / "metrics.jsonl").open("a") as stream:
        stream.write('{"loss": 1.0}\n')
    with pytest.raises(RunError, match='"update"'):
        load_run("grpo", str(runs["grpo"]), slot=0)


def test_settings_are_found_by_dotted_name():
    assert setting({"a": {"b": 3}}, "a.b") == 3
    assert setting({"a": {"b": 3}}, "a.c", 4) == 4
    assert setting({"a": 1}, "a.b") is None
