"""Every shape in which DeepCoder's dataset writes tests, on hand-made rows."""

from __future__ import annotations

import base64
import dataclasses
import json
import pickle
import random
import zlib

import pytest

from jaxrl_agent.config.sections import CodingConfig
from jaxrl_agent.errors import DataError
from jaxrl_agent.sandbox.judge import judge_program
from jaxrl_agent.tasks.coding.deepcoder_rows import RefusedRow, load_deepcoder, read_row, read_tests
from jaxrl_agent.tasks.coding.sources import data_hash, load_problems
from jaxrl_agent.tasks.coding.splits import SPLITS
from jaxrl_agent.testing.plain_workers import plain_sessions


def stdin_tests(*numbers):
    return [{"input": f"{n}\n", "output": f"{2 * n}\n", "testtype": "stdin_stdout"} for n in numbers]


def row(problem="Print the double of a number. Example: 21 gives 42.", tests=None, **more):
    return {"problem": problem, "tests": json.dumps(tests or stdin_tests(1, 21, 300)), **more}


def test_listed_tests_on_standard_input():
    problem = read_row("x" * 64, row(solutions=["```python\nprint(2 * int(input()))\n```"]), most=15)
    assert (problem.style, problem.problem_id) == ("stdin", "deepcoder/xxxxxxxxxxxxxxxx")
    assert [test["input"] for test in problem.public] == ["1\n", "21\n"]  # both occur in the statement
    assert [test["input"] for test in problem.hidden] == ["300\n"]
    assert judge_program(problem.solution, problem.hidden, sessions=plain_sessions).ok


def test_functional_tests_have_lines_of_json_as_arguments_and_their_name_in_metadata():
    tests = [{"input": '[1, 2]\n"a"', "output": "[2, 1]", "testtype": "functional", "metadata": {"func_name": "f"}}]
    assert list(read_tests(tests)) == [{"entry_point": "f", "args": [[1, 2], "a"], "expected": [2, 1]}]
    bare = [{key: value for key, value in tests[0].items() if key != "metadata"}]
    assert next(read_tests(bare, function="g"))["entry_point"] == "g"
    with pytest.raises(RefusedRow, match="name"):
        list(read_tests(bare))


def test_the_name_of_a_function_is_also_found_in_the_metadata_of_the_row():
    tests = [{"input": str(n), "output": str(n), "testtype": "functional"} for n in range(3)]
    problem = read_row(
        "y" * 64, row("Same.", tests, metadata='{"func_name": "same"}', starter_code="def same(n):"), most=9
    )
    assert (problem.style, problem.entry_point) == ("function", "same")
    assert problem.statement.endswith("Start from this code:\ndef same(n):")
    assert (len(problem.public), len(problem.hidden)) == (2, 1)


def test_paired_tests_with_texts_and_with_lists_of_lines():
    tests = {"inputs": ["1\n2\n", ["3", "4"]], "outputs": ["3\n", ["7"]]}
    assert list(read_tests(tests)) == [{"input": "1\n2\n", "output": "3\n"}, {"input": "3\n4", "output": "7"}]


def test_paired_tests_of_a_function_unwrap_values_in_lists_of_one():
    wrapped = {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [[3], [7]]}
    assert [test["expected"] for test in read_tests(wrapped)] == [3, 7]
    plain = {"fn_name": "add", "inputs": ["1\n2", "[3]\n[4, 5]"], "outputs": ["3", "[3, 4, 5]"]}
    assert [(test["args"], test["expected"]) for test in read_tests(plain)] == [([1, 2], 3), ([[3], [4, 5]], [3, 4, 5])]


def test_leetcodes_check_with_literals_becomes_tests():
    asserts = "assert candidate(nums=[2, 7], target=9) == [0, 1]", "assert candidate([1], 2) == []"
    check = "def check(candidate):\n    " + "\n    ".join(asserts)
    tests = list(read_tests({"functional": f"{check}\ncheck(Solution().twoSum)"}))
    assert tests[0] == {
        "entry_point": "twoSum",
        "args": [],
        "kwargs": {"nums": [2, 7], "target": 9},
        "expected": [0, 1],
    }
    solution = "class Solution:\n    def twoSum(self, nums, target):\n        return [0, 1] if target == 9 else []\n"
    assert judge_program(solution, tests, sessions=plain_sessions).ok


@pytest.mark.parametrize(
    ("check", "why"),
    [
        ("def check(candidate):\n    assert abs(candidate(1) - 2) < 1\ncheck(Solution().f)", "no comparison"),
        ("def check(candidate):\n    assert candidate(1) == 2", "never calls"),
        ("def check(candidate):\n    assert candidate(tree([1])) == candidate(2)\ncheck(Solution().f)", "one call"),
        ("def check(", "no Python"),
    ],
)
def test_other_checks_are_refused_with_a_reason(check, why):
    with pytest.raises(RefusedRow, match=why):
        list(read_tests({"functional": check}))


def packed(value):
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


class Evil:
    def __reduce__(self):
        return eval, ("1 + 1",)


def test_packed_private_tests_are_read_only_from_trusted_files_and_import_nothing():
    text = packed(json.dumps(stdin_tests(1, 2)))
    with pytest.raises(RefusedRow, match="trusted"):
        list(read_tests(text))
    assert [test["input"] for test in read_tests(text, trusted=True)] == ["1\n", "2\n"]
    for bad in (packed(Evil()), "no base64!", base64.b64encode(b"not compressed").decode()):
        with pytest.raises(RefusedRow, match="cannot be read"):
            list(read_tests(bad, trusted=True))


@pytest.mark.parametrize(
    "tests", [[], [{"input": "1"}], [{"input": "1", "output": "2", "testtype": "other"}], {"a": 1}]
)
def test_tests_of_another_shape_are_refused(tests):
    with pytest.raises(RefusedRow):
        read_row("z" * 64, {"problem": "p", "tests": tests}, most=5)


def test_the_longest_hidden_tests_are_kept():
    tests = stdin_tests(1, 7, *range(10, 20), 12345, 123456)
    problem = read_row("w" * 64, row("Double. For 1 print 2.", tests), most=3)
    assert [test["input"] for test in (*problem.public, *problem.hidden)] == ["1\n", "12345\n", "123456\n"]


# ---- files


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))


def numbered(numbers):
    return [row(f"Problem {number}: double.", stdin_tests(8001, 8002, 8003)) for number in numbers]


def load(path, split, count=1000):
    return load_problems(CodingConfig(source="deepcoder", path=str(path)), split, count=count)


def test_what_is_in_test_files_is_in_no_other_split_and_order_does_not_matter(tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        train, test = numbered(range(100)), numbered(range(90, 110))
        random.Random(seed).shuffle(train)
        write(tmp_path / name / "taco" / "train-0.jsonl", [*train, *train[:5]])
        write(tmp_path / name / "codeforces" / "test-0.jsonl", test)
    loaded = {name: {split: load(tmp_path / name, split) for split in SPLITS} for name in ("a", "b")}
    assert {split: data_hash(part) for split, part in loaded["a"].items()} == {
        split: data_hash(part) for split, part in loaded["b"].items()
    }
    names = {split: {problem.problem_id for problem in part} for split, part in loaded["a"].items()}
    assert len(names["test"]) == 20
    assert len(names["train"] | names["validation"]) == 90
    assert not names["test"] & (names["train"] | names["validation"])
    assert not names["train"] & names["validation"]


def test_a_file_without_a_split_in_its_name_is_divided_by_statement(tmp_path):
    write(tmp_path / "rows.jsonl", numbered(range(200)))
    counts = [len(load(tmp_path / "rows.jsonl", split)) for split in SPLITS]
    assert sum(counts) == 200
    assert min(counts) >= 3
    assert load(tmp_path / "rows.jsonl", "train", count=7) == load(tmp_path / "rows.jsonl", "train")[:7]


def test_rows_that_are_left_out_are_counted_in_the_log(tmp_path, caplog):
    write(tmp_path / "test.json", [*numbered(range(3)), row("Packed.", packed("[]"))])
    assert len(load(tmp_path / "test.json", "test")) == 3
    assert "left out 1 rows: 1 x packed private tests" in caplog.text


def test_trusted_files_give_their_packed_tests(tmp_path):
    write(tmp_path / "test.json", [row("Packed.", packed(json.dumps(stdin_tests(51, 52, 53))))])
    config = CodingConfig(source="deepcoder", path=str(tmp_path / "test.json"))
    assert len(load_deepcoder(dataclasses.replace(config, trusted=True), "test", 10)[0].hidden) == 1


def test_a_row_without_problem_or_tests_is_an_error(tmp_path):
    write(tmp_path / "test.jsonl", [{"question": "?"}])
    with pytest.raises(DataError, match="problem and tests"):
        load(tmp_path / "test.jsonl", "test")


CHECK = "def check(candidate):\n    assert candidate({}) == 2\ncheck(Solution().f)"


@pytest.mark.parametrize(
    "strange",
    [
        {"tests": json.dumps({"functional": CHECK.format("x")})},  # a name, where literals are asked for
        {"tests": json.dumps({"functional": 3})},
        {"tests": json.dumps({"inputs": ["1"], "outputs": None})},
        {"tests": json.dumps({"inputs": ["1", "2", "3"], "outputs": ["1", "2", "3"], "fn_name": ["f"]})},
        {"solutions": {"python": "print(1)"}},
        {"starter_code": 3},
    ],
)
def test_an_odd_row_is_left_out_and_the_others_are_read(strange, tmp_path, caplog):
    rows = [row(), row("Another one.") | strange]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = [p for split in SPLITS for p in load_deepcoder(CodingConfig(path=str(tmp_path)), split, 10)]
    assert [problem.statement for problem in found] == [rows[0]["problem"]]
    assert "left out 1 rows" in caplog.text
