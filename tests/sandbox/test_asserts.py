"""Asserts of data sets become tests whose expected values stay out of the sandbox."""

from __future__ import annotations

import pytest

from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox.asserts import from_assert, from_check
from jaxrl_agent.sandbox.judge import judge_program
from jaxrl_agent.testing.plain_workers import plain_sessions


def judge(program, tests):
    return judge_program(program, tests, sessions=plain_sessions)


def test_a_literal_assert_becomes_arguments_and_an_expected_value():
    test = from_assert("assert f([1, (2,)], k=-3*19) == {'a': 2**3}")
    assert (test["entry_point"], test["args"], test["kwargs"]) == ("f", [[1, (2,)]], {"k": -57})
    assert test["expected"] == {"a": 8}
    assert judge("def f(x, k): return {'a': x[1][0] * 4}", [test]).ok
    assert not judge("def f(x, k): return {'a': 8.0001}", [test]).ok


def test_an_argument_that_only_the_candidate_can_make_becomes_a_call():
    test = from_assert("assert depth(root) == 1", setup="root = Node(5)")
    assert test["call"] == "depth(root)"
    assert judge("class Node:\n    def __init__(self, v): pass\ndef depth(n): return 1", [test]).ok


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        ("assert abs(f(1) - 0.5) < 1e-6", "0.5000001", "0.51"),
        ("assert f(1)", "[0]", "[]"),
        ("assert not f(1)", "0", "1"),
        ("assert f(1) is True", "True", "1"),
        ("assert set(f(1)) == {1, 2}", "[2, 1, 1]", "[1]"),
        ("assert f(1) == sorted([2, 1])", "[1, 2]", "[2, 1]"),
        ("assert f(1) == 2.0 / 3.0", "2 / 3", "0.6667"),
    ],
)
def test_other_asserts_are_asked_about_the_value(text, right, wrong):
    test = from_assert(text, entry_point="f")
    assert judge(f"def f(n): return {right}", [test]).ok
    assert not judge(f"def f(n): return {wrong}", [test]).ok


def test_python_may_compare_where_a_source_takes_1_for_true():
    text = "assert f(1) == True"
    assert not judge("def f(n): return 1", [from_assert(text)]).ok
    assert judge("def f(n): return 1", [from_assert(text, by_checker=True)]).ok


@pytest.mark.parametrize(
    "text", ["f(1) == 2", "assert f(1) == f(2)", "assert 1 == 1", "assert g(x) > 1", "assert f(x) == y"]
)
def test_an_assert_that_cannot_be_taken_apart_is_refused(text):
    with pytest.raises(ArgumentError):
        from_assert(text, entry_point="f")


def test_literals_are_never_run():
    assert from_assert("assert f(9**9**9) == 1")["call"] == "f(9 ** 9 ** 9)"  # left to the sandbox
    with pytest.raises(ArgumentError):
        from_assert("assert f(x) == 9**9**9")
    assert "checker" in from_assert("assert f(1) == __import__('os').getpid()")


LOOPED = """
def check(candidate):
    import random
    for _ in range(3):
        n = random.randint(1, 9)
        assert candidate(n) == n * n
"""
TOLERANT = """
def check(candidate):
    for n in range(1, 4):
        root = candidate(n)
        assert abs(root * root - n) < 1e-4
"""


def test_asserts_in_loops_are_recorded_from_the_reference():
    tests = from_check(LOOPED, entry_point="f", reference="def f(n): return n ** 2", sessions=plain_sessions)
    assert [test["expected"] for test in tests] == [test["args"][0] ** 2 for test in tests]
    assert len(tests) == 3


def test_loops_with_another_condition_are_replayed_on_the_answer():
    tests = from_check(TOLERANT, entry_point="f", reference="def f(n): return n ** 0.5", sessions=plain_sessions)
    assert all("checker" in test for test in tests)
    assert judge("def f(n): return -(n ** 0.5)", tests).ok
    assert judge("def f(n): return 1.0", tests).passed == 1
    assert judge("def f(n): pass", tests).passed == 0


def test_a_reference_that_does_not_pass_its_own_check_is_the_sandboxs_failure():
    with pytest.raises(SandboxError):
        from_check(LOOPED, entry_point="f", reference="def f(n): return 0", sessions=plain_sessions)
