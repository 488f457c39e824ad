"""The judge: what passes, what fails, what cannot be checked; first without a sandbox, on programs of our own."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox.judge import FEEDBACK_BYTES, ajudge_program, judge_program, judge_programs, run_call
from jaxrl_agent.sandbox.results import Limits, Result, Status
from jaxrl_agent.testing.plain_workers import plain_sessions

DOUBLE = "print(int(input()) * 2)\n"
DOUBLED = [{"input": "21\n", "output": "42\n"}, {"input": "5", "output": "10"}]


def judge(program, tests, **options):
    return judge_program(program, tests, sessions=options.pop("sessions", plain_sessions), **options)


def call_test(*args, expected, **more):
    return {"entry_point": "solve", "args": list(args), "expected": expected, **more}


class Scripted:
    """Sessions that answer from a list, whatever the program; an exception is raised. Keeps what they were asked."""

    def __init__(self, *answers):
        self.answers, self.opened, self.asked = list(answers), 0, []

    @contextlib.contextmanager
    def __call__(self, program, limits):
        self.opened += 1
        yield self

    def run(self, stdin):
        self.asked.append(stdin)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Result(Status.OK, answer) if isinstance(answer, str) else answer


# ---- standard input and output


def test_a_right_program_passes_every_test():
    verdict = judge(DOUBLE, DOUBLED)
    assert (verdict.status, verdict.passed, verdict.total, verdict.ok) == (Status.OK, 2, 2, True)
    assert verdict.feedback == ""


def test_one_wrong_answer_fails_the_whole_and_the_rest_still_counts():
    verdict = judge("n = int(input())\nprint(42 if n == 21 else 0)", [*DOUBLED, DOUBLED[0]])
    assert (verdict.status, verdict.passed, verdict.total, verdict.ok) == (Status.WRONG, 2, 3, False)
    assert [case.status for case in verdict.results] == [Status.OK, Status.WRONG, Status.OK]
    assert verdict.feedback == "Test 2 of 3: wrong."


def test_stopping_at_the_first_failure_leaves_the_rest_out():
    verdict = judge("print(0)", DOUBLED, stop_at_first=True)
    assert (verdict.passed, verdict.total, len(verdict.results), verdict.ok) == (0, 2, 1, False)


@pytest.mark.parametrize(
    "program",
    [
        "",
        "import os\nos._exit(0)",
        "import sys\nsys.exit(0)",
        "import json\nprint(json.dumps({'status': 'ok', 'passed': 2, 'could_not_check': True}))",
        "print('ALL TESTS PASSED')",
        "class A(str):\n    def __eq__(self, other): return True\nprint(A('x'))",
        "import atexit\natexit.register(print, 'OK')",
    ],
)
def test_a_program_without_the_answer_is_wrong(program):
    verdict = judge(program, DOUBLED)
    assert (verdict.status, verdict.passed) == (Status.WRONG, 0)


def test_a_right_answer_with_a_bad_exit_is_a_runtime_error():
    verdict = judge("print(int(input()) * 2)\nraise KeyError('lost')", DOUBLED)
    assert (verdict.status, verdict.passed) == (Status.RUNTIME_ERROR, 0)
    assert "KeyError: 'lost'" in verdict.feedback


# ---- functions


NODE = "class Node:\n    def __init__(self, v): self.v = v\ndef top(n): return n.v"
POINT = "class P:\n    x: int\ndef solve(): return P(1).x"


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def solve(n): return n * 2", call_test(21, expected=42)),
        ("def solve(n): print('noise'); return n * 2.0", call_test(21, expected=42)),
        ("class Solution:\n    def solve(self, n): return [n]", call_test(21, expected=[21])),
        ("class A:\n    def f(self, n): return n", {"entry_point": "A.f", "args": [1], "expected": 1}),
        ("def solve(*, n): return n", call_test(expected=3, kwargs={"n": 3})),
        ("def solve(t): return t[::-1]", call_test((1, "b"), expected=("b", 1))),
        ("def solve(d): return {v: k for k, v in d.items()}", call_test({1: (2, 3)}, expected={(2, 3): 1})),
        ("from collections import Counter\ndef solve(s): return Counter(s)", call_test("aa", expected={"a": 2})),
        ("def solve(s): return set(s)", call_test("ba", expected={"a", "b"})),
        ("def solve(): return float('inf')", call_test(expected=float("inf"))),
        ("def solve(): return 7 ** 5000", call_test(expected=7**5000)),
        ("def solve(): return 'gr\\u00fcn \\ud800'", call_test(expected="grün \ud800")),
        ("def solve(n): return n", call_test(5, expected=6, setup="old = solve\ndef solve(n): return old(n) + 1")),
        (NODE, {"call": "top(Node(3))", "expected": 3}),
        (f"from dataclasses import dataclass\n@dataclass\n{POINT}", call_test(expected=1)),
        ("def solve(n): return n\nif __name__ == '__main__':\n    input()", call_test(1, expected=1)),
        ("import sys\ndef solve(): sys.stdout.buffer.write(b'raw'); return 1", call_test(expected=1)),
    ],
)  # fmt: skip
def test_right_values_pass(program, test):
    assert judge(program, [test]).ok


ALWAYS_EQUAL = """
class Yes(int):
    def __eq__(self, other): return True
    def __repr__(self): return "42"
    __hash__ = None
def solve(n): return Yes(7)
"""


@pytest.mark.parametrize(
    ("program", "expected", "status"),
    [
        ("def solve(n): return True", 1, Status.WRONG),
        ("def solve(n): return 1", True, Status.WRONG),
        ("def solve(n): return '42'", 42, Status.WRONG),
        ("def solve(n): return None", 42, Status.WRONG),
        ("def solve(n): print(42)", 42, Status.WRONG),
        (ALWAYS_EQUAL, 42, Status.RUNTIME_ERROR),
        ("def solve(n): return range(3)", [0, 1, 2], Status.RUNTIME_ERROR),
        ("def other(n): return 42", 42, Status.RUNTIME_ERROR),
        ("def solve(): return 42", 42, Status.RUNTIME_ERROR),
        ("def solve(n): return solve(n)", 42, Status.RUNTIME_ERROR),
        ("def solve(n) return 42", 42, Status.RUNTIME_ERROR),
        ("\0", 42, Status.RUNTIME_ERROR),
        ("x = '\ud800'", 42, Status.RUNTIME_ERROR),
        ("import os\nos._exit(0)", 42, Status.WRONG),
        ("import sys\ndef solve(n): sys.exit(0)", 42, Status.WRONG),
        ("import os\ndef solve(n):\n    os.write(1, b'42'); os._exit(0)", 42, Status.WRONG),
        ("import json\njson.dumps = lambda *a, **k: 'true'\ndef solve(n): return 0", 42, Status.WRONG),
        ("import json\njson.dumps = lambda *a, **k: '[' * 100000\ndef solve(n): return 0", 42, Status.WRONG),
        ("import json\njson.dumps = lambda *a, **k: 'NaN'\ndef solve(n): return 0", 42, Status.WRONG),
        ("def solve(n):\n    a = []\n    a.append(a)\n    return a", 42, Status.RUNTIME_ERROR),
    ],
)
def test_wrong_values_fail(program, expected, status):
    verdict = judge(program, [call_test(21, expected=expected)])
    assert (verdict.status, verdict.passed, verdict.could_not_check) == (status, 0, False)


def test_a_forged_answer_is_an_answer_and_no_more():
    forged = "import os\nfor fd in range(3, 9):\n    try: os.write(fd, b'{}')\n    except OSError: pass\nos._exit(0)"
    assert not judge(forged.format("true"), [call_test(1, expected=2)]).ok
    assert not judge(forged.format('{"status": "ok"}'), [call_test(1, expected={"status": "ok"})]).ok
    assert judge(forged.format("2"), [call_test(1, expected=2)]).ok  # as good as `return 2`


def test_what_is_expected_never_goes_to_the_candidate():
    secret = "SECRET-e57a"
    sessions = Scripted("1", "null", "null", "true")
    tests = [
        {"input": "1", "output": secret},
        call_test(1, expected={secret: 1}),
        {"entry_point": "solve", "args": [], "checker": f"def check(args, value): return value == '{secret}'"},
    ]
    judge("program", tests, sessions=sessions)
    assert len(sessions.asked) == 4
    assert [secret in asked for asked in sessions.asked] == [False, False, False, True]  # the checker's own sandbox
    assert "program" not in json.loads(sessions.asked[3])["program"]


def test_a_candidate_that_searches_its_process_finds_no_expected_value():
    search = """
import gc, sys
def solve():
    mark, seen = "".join(["SEC", "RET-"]), []
    frame = sys._getframe()
    while frame is not None:
        seen += [repr(frame.f_locals), repr(frame.f_globals)]
        frame = frame.f_back
    seen += [repr(item) for item in gc.get_objects() if type(item) in (dict, list, str, tuple)]
    return any(mark + "e57a"[:1] in text for text in seen)
"""
    assert judge(search, [call_test(expected="SECRET-e57a"), call_test(expected=False)]).passed == 1


# ---- checkers

ANY_DIVISOR = "def check(args, value):\n    return type(value) is int and 1 < value < args[0] and args[0] % value == 0"


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("2", Status.OK),
        ("3", Status.OK),
        ("5", Status.WRONG),
        ("2.0", Status.WRONG),
        ("None", Status.WRONG),
        ("'x' * 10", Status.WRONG),
    ],
)
def test_a_checker_accepts_any_right_answer(value, status):
    test = {"entry_point": "solve", "args": [6], "checker": ANY_DIVISOR}
    verdict = judge(f"def solve(n): return {value}", [test])
    assert (verdict.status, verdict.could_not_check) == (status, False)


@pytest.mark.parametrize("returned", ["1", "'true'", "None", "[True]", "1 / 0", "Yes()"])
def test_a_checker_must_return_exactly_true(returned):
    checker = f"class Yes:\n    def __bool__(self): return True\ndef check(args, value): return {returned}"
    verdict = judge("def solve(): return 1", [{"entry_point": "solve", "args": [], "checker": checker}])
    assert verdict.status is Status.WRONG


def test_a_checker_reads_printed_text():
    checker = "def check(given, printed):\n    a, b = map(int, printed.split())\n    return a + b == int(given)"
    test = {"input": "7\n", "checker": checker}
    assert judge("n = int(input())\nprint(n - 3, 3)", [test]).ok
    assert not judge("print(3, 3)", [test]).ok
    assert not judge("print('7')", [test]).ok


# ---- refusals, feedback, budgets, failures of sandboxes


@pytest.mark.parametrize(
    "tests",
    [
        [],
        [{}],
        [{"input": "1"}],
        [{"output": "1"}],
        [{"input": 1, "output": "1"}],
        [{"input": "1", "output": "1", "expected": 1}],
        [{"args": [1], "expected": 1}],
        [{"entry_point": "f", "args": [object()], "expected": 1}],
        [{"entry_point": "f", "args": [1], "expected": object()}],
        [{"entry_point": "f", "args": [1], "expected": 1, "rules": {"exact": True}}],
        [{"entry_point": "f", "args": [1], "expected": 1, "weight": 2}],
        ["assert f(1) == 1"],
    ],
)
def test_tests_of_no_known_form_are_refused(tests):
    with pytest.raises(ArgumentError):
        judge("x", tests)


def test_feedback_is_the_candidates_own_words_and_at_most_2_kb():
    program = "def helper(n):\n    raise ValueError('ä' * 5000 + f'got {n}')\ndef solve(n): return helper(n)"
    verdict = judge(program, [call_test(21, expected="SECRET")])
    assert len(verdict.feedback.encode()) <= FEEDBACK_BYTES
    assert verdict.feedback.startswith("Test 1 of 1: runtime error")
    assert verdict.feedback.endswith("got 21")
    assert "SECRET" not in verdict.feedback


def test_a_traceback_shows_the_program_and_not_the_judge():
    verdict = judge("def solve(n):\n    return n / 0", [call_test(21, expected=1)])
    assert 'File "main.py", line 2, in solve\n    return n / 0' in verdict.feedback
    assert "answer" not in verdict.feedback.split("(exit code 1)")[-1]
    assert verdict.results[0].error.strip() in verdict.feedback


def test_tests_beyond_the_time_of_all_are_failed_without_running():
    slow = Result(Status.TIME_LIMIT, cpu_s=0.1, reason="wall time")
    sessions = Scripted(slow, slow, "never")
    verdict = judge("x", [DOUBLED[0]] * 5, sessions=sessions, limits=Limits(cpu_s=1.0), budget_s=2.0)
    assert (len(sessions.asked), len(verdict.results), verdict.status) == (2, 5, Status.TIME_LIMIT)
    assert "not run" in verdict.results[-1].reason


def test_a_sandbox_that_fails_is_replaced_once():
    sessions = Scripted(SandboxError("died"), "42", "10")
    verdict = judge("x", DOUBLED, sessions=sessions)
    assert verdict.ok
    assert sessions.opened == 2


def test_what_fails_twice_could_not_be_checked_and_never_passes():
    verdict = judge("x", DOUBLED, sessions=Scripted("42", SandboxError("died"), SandboxError("died")))
    assert verdict.could_not_check
    assert not verdict.ok
    assert verdict.status is not Status.OK
    assert verdict.passed == 1


def test_a_failed_test_decides_although_another_could_not_be_checked():
    verdict = judge("x", DOUBLED, sessions=Scripted(SandboxError("died"), SandboxError("died"), "0"))
    assert not verdict.could_not_check
    assert verdict.feedback.startswith("Test 2 of 2: wrong")


def test_a_sandbox_that_cannot_be_opened_could_not_check():
    @contextlib.contextmanager
    def closed(program, limits):
        raise SandboxError("no namespaces")
        yield

    verdict = judge(DOUBLE, DOUBLED, sessions=closed)
    assert verdict.could_not_check
    assert "no namespaces" in verdict.results[0].reason


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_a_right_answer_of_a_run_that_failed_does_not_count(status):
    verdict = judge("x", [DOUBLED[0]], sessions=Scripted(Result(status, "42\n")))
    assert (verdict.status, verdict.passed) == (status, 0)


def test_the_tier_of_the_runs_is_recorded():
    assert judge(DOUBLE, DOUBLED).tier == "none"


def test_many_programs_are_judged_at_once_in_order():
    jobs = [(DOUBLE, DOUBLED), ("print(0)", DOUBLED), ("print(42)", DOUBLED)]
    verdicts = judge_programs(jobs, workers=2, sessions=plain_sessions)
    assert [verdict.passed for verdict in verdicts] == [2, 0, 1]
    assert asyncio.run(ajudge_program(*jobs[2], sessions=plain_sessions)).passed == 1


def test_a_trusted_call_without_a_value_is_the_sandboxs_failure():
    assert run_call({"program": "", "call": "{1: (2,)}"}, limits=Limits(), sessions=plain_sessions) == {1: (2,)}
    with pytest.raises(SandboxError, match="NameError"):
        run_call({"program": "", "call": "missing"}, limits=Limits(), sessions=plain_sessions)
