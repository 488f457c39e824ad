"""The project's own problems: complete, divided once and for all, solvable."""

from __future__ import annotations

import collections

import pytest

from jaxrl_agent.errors import DataError
from jaxrl_agent.sandbox.judge import judge_programs
from jaxrl_agent.tasks.coding.own_problems import own_problems, read_problem
from jaxrl_agent.tasks.coding.splits import SPLITS, stable_fraction

TABLE = {
    "name": "double",
    "level": "easy",
    "split": "train",
    "style": "function",
    "entry_point": "double",
    "statement": "Double n.",
    "solution": "def double(n):\n    return 2 * n\n",
    "public": [{"args": [2], "expected": 4}],
    "hidden": [{"args": [3], "expected": 6}],
}


@pytest.fixture(scope="module")
def problems():
    return {split: own_problems(split) for split in SPLITS}


def test_there_are_enough_of_each_split_style_and_level(problems):
    assert len(problems["train"]) >= 30
    assert len(problems["validation"]) >= 5
    assert len(problems["test"]) >= 10
    every = [problem for split in problems.values() for problem in split]
    styles = collections.Counter(problem.style for problem in every)
    assert min(styles.values()) >= 0.4 * len(every)
    assert {problem.level for problem in every} == {"easy", "medium", "hard"}


def test_names_and_statements_are_in_one_split_only(problems):
    every = [problem for split in problems.values() for problem in split]
    assert len({problem.problem_id for problem in every}) == len(every)
    assert len({problem.statement for problem in every}) == len(every)


def test_each_problem_has_few_public_and_other_hidden_tests(problems):
    for problem in (problem for split in problems.values() for problem in split):
        assert 2 <= len(problem.public) <= 3, problem.problem_id
        assert 5 <= len(problem.hidden) <= 10, problem.problem_id
        questions = {repr(test.get("input", test.get("args"))) for test in problem.public}
        assert not questions & {repr(test.get("input", test.get("args"))) for test in problem.hidden}


def test_a_statement_shows_its_public_tests_and_names_its_function(problems):
    for problem in (problem for split in problems.values() for problem in split):
        if problem.style == "function":
            assert f"`{problem.entry_point}(" in problem.statement
            assert f"Example: {problem.entry_point}(" in problem.statement
        else:
            assert f"Example input:\n{problem.public[0]['input'].rstrip()}" in problem.statement


def check_golds(problems):
    verdicts = judge_programs([(problem.solution, [*problem.public, *problem.hidden]) for problem in problems])
    failed = {
        problem.problem_id: verdict.feedback
        for problem, verdict in zip(problems, verdicts, strict=True)
        if not verdict.ok
    }
    assert failed == {}


def test_reference_solutions_of_some_problems_pass(problems):
    every = [problem for split in problems.values() for problem in split]
    check_golds(sorted(every, key=lambda problem: stable_fraction(problem.problem_id))[:12])


@pytest.mark.slow
def test_every_reference_solution_passes(problems):
    check_golds([problem for split in problems.values() for problem in split])


def test_a_table_becomes_a_problem_with_its_example():
    problem = read_problem(TABLE)
    assert problem.statement == "Double n.\n\nExample: double(2) == 4"
    assert problem.hidden == ({"args": [3], "expected": 6, "entry_point": "double"},)


@pytest.mark.parametrize("change", [{"split": "dev"}, {"style": "other"}, {"more": 1}])
def test_a_table_with_something_unknown_is_refused(change):
    with pytest.raises(DataError):
        read_problem({**TABLE, **change})
