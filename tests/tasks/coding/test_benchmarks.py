"""MBPP, HumanEval and CodeContests: official splits, what is public, what is left out."""

from __future__ import annotations

import gzip
import json

import pytest

from jaxrl_agent.config.sections import CodingConfig
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.sandbox.judge import judge_program
from jaxrl_agent.tasks.coding.benchmarks import docstring_examples
from jaxrl_agent.tasks.coding.choosing import choose_tests
from jaxrl_agent.tasks.coding.sources import data_hash, load_problems
from jaxrl_agent.testing.plain_workers import plain_sessions


def load(source, path, split="test", count=1000, **more):
    return load_problems(CodingConfig(source=source, path=str(path), **more), split, count=count)


# ---- MBPP


def mbpp_row(number, query=None, **more):
    asserts = [f"assert f{number}({n}) == {n + number}" for n in (1, 2, 30)]
    gold = f"def f{number}(n):\r\n  return n + {number}"
    query = query or f"Add {number}."
    return {"task_id": number, "query": query, "gold": gold, "tests": asserts, "test_setup_code": "", **more}


@pytest.fixture
def mbpp(tmp_path):
    rows = [mbpp_row(number) for number in (1, 11, 510, 511, 600, 601, 974)]
    rows += [mbpp_row(700, query="add  11."), mbpp_row(701, tests=["assert f701(1) == 702"] * 3)]
    (tmp_path / "mbpp.json").write_text(json.dumps(rows))
    return tmp_path / "mbpp.json"


def test_mbpps_splits_are_the_official_ones_and_nothing_of_test_is_trained_on(mbpp):
    names = {
        split: {problem.problem_id for problem in load("mbpp", mbpp, split)}
        for split in ("train", "validation", "test")
    }
    assert names == {
        "train": {"mbpp/601", "mbpp/974"},  # 700 asks what 11 asks, 701 has no second test
        "validation": {"mbpp/511", "mbpp/600"},
        "test": {"mbpp/11", "mbpp/510"},
    }


def test_mbpps_first_assert_is_shown_and_the_others_are_hidden(mbpp):
    problem = next(problem for problem in load("mbpp", mbpp, "train") if problem.problem_id == "mbpp/601")
    assert problem.statement == "Add 601.\n\nIt must pass this test:\nassert f601(1) == 602"
    assert [test["args"] for test in problem.public] == [[1]]
    assert [test["args"] for test in problem.hidden] == [[2], [30]]
    assert problem.entry_point == "f601"
    assert judge_program(problem.solution, [*problem.public, *problem.hidden], sessions=plain_sessions).ok


def test_the_hubs_columns_of_mbpp_are_read_too(tmp_path, mbpp):
    old = mbpp_row(601)
    renamed = {"text": old["query"], "code": old["gold"], "test_list": old["tests"], "challenge_test_list": []}
    (tmp_path / "hub.jsonl").write_text(json.dumps({"task_id": 601, "test_setup_code": "", **renamed}))
    (one,) = load("mbpp", tmp_path / "hub.jsonl", "train")
    assert one in load("mbpp", mbpp, "train")


def test_item_414_takes_one_for_true(tmp_path):
    tests = [f"assert f414({n}) == True" for n in (1, 2)]
    (tmp_path / "mbpp.json").write_text(json.dumps([mbpp_row(414, tests=tests, gold="def f414(n):\n  return 1")]))
    (problem,) = load("mbpp", tmp_path / "mbpp.json")
    assert judge_program(problem.solution, problem.hidden, sessions=plain_sessions).ok


# ---- HumanEval

PROMPT = 'def double(n):\n    """Double n.\n    >>> double(2)\n    4\n    """\n'


@pytest.fixture
def humaneval(tmp_path):
    check = "def check(candidate):\n    assert candidate(3) == 6\n    assert candidate(-1) == -2\n"
    one = {"task_id": "HumanEval/0", "prompt": PROMPT, "canonical_solution": "    return 2 * n\n"}
    rows = [{**one, "test": check, "entry_point": "double"}]
    rows += [{**rows[0], "task_id": "HumanEval/1", "prompt": "def double(n):\n"}]
    file = tmp_path / "HumanEval.jsonl.gz"
    file.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return file


def test_humanevals_examples_are_public_and_its_check_is_hidden(humaneval):
    problem = next(problem for problem in load("humaneval", humaneval) if problem.problem_id == "humaneval/0")
    assert [test["args"] for test in problem.public] == [[2]]
    assert [test["args"] for test in problem.hidden] == [[3], [-1]]
    assert judge_program(problem.solution, [*problem.public, *problem.hidden], sessions=plain_sessions).ok


def test_without_examples_the_first_test_is_public(humaneval):
    problem = next(problem for problem in load("humaneval", humaneval) if problem.problem_id == "humaneval/1")
    assert [[test["args"] for test in tests] for tests in (problem.public, problem.hidden)] == [[[3]], [[-1]]]


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("source", ["humaneval", "codecontests"])
def test_what_is_for_evaluation_is_never_trained_on(source, split, tmp_path):
    with pytest.raises(ConfigError, match="evaluation only"):
        load(source, tmp_path, split)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (">>> f([1, 2], 'a')\n    [3]", [([[1, 2], "a"], [3])]),
        ("f(1) == 2\n    f(3) ==> 4\n    f(5) ➞ 6", [([1], 2), ([3], 4), ([5], 6)]),
        ("f('(') should return False.\n    f(2) => true", [(["("], False), ([2], True)]),
        ("f(x) == 3 and f(n=1) == 2 and f()", []),
    ],
)
def test_examples_in_words_are_read_where_they_are_literals(lines, found):
    prompt = f'def f(*args):\n    """Do it.\n    {lines}\n    """\n'
    assert [(test["args"], test["expected"]) for test in docstring_examples(prompt, "f")] == found


# ---- CodeContests


def contest(statement, *pairs):
    return {"problem": statement, "tests": {"inputs": [a for a, _ in pairs], "outputs": [b for _, b in pairs]}}


def test_contest_problems_without_a_hidden_test_are_left_out(tmp_path):
    rows = [contest("Input 1 2 gives 3", ("1\n2\n", "3\n"), ("55 66\n", "121\n")), contest("Input 7", ("7\n", "7\n"))]
    (tmp_path / "c.json").write_text(json.dumps(rows))
    (problem,) = load("codecontests", tmp_path / "c.json")
    assert [test["input"] for test in problem.public] == ["1\n2\n"]
    assert [test["input"] for test in problem.hidden] == ["55 66\n"]


def test_public_tests_occur_in_the_statement_or_are_the_first_two():
    tests = [{"input": f"{n}\n", "output": "0"} for n in (100, 200, 300, 400000, 100)]
    public, hidden = choose_tests("No example.", tests, most=15)
    assert ([t["input"] for t in public], [t["input"] for t in hidden]) == (["100\n", "200\n"], ["300\n", "400000\n"])
    public, hidden = choose_tests("For 3 0 0 print 0.", tests, most=3)
    assert ([t["input"] for t in public], [t["input"] for t in hidden]) == (["300\n"], ["100\n", "400000\n"])


def test_a_shown_test_never_becomes_hidden_for_want_of_room():
    tests = [{"input": f"{n}\n", "output": "0"} for n in (10, 20, 30, 4)]
    public, hidden = choose_tests("10 20 30", tests, most=2)
    assert ([t["input"] for t in public], [t["input"] for t in hidden]) == (["10\n"], ["4\n"])


# ---- the real files


@pytest.mark.parametrize(
    ("source", "split", "count"),
    [
        ("mbpp", "train", 371),
        ("mbpp", "validation", 90),
        ("mbpp", "test", 499),
        ("humaneval", "test", 164),
        ("codecontests", "test", 114),
    ],
)
def test_the_real_files_give_as_many_problems_as_known(data_dir, source, split, count):
    problems = load_problems(CodingConfig(source=source), split, count=10_000)
    assert len({problem.problem_id for problem in problems}) == count
    assert all(problem.public and problem.hidden for problem in problems)
    assert all(len(problem.public) + len(problem.hidden) <= 15 for problem in problems)
    assert data_hash(problems[:5]) == data_hash(load_problems(CodingConfig(source=source), split, count=5))
