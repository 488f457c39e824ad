"""Grades: shares and states read from verdicts, kept by problem and program, shared by threads."""

from __future__ import annotations

import concurrent.futures
import threading

import pytest

from jaxrl_agent.sandbox import Limits, Status, Verdict
from jaxrl_agent.sandbox.judge import JudgedCase
from jaxrl_agent.tasks.coding.grading import Grader, read_verdict
from jaxrl_agent.testing.coding import ScriptedJudge, number_problem

LIMITS = Limits(cpu_s=1.0)


def graded(program: str, **tests: int):
    return Grader(LIMITS, judge=ScriptedJudge()).grade(number_problem(**tests), program)


def test_a_grade_counts_public_and_hidden_tests_apart():
    grade = graded("pass fail raise pass")
    assert (grade.public_passed, grade.n_public, grade.hidden_passed, grade.n_hidden) == (1, 2, 2, 3)
    assert (grade.passed, grade.share, grade.all_public, grade.all_tests) == (3, 0.6, False, False)
    assert [outcome.status for outcome in grade.failures] == [Status.WRONG]
    assert grade.failures[0].test["args"] == [4]


def test_all_tests_means_all_of_them():
    assert graded("pass").all_tests
    assert not graded("pass pass pass pass fail").all_tests
    assert graded("pass pass fail").all_public


def test_equal_verdicts_have_one_name():
    names = [graded(program).fingerprint for program in ("fail", "fail # other", "raise", "fail pass")]
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_outcomes_are_those_of_public_tests_alone():
    assert len(graded("fail", public=2, hidden=7).outcomes) == 2


def test_tests_that_were_not_run_have_failed():
    verdict = Verdict(Status.WRONG, 1, 4, (JudgedCase(Status.OK), JudgedCase(Status.WRONG)))
    grade = read_verdict(verdict, number_problem().public, 4)
    assert grade.statuses == (Status.OK, Status.WRONG, Status.TIME_LIMIT, Status.TIME_LIMIT)
    assert not grade.all_tests


def test_one_test_without_a_verdict_voids_the_grade_even_if_another_failed():
    assert graded("fail lost").could_not_check
    assert graded("lost fail").could_not_check
    assert not graded("lost").all_tests
    lost = Verdict(Status.WRONG, 1, 2, (JudgedCase(Status.OK),), could_not_check=True)
    assert read_verdict(lost, number_problem().public, 2).could_not_check


def test_verdicts_are_kept_by_problem_and_exact_program():
    judge = ScriptedJudge()
    grader = Grader(LIMITS, judge=judge)
    problems = [number_problem(), number_problem("testing/other"), number_problem(hidden=2)]
    first = [grader.grade(problem, program) for problem in problems for program in ("pass", "pass ")]
    again = [grader.grade(problem, program) for problem in problems for program in ("pass", "pass ")]
    assert first == again
    assert len(judge.asked) == 6


def test_the_longest_unused_verdict_leaves_first():
    judge = ScriptedJudge()
    grader = Grader(LIMITS, judge=judge, size=2)
    problem = number_problem()
    for program in ("pass a", "pass b", "pass a", "pass c", "pass a", "pass b"):
        grader.grade(problem, program)
    assert judge.asked == ["pass a", "pass b", "pass c", "pass b"]


def test_what_could_not_be_checked_is_asked_again():
    judge = ScriptedJudge()
    grader = Grader(LIMITS, judge=judge)
    assert all(grader.grade(number_problem(), "lost").could_not_check for _ in range(3))
    assert len(judge.asked) == 3


def test_an_error_of_the_judge_leaves_nothing_behind():
    def broken(program, tests, *, limits):
        raise ValueError(program)

    grader = Grader(LIMITS, judge=broken)
    for _ in range(2):
        with pytest.raises(ValueError, match="pass"):
            grader.grade(number_problem(), "pass")


class Gate:
    """A judge that waits until the test lets it go on, and answers from a list."""

    def __init__(self, *words: str):
        self.words, self.asked = list(words), 0
        self.open, self.entered = threading.Event(), threading.Event()
        self._scripted = ScriptedJudge()

    def __call__(self, program, tests, *, limits):
        self.asked += 1
        word = self.words.pop(0)
        self.entered.set()
        assert self.open.wait(60)
        return self._scripted(word, tests, limits=limits)


@pytest.mark.parametrize(("words", "asked"), [(["pass"], 1), (["lost", "pass"], 2)])
def test_threads_that_ask_for_one_program_share_a_run_unless_it_gave_no_verdict(words, asked):
    judge = Gate(*words)
    grader, problem = Grader(LIMITS, judge=judge), number_problem()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        first = pool.submit(grader.grade, problem, "x")
        assert judge.entered.wait(60)
        others = [pool.submit(grader.grade, problem, "x") for _ in range(7)]
        judge.open.set()
        assert first.result(60).could_not_check == (words[0] == "lost")
        assert all(other.result(60).all_tests for other in others)
    assert judge.asked == asked


def test_many_threads_get_the_right_grades():
    grader = Grader(LIMITS, judge=ScriptedJudge(), size=5)
    problems = [number_problem(f"testing/{name}") for name in range(4)]
    programs = ["pass", "fail", "pass fail", "fail pass", "raise"]
    jobs = [(problem, program) for problem in problems for program in programs] * 20
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        grades = list(pool.map(lambda job: grader.grade(*job), jobs))
    expected = {"pass": 5, "fail": 0, "pass fail": 1, "fail pass": 4, "raise": 0}
    assert [grade.passed for grade in grades] == [expected[program] for _, program in jobs]


def test_a_narrower_grader_has_its_own_verdicts_and_is_made_once():
    judge = ScriptedJudge()
    grader = Grader(Limits(cpu_s=6.0, memory_mb=99), judge=judge)
    grader.grade(number_problem(), "pass")
    narrow = grader.within(0.5)
    assert narrow is grader.within(0.5)
    assert narrow.grade(number_problem(), "pass").all_tests
    assert judge.limits == Limits(cpu_s=0.5, memory_mb=99)
    assert len(judge.asked) == 2
    assert grader.within(10.0).limits.cpu_s == 6.0
